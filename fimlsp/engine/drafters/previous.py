"""The previous suggestion at this place, also after the person typed something else.

As long as generation follows it, its next tokens are the draft. Where it departs, the place in the
suggestion is found again by the last tokens: a renamed variable costs one wrong draft, no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fimlsp.engine.drafters.api import Draft
from fimlsp.engine.drafters.ngram import MAX_MATCH, Ids, longest_match

FOLLOWED = MAX_MATCH
"""``Draft.evidence`` while nothing has departed from the suggestion yet."""


class PreviousDrafter:
    """Drafts from texts that are expected to follow."""

    name = "previous"

    def __init__(self) -> None:
        self._expected: list[Ids] = []
        self._all: list[Ids] = []
        self._prompt_end: tuple[int, ...] = ()

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        """Take the texts."""
        self._expected = [np.array(text, dtype=np.int32) for text in expected if len(text)]
        self._all = [*self._expected, *(np.array(text, dtype=np.int32) for text in related)]
        self._prompt_end = tuple(prompt[-MAX_MATCH:])

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        """Go on in the text that generation has followed, else where its last tokens stand."""
        count = len(emitted)
        for text in self._expected:
            if count < len(text) and text[:count].tolist() == list(emitted):
                return self._from(text, count, FOLLOWED, n_max)
        context = np.array([*self._prompt_end, *emitted][-MAX_MATCH:], dtype=np.int32)
        for text in self._all:
            end, match = longest_match(text, context)
            if match:
                return self._from(text, end, match, n_max)
        return None

    def end(self, emitted: Sequence[int]) -> None:
        """Nothing to learn: the next request brings its own expectations."""

    def _from(self, text: Ids, start: int, match: int, n_max: int) -> Draft | None:
        tokens = tuple(text[start : start + n_max].tolist())
        return Draft(self.name, tokens, match) if tokens else None
