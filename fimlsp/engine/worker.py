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
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fimlsp.engine import calibrate
from fimlsp.engine.api import (
    DraftParams,
    EngineParams,
    EngineState,
    Finish,
    ModelInfo,
    Phase,
    Priority,
    Request,
    SpeculationParams,
    Speed,
    Vocabulary,
)
from fimlsp.engine.calibrate import CurveFile
from fimlsp.engine.cells import Cells
from fimlsp.engine.chores import Chores
from fimlsp.engine.draft import DraftPlan, DraftSetup
from fimlsp.engine.generate import (
    Generator,
    InterruptedRequestError,
    Progress,
    generation,
)
from fimlsp.engine.jobs import Job, check_prompt, resolve_unrun
from fimlsp.engine.load import Plant, load
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import AbortedError
from fimlsp.engine.speculation import Speculation
from fimlsp.engine.vocabulary import ModelVocabulary
from fimlsp.errors import EngineClosedError, EngineError, FimlspError

log = logging.getLogger(__name__)

_BACKGROUND_STEP_MS = 120.0
"""While a person types, a background step should not outlast the pause between two keys."""
_TYPING_S = 1.0
"""Seconds after a foreground request in which the person is taken to be typing."""


class InProcessEngine:
    """See :class:`fimlsp.engine.api.Engine`.

    Args:
        model: The target's GGUF file.
        params: How it is run.
        speculation: What drafts for it.
        draft: The draft model's GGUF file; it is loaded when nothing else is to be done.
        draft_params: How that is run.
        draft_copies: Folder for a copy of it that is faster; None makes none.
        curves: File of measured verify curves; None measures anew on every start.
    """

    def __init__(
        self,
        model: Path,
        params: EngineParams,
        speculation: SpeculationParams | None = None,
        *,
        draft: Path | None = None,
        draft_params: DraftParams | None = None,
        draft_copies: Path | None = None,
        curves: Path | None = None,
    ) -> None:
        self._path = model
        self._params = params
        self._speculation = speculation or SpeculationParams()
        self._draft = draft
        self._draft_params = draft_params or DraftParams()
        self._draft_copies = draft_copies
        self._curves = CurveFile(curves) if curves else None
        self._lock = threading.Condition()
        self._telling = threading.RLock()  # listeners hear the states in their order
        self._queue: list[Job] = []
        self._numbers = itertools.count()
        self._active: Job | None = None
        self._at_chores = False
        self._closing = False
        self._abort = AbortFlag()
        self._listeners: list[Callable[[EngineState], None]] = []
        self._state = EngineState(phase=Phase.LOADING)
        self._vocabulary: ModelVocabulary | None = None
        self._info: ModelInfo | None = None
        self._speed = Speed(prefill_tok_s=0.0, decode_ms=0.0)
        self._cells: Cells | None = None
        self._drafting: Speculation | None = None
        self._chores: Chores | None = None
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

    @property
    def speculation(self) -> Speculation:
        """What drafts here, for benchmarks: hands off while a request or idle work is under way."""
        self._require_ready()
        assert self._drafting is not None
        return self._drafting

    @property
    def rested(self) -> bool:
        """Tell whether everything is done that is done in idle time."""
        self._require_ready()
        chores = self._chores
        # In this order: the last step is taken off the list before its result is in place.
        done = chores is None or (chores.settled and not chores.waiting)
        return done and not self._at_chores

    def on_state(self, listener: Callable[[EngineState], None]) -> None:
        """Call ``listener`` on every change, and once at once."""
        with self._telling:
            self._listeners.append(listener)
            listener(self._state)

    def submit(self, request: Request) -> Job:
        """Queue ``request``; see the protocol."""
        check_prompt(request, self.vocabulary.n_tokens, self._params.n_ctx)
        with self._lock:
            if self._closing:
                raise EngineClosedError("the engine is closed")
            job = Job(self, request, next(self._numbers))
            heapq.heappush(self._queue, job)
            if request.priority is Priority.FOREGROUND:
                self._last_foreground = job.submitted
            active = self._active
            if self._at_chores:
                self._abort.set()
            elif active is not None and request.priority < active.request.priority:
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

    def cancel(self, job: Job, *, keep_step: bool) -> None:
        """Stop a job of this engine; see :meth:`Job.cancel`."""
        with self._lock:
            job.cancelled = True
            if job is self._active and not keep_step:
                self._abort.set()
            if job not in self._queue:
                return
            self._queue.remove(job)  # whoever takes a job off the queue resolves it
            heapq.heapify(self._queue)
        resolve_unrun(job)

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
            plant = self._load(native)
            draft = self._draft_setup(plant, native)
            chores = self._chores = Chores(plant, self._curves, self._params.n_ubatch, draft)
            self._set_state(Phase.READY, 1.0)
            self._serve(plant.generator, chores)
        except AbortedError:
            pass  # closed while calibrating
        except Exception as error:  # thread boundary: the server lives on and says why
            if not self._closing:
                log.warning("the engine failed: %s", error, exc_info=not _ours(error))
                self._set_state(Phase.FAILED, error=_as_ours(error))
        finally:
            self._drain()
            self._cells = self._drafting = self._chores = None
            native.close()
            if self._state.phase is not Phase.FAILED:
                self._set_state(Phase.CLOSED)

    def _load(self, native: ExitStack) -> Plant:
        def progress(fraction: float) -> bool:
            self._set_state(Phase.LOADING, fraction)
            return not self._closing

        plant = load(
            self._path,
            self._params,
            self._speculation,
            abort=self._abort,
            curves=self._curves,
            progress=progress,
            native=native,
        )
        self._vocabulary = plant.generator.vocabulary
        self._cells = plant.generator.cells
        self._drafting = plant.generator.speculation
        self._speed = plant.speed
        self._info = plant.info
        return plant

    def _draft_setup(self, plant: Plant, native: ExitStack) -> DraftSetup | None:
        if self._draft is None or "model" not in plant.generator.sources:
            return None
        plan = DraftPlan(
            path=self._draft,
            params=self._draft_params,
            copies=self._draft_copies,
            max_draft=self._speculation.max_draft,
            n_ubatch=self._params.n_ubatch,
        )
        self._tell_draft(f"{self._draft.name} (not loaded yet)")
        return DraftSetup(
            plan, plant, abort=self._abort, tell=self._tell_draft, wake=self._wake, native=native
        )

    def _tell_draft(self, text: str) -> None:
        assert self._info is not None
        self._info = replace(self._info, draft=text)

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify()

    def _serve(self, generator: Generator, chores: Chores) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closing and not self._chore_is_due(chores):
                    self._lock.wait(_TYPING_S if chores.waiting else None)
                if self._closing:
                    return
                job = heapq.heappop(self._queue) if self._queue else None
                self._active = job
                self._at_chores = job is None
                if job is not None:
                    job.preempted = False
                self._abort.clear()
            try:
                if job is None:
                    self._do_chore(chores)
                else:
                    self._work(job, generator)
            finally:
                with self._lock:
                    self._active = None
                    self._at_chores = False

    def _chore_is_due(self, chores: Chores) -> bool:
        return chores.waiting and time.monotonic() - self._last_foreground >= _TYPING_S

    def _do_chore(self, chores: Chores) -> None:
        """Do one step of what can wait; a request takes the engine from it at once."""
        try:
            chores.step()
        except AbortedError:
            return  # a request came; the step is done anew later
        except Exception as error:  # thread boundary: the engine lives without it
            log.warning("idle work failed: %s", error, exc_info=not _ours(error))
            chores.drop()
        self._speed = calibrate.updated(self._speed, curve=chores.curve)

    def _work(self, job: Job, generator: Generator) -> None:
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
            warm=progress.warm,
            evaluated=progress.evaluated,
            prefill_ms=progress.prefill_ms,
            curve=generator.speculation.curve,
        )
        job.future.set_result(generation(progress, finish, job.submitted))

    def _requeue(self, job: Job) -> bool:
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
            resolve_unrun(job)


def _ours(error: Exception) -> bool:
    return isinstance(error, FimlspError)


def _as_ours(error: Exception) -> Exception:
    return error if _ours(error) else EngineError(f"{type(error).__name__}: {error}")
