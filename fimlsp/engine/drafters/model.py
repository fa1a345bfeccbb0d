"""The draft model as a source: a small model of its own, in cells of its own.

What it has read stays warm from step to step and from request to request; a draft that was wrong is
cut off its cells and nothing else is read again. Token ids only; engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from fimlsp.engine.cells import Cells, common_prefix
from fimlsp.engine.native.seam import Logits, NativeSlots
from fimlsp.errors import FimlspError

log = logging.getLogger(__name__)

MAX_LAG = 16
"""Tokens that it may read while a person waits; more are read in idle time."""
N_SLOTS = 2
"""Prompts that it keeps warm: the document in hand and the one before."""
_WEIGHT = 0.1
"""Share of a new timing in the running figure."""
_OUTLIER = 2.0
"""A decode that another process held up says nothing about this machine."""


class ModelDrafter:
    """See :class:`fimlsp.engine.speculation.DraftModel`.

    Args:
        native: The draft model's slots, all empty.
        n_ctx: Cells of a slot.
        n_ubatch: Tokens of one native step at most.
        n_shared: Ids from here on mean nothing to one of the two models.
        token_ms: Milliseconds of a decode of one token, measured.
        read_ms: Milliseconds of a token among many.
        is_text: Tells whether a token can be a part of an answer.
        on_failure: Told once of the error that ends the drafting for good.
    """

    name = "model"

    def __init__(
        self,
        native: NativeSlots,
        *,
        n_ctx: int,
        n_ubatch: int,
        n_shared: int,
        token_ms: float,
        read_ms: float,
        is_text: Callable[[int], bool],
        on_failure: Callable[[FimlspError], None],
    ) -> None:
        self.token_ms = token_ms
        self.read_ms = read_ms
        self.cells = Cells(native, N_SLOTS)
        self._native = native
        self._n_ctx = n_ctx
        self._n_ubatch = n_ubatch
        self._n_shared = n_shared
        self._is_text = is_text
        self._on_failure = on_failure
        self._failed = False
        self._name = ""
        self._prompt: list[int] | None = None  # None: not one that it can read
        self._slot: int | None = None  # holds all of the prompt
        self._unread = False

    def begin(self, slot: str, prompt: Sequence[int]) -> None:
        """Start a request of which it shall read ``prompt``; nothing is read yet."""
        self._name, self._slot = slot, None
        readable = len(prompt) < self._n_ctx and self._knows(prompt) and not self._failed
        self._prompt = list(prompt) if readable else None
        self._unread = readable and self._missing(()) > MAX_LAG

    def lag(self, emitted: Sequence[int]) -> int | None:
        """Return how many tokens it must read before it can draft, at least the last one.

        None: too many, not now.
        """
        if self._prompt is None or not self._knows(emitted):
            return None
        missing = self._missing(emitted)
        return missing if missing <= MAX_LAG else None

    def next(self, emitted: Sequence[int]) -> tuple[int, int] | None:
        """Return the likeliest token after ``emitted`` and the tenths of its probability (0-9).

        None where its vocabulary or its context ends, and where it would end the text.

        Raises:
            AbortedError: a more urgent request came; cells and library agree.
        """
        if self._prompt is None or not self._knows(emitted):
            return None
        tokens = [*self._prompt, *emitted]
        if len(tokens) > self._n_ctx:
            return None
        try:
            rows = self._read(tokens)
        except FimlspError as error:
            self._fail(error)
            return None
        shared = rows[0, : self._n_shared]
        token = int(shared.argmax())
        if not self._is_text(token):
            return None
        probability = 1.0 / float(np.exp(shared - shared[token]).sum())
        return token, min(9, int(10 * probability))

    @property
    def unread(self) -> bool:
        """Tell whether the newest request's prompt is still to be read in idle time."""
        return self._unread

    def read(self) -> None:
        """Read one native step of the newest request's prompt.

        Raises:
            AbortedError: a request came; the step is done anew later, unless that is newer.
            EngineError: the library failed.
        """
        assert self._prompt is not None
        slot, warm = self.cells.acquire(self._name, self._prompt)
        end = min(warm + self._n_ubatch, len(self._prompt))
        self._decode(slot, self._prompt[warm:end], n_logits=0)
        self._unread = end < len(self._prompt)

    def forget(self) -> None:
        """Drop everything that was read; no request is under way."""
        for slot in range(N_SLOTS):
            self.cells.truncate(slot, 0)
        self._prompt, self._slot, self._unread = None, None, False

    def _knows(self, tokens: Sequence[int]) -> bool:
        return max(tokens, default=0) < self._n_shared

    def _missing(self, emitted: Sequence[int]) -> int:
        """Return how many tokens stand between the cells and the next draft token."""
        assert self._prompt is not None
        if self._slot is None:
            tokens = [*self._prompt, *emitted]
            return len(tokens) - self.cells.reusable(self._name, tokens)
        held = self.cells.tokens(self._slot)[len(self._prompt) :]
        return max(1, len(emitted) - common_prefix(held, emitted))

    def _read(self, tokens: list[int]) -> Logits:
        """Evaluate what is missing of ``tokens``, at least the last one.

        Returns:
            The logits after it, ``[1, n_vocab]``.
        """
        assert self._prompt is not None
        if self._slot is None:
            slot, warm = self.cells.acquire(self._name, tokens)
        else:
            slot, warm = self._slot, len(tokens) - self._missing(tokens[len(self._prompt) :])
            self.cells.truncate(slot, warm)
        self._unread = False
        for start in range(warm, len(tokens), self._n_ubatch):
            step = tokens[start : start + self._n_ubatch]
            begun = time.monotonic()
            rows = self._decode(slot, step, n_logits=1)
            self._follow(len(step), (time.monotonic() - begun) * 1e3)
        self._slot = slot
        return rows

    def _decode(self, slot: int, tokens: list[int], *, n_logits: int) -> Logits:
        pos = len(self.cells.tokens(slot))
        rows = self._native.decode(slot, np.array(tokens, dtype=np.int32), pos, n_logits)
        self.cells.append(slot, tokens)
        return rows

    def _follow(self, n: int, ms: float) -> None:
        """Move the prices towards a live decode of ``n`` tokens."""
        if n == 1:
            self.token_ms += _WEIGHT * (min(ms, _OUTLIER * self.token_ms) - self.token_ms)
        else:
            each = max(0.0, ms - self.token_ms) / (n - 1)
            self.read_ms += _WEIGHT * (min(each, _OUTLIER * self.read_ms) - self.read_ms)

    def _fail(self, error: FimlspError) -> None:
        self._failed, self._prompt, self._unread = True, None, False
        self._on_failure(error)
