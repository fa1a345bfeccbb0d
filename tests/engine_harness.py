"""Instruments for tests of the in-process engine on a real native library.

``Steps`` sees and can hold every native step, so that a test may act in the middle of one without
waiting for time to pass. ``Oracle`` tells what a cold slot would have written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fimlsp.engine.api import (
    EngineParams,
    EngineState,
    Finish,
    Generation,
    Phase,
    Request,
    SpeculationParams,
)
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import LoadParams, NativeSlots, SlotParams
from fimlsp.engine.vocabulary import LIKELY_NEXT
from fimlsp.engine.worker import InProcessEngine

PATIENCE_S = 60.0
"""Only a failing test waits that long."""
NOISE = 0.5
"""Logits of the tiny model have a standard deviation of 8; another order of summation (chunks,
placement in the cache, other CPUs) moves them by less than 0.1, a wrong cell by several units."""


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "the engine never got there"


def result(future: Future[Generation]) -> Generation:
    return future.result(PATIENCE_S)


def open_engine(
    model: Path,
    backend: str,
    *,
    sources: tuple[str, ...] = (),
    draft: Path | None = None,
    curves: Path | None = None,
    **params: Any,
) -> InProcessEngine:
    """Return an engine that is READY or FAILED: plain, one thread and small sizes unless told."""
    sizes = {"threads": 1, "n_ctx": 512, "slots": 2, "n_ubatch": 32} | params
    engine = InProcessEngine(
        model,
        EngineParams(backend=backend, **sizes),
        SpeculationParams(sources=sources),
        draft=draft,
        curves=curves,
    )
    loaded = threading.Event()

    def listen(state: EngineState) -> None:
        if state.phase is not Phase.LOADING:
            loaded.set()

    engine.on_state(listen)
    wait(loaded)
    return engine


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the native decode."""

    slot: int
    pos: int
    tokens: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.pos + len(self.tokens)


class Gate:
    """Holds the engine's thread before one native step."""

    def __init__(self, where: Callable[[Step], bool], after: int) -> None:
        self._where = where
        self._left = after
        self.reached = threading.Event()
        self._opened = threading.Event()

    def __enter__(self) -> Gate:
        wait(self.reached)
        return self

    def __exit__(self, *_exception: object) -> None:
        self.open()

    def stops(self, step: Step) -> bool:
        """Tell whether this is the step, once; engine thread only."""
        if self.reached.is_set() or not self._where(step):
            return False
        self._left -= 1
        return self._left < 0

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.reached.set()
        wait(self._opened)


class Steps:
    """Every native step since ``clear``, in order."""

    def __init__(self) -> None:
        self.log: list[Step] = []
        self.native: NativeSlots | None = None
        self.aborts: list[Step] = []
        """Steps that the library did not finish."""
        self._gates: list[Gate] = []

    def clear(self) -> None:
        self.log.clear()
        self.aborts.clear()
        self._gates = [gate for gate in self._gates if not gate.is_open]

    def hold(self, where: Callable[[Step], bool] = lambda _step: True, *, after: int = 0) -> Gate:
        """Return a gate at the first step that fits, once ``after`` others have passed.

        ``with gate:`` waits until the engine stands at it and lets it go on at the end.
        """
        gate = Gate(where, after)
        self._gates.append(gate)
        return gate

    def open_all(self) -> None:
        for gate in self._gates:
            gate.open()

    @property
    def tokens(self) -> int:
        return sum(len(step.tokens) for step in self.log)

    def wrap(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(native: NativeSlots, slot: int, tokens: Any, pos: int, n_logits: int) -> Any:
            self.native = native
            step = Step(slot, pos, tuple(int(token) for token in tokens))
            self.log.append(step)
            for gate in [gate for gate in list(self._gates) if gate.stops(step)]:
                gate.pass_through()
            try:
                return decode(native, slot, tokens, pos, n_logits)
            except Exception:
                self.aborts.append(step)
                raise

        return stepped


class Oracle:
    """A second, always cold copy of a model: reads a text from the start and gives its logits."""

    def __init__(self, module: Any, model: Path) -> None:
        self.model = module.load(LoadParams(path=model), lambda _fraction: True)
        self.pieces = [self.model.piece(token) for token in range(self.model.n_vocab)]
        self._slots = self.model.open_slots(
            SlotParams(n_slots=1, n_ctx=1024, n_ubatch=32, threads=1), AbortFlag()
        )

    def rows(self, tokens: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """Return the logits after each of the last ``n_rows`` tokens."""
        self._slots.truncate(0, 0)
        rows = []
        for pos in range(0, len(tokens), 32):
            chunk = np.array(tokens[pos : pos + 32], dtype=np.int32)
            rows.append(self._slots.decode(0, chunk, pos, len(chunk)).copy())
        return np.concatenate(rows)[-n_rows:]

    def allowed(self, left: bytes, never: Iterable[int] = ()) -> npt.NDArray[np.bool_]:
        """Return the mask of text tokens that continue the imposed bytes, by brute force."""
        likely = {self.model.tokenize(left + more, special=False)[0] for more in LIKELY_NEXT}
        longer = [piece.startswith(left) for piece in self.pieces]
        shorter = [bool(piece) and left.startswith(piece) for piece in self.pieces]
        usual = [t in likely and fits for t, fits in enumerate(shorter)]
        for fits in (np.logical_or(longer, usual), np.logical_or(longer, shorter)):
            mask = fits & [not self.model.is_eog(t) for t in range(len(fits))]
            mask[list(never)] = False
            if mask.any():
                break
        return mask

    def check(self, request: Request, generation: Generation) -> None:
        """Assert that every token is what a cold slot would have chosen, up to a near tie."""
        written = generation.tokens
        if not written and generation.finish is not Finish.STOP_TOKEN:
            return
        rows = self.rows([*request.prompt, *written], len(written) + 1)
        left = request.must_start_with
        for row, token in zip(rows, written, strict=False):
            best = row[self.allowed(left, request.stop_tokens)].max() if left else row.max()
            assert row[token] >= best - NOISE, (token, int(row.argmax()), row[token], best)
            left = left[len(self.pieces[token]) :]
        assert generation.text == b"".join(self.pieces[token] for token in written)
        if generation.finish is Finish.STOP_TOKEN:
            stops = {t for t, piece in enumerate(self.pieces) if not piece or self.model.is_eog(t)}
            ends = list(stops | request.stop_tokens)
            assert rows[-1][ends].max() >= rows[-1].max() - NOISE

    def close(self) -> None:
        self._slots.close()
        self.model.close()
