"""What ``workspace/executeCommand`` offers."""

from __future__ import annotations

from typing import Any, Final

from pygls.lsp.server import LanguageServer

from fimlsp.lsp.status import StatusReporter

STATUS: Final = "fimlsp.status"
"""Returns what ``fimlsp/status`` last said."""


def register(server: LanguageServer, reporter: StatusReporter) -> None:
    """Add all commands to ``server``."""

    @server.command(STATUS)
    def status() -> dict[str, Any]:
        return reporter.payload
