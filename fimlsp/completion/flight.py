"""One generation under way, and what a newer keystroke means for it.

The engine thread writes what was generated; the event loop reads it and may narrow what is wanted.
Both sides only ever replace immutable values, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from fimlsp.completion.epochs import Plan
from fimlsp.completion.stop import StopRule, decode
from fimlsp.document import Snapshot, Timings
from fimlsp.engine.api import Finish, Generation, Ticket

TEXT_LOG = "fimlsp.text"
"""The one logger that may hold a person's text; silent unless ``log.text`` is set."""
text_log = logging.getLogger(TEXT_LOG)
text_log.disabled = True


@dataclass(slots=True)
class Flight:
    """A request in the engine and what it was made from."""

    snapshot: Snapshot
    plan: Plan
    stop: StopRule
    """Tells whether the bytes generated right of the cursor are enough."""
    patience_s: float = float("inf")
    """Seconds of writing after which the text ends with its current line."""
    spellings: tuple[str, ...] = ()
    """The model's control tokens as text."""
    thorough: bool = False
    """The full window is read for it first; a newer keystroke does not wait for that."""
    produced: str = ""
    """Text right of the cursor so far, whole characters only."""
    expected: str = ""
    """What has been typed since; generation that contradicts it is of no use."""
    contradicted: bool = False
    """Generation was ended for that, in the middle of anything."""
    began_writing: float | None = None
    ticket: Ticket | None = None
    answer: asyncio.Future[Generation] | None = None

    def watch(self, generated: bytes) -> bool:
        """Follow the text as it grows (engine thread); True stops generation."""
        new = self._new(generated)
        self.produced = decode(new)[0]
        self.contradicted = not self.agrees(self.expected)
        return self.contradicted or self.stop(new) or self._patience_is_over()

    def _patience_is_over(self) -> bool:
        """Tell whether a line has just ended and no time is left for another."""
        now = time.monotonic()
        if self.began_writing is None:
            self.began_writing = now
        text, line_end, unfinished = self.produced.rpartition("\n")
        between_lines = bool(line_end and text.strip() and not unfinished.strip())
        return between_lines and now - self.began_writing > self.patience_s

    def kept(self, generation: Generation) -> str:
        """Return what the stop rule keeps, without the healed bytes and half a character."""
        ended = generation.finish in (Finish.STOP_TOKEN, Finish.WATCH)
        epoch, new = self.plan.epoch, self._new(generation.text)
        parts = (epoch.prefix.text, epoch.suffix.text, self.plan.typed, decode(new)[0])
        text_log.info("prefix %r suffix %r typed %r middle %r", *parts)
        return self.stop.keep(new, ended=ended)

    def _new(self, generated: bytes) -> bytes:
        return generated[len(self.plan.healed.must_start_with) :]

    def agrees(self, typed: str) -> bool:
        """Tell whether what was produced so far and what was typed could be the same text."""
        return self.produced.startswith(typed) or typed.startswith(self.produced)

    def land(self, typed: str) -> bool:
        """Let a newer keystroke wait for this flight, if what was typed may still turn out right.

        Args:
            typed: Everything typed since the flight's cursor.
        """
        if not self.agrees(typed) or (self.thorough and not self.produced):
            return False
        self.expected = typed
        return True

    def result(self) -> Generation | None:
        """Return how it ended; None if it has not, failed, or was cut short by us."""
        if self.answer is None or not self.answer.done() or self.answer.exception() is not None:
            return None
        generation = self.answer.result()
        cut_short = self.contradicted or generation.finish in (Finish.CANCELLED, Finish.UNSURE)
        return None if cut_short else generation

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


def timings_of(generation: Generation) -> Timings:
    """Return where an answer's time went, as far as the engine knows."""
    return Timings(
        prompt_tokens=generation.prompt_tokens,
        reused_tokens=generation.reused_tokens,
        queue_ms=generation.queue_ms,
        prefill_ms=generation.prefill_ms,
        tokens=len(generation.tokens),
        decode_ms=generation.decode_ms,
        drafted=generation.drafted,
        accepted=generation.accepted,
        draft_source=generation.draft_source,
        drafts=tuple((use.source, use.offered, use.accepted) for use in generation.drafts),
    )
