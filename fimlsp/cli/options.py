"""Options that every command takes, and the settings they make."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from fimlsp.completion.flight import TEXT_LOG
from fimlsp.config import LogParams, Settings

Command = Callable[..., Any]


def with_settings(command: Command) -> Command:
    """Give ``command`` the options of all commands, as one ``settings`` argument."""

    @click.option("--config", type=click.Path(dir_okay=False), help="Settings file (TOML).")
    @click.option("--preset", help="Settings for a kind of machine, by name.")
    @click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated."
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, config: str | None, preset: str | None, sets: tuple[str, ...], **kwargs: Any
    ) -> Any:
        settings = Settings.from_command_line(config=config, preset=preset, sets=sets)
        start_logging(settings.config.log)
        return command(*args, settings=settings, **kwargs)

    return wrapped


def as_sets(values: Mapping[str, object]) -> list[str]:
    """Return the arguments that give settings, by full path, to another fimlsp."""
    return [
        part
        for path, value in values.items()
        for part in ("--set", f"{path}={json.dumps(value, ensure_ascii=False)}")
    ]


def start_logging(params: LogParams) -> None:
    """Log to stderr or to the configured file, never to stdout."""
    handler: logging.Handler
    if params.file:
        path = Path(params.file).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    # On the handler too: a client that asks for log messages gets them whatever this file gets.
    level = logging.getLevelNamesMapping()[params.level.upper()]
    if params.text:
        level = min(level, logging.INFO)
    handler.setLevel(level)
    root = logging.getLogger("fimlsp")
    for old in [*root.handlers]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger(TEXT_LOG).disabled = not params.text


def say_problems(settings: Settings) -> None:
    """Print what is wrong with the settings, one line each, on stderr."""
    for problem in settings.problems:
        click.echo(f"fimlsp: {problem.source}: {problem}", err=True)
