"""One generation under way, and what a newer keystroke means for it.

The engine thread writes what was generated; the event loop reads it and may narrow what is wanted.
Both sides only ever replace immutable values, so no lock is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fimlsp.completion.epochs import Plan
from fimlsp.completion.stop import decode
from fimlsp.engine.api import Generation, Ticket


@dataclass(slots=True)
class Flight:
    """A request in the engine and the plan it was made from."""

    plan: Plan
    stop: Callable[[bytes], bool]
    """Tells whether the bytes generated right of the cursor of ``plan`` are enough."""
    produced: str = ""
    """Text after the cursor so far, whole characters only."""
    expected: str = ""
    """What has been typed since; generation that contradicts it is of no use."""
    ticket: Ticket | None = None
    answer: asyncio.Future[Generation] | None = None

    def watch(self, generated: bytes) -> bool:
        """Follow the text as it grows (engine thread); True stops generation."""
        self.produced = self.text_of(generated)
        imposed = len(self.plan.healed.must_start_with)
        return not self.agrees(self.expected) or self.stop(generated[imposed:])

    def text_of(self, generated: bytes) -> str:
        """Return the text after the cursor: without the healed bytes, without half a character."""
        imposed = len(self.plan.healed.must_start_with)
        return decode(generated[imposed:])[0]

    def agrees(self, typed: str) -> bool:
        """Tell whether what was produced so far and what was typed could be the same text."""
        return self.produced.startswith(typed) or typed.startswith(self.produced)

    def land(self, typed: str) -> bool:
        """Let a newer keystroke wait for this flight, if what was typed may still turn out right.

        Args:
            typed: Everything typed since the flight's cursor.
        """
        if not self.agrees(typed):
            return False
        self.expected = typed
        return True

    def cancel(self, *, keep_step: bool = False) -> None:
        """Free the engine."""
        if self.ticket is not None:
            self.ticket.cancel(keep_step=keep_step)


@dataclass(slots=True)
class Waiter:
    """The request of one document that is waiting for an answer now."""

    superseded: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def supersede(self) -> None:
        """Answer the older request at once."""
        if not self.superseded.done():
            self.superseded.set_result(None)
