"""What a draft source is, and what it hands over. Token ids only; engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next tokens by one source."""

    source: str
    tokens: tuple[int, ...]
    evidence: int
    """How much speaks for it: tokens of context that matched, or tenths of the draft model's own
    probability. Acceptance is learnt by it."""


class Drafter(Protocol):
    """A free source: its guesses cost nothing that could be measured beside a target step.

    ``begin`` is called once per request, ``draft`` before target steps, ``end`` when the request
    has ended, however it did.
    """

    name: str

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        """Start a request.

        Args:
            prompt: All prompt token ids.
            expected: Token sequences that may follow the prompt, the likeliest first.
            related: Token sequences of which parts may come.
        """

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        """Guess at most ``n_max`` tokens that follow the prompt and ``emitted``; None: no guess.

        ``emitted`` may end in tokens of another source's draft: what is asked for is what would
        come if they were right.
        """

    def end(self, emitted: Sequence[int]) -> None:
        """Learn from what the request has generated."""
