"""The client's progress bar for the model load: ``window/workDoneProgress``."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from functools import partial
from typing import Any

from lsprotocol import types
from pygls.protocol import LanguageServerProtocol

from fimlsp.completion.api import ServiceState, Status


class LoadProgress:
    """Follows the status: a bar while the state is LOADING, one token per load.

    pygls's own helper is not used: it keeps every token for ever, and raises inside a future's
    callback when the client says no.
    """

    def __init__(self, protocol: LanguageServerProtocol) -> None:
        self._protocol = protocol
        self._enabled = False
        self._token: str | None = None
        self._begun = False
        self._status: Status | None = None
        self._percentage = 0

    def start(self) -> None:
        """Show progress from now on; for clients that can."""
        self._enabled = True
        if self._status is not None:
            self.update(self._status)

    def update(self, status: Status) -> None:
        """Take the service's new status."""
        self._status = status
        if not self._enabled:
            return
        if status.state is not ServiceState.LOADING:
            self._end(status)
        elif self._token is None:
            self._create()
        elif self._begun and _percentage(status) != self._percentage:
            self._percentage = _percentage(status)
            self._notify(types.WorkDoneProgressReport(percentage=self._percentage))

    def _create(self) -> None:
        self._token = f"fimlsp-load-{uuid.uuid4().hex}"
        params = types.WorkDoneProgressCreateParams(token=self._token)
        future = self._protocol.send_request(types.WINDOW_WORK_DONE_PROGRESS_CREATE, params)
        future.add_done_callback(partial(self._created, self._token))

    def _created(self, token: str, future: Future[Any]) -> None:
        """Begin, unless the client said no or the load ended before it said anything."""
        refused = future.cancelled() or future.exception() is not None
        if refused or token != self._token or self._status is None:
            return
        self._begun = True
        self._percentage = _percentage(self._status)
        self._notify(
            types.WorkDoneProgressBegin(
                title=f"Loading {self._status.model or 'the model'}",
                percentage=self._percentage,
                cancellable=False,
            )
        )

    def _end(self, status: Status) -> None:
        if self._begun:
            self._notify(types.WorkDoneProgressEnd(message=status.message or status.state.value))
        self._token = None
        self._begun = False

    def _notify(
        self,
        value: types.WorkDoneProgressBegin
        | types.WorkDoneProgressReport
        | types.WorkDoneProgressEnd,
    ) -> None:
        assert self._token is not None
        params = types.ProgressParams(token=self._token, value=value)
        self._protocol.notify(types.PROGRESS, params)


def _percentage(status: Status) -> int:
    return min(100, max(0, int(100 * status.progress)))
