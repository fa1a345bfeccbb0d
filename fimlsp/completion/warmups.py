"""Prompts that are read while the person looks elsewhere, at most one per document."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fimlsp.completion.epochs import Epoch, Epochs
from fimlsp.document import Snapshot
from fimlsp.engine.api import Engine, Priority, Request, Ticket
from fimlsp.errors import FimlspError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Warmup:
    epoch: Epoch
    ticket: Ticket


class Warmups:
    """What one engine reads ahead. Event loop thread only."""

    def __init__(self, engine: Engine, epochs: Epochs) -> None:
        self._engine = engine
        self._epochs = epochs
        self._running: dict[str, _Warmup] = {}

    def start(self, uri: str, epoch: Epoch) -> None:
        """Read the head of ``epoch`` in idle time; what was read for ``uri`` before is given up."""
        running = self._running.get(uri)
        if running and running.epoch == epoch and not running.ticket.future.done():
            return
        self.stop(uri)
        request = Request(
            slot=epoch.slot, prompt=epoch.head, max_tokens=0, priority=Priority.WARMUP
        )
        try:
            self._running[uri] = _Warmup(epoch, self._engine.submit(request))
        except FimlspError as error:  # the suggestion that is there is good all the same
            log.warning("nothing is read ahead: %s", error)

    def stop_unless_useful(self, snapshot: Snapshot, serving: Epoch) -> None:
        """Read on only what this cursor can use, and not into the slot that serves it."""
        running = self._running.get(snapshot.uri)
        if running is not None and (
            running.epoch.slot == serving.slot or not self._epochs.fits(running.epoch, snapshot)
        ):
            self.stop(snapshot.uri)

    def stop(self, uri: str) -> None:
        """Give up what is being read for a document; what was read stays warm."""
        if running := self._running.pop(uri, None):
            running.ticket.cancel()

    def stop_all(self) -> None:
        """Leave the engine idle."""
        for uri in [*self._running]:
            self.stop(uri)
