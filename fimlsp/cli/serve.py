"""``fimlsp serve``: settings, engine, service and server, put together."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import Any

import click

from fimlsp.cli.options import say_problems, with_settings
from fimlsp.cli.session import open_engine
from fimlsp.completion.service import Completions
from fimlsp.config import Config, Settings, Source
from fimlsp.engine.api import Engine
from fimlsp.errors import FimlspError
from fimlsp.lsp.server import build_server, run_stdio, run_tcp
from fimlsp.lsp.settings import SettingsSource

log = logging.getLogger(__name__)

_SOURCES = {
    SettingsSource.INITIALIZATION: Source.INITIALIZATION_OPTIONS,
    SettingsSource.CONFIGURATION: Source.CHANGE_CONFIGURATION,
}
CLOSE_S = 0.5
"""Time for the engine to free its memory at the end; the process ends anyway."""


class Wiring:
    """Keeps service and engine in step with the settings. Event loop thread only."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: Engine | None = None
        self._built_from: tuple[object, ...] | None = None
        config = settings.config
        self.service = Completions(config.completion, config.window, config.sampling)

    def on_settings(self, source: SettingsSource, options: Any) -> list[str]:
        """Take an editor's settings; returns what is wrong with them."""
        problems = self._settings.update(_SOURCES[source], options)
        self._apply(self._settings.config)
        return [str(problem) for problem in problems]

    def _apply(self, config: Config) -> None:
        self.service.configure(config.completion)
        self.service.configure_window(config.window)
        self.service.configure_sampling(config.sampling)
        wanted = (config.models, config.engine, config.draft, config.speculation)
        if wanted == self._built_from:
            return
        self._built_from = wanted
        old, self._engine = self._engine, None
        if old is not None:  # freed aside: joining its thread must not hold up the loop
            threading.Thread(target=old.close, name="fimlsp-engine-close", daemon=True).start()
        try:
            self._engine = open_engine(config)
        except FimlspError as error:
            log.warning("no engine: %s", error)
            self.service.fail(str(error))
            return
        self.service.use_engine(self._engine)

    def close(self) -> None:
        """Free the engine, as far as it goes in :data:`CLOSE_S`."""
        if self._engine is not None:
            closing = threading.Thread(target=self._engine.close, daemon=True)
            closing.start()
            closing.join(CLOSE_S)


@click.command()
@click.option("--stdio", is_flag=True, help="Serve on stdin and stdout (the default).")
@click.option("--tcp", metavar="HOST:PORT", help="Serve one client on a TCP port instead.")
@with_settings
def serve(stdio: bool, tcp: str | None, settings: Settings) -> None:
    """Serve one editor over LSP."""
    if stdio and tcp:
        raise click.UsageError("--stdio and --tcp exclude each other")
    say_problems(settings)
    wiring = Wiring(settings)
    server = build_server(wiring.service, wiring.on_settings)
    code = run_tcp(server, *_address(tcp), on_listening=_say_address) if tcp else run_stdio(server)
    wiring.close()
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # a native load can't be interrupted; nothing of it may outlive the editor


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"found {text!r}, expected HOST:PORT", param_hint="--tcp")
    return host.strip("[]") or "127.0.0.1", int(port)


def _say_address(host: str, port: int) -> None:
    click.echo(f"fimlsp: listening on {host} port {port}", err=True)
