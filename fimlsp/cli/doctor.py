"""``fimlsp doctor``: can this machine complete, and if not, why."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console

from fimlsp.cli.options import as_sets, with_settings
from fimlsp.config import Settings
from fimlsp.config.footprint import gpu_presets
from fimlsp.doctor import complete_in_child, render, run_doctor, usable
from fimlsp.engine.native.probe import probe


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_settings
def doctor(as_json: bool, settings: Settings) -> None:
    """Check libraries, CPU, GPU, memory, models and settings, and make one real completion."""
    config = settings.config
    wanted = {
        "models.target": config.models.target,
        "models.dir": config.models.dir,
        **{f"engine.{name}": value for name, value in asdict(config.engine).items()},
    }
    child = ["demo", "--json", *as_sets(wanted)]
    checks = run_doctor(
        probe=probe,
        models=config.models,
        config_problems=[str(problem) for problem in settings.problems],
        presets={name: need.total for name, need in gpu_presets().items()},
        complete=lambda: complete_in_child(child),
    )
    if as_json:
        click.echo(json.dumps({"usable": usable(checks), "checks": [asdict(c) for c in checks]}))
    else:
        render(checks, Console())
    sys.exit(0 if usable(checks) else 1)
