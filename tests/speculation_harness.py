"""Instruments for tests of speculation: drafts that a test writes, and models to try them on.

``TableModel`` and ``TableSlots`` are a model in Python whose logits depend on the whole text before
them and are the same, bit for bit, at every width of a step: they show the logic. ``Audited`` wraps
a real library and counts its cells: it shows the cells, and what numbers do to the logic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.cells import Cells
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.drafters.api import Draft, Drafter
from fimlsp.engine.drafters.ngram import NgramDrafter
from fimlsp.engine.drafters.previous import PreviousDrafter
from fimlsp.engine.generate import Generator, InterruptedRequestError, Progress, generation
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import (
    AbortFlagLike,
    LoadParams,
    Logits,
    NativeSlots,
    SlotParams,
    Tokens,
)
from fimlsp.engine.speculation import Speculation
from fimlsp.engine.vocabulary import ModelVocabulary

EVIDENCE = 16
"""What test drafts claim for themselves: as much as a source can."""

Guesser = Callable[[Sequence[int]], Sequence[int]]
"""From the tokens emitted to those that may follow."""


class Flat(VerifyCurve):
    """Every step costs the same and no live timing changes that: every draft pays."""

    def __init__(self) -> None:
        super().__init__({1: 1.0, 64: 1.0})

    def observe(self, n: int, ms: float) -> None:
        """Stay flat."""


class Guess:
    """A source that drafts what a function says."""

    def __init__(self, guesser: Guesser, name: str = "guess", evidence: int = EVIDENCE) -> None:
        self.name = name
        self.asked: list[tuple[int, ...]] = []
        self._guesser = guesser
        self._evidence = evidence

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        self.asked.clear()

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        self.asked.append(tuple(emitted))
        tokens = tuple(self._guesser(emitted))[:n_max]
        return Draft(self.name, tokens, self._evidence) if tokens else None

    def end(self, emitted: Sequence[int]) -> None:
        """Learn nothing."""


def knowing(answer: Sequence[int], name: str = "oracle") -> Guess:
    """Return a source that knows the answer."""
    return Guess(lambda emitted: answer[len(emitted) :], name)


def padding(token: int, length: int) -> Guess:
    """Return a source whose drafts are ``length`` times a token that is never right.

    With it every step has the width of a step with a draft and gives one token: plain decoding at
    that batch-width class.
    """
    return Guess(lambda _emitted: [token] * length, "padding")


def generator(
    native: NativeSlots,
    vocabulary: ModelVocabulary,
    *drafters: Drafter,
    n_slots: int = 1,
    n_ubatch: int = 32,
    max_draft: int = 24,
    curve: VerifyCurve | None = None,
) -> Generator:
    """Return a generator over empty slots in which all ``drafters`` may draft, at no cost."""
    return Generator(
        native=native,
        cells=Cells(native, n_slots),
        vocabulary=vocabulary,
        speculation=Speculation(curve or Flat(), max_draft=max_draft, free=drafters),
        sources=tuple(drafter.name for drafter in drafters),
        n_ubatch=n_ubatch,
        n_ctx=1 << 16,
    )


def write(
    generator: Generator, request: Request, check: Callable[[], None] = lambda: None
) -> Generation:
    """Work off a request as the engine's thread does."""
    progress = Progress()
    try:
        finish = generator.run(request, progress, check, lambda: generator.n_ubatch)
    except InterruptedRequestError:
        finish = Finish.CANCELLED
    return generation(progress, finish, time.monotonic())


def chi_square(cells: Iterable[tuple[float, float]]) -> float:
    """Return the statistic of (found, expected) counts."""
    return sum((found - expected) ** 2 / expected for found, expected in cells)


