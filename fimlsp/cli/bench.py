"""``fimlsp bench``: ratios and figures from one run on one machine."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from fimlsp.bench import report
from fimlsp.bench.backends import run_backends
from fimlsp.bench.cancel import run_cancel
from fimlsp.bench.decode import DecodeOptions, run_decode
from fimlsp.bench.decode import render as render_decode
from fimlsp.bench.typing import TypingOptions, run_typing, serve_command
from fimlsp.cli.options import as_sets, with_settings
from fimlsp.cli.session import open_engine
from fimlsp.config import Config, Settings
from fimlsp.engine.api import Engine, EngineState, Phase
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import BenchError
from fimlsp.models import catalog

_UNHURRIED_MS = 10**9
"""Time to read a prompt that any window can be read in."""

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def bench() -> None:
    """Measure this machine. Compare ratios of one run, never figures of two machines."""


@bench.command("typing")
@click.option(
    "--traces",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Typing traces (JSON lines, may be gzipped); a small bundled set without it.",
)
@click.option("--limit", type=click.IntRange(1), help="Traces at most.")
@click.option("--strokes", type=click.IntRange(1), help="Keys per trace at most.")
@click.option("--pace-ms", type=click.FloatRange(0), default=200.0, show_default=True)
@click.option("--live", is_flag=True, help="Keys come every --pace-ms whatever happens.")
@click.option("--others", is_flag=True, help="Open each trace's other files in fimlsp.")
@click.option("--peer-llama-server", metavar="BIN", help="Also measure this llama-server.")
@as_json_option
@with_settings
def typing(
    traces: Path | None,
    limit: int | None,
    strokes: int | None,
    pace_ms: float,
    live: bool,
    others: bool,
    peer_llama_server: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Type traces as a person would, in fimlsp and, alternating, against llama-server."""
    config = settings.config
    threads = _threads(config)
    model = catalog.resolve(config.models.target, config.models)
    options = TypingOptions(
        serve_command=serve_command(*_as_sets(config, model, threads)),
        model=model,
        threads=threads,
        traces=traces,
        limit=limit,
        strokes=strokes,
        pace_ms=pace_ms,
        live=live,
        others=others,
        peer_command=tuple(shlex.split(peer_llama_server)) if peer_llama_server else (),
    )
    _print(run_typing(options), report.render, as_json=as_json)


@bench.command("backends")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@as_json_option
@with_settings
def backends(repeats: int, as_json: bool, settings: Settings) -> None:
    """Prefill, decode and the verify curve T(n) of each installed native library."""
    config = settings.config
    model = catalog.resolve(config.models.target, config.models)
    result = run_backends(model, _threads(config), repeats)
    _print(result, _backends_table, as_json=as_json)


@bench.command("cancel")
@click.option("--count", type=click.IntRange(2), default=200, show_default=True)
@as_json_option
@with_settings
def cancel(count: int, as_json: bool, settings: Settings) -> None:
    """How soon the engine is free after a cancel in mid-prefill and mid-decode."""
    with _loaded(settings.config) as engine:
        result = {"model": engine.info.path.name, **run_cancel(engine, count)}
    _print(result, lambda r: json.dumps(r, indent=2), as_json=as_json)


@bench.command("decode")
@click.option(
    "--traces",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Typing traces (JSON lines, may be gzipped); a small bundled set without it.",
)
@click.option("--limit", type=click.IntRange(1), help="Traces at most.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--alone/--no-alone", default=True, show_default=True, help="Measure each draft source alone."
)
@click.option("--cold", is_flag=True, help="Use the small windows of cold files, not full ones.")
@click.option(
    "--spec-synthetic",
    "synthetic",
    multiple=True,
    type=click.FloatRange(0, 1),
    metavar="A",
    help="Also study drafts that are right with this probability; may be repeated.",
)
@click.option("--llama-bench", metavar="BIN", help="Compare plain decoding with this llama-bench.")
@as_json_option
@with_settings
def decode(
    traces: Path | None,
    limit: int | None,
    runs: int,
    alone: bool,
    cold: bool,
    synthetic: tuple[float, ...],
    llama_bench: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Plain against speculative decoding, on warm prompts that typing traces lead to."""
    config = settings.config
    options = DecodeOptions(
        completion=config.completion,
        window=config.window if cold else replace(config.window, cold_ms=_UNHURRIED_MS),
        sampling=config.sampling,
        sources=config.speculation.sources,
        max_draft=config.speculation.max_draft,
        traces=traces,
        limit=limit,
        runs=runs,
        alone=alone,
        synthetic=synthetic,
        llama_bench=llama_bench or "",
    )
    with _loaded(config, remember=False) as engine:
        if not isinstance(engine, InProcessEngine):
            raise BenchError("bench decode measures the engine in this process, not another's")
        result = run_decode(engine, options)
    _print(result, render_decode, as_json=as_json)


@contextlib.contextmanager
def _loaded(config: Config, *, remember: bool = True) -> Iterator[Engine]:
    """Open the engine and wait until it is ready, or has failed; close it at the end."""
    engine = open_engine(config, remember=remember)
    ended = threading.Event()

    def follow(state: EngineState) -> None:
        if state.phase is not Phase.LOADING:
            ended.set()

    engine.on_state(follow)
    ended.wait()
    try:
        yield engine
    finally:
        engine.close()


def _threads(config: Config) -> int:
    return config.engine.threads or psutil.cpu_count(logical=False) or 1


def _as_sets(config: Config, model: Path, threads: int) -> list[str]:
    """Return the server's arguments: every setting of this run, so that both sides agree."""
    pairs: dict[str, object] = {
        f"{section}.{key}": value
        for section in asdict(config)
        if section != "log"
        for key, value in asdict(getattr(config, section)).items()
    }
    pairs |= {"models.target": str(model), "engine.threads": threads}
    return as_sets(pairs)


def _backends_table(result: dict[str, Any]) -> Table:
    names = list(result["backends"])
    table = Table("", *names, title=f"{result['model']}, {result['threads']} threads")
    for key in ("prefill_tok_s", "decode_ms"):
        table.add_row(key, *(str(result["backends"][n].get(key, "")) for n in names))
    widths: dict[str, float] = next(
        (b["verify_ms"] for b in result["backends"].values() if "verify_ms" in b), {}
    )
    for n in widths:
        cells = [str(result["backends"][name].get("verify_ms", {}).get(n, "")) for name in names]
        table.add_row(f"T({n}) ms", *cells)
    for name in names:
        if error := result["backends"][name].get("error"):
            table.add_row("error", *(error if other == name else "" for other in names))
    return table


def _print(result: dict[str, Any], render: Any, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
    else:
        Console().print(render(result))
