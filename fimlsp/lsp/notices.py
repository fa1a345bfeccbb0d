"""What the person is told outside of answers: popups, each once, and log lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from lsprotocol import types
from pygls.protocol import LanguageServerProtocol

_LINE_LIMIT: Final = 500
_LEVELS: Final = (
    (logging.ERROR, types.MessageType.Error),
    (logging.WARNING, types.MessageType.Warning),
)

log = logging.getLogger(__name__)


class Notices:
    """Shows a sentence once in the life of the server, however often it is said.

    What is said before :meth:`start` waits for it: not every client listens before it has sent
    ``initialized``.
    """

    def __init__(self, protocol: LanguageServerProtocol) -> None:
        self._protocol = protocol
        self._said: set[str] = set()
        self._waiting: list[types.ShowMessageParams] | None = []

    def start(self) -> None:
        """Show what waits, and everything else from now on."""
        waiting, self._waiting = self._waiting or [], None
        for params in waiting:
            self._show(params)

    def warn(self, sentence: str) -> None:
        """Show a warning."""
        self._say(types.MessageType.Warning, sentence)

    def error(self, sentence: str) -> None:
        """Show an error."""
        self._say(types.MessageType.Error, sentence)

    def _say(self, kind: types.MessageType, sentence: str) -> None:
        if sentence in self._said:
            return
        self._said.add(sentence)
        params = types.ShowMessageParams(type=kind, message=sentence)
        if self._waiting is None:
            self._show(params)
        else:
            self._waiting.append(params)

    def _show(self, params: types.ShowMessageParams) -> None:
        log.warning("%s", params.message)
        self._protocol.notify(types.WINDOW_SHOW_MESSAGE, params)


class ClientLog(logging.Handler):
    """Sends the first line of each record of ``fimlsp`` to the client's log, from any thread.

    Tracebacks stay on stderr. Records hold lengths and names, never text of documents.
    """

    def __init__(self, protocol: LanguageServerProtocol) -> None:
        super().__init__(logging.INFO)
        self._protocol = protocol
        self._logger = logging.getLogger("fimlsp")
        self._old_level = self._logger.level
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Send records from now on; must be called on the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        if self._logger.getEffectiveLevel() > logging.INFO:
            self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)

    def stop(self) -> None:
        """Send no more; harmless without a start."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._old_level)
        self._loop = None

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record to the loop; a record that comes when the loop is gone is dropped."""
        loop = self._loop
        if loop is None:
            return
        line = record.getMessage().partition("\n")[0][:_LINE_LIMIT]
        kind = next((k for level, k in _LEVELS if record.levelno >= level), types.MessageType.Info)
        params = types.LogMessageParams(type=kind, message=line)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._protocol.notify, types.WINDOW_LOG_MESSAGE, params)
