"""What the LSP layer may ask of completions, and what it is told about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Protocol

from fimlsp.document import Completion, NoCompletion, Snapshot, Timings
from fimlsp.fields import Between, OneOf


class Trigger(Enum):
    """Who asked: the person, or the editor while they type."""

    INVOKED = "invoked"
    AUTOMATIC = "automatic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionParams:
    """How suggestions are made. Read anew at every request, so changes apply at once."""

    enabled: bool = True
    """Offer suggestions at all."""
    disabled_languages: tuple[str, ...] = ()
    """LSP language ids that get no suggestions."""
    max_tokens: Annotated[int, Between(1, 4096)] = 64
    """Tokens per suggestion at most."""
    max_ms: Annotated[int, Between(10, 600_000)] = 4000
    """Time for one suggestion; at the deadline what is there is shown. A full window that
    ``cold_confidence`` asks for takes its time; the next key ends that."""
    cold_confidence: Annotated[float, Between(0, 1)] = 0.10
    """A suggestion from a small window (see ``window.cold_ms``) is one line, and is shown at once
    only if the model gives that line at least this probability; otherwise the full window is read
    first. 0 shows every one, 1 none."""
    patience_ms: Annotated[int, Between(0, 600_000)] = 300
    """After this many milliseconds of writing, a suggestion ends with its current line; a fast
    machine writes whole blocks in that time."""
    multiline: Annotated[str, OneOf("auto", "never", "always")] = "auto"
    """``auto``, ``never`` or ``always``: whether a suggestion may have several lines. ``auto``
    keeps to the line when the cursor is inside one."""
    max_lines: Annotated[int, Between(1, 1000)] = 12
    """Lines per suggestion at most."""


class ServiceState(Enum):
    """One word for a status bar."""

    LOADING = "loading"
    READY = "ready"
    BUSY = "busy"
    OFF = "off"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all answers since the model was loaded."""

    tokens: int = 0
    """Tokens generated."""
    decode_ms: float = 0.0
    sources: tuple[tuple[str, int, int], ...] = ()
    """For each draft source: its name, tokens offered, tokens right."""
    accepted_lengths: tuple[int, ...] = ()
    """Histogram: how many drafts had 0, 1, 2, ... tokens right."""

    @property
    def tok_s(self) -> float:
        """Tokens per second of decoding."""
        return self.tokens / self.decode_ms * 1e3 if self.decode_ms else 0.0

    def plus(self, timings: Timings) -> Totals:
        """Return the totals with one more answer."""
        sources = {name: (offered, right) for name, offered, right in self.sources}
        lengths = [*self.accepted_lengths]
        for name, offered, right in timings.drafts:
            before = sources.get(name, (0, 0))
            sources[name] = before[0] + offered, before[1] + right
            lengths += [0] * (right + 1 - len(lengths))
            lengths[right] += 1
        return Totals(
            tokens=self.tokens + timings.tokens,
            decode_ms=self.decode_ms + timings.decode_ms,
            sources=tuple((name, *counts) for name, counts in sorted(sources.items())),
            accepted_lengths=tuple(lengths),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything a status bar may want to show."""

    state: ServiceState
    message: str = ""
    """One sentence for a person: what is going on, or what is wrong and what to do."""
    model: str = ""
    """File name of the target model."""
    backend: str = ""
    draft: str = ""
    """The draft model in words, as of the last answer: its name and price, or why there is none."""
    progress: float = 0.0
    """Fraction of the model load, 0 to 1."""
    reason: str = ""
    """Why the last request gave nothing (a ``Reason`` value), ``""`` if it gave something."""
    last: Timings = field(default_factory=Timings)
    """Timings of the last answer."""
    requests: int = 0
    """Answers given so far, with or without a suggestion; ``reason`` and ``last`` are the newest's,
    so a client can tell which answer they belong to."""
    totals: Totals = field(default_factory=Totals)


class CompletionService(Protocol):
    """Lives on the event loop's thread; nothing here blocks."""

    async def complete(
        self, snapshot: Snapshot, trigger: Trigger
    ) -> tuple[Completion, ...] | NoCompletion:
        """Answer one request.

        A newer request for the same uri supersedes this one: it then returns at once with
        ``NoCompletion(SUPERSEDED)``. Cancelling the awaiting task frees the engine within one step.
        Errors of the world are answers (``NoCompletion(FAILED)``), never exceptions.
        """

    def opened(self, snapshot: Snapshot) -> None:
        """A document was opened (cursor at 0): its prompt may be warmed."""

    def closed(self, uri: str) -> None:
        """A document was closed: forget everything about it."""

    def configure(self, params: CompletionParams) -> None:
        """Use new parameters from the next request on."""

    @property
    def status(self) -> Status:
        """The current status."""

    def on_status(self, listener: Callable[[Status], None]) -> None:
        """Call ``listener`` on the loop's thread whenever the status changes."""

    async def close(self) -> None:
        """Drop all work; the engine is closed by whoever made it."""
