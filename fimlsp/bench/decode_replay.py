"""Answers a case again and again, and sees each native step of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fimlsp.bench.decode_cases import Case
from fimlsp.engine.api import Generation, Request
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import BenchError

PLAIN: Final[tuple[str, ...]] = ()
"""The sources of plain decoding."""
ALL: Final = "all"
"""The variant with every source that is switched on."""
_REST_S: Final = 600.0
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Replay:
    """One case, answered once."""

    ms: float
    """From the first decode to the answer, as the caller sees it; the prompt was warm."""
    generation: Generation
    widths: tuple[int, ...]
    """Tokens of each native step."""


Runs = list[list[Replay]]
"""Replays by run and case."""


class StepLog(VerifyCurve):
    """The verify curve, which takes note of every step that it is told of."""

    def __init__(self, known: Mapping[int, float]) -> None:
        super().__init__(known)
        self.widths: list[int] = []

    def observe(self, n: int, ms: float) -> None:
        """Note the step, and follow it."""
        self.widths.append(n)
        super().observe(n, ms)


class Player:
    """Replays cases on an engine that has nothing else to do."""

    def __init__(self, engine: InProcessEngine) -> None:
        rest(engine)  # it would put its own curve in the place of this one
        self.engine = engine
        self.curve = StepLog(engine.speculation.curve.known)
        engine.speculation.curve = self.curve

    def play(self, case: Case, sources: tuple[str, ...], *, exact: bool = False) -> Replay:
        """Answer ``case`` with the drafts of ``sources``; ``exact`` decodes no token alone.

        Raises:
            EngineError: the engine failed.
            BenchError: the prompt could not be kept warm.
        """
        request = replace(case.request, sources=sources, exact=exact)
        self._warm(request)
        log = self.engine.speculation.curve
        assert isinstance(log, StepLog)
        log.widths.clear()
        begun = time.perf_counter()
        generation = self.engine.submit(request).future.result()
        ms = (time.perf_counter() - begun) * 1e3 - generation.queue_ms
        if generation.prompt_tokens > 1:
            raise BenchError(
                f"{case.trace}, stroke {case.stroke}: {generation.prompt_tokens} prompt tokens "
                "were read inside the measurement; is somebody else using this engine?"
            )
        return Replay(ms, generation, tuple(log.widths))

    def _warm(self, request: Request) -> None:
        missing = len(request.prompt) - self.engine.reusable(request.slot, request.prompt)
        if missing > 1:
            # Nothing is generated, so nothing is learnt from it.
            self.engine.submit(replace(request, max_tokens=0)).future.result()


@dataclass(slots=True)
class Measured:
    """Everything that was replayed."""

    cases: list[Case] = field(default_factory=list)
    plain: Runs = field(default_factory=list)
    variants: dict[str, Runs] = field(default_factory=dict)
    unequal: list[int] = field(default_factory=list)
    """Cases whose answer depends on speculation even where no token is decoded alone."""


def rest(engine: InProcessEngine) -> None:
    """Wait until the engine has done what it does while nobody asks.

    Raises:
        BenchError: it does not come to an end.
    """
    deadline = time.monotonic() + _REST_S
    while not engine.rested:
        if time.monotonic() > deadline:
            raise BenchError(f"the engine is still busy with idle work after {_REST_S:g} s")
        time.sleep(_LOOK_S)