def chi_square_limit(degrees: int) -> float:
    """Return what a true distribution exceeds once in a million (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 4.753 * spread**0.5) ** 3)


class Audited:
    """A library whose cells are counted against the books before and after every native call."""

    def __init__(self, native: NativeSlots, n_slots: int) -> None:
        self.widths: list[int] = []
        """Tokens of each decode."""
        self.before_step: Callable[[], None] = lambda: None
        self._native = native
        self._n_slots = n_slots
        self._cells: Cells | None = None

    def empty(self) -> None:
        """Forget every cell and the books."""
        self._cells = None
        self.before_step = lambda: None
        for slot in range(self._n_slots):
            self._native.truncate(slot, 0)

    def keep_books(self, cells: Cells) -> None:
        self._cells = cells

    def audit(self) -> None:
        """Assert that each slot has as many cells as the books say."""
        if self._cells is not None:
            counted = [self._native.n_cells(slot) for slot in range(self._n_slots)]
            assert counted == [len(self._cells.tokens(slot)) for slot in range(self._n_slots)]

    def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
        self.audit()
        assert pos == self._native.n_cells(slot)
        self.before_step()
        logits = self._native.decode(slot, tokens, pos, n_logits)
        self.widths.append(len(tokens))
        assert self._native.n_cells(slot) == pos + len(tokens)
        return logits

    def truncate(self, slot: int, n_cells: int) -> None:
        self.audit()
        self._native.truncate(slot, n_cells)
        assert self._native.n_cells(slot) <= n_cells

    def copy(self, source: int, target: int, n_cells: int) -> None:
        self._native.copy(source, target, n_cells)
        assert self._native.n_cells(target) == n_cells

    def n_cells(self, slot: int) -> int:
        return self._native.n_cells(slot)

    def close(self) -> None:
        self._native.close()


COMPARED = 24
"""Tokens of two answers that are compared."""


def same(answer: Generation, free: Generation, n: int = COMPARED) -> bool:
    """Tell whether the first ``n`` tokens are equal; there must be as many."""
    assert len(free.tokens) >= n
    return answer.tokens[:n] == free.tokens[:n]


class Rig:
    """A loaded model of a real library, whose slots are emptied for each generator."""

    SLOTS = 2

    def __init__(self, native_module: Any, model: Path) -> None:
        self.abort = AbortFlag()
        self._model = native_module.load(LoadParams(path=model), lambda _fraction: True)
        sizes = SlotParams(n_slots=self.SLOTS, n_ctx=512, n_ubatch=32, threads=1)
        self.native = Audited(self._model.open_slots(sizes, self.abort), self.SLOTS)
        self.vocabulary = ModelVocabulary(self._model)
        self.control = self.vocabulary.n_tokens - 1
        """A token that this model never writes, at the vocabulary's edge."""

    def generator(self, *drafters: Drafter, max_draft: int = 24) -> Generator:
        self.native.empty()
        made = generator(
            self.native,
            self.vocabulary,
            *drafters,
            n_slots=self.SLOTS,
            max_draft=max_draft,
        )
        self.native.keep_books(made.cells)
        self.native.widths.clear()
        return made

    def write(self, request: Request, *drafters: Drafter, max_draft: int = 24) -> Generation:
        """Write on empty slots."""
        answer = write(self.generator(*drafters, max_draft=max_draft), request)
        self.native.audit()
        return answer

    def plain(self, request: Request, n_draft: int = 1) -> Generation:
        """Decode token by token at the class of steps with ``n_draft`` draft tokens."""
        answer = self.write(request, padding(self.control, n_draft), max_draft=n_draft)
        assert answer.accepted == 0
        return answer

    def close(self) -> None:
        self.native.close()
        self._model.close()


class Told(PreviousDrafter):
    """The source of expected texts, told token by token.

    This model's text is not what its tokeniser would make of it.
    """

    def __init__(self, *texts: Sequence[int]) -> None:
        super().__init__()
        self._told = texts

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        super().begin(prompt, [*self._told, *expected], related)


SOURCES = [("previous",), ("ngram",), ("previous", "ngram"), ("wrong", "previous", "ngram")]


