"""What ``workspace/executeCommand`` offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fimlsp.lsp.server import FimlspServer

STATUS: Final = "fimlsp.status"


def register(server: FimlspServer) -> None:
    """Add all commands to ``server``."""
    server.command(STATUS)(_status)


def _status(ls: FimlspServer) -> dict[str, Any]:
    """Return what ``fimlsp/status`` last said."""
    return ls.status.payload
