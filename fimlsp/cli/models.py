"""``fimlsp models``: what there is, fetching it, and where it lies."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from fimlsp.cli.options import with_settings
from fimlsp.config import Settings
from fimlsp.models import catalog
from fimlsp.models.params import ModelsParams
from fimlsp.models.pull import pull as pull_model


@click.group()
def models() -> None:
    """List, fetch and find model files."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_settings
def list_models(as_json: bool, settings: Settings) -> None:
    """Show the catalogue and what of it is on this machine."""
    rows = catalog.listing(settings.config.models)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
        return
    table = Table()
    for title in ("name", "size", "licence", "context", "here"):
        table.add_column(title, no_wrap=True)  # a cut name is of no use, in a pipe least of all
    table.add_column("draft partner")
    for row in rows:
        size = f"{'' if row.size_is_exact else '~'}{row.size_bytes / 1e9:.2f} GB"
        here = "yes" if row.verified else "not verified" if row.installed else ""
        table.add_row(row.name, size, row.licence, str(row.n_ctx_train), here, row.draft)
    Console().print(table)


@models.command("pull")
@click.argument("name")
@with_settings
def pull(name: str, settings: Settings) -> None:
    """Fetch catalogue model NAME; an interrupted fetch goes on where it stopped."""
    click.echo(pull_with_progress(name, settings.config.models))


@models.command("path")
@click.argument("name")
@with_settings
def path(name: str, settings: Settings) -> None:
    """Print the file of model NAME."""
    click.echo(catalog.resolve(name, settings.config.models))


def pull_with_progress(name: str, params: ModelsParams) -> Path:
    """Fetch a model with a progress bar on stderr; quick when it is there."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None, visible=False)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=what, visible=True)

        return pull_model(name, params, progress)
