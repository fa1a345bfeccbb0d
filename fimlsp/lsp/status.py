"""What the client's status bar is told: ``fimlsp/status``.

The shape is that of Copilot's ``didChangeStatus`` (``busy``, ``kind``, ``message``), which status
bars know, with more beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from fimlsp.completion.api import ServiceState, Status, Totals
from fimlsp.document import Reason, Timings

METHOD: Final = "fimlsp/status"

_KINDS: Final = {
    ServiceState.LOADING: "Normal",
    ServiceState.READY: "Normal",
    ServiceState.BUSY: "Normal",
    ServiceState.OFF: "Inactive",
    ServiceState.ERROR: "Error",
}


class StatusReporter:
    """Sends the status whenever it differs from what the client last heard."""

    def __init__(self, send: Callable[[dict[str, Any]], None], status: Status) -> None:
        self._send = send
        self._status = status
        self._sent: dict[str, Any] | None = None
        self._started = False

    @property
    def payload(self) -> dict[str, Any]:
        """The current status as the client gets it."""
        return to_payload(self._status)

    def start(self) -> None:
        """Send the current status, and every change from now on."""
        self._started = True
        self._flush()

    def update(self, status: Status) -> None:
        """Take the service's new status."""
        self._status = status
        self._flush()

    def explain(self, reason: Reason) -> None:
        """Show why a request gave nothing that never reached the service."""
        self.update(replace(self._status, reason=reason.value))

    def _flush(self) -> None:
        payload = self.payload
        if self._started and payload != self._sent:
            self._sent = payload
            self._send(payload)


def to_payload(status: Status) -> dict[str, Any]:
    """Return ``status`` with camelCase keys."""
    return {
        "state": status.state.value,
        "kind": _KINDS[status.state],
        "busy": status.state in (ServiceState.LOADING, ServiceState.BUSY),
        "message": status.message,
        "model": status.model,
        "backend": status.backend,
        "draft": status.draft,
        "progress": round(status.progress, 3),
        "reason": status.reason,
        "requests": status.requests,
        "last": _timings(status.last),
        "totals": _totals(status.totals),
    }


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "tokens": totals.tokens,
        "tokS": round(totals.tok_s, 1),
        "sources": {
            name: {"drafted": drafted, "accepted": accepted}
            for name, drafted, accepted in totals.sources
        },
        "acceptedLengths": list(totals.accepted_lengths),
    }


def _timings(timings: Timings) -> dict[str, Any]:
    values = {_camel(field.name): getattr(timings, field.name) for field in fields(timings)}
    return {
        name: round(value, 1) if isinstance(value, float) else value
        for name, value in values.items()
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
