"""What a draft source is, and what it hands over. Token ids only; engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next tokens."""

    source: str
    tokens: tuple[int, ...]
    match: int
    """How many tokens of context spoke for this guess; acceptance is learnt by it."""


class Drafter(Protocol):
    """One source. ``begin`` is called once per request, ``draft`` before every target step."""

    name: str

    def begin(self, prompt: Sequence[int], expected: Sequence[Sequence[int]]) -> None:
        """Start a request.

        Args:
            prompt: All prompt token ids.
            expected: Token sequences that may follow the prompt, the likeliest first.
        """

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        """Guess at most ``n_max`` tokens that follow the prompt and ``emitted``; None: no guess."""

    def end(self, emitted: Sequence[int]) -> None:
        """Learn from what the request has generated."""
