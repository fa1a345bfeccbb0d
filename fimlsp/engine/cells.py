"""KV bookkeeping: which tokens each native slot holds, and which slot serves which name.

Token ids only. The engine thread owns the cells; ``reusable`` and ``release`` may be called from
any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where a prompt will live and where its warm cells come from."""

    slot: int
    warm: int
    """Leading prompt tokens that need not be evaluated."""
    donor: int | None
    """Slot to copy them from; None: they are in ``slot`` already."""


class Cells:
    """Names, tokens and recency of ``n_slots`` native slots.

    Args:
        native: The slots, all empty.
        n_slots: How many.
        rewindable: False for a model that can't take tokens back: what a slot holds is then of use
            to a prompt that begins with all of it, else the slot is emptied; nothing is copied.
    """

    def __init__(self, native: NativeSlots, n_slots: int, *, rewindable: bool = True) -> None:
        self._native = native
        self.rewindable = rewindable
        self._lock = threading.Lock()  # names, recency and token lists; never held in native code
        self._tokens: list[list[int]] = [[] for _ in range(n_slots)]
        self._names: list[str | None] = [None] * n_slots
        self._used = [0] * n_slots
        self._clock = 0

    def tokens(self, slot: int) -> list[int]:
        """Return the tokens of a slot; the caller must not change them."""
        return self._tokens[slot]

    def reusable(self, name: str, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of ``prompt`` ``acquire`` would find warm now."""
        with self._lock:
            return self._plan(name, prompt).warm

    def acquire(self, name: str, prompt: Sequence[int]) -> tuple[int, int]:
        """Return (slot, warm) for ``name``: the slot now holds exactly ``warm`` prompt tokens.

        The slot of that name, else the least recently used one. A longer warm prefix in another
        slot is copied instead of being read again. The last prompt token is never kept: its logits
        are needed.

        Raises:
            EngineError: the library could not copy; the slot is empty then.
        """
        with self._lock:
            plan = self._plan(name, prompt)
            self._names[plan.slot] = name
            self._clock += 1
            self._used[plan.slot] = self._clock
        if plan.donor is None:
            self.truncate(plan.slot, plan.warm)
        else:
            self._copy(plan.donor, plan.slot, plan.warm)
        return plan.slot, plan.warm

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Record tokens that a decode has put into ``slot``."""
        with self._lock:
            self._tokens[slot].extend(tokens)

    def truncate(self, slot: int, n_cells: int) -> None:
        """Forget cells from ``n_cells`` on, here and in the library."""
        if len(self._tokens[slot]) > n_cells:
            assert self.rewindable or n_cells == 0, n_cells
            self._native.truncate(slot, n_cells)
            with self._lock:
                del self._tokens[slot][n_cells:]

    def free_slot(self) -> int | None:
        """Return an empty slot that nobody has named, None where there is none."""
        with self._lock:
            for slot, owner in enumerate(self._names):
                if owner is None and not self._tokens[slot]:
                    return slot
            return None

    def release(self, name: str) -> None:
        """Let the slot of ``name`` be taken first; its cells stay as a donor until then."""
        with self._lock:
            for slot, owner in enumerate(self._names):
                if owner == name:
                    self._names[slot] = None
                    self._used[slot] = 0

    def _plan(self, name: str, prompt: Sequence[int]) -> _Plan:
        slot = self._find(name)
        usable = [self._usable(tokens, prompt) for tokens in self._tokens]
        donor = max(range(len(usable)), key=usable.__getitem__)
        if self.rewindable and usable[donor] >= usable[slot] + MIN_COPY:
            return _Plan(slot, usable[donor], donor)
        return _Plan(slot, usable[slot], None)

    def _usable(self, tokens: Sequence[int], prompt: Sequence[int]) -> int:
        """Return how many of a slot's ``tokens`` serve ``prompt``; its last one is read anyway."""
        shared = min(common_prefix(tokens, prompt), max(0, len(prompt) - 1))
        return shared if self.rewindable or shared == len(tokens) else 0

    def _find(self, name: str) -> int:
        if name in self._names:
            return self._names.index(name)
        return min(range(len(self._used)), key=self._used.__getitem__)

    def _copy(self, donor: int, slot: int, warm: int) -> None:
        with self._lock:
            self._tokens[slot] = []  # true also if the copy fails: native code leaves no cells
        try:
            self._native.copy(donor, slot, warm)
        except BaseException:
            self._native.truncate(slot, 0)
            raise
        with self._lock:
            self._tokens[slot] = self._tokens[donor][:warm]
