"""The in-process engine: one thread that owns every native object.

Other threads talk to it through ``submit`` and tickets. Foreground work goes before prefetch, which
goes before warm-up; a more urgent request takes the engine within one native step.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import psutil

from fimlsp.engine import calibrate
from fimlsp.engine.api import (
    EngineParams,
    EngineState,
    Finish,
    Generation,
    ModelInfo,
    Phase,
    Priority,
    Request,
    Speed,
    Vocabulary,
)
from fimlsp.engine.cells import Cells
from fimlsp.engine.generate import (
    Generator,
    InterruptedRequestError,
    Progress,
    generation,
)
from fimlsp.engine.native.choose import choose
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import AbortedError, LoadParams, NativeModel, SlotParams
from fimlsp.engine.vocabulary import ModelVocabulary
from fimlsp.errors import EngineClosedError, EngineError, FimlspError, PromptTooLongError

log = logging.getLogger(__name__)

_BACKGROUND_STEP_MS = 120.0
"""While a person types, a background step should not outlast the pause between two keys."""
_TYPING_S = 1.0
"""Seconds after a foreground request in which the person is taken to be typing."""


class _Job:
    """One submitted request; see :class:`fimlsp.engine.api.Ticket`."""

    def __init__(self, engine: InProcessEngine, request: Request, number: int) -> None:
        self.request = request
        self.future: Future[Generation] = Future()
        # From now on Future.cancel() does nothing: a holder that gives up (asyncio.wrap_future
        # passes its cancel on) must not take the right to resolve it from the engine.
        self.future.set_running_or_notify_cancel()
        self.order = (request.priority, number)
        self.submitted = time.monotonic()
        self.cancelled = False
        self.preempted = False
        self._engine = engine

    def __lt__(self, other: _Job) -> bool:
        return self.order < other.order

    def cancel(self, *, keep_step: bool = False) -> None:
        """Stop; ``keep_step`` lets the running native step finish, so that its cells stay."""
        self._engine._cancel(self, keep_step=keep_step)


class InProcessEngine:
    """See :class:`fimlsp.engine.api.Engine`."""

    def __init__(self, model: Path, params: EngineParams) -> None:
        self._path = model
        self._params = params
        self._lock = threading.Condition()
        self._telling = threading.RLock()  # listeners hear the states in their order
        self._queue: list[_Job] = []
        self._numbers = itertools.count()
        self._active: _Job | None = None
        self._closing = False
        self._abort = AbortFlag()
        self._listeners: list[Callable[[EngineState], None]] = []
        self._state = EngineState(phase=Phase.LOADING)
        self._vocabulary: ModelVocabulary | None = None
        self._info: ModelInfo | None = None
        self._speed = Speed(prefill_tok_s=0.0, decode_ms=0.0)
        self._cells: Cells | None = None
        self._last_foreground = 0.0
        self._thread = threading.Thread(target=self._main, name="fimlsp-engine", daemon=True)
        self._thread.start()

    @property
    def state(self) -> EngineState:
        """The current state."""
        return self._state

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokeniser."""
        self._require_ready()
        assert self._vocabulary is not None
        return self._vocabulary

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        self._require_ready()
        assert self._info is not None
        return self._info

    @property
    def speed(self) -> Speed:
        """Measured speed."""
        self._require_ready()
        return self._speed

    @property
    def n_ctx(self) -> int:
        """Context of one slot in tokens."""
        return self._params.n_ctx

    def on_state(self, listener: Callable[[EngineState], None]) -> None:
        """Call ``listener`` on every change, and once at once."""
        with self._telling:
            self._listeners.append(listener)
            listener(self._state)

    def submit(self, request: Request) -> _Job:
        """Queue ``request``; see the protocol."""
        _check_prompt(request, self.vocabulary.n_tokens, self._params.n_ctx)
        with self._lock:
            if self._closing:
                raise EngineClosedError("the engine is closed")
            job = _Job(self, request, next(self._numbers))
            heapq.heappush(self._queue, job)
            if request.priority is Priority.FOREGROUND:
                self._last_foreground = job.submitted
            active = self._active
            if active is not None and request.priority < active.request.priority:
                active.preempted = True
                self._abort.set()
            self._lock.notify()
        return job

    def reusable(self, slot: str, prompt: Sequence[int]) -> int:
        """Return how many leading prompt tokens need not be evaluated."""
        cells = self._cells
        return 0 if cells is None else cells.reusable(slot, prompt)

    def release(self, slot: str) -> None:
        """Let go of a warm prompt that will not be asked for again."""
        cells = self._cells
        if cells is not None:
            cells.release(slot)

    def close(self) -> None:
        """Abort, free native memory, join the thread."""
        with self._lock:
            self._closing = True
            self._abort.set()
            self._lock.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10.0)

    def _cancel(self, job: _Job, *, keep_step: bool) -> None:
        with self._lock:
            job.cancelled = True
            if job is self._active and not keep_step:
                self._abort.set()
            if job not in self._queue:
                return
            self._queue.remove(job)  # whoever takes a job off the queue resolves it
            heapq.heapify(self._queue)
        _resolve_unrun(job)

    def _require_ready(self) -> None:
        state = self._state
        if state.phase is Phase.READY:
            return
        if state.phase is Phase.FAILED and isinstance(state.error, FimlspError):
            raise state.error
        if state.phase is Phase.CLOSED:
            raise EngineClosedError("the engine is closed")
        raise EngineError("the model is still loading")

    def _set_state(
        self, phase: Phase, progress: float = 0.0, error: Exception | None = None
    ) -> None:
        with self._telling:
            self._state = EngineState(phase=phase, progress=progress, error=error)
            for listener in self._listeners:
                try:
                    listener(self._state)
                except Exception:  # thread boundary: a listener can't break the engine
                    log.exception("a listener failed on %s", phase)

    # Everything below runs on the engine thread.

    def _main(self) -> None:
        native = ExitStack()
        try:
            generator = self._load(native)
            self._set_state(Phase.READY, 1.0)
            self._serve(generator)
        except AbortedError:
            pass  # closed while calibrating
        except Exception as error:  # thread boundary: the server lives on and says why
            if not self._closing:
                log.warning("the engine failed: %s", error, exc_info=not _ours(error))
                self._set_state(Phase.FAILED, error=_as_ours(error))
        finally:
            self._drain()
            self._cells = None
            native.close()
            if self._state.phase is not Phase.FAILED:
                self._set_state(Phase.CLOSED)

    def _load(self, native: ExitStack) -> Generator:
        """Load and measure; whatever was allocated is freed by ``native``, also after a failure."""
        params = self._params
        module = choose(params.backend)
        threads = params.threads or psutil.cpu_count(logical=False) or 1

        def progress(fraction: float) -> bool:
            self._set_state(Phase.LOADING, fraction)
            return not self._closing

        model: NativeModel = module.load(
            LoadParams(path=self._path, n_gpu_layers=params.n_gpu_layers), progress
        )
        native.callback(model.close)
        sizes = SlotParams(
            n_slots=params.slots, n_ctx=params.n_ctx, n_ubatch=params.n_ubatch, threads=threads
        )
        slots = model.open_slots(sizes, self._abort)
        native.callback(slots.close)
        self._vocabulary = ModelVocabulary(model)
        self._speed = calibrate.measure(slots, params.n_ubatch)
        self._cells = Cells(slots, params.slots)
        self._info = ModelInfo(
            path=self._path,
            backend=model.backend,
            description=model.description,
            n_vocab=model.n_vocab,
            n_ctx_train=model.n_ctx_train,
            size_bytes=model.size_bytes,
            threads=threads,
        )
        return Generator(native=slots, cells=self._cells, vocabulary=self._vocabulary)

    def _serve(self, generator: Generator) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closing:
                    self._lock.wait()
                if self._closing:
                    return
                job = heapq.heappop(self._queue)
                self._active = job
                job.preempted = False
                self._abort.clear()
            try:
                self._work(job, generator)
            finally:
                with self._lock:
                    self._active = None

    def _work(self, job: _Job, generator: Generator) -> None:
        progress = Progress()

        def check() -> None:
            if job.cancelled or job.preempted or self._closing:
                raise InterruptedRequestError

        try:
            finish = generator.run(
                job.request, progress, check, lambda: self._chunk(job.request.priority)
            )
        except InterruptedRequestError:
            if self._requeue(job):
                return
            finish = Finish.CANCELLED
        except Exception as error:  # thread boundary: this request fails, the engine lives
            log.warning("a request failed: %s", error, exc_info=not _ours(error))
            job.future.set_exception(_as_ours(error))
            return
        self._speed = calibrate.updated(
            self._speed,
            evaluated=progress.evaluated,
            prefill_ms=progress.prefill_ms,
            generated=len(progress.tokens),
            decode_ms=progress.decode_ms,
        )
        job.future.set_result(generation(progress, finish, job.submitted))

    def _requeue(self, job: _Job) -> bool:
        """Put a pre-empted warm-up back; False where the job has ended for good."""
        with self._lock:
            again = job.preempted and not job.cancelled and not self._closing
            if again and job.request.priority is Priority.WARMUP:
                heapq.heappush(self._queue, job)
                return True
            return False

    def _chunk(self, priority: Priority) -> int:
        """Prompt tokens of the next step: small in the background while a person types."""
        typing = time.monotonic() - self._last_foreground < _TYPING_S
        if priority is Priority.FOREGROUND or not typing:
            return self._params.n_ubatch
        fitting = int(self._speed.prefill_tok_s * _BACKGROUND_STEP_MS / 1e3)
        return max(4, min(self._params.n_ubatch, fitting))

    def _drain(self) -> None:
        """Answer every request that will not run any more."""
        with self._lock:
            self._closing = True
            left, self._queue = self._queue, []
        for job in left:
            _resolve_unrun(job)


def _check_prompt(request: Request, n_vocab: int, n_ctx: int) -> None:
    prompt = request.prompt
    if not prompt:
        raise EngineError(
            f"the prompt of {request.slot!r} is empty; at least one token is needed (the model's "
            "begin-of-sequence or a FIM token)"
        )
    if len(prompt) + request.max_tokens > n_ctx:
        raise PromptTooLongError(
            f"{len(prompt)} prompt tokens and {request.max_tokens} for the answer do not fit "
            f"engine.n_ctx = {n_ctx}"
        )
    # ik_llama would read past its embeddings.
    wrong = next((token for token in (min(prompt), max(prompt)) if not 0 <= token < n_vocab), None)
    if wrong is not None:
        raise EngineError(
            f"the prompt of {request.slot!r} has token {wrong}; this model's ids are 0 to "
            f"{n_vocab - 1}"
        )


def _resolve_unrun(job: _Job) -> None:
    job.future.set_result(generation(Progress(), Finish.CANCELLED, job.submitted))


def _ours(error: Exception) -> bool:
    return isinstance(error, FimlspError)


def _as_ours(error: Exception) -> Exception:
    return error if _ours(error) else EngineError(f"{type(error).__name__}: {error}")
