"""KV bookkeeping: which tokens each native slot holds, and which slot serves which name.

Token ids only. The engine thread writes; ``reusable`` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from fimlsp.engine.native.seam import NativeSlots

MIN_COPY = 16
"""Cells below which copying a prefix from another slot is not worth the call."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


class Cells:
    """Names, tokens and recency of ``n_slots`` native slots."""

    def __init__(self, native: NativeSlots, n_slots: int) -> None:
        self._native = native
        self._tokens: list[list[int]] = [[] for _ in range(n_slots)]
        self._names: list[str | None] = [None] * n_slots
        self._used = [0] * n_slots
        self._clock = 0

    def tokens(self, slot: int) -> list[int]:
        """Return the tokens of a slot; the caller must not change them."""
        return self._tokens[slot]

    def reusable(self, name: str, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of ``prompt`` some slot could give to ``name``."""
        best = 0
        for slot in range(len(self._tokens)):
            n = common_prefix(list(self._tokens[slot]), prompt)  # a copy: the engine goes on
            if n >= MIN_COPY or self._names[slot] == name:
                best = max(best, n)
        return min(best, max(0, len(prompt) - 1))

    def acquire(self, name: str, prompt: Sequence[int]) -> tuple[int, int]:
        """Return (slot, warm) for ``name``: the slot now holds exactly ``warm`` prompt tokens.

        The slot of that name, else the least recently used one. A longer warm prefix in another
        slot is copied instead of being read again. The last prompt token is never kept: its logits
        are needed.
        """
        limit = len(prompt) - 1
        slot = self._find(name)
        own = common_prefix(self._tokens[slot], prompt)
        donor, shared = self._best_donor(slot, prompt)
        if shared >= own + MIN_COPY:
            warm = min(shared, limit)
            self._native.copy(donor, slot, warm)
            self._tokens[slot] = self._tokens[donor][:warm]
        else:
            warm = min(own, limit)
            self.truncate(slot, warm)
        self._names[slot] = name
        self.touch(slot)
        return slot, warm

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Record tokens that a decode has put into ``slot``."""
        self._tokens[slot].extend(tokens)

    def truncate(self, slot: int, n_cells: int) -> None:
        """Forget cells from ``n_cells`` on, here and in the library."""
        if len(self._tokens[slot]) > n_cells:
            self._native.truncate(slot, n_cells)
            del self._tokens[slot][n_cells:]

    def release(self, name: str) -> None:
        """Let the slot of ``name`` be taken first; its cells stay as a donor until then."""
        for slot, owner in enumerate(self._names):
            if owner == name:
                self._names[slot] = None
                self._used[slot] = 0

    def touch(self, slot: int) -> None:
        """Mark ``slot`` as the most recently used."""
        self._clock += 1
        self._used[slot] = self._clock

    def _find(self, name: str) -> int:
        if name in self._names:
            return self._names.index(name)
        return min(range(len(self._used)), key=self._used.__getitem__)

    def _best_donor(self, slot: int, prompt: Sequence[int]) -> tuple[int, int]:
        others = [i for i in range(len(self._tokens)) if i != slot]
        if not others:
            return slot, 0
        lengths = {i: common_prefix(self._tokens[i], prompt) for i in others}
        donor = max(others, key=lengths.__getitem__)
        return donor, lengths[donor]
