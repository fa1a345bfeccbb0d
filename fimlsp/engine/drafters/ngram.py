"""Longest-suffix n-grams: what followed the last time these tokens stood here.

Prompt lookup (Saxena 2023) with the choice of SuffixDecoding (arXiv 2411.04975): the longest match
wins, then the most recent one, and the draft may be as long as the match speaks for. One numpy pass
per step over a few thousand ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fimlsp.engine.drafters.api import Draft

MAX_MATCH = 16
"""Tokens of context compared."""
TOKENS_PER_MATCH = 4
"""Draft tokens allowed per matched token; the cost formula usually takes fewer."""
RECENT = 32
"""Completions remembered."""
_GAP = -1
"""Stands between two texts; no token has this id."""

Ids = npt.NDArray[np.int32]


def longest_match(history: Ids, context: Ids) -> tuple[int, int]:
    """Return (end, length) of the longest suffix of ``context`` that ends before ``end``.

    The last occurrence wins among equals; ``length`` is 0 where the last id does not occur.
    ``history`` may contain ``context`` as its own tail, which is not counted.

    Args:
        history: ``[n]`` ids to search.
        context: ``[m]`` ids, the most recent last.
    """
    if not len(context) or len(history) < 2:
        return 0, 0
    ends = np.flatnonzero(history[:-1] == context[-1])
    length = 0
    while len(ends):
        length, found = length + 1, ends
        if length == min(MAX_MATCH, len(context)):
            break
        earlier = found - length
        inside = earlier >= 0
        ends = found[inside][history[earlier[inside]] == context[-1 - length]]
    return (int(found[-1]) + 1, length) if length else (0, 0)


class NgramDrafter:
    """Looks in the prompt, in what this request has emitted, and in recent completions."""

    name = "ngram"

    def __init__(self) -> None:
        self._recent: deque[Ids] = deque(maxlen=RECENT)
        self._history = np.empty(0, dtype=np.int32)
        self._known = 0
        self._emitted = 0

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        """Lay recent completions and the prompt end to end, with room for the answer."""
        gap = np.array([_GAP], dtype=np.int32)
        texts = [part for text in self._recent for part in (text, gap)]
        texts.append(np.array(prompt, dtype=np.int32))
        self._known = sum(map(len, texts))
        self._history = np.concatenate([*texts, np.empty(256, dtype=np.int32)])
        self._emitted = 0

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        """Guess from the longest match of the tokens before."""
        self._take(emitted)
        history = self._history[: self._known + self._emitted]
        end, match = longest_match(history, history[-MAX_MATCH:])
        if not match:
            return None
        tokens = history[end : end + min(n_max, match * TOKENS_PER_MATCH)].tolist()
        if _GAP in tokens:
            tokens = tokens[: tokens.index(_GAP)]
        return Draft(self.name, tuple(tokens), match) if tokens else None

    def end(self, emitted: Sequence[int]) -> None:
        """Remember the completion."""
        if len(emitted) > 1:
            self._recent.append(np.array(emitted, dtype=np.int32))

    def _take(self, emitted: Sequence[int]) -> None:
        """Write ``emitted`` behind the prompt, whole: what was last there may have been a draft."""
        needed = self._known + len(emitted)
        if needed > len(self._history):
            self._history = np.concatenate([self._history, np.empty(needed, dtype=np.int32)])
        self._history[self._known : needed] = emitted
        self._emitted = len(emitted)
