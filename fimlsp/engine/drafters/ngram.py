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
UNWRITTEN = 2
"""Matched tokens that say nothing before the first token of the answer is written."""
RECENT = 32
"""Completions remembered."""
GAP = -1
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


class History:
    """Texts laid end to end, the last of which grows by what is being written."""

    def __init__(self) -> None:
        self._all = np.empty(0, dtype=np.int32)
        self._known = 0
        self._length = 0

    def begin(self, texts: Sequence[Sequence[int] | Ids]) -> None:
        """Start over with ``texts``, with room for an answer behind the last."""
        gap = np.array([GAP], dtype=np.int32)
        parts = [part for text in texts for part in (np.asarray(text, dtype=np.int32), gap)]
        self._known = self._length = sum(map(len, parts)) - 1
        self._all = np.concatenate([*parts, np.empty(256, dtype=np.int32)])

    def write(self, emitted: Sequence[int]) -> None:
        """Put ``emitted`` behind the last text, whole: it may have had a rejected draft there."""
        self._length = self._known + len(emitted)
        if self._length > len(self._all):
            self._all = np.concatenate([self._all, np.empty(self._length, dtype=np.int32)])
        self._all[self._known : self._length] = emitted

    @property
    def ids(self) -> Ids:
        """All tokens, ``GAP`` between texts."""
        return self._all[: self._length]

    def after(self, start: int, n_max: int) -> tuple[int, ...]:
        """Return at most ``n_max`` tokens from index ``start`` on, up to the end of their text."""
        tokens = self.ids[start : start + n_max].tolist()
        return tuple(tokens[: tokens.index(GAP)] if GAP in tokens else tokens)


class NgramDrafter:
    """Looks in the prompt, in what this request has emitted, and in recent completions."""

    name = "ngram"

    def __init__(self) -> None:
        self._recent: deque[Ids] = deque(maxlen=RECENT)
        self._history = History()

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        """Lay recent completions and the prompt end to end."""
        self._history.begin([*self._recent, prompt])

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        """Guess from the longest match of the tokens before."""
        self._history.write(emitted)
        ids = self._history.ids
        end, match = longest_match(ids, ids[-MAX_MATCH:])
        if not match:
            return None
        tokens = self._history.after(end, min(n_max, match * TOKENS_PER_MATCH))
        # What stands before the answer matches everywhere: indentation, a bracket.
        evidence = match if emitted else max(0, match - UNWRITTEN)
        return Draft(self.name, tokens, evidence) if tokens else None

    def end(self, emitted: Sequence[int]) -> None:
        """Remember the completion."""
        if len(emitted) > 1:
            self._recent.append(np.array(emitted, dtype=np.int32))
