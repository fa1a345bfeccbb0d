"""Which requests ``fimlsp bench decode`` replays: those that typing a trace puts to the model.

The real service types the trace. Every state whose text it does not know from an earlier suggestion
is a case, with the prompt, the imposed bytes, the stop rule and the drafts that the service sends.
The model answers plainly here, so a case depends on nothing that speculation does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from fimlsp.bench.traces import Trace
from fimlsp.completion.api import CompletionParams, ServiceState, Status, Trigger
from fimlsp.completion.service import Completions
from fimlsp.context.params import WindowParams
from fimlsp.document import NoCompletion, Reason, Snapshot, dominant_eol
from fimlsp.engine.api import (
    Engine,
    EngineState,
    Finish,
    Generation,
    ModelInfo,
    Priority,
    Request,
    SamplingParams,
    Speed,
    Ticket,
    Vocabulary,
)
from fimlsp.errors import BenchError

STATES: Final = 12
"""States of a trace that are looked at, the first included."""
MAX_TOKENS: Final = 48
"""Tokens of an answer at most."""
_NEVER_MS: Final = 10**12
"""No clock may decide how long an answer is: the faster side would write more."""
_FAILURES: Final = (Reason.FAILED, Reason.NO_MODEL, Reason.LOADING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request that the model had to answer."""

    trace: str
    stroke: int
    """0 is the state before anything was typed."""
    request: Request
    """As the service sent it, without a deadline; its ``watch`` may be used any number of times,
    by one request at a time."""


def collect(
    engine: Engine,
    trace: Trace,
    completion: CompletionParams,
    window: WindowParams,
    sampling: SamplingParams,
) -> list[Case]:
    """Type ``trace`` and return its cases in order; the prompts are left warm in ``engine``.

    Raises:
        BenchError: the service could not serve.
    """
    params = replace(
        completion,
        enabled=True,
        disabled_languages=(),
        max_tokens=MAX_TOKENS,
        max_ms=_NEVER_MS,
        patience_ms=_NEVER_MS,
        cold_confidence=0.0,
    )
    recorder = Recorder(engine)
    return asyncio.run(_type(recorder, trace, Completions(params, window, sampling)))


class Recorder:
    """An engine that keeps the requests somebody waits for, and does nothing ahead of time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._speed = engine.speed
        self.requests: list[Request] = []

    @property
    def state(self) -> EngineState:
        """The engine's state."""
        return self._engine.state

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokeniser."""
        return self._engine.vocabulary

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._engine.info

    @property
    def speed(self) -> Speed:
        """The speed as it was at first, so that every window of a trace gets the same budget."""
        return self._speed

    @property
    def n_ctx(self) -> int:
        """Context of one slot in tokens."""
        return self._engine.n_ctx

    def on_state(self, listener: Callable[[EngineState], None]) -> None:
        """Call ``listener`` on every change, and once at once."""
        self._engine.on_state(listener)

    def submit(self, request: Request) -> Ticket:
        """Keep a foreground request and have it answered without drafts; decline all others."""
        if request.priority is not Priority.FOREGROUND:
            return _Declined()
        kept = replace(
            request, deadline=None, max_tokens=min(request.max_tokens, MAX_TOKENS), sources=None
        )
        self.requests.append(kept)
        return self._engine.submit(replace(kept, sources=()))

    def reusable(self, slot: str, prompt: Sequence[int]) -> int:
        """Return how many leading prompt tokens need not be evaluated."""
        return self._engine.reusable(slot, prompt)

    def release(self, slot: str) -> None:
        """Keep the prompt warm: it is replayed next."""

    def close(self) -> None:
        """Leave the engine to whoever made it."""


class _Declined:
    """The ticket of a request that was not taken on."""

    def __init__(self) -> None:
        self.future: Future[Generation] = Future()
        self.future.set_result(
            Generation(
                text=b"",
                tokens=(),
                finish=Finish.CANCELLED,
                prompt_tokens=0,
                reused_tokens=0,
                queue_ms=0.0,
                prefill_ms=0.0,
                decode_ms=0.0,
            )
        )

    def cancel(self, *, keep_step: bool = False) -> None:
        """There is nothing to stop."""


async def _type(recorder: Recorder, trace: Trace, service: Completions) -> list[Case]:
    await _ready(service, recorder)
    cases: list[Case] = []
    for stroke in range(min(STATES, len(trace.typed) + 1)):
        seen = len(recorder.requests)
        answer = await service.complete(_snapshot(trace, stroke), Trigger.AUTOMATIC)
        if isinstance(answer, NoCompletion) and answer.reason in _FAILURES:
            raise BenchError(f"{trace.id}, stroke {stroke}: no answer: {answer.detail}")
        cases += [
            Case(trace=trace.id, stroke=stroke, request=request)
            for request in recorder.requests[seen:]
        ]
    await service.close()
    return cases


async def _ready(service: Completions, engine: Engine) -> None:
    """Wait until the service serves, or says that it can't."""
    ready: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def follow(status: Status) -> None:
        if status.state is not ServiceState.LOADING and not ready.done():
            ready.set_result(status)

    service.on_status(follow)
    service.use_engine(engine)
    status = await ready
    if status.state is ServiceState.ERROR:
        raise BenchError(status.message)


def _snapshot(trace: Trace, stroke: int) -> Snapshot:
    text = trace.text(stroke)
    return Snapshot(
        uri=f"trace:///{trace.id}/{trace.path}",
        version=stroke,
        language_id=trace.lang,
        path=trace.path,
        text=text,
        cursor=trace.cursor(stroke),
        eol=dominant_eol(text),
    )