def sources(rig: Rig, names: Sequence[str], *texts: Sequence[int]) -> list[Drafter]:
    """Return real sources, and one that is never right: no step is without a draft."""
    found: dict[str, Drafter] = {
        "previous": Told(*texts),
        "ngram": NgramDrafter(),
        "wrong": knowing([5] * 99, "wrong"),
    }
    return [*(found[name] for name in names), padding(rig.control, 1)]


PIECES = (b"a", b"b", b"c", b"\n", b"ab", b"bc", b"abc", b"ca", b"", b"")
"""The table model's tokens; the last two are control tokens, the very last ends a text."""
N_TEXT = len(PIECES) - 2
MARKER, END = N_TEXT, N_TEXT + 1


class TableModel:
    """See :class:`fimlsp.engine.native.seam.NativeModel`; the vocabulary is ``PIECES``."""

    backend = "table"
    device = "CPU"
    description = "a table"
    n_vocab = len(PIECES)
    n_ctx_train = 1024
    size_bytes = 0
    bos: int | None = None
    added_eos: int | None = None
    vocabulary_kind = 0
    recurrent = False

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Take the longest piece each time; a byte that no piece begins with is left out."""
        ids: list[int] = []
        while text:
            fitting = [t for t in range(N_TEXT) if text.startswith(PIECES[t])]
            best = max(fitting, key=lambda t: len(PIECES[t]), default=None)
            ids += [] if best is None else [best]
            text = text[1 if best is None else len(PIECES[best]) :]
        return ids

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def token_text(self, token: int) -> bytes:
        return PIECES[token] or b"<|%d|>" % token

    def is_eog(self, token: int) -> bool:
        return token == END

    def is_special(self, token: int) -> bool:
        return token >= N_TEXT

    def open_slots(self, params: SlotParams, abort: AbortFlagLike) -> NativeSlots:
        return TableSlots(n_slots=params.n_slots, n_ctx=params.n_ctx, n_ubatch=params.n_ubatch)

    def close(self) -> None:
        """Hold nothing."""


@lru_cache(maxsize=50_000)
def table_row(text: tuple[int, ...]) -> Logits:
    """Return the logits after ``text``: mostly its last tokens decide, so that it repeats itself.

    The rest of them comes from all of it, so that one wrong cell shows. Control tokens are rare.
    """
    near, far = (np.random.default_rng(crc32(bytes(part))) for part in (text[-2:], text))
    row = 3 * near.standard_normal(len(PIECES)) + far.standard_normal(len(PIECES))
    row[N_TEXT:] -= 4
    return row.astype(np.float32)


class TableSlots:
    """See :class:`fimlsp.engine.native.seam.NativeSlots`; strict about its contract."""

    def __init__(self, *, n_slots: int = 1, n_ctx: int = 512, n_ubatch: int = 32) -> None:
        self._cells: list[list[int]] = [[] for _ in range(n_slots)]
        self._n_ctx = n_ctx
        self._n_ubatch = n_ubatch
        self.widths: list[int] = []

    def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
        cells = self._cells[slot]
        assert tokens.dtype == np.int32
        assert 1 <= len(tokens) <= self._n_ubatch
        assert 0 <= n_logits <= len(tokens)
        assert pos == len(cells)
        assert pos + len(tokens) <= self._n_ctx
        self.widths.append(len(tokens))
        cells.extend(tokens.tolist())
        ends = range(len(cells) - n_logits + 1, len(cells) + 1)
        rows = [table_row(tuple(cells[:end])) for end in ends]
        return np.array(rows, dtype=np.float32).reshape(n_logits, len(PIECES))

    def truncate(self, slot: int, n_cells: int) -> None:
        del self._cells[slot][n_cells:]

    def copy(self, source: int, target: int, n_cells: int) -> None:
        self._cells[target] = self._cells[source][:n_cells]

    def n_cells(self, slot: int) -> int:
        return len(self._cells[slot])

    def close(self) -> None:
        """Hold nothing."""
