"""The status as it is told to listeners: what the service does, and how the last answer went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fimlsp.completion.api import ServiceState, Status
from fimlsp.document import Completion, NoCompletion, Reason

Answer = tuple[Completion, ...] | NoCompletion


class Board:
    """Holds the current status. Event loop thread only."""

    def __init__(self) -> None:
        self.status = Status(state=ServiceState.LOADING, message="starting")
        self._listeners: list[Callable[[Status], None]] = []

    def listen(self, listener: Callable[[Status], None]) -> None:
        """Call ``listener`` whenever the status changes."""
        self._listeners.append(listener)

    def change(self, **fields: Any) -> None:
        """Change some fields of the status."""
        self._show(replace(self.status, **fields))

    def begin(self, state: ServiceState, message: str, **fields: Any) -> None:
        """Start over with a status of which only the count of requests is kept."""
        requests = self.status.requests
        self._show(Status(state=state, message=message, requests=requests, **fields))

    def report(self, answer: Answer, total_ms: float, state: ServiceState) -> Answer:
        """Put an answer's timings and reason into the status, and the total into the answer."""
        if isinstance(answer, tuple):
            answer = tuple(
                replace(c, timings=replace(c.timings, total_ms=total_ms)) for c in answer
            )
            reason, last = "", answer[0].timings
        elif answer.reason is Reason.SUPERSEDED:
            return answer  # the status belongs to the request that came after
        else:
            last = replace(answer.timings, total_ms=total_ms)
            answer = replace(answer, timings=last)
            reason = answer.reason.value
        self.change(
            state=state,
            reason=reason,
            requests=self.status.requests + 1,
            last=last,
            totals=self.status.totals.plus(last),
        )
        return answer

    def _show(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            for listener in self._listeners:
                listener(status)
