"""One request's life: supersede, answer from memory, plan, generate, stop, trim, warm what follows.

Event loop thread only; the engine has its own. Knows the engine through ``engine.api`` alone and
nothing of LSP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from fimlsp.completion.api import CompletionParams, ServiceState, Status, Trigger
from fimlsp.completion.board import Answer, Board
from fimlsp.completion.epochs import Around, Epochs, Plan, fit_window
from fimlsp.completion.flight import Flight, Waiter, timings_of
from fimlsp.completion.stop import StopRule, stop_rule
from fimlsp.completion.suggestions import NEAR, Suggestions
from fimlsp.completion.trim import Trimmed, trim
from fimlsp.completion.warmups import Warmups
from fimlsp.context.params import WindowParams
from fimlsp.document import Completion, NoCompletion, Reason, Snapshot
from fimlsp.engine.api import (
    GREEDY,
    Engine,
    EngineState,
    Finish,
    Generation,
    Phase,
    Priority,
    Request,
    SamplingParams,
)
from fimlsp.errors import FimlspError
from fimlsp.prompt.builder import MAX_HEALED_TOKENS
from fimlsp.prompt.templates import ResolvedTemplate, resolve_template

log = logging.getLogger(__name__)

ORPHAN_GRACE_S = 0.02
"""A client cancels just before it asks again: work that the next request can use survives this
long. Still well inside the 50 ms in which a cancel must free the engine."""

_LOADING = "loading the model"


@dataclass(frozen=True, slots=True)
class _Serving:
    """What is there while an engine is ready."""

    engine: Engine
    template: ResolvedTemplate
    epochs: Epochs
    warmups: Warmups


class Completions:
    """See :class:`fimlsp.completion.api.CompletionService`."""

    def __init__(
        self, params: CompletionParams, window: WindowParams, sampling: SamplingParams = GREEDY
    ) -> None:
        self._params = params
        self._window = window
        self._sampling = sampling
        self._engine: Engine | None = None
        self._serving: _Serving | None = None
        self._suggestions = Suggestions()
        self._waiters: dict[str, Waiter] = {}
        self._flights: dict[str, Flight] = {}
        self._board = Board()

    def use_engine(self, engine: Engine) -> None:
        """Serve from ``engine`` from now on; it may still be loading. Its maker closes it."""
        self._forget_engine()
        self._engine = engine
        self._board.begin(ServiceState.LOADING, _LOADING)
        loop = asyncio.get_running_loop()

        def changed(state: EngineState) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed before the engine
                loop.call_soon_threadsafe(self._engine_changed, engine, state)

        engine.on_state(changed)

    def fail(self, message: str) -> None:
        """There is no engine to be had; ``message`` says why and what to do."""
        self._forget_engine()
        self._board.begin(ServiceState.ERROR, message)

    def configure(self, params: CompletionParams) -> None:
        """Use new parameters from the next request on."""
        self._params = params
        if not params.enabled:
            self._drop_work()
        self.configure_window(self._window)
        self._set_idle()

    def configure_sampling(self, sampling: SamplingParams) -> None:
        """Pick tokens differently from the next request on."""
        self._sampling = sampling

    def configure_window(self, window: WindowParams) -> None:
        """Use another window from the next prompt on."""
        self._window = window
        if self._serving is not None:
            self._serving.epochs.window = self._fit_window(self._serving.engine)

    def _engine_changed(self, engine: Engine, state: EngineState) -> None:
        if engine is not self._engine:
            return
        if state.phase is Phase.LOADING:
            loading = ServiceState.LOADING
            self._board.change(state=loading, message=_LOADING, progress=state.progress)
        elif state.phase is Phase.READY:
            self._start_serving(engine)
        elif state.phase is Phase.FAILED:
            self._forget_engine()
            self._board.begin(ServiceState.ERROR, str(state.error))

    def _forget_engine(self) -> None:
        self._drop_work()
        self._engine = self._serving = None
        self._suggestions = Suggestions()

    def _start_serving(self, engine: Engine) -> None:
        info = engine.info
        try:
            template = resolve_template(engine.vocabulary, info.path.name)
        except FimlspError as error:
            self._board.begin(ServiceState.ERROR, str(error), model=info.path.name)
            return
        epochs = Epochs(engine, template, self._fit_window(engine))
        self._serving = _Serving(engine, template, epochs, Warmups(engine, epochs))
        self._board.begin(
            self._idle_state(),
            f"{info.description}, {info.threads} threads",
            model=info.path.name,
            backend=info.backend,
            progress=1.0,
        )

    def _fit_window(self, engine: Engine) -> WindowParams:
        return fit_window(self._window, engine.n_ctx, self._params.max_tokens)

    # ---- documents

    def opened(self, snapshot: Snapshot) -> None:
        """Take note of a new document; nothing is read before its cursor is known."""

    def closed(self, uri: str) -> None:
        """Forget everything about a document and stop what is being done for it."""
        if waiter := self._waiters.pop(uri, None):
            waiter.supersede()
        self._drop_flight(uri)
        self._suggestions.forget(uri)
        if self._serving is not None:
            self._serving.warmups.stop(uri)
            self._serving.epochs.forget(uri)
        self._set_idle()

    # ---- one request

    async def complete(self, snapshot: Snapshot, trigger: Trigger) -> Answer:
        """Answer one request; see the protocol."""
        begun = time.monotonic()
        if older := self._waiters.pop(snapshot.uri, None):
            older.supersede()
        serving = self._available(snapshot)
        if isinstance(serving, NoCompletion):
            self._drop_flight(snapshot.uri)
            return self._report(serving, begun)
        known = self._suggestions.find(snapshot)
        if known is not None:
            self._drop_flight(snapshot.uri)
            return self._report((known,), begun)
        waiter = self._waiters[snapshot.uri] = Waiter()
        try:
            return self._report(await self._generate(serving, snapshot, waiter), begun)
        except asyncio.CancelledError:
            self._report(NoCompletion(reason=Reason.CANCELLED), begun)
            raise
        except FimlspError as error:
            log.warning("no suggestion: %s", error)
            return self._report(NoCompletion(reason=Reason.FAILED, detail=str(error)), begun)
        finally:
            if self._waiters.get(snapshot.uri) is waiter:
                del self._waiters[snapshot.uri]

    def _available(self, snapshot: Snapshot) -> _Serving | NoCompletion:
        """Return what serves ``snapshot``, or why nothing does."""
        if not self._params.enabled:
            return NoCompletion(reason=Reason.DISABLED, detail="completion.enabled is false")
        if snapshot.language_id in self._params.disabled_languages:
            return NoCompletion(
                reason=Reason.DISABLED,
                detail=f"completion.disabled_languages has {snapshot.language_id}",
            )
        if self._serving is None:
            loading = self.status.state is ServiceState.LOADING
            return NoCompletion(
                reason=Reason.LOADING if loading else Reason.NO_MODEL, detail=self.status.message
            )
        return self._serving

    async def _generate(self, serving: _Serving, snapshot: Snapshot, waiter: Waiter) -> Answer:
        thorough: Plan | None = None
        while True:
            flight = self._join(serving, snapshot) or self._begin(serving, snapshot, thorough)
            assert flight.answer is not None
            await self._first(flight, waiter)
            if waiter.superseded.done():
                return NoCompletion(reason=Reason.SUPERSEDED)
            if self._flights.get(snapshot.uri) is flight:
                del self._flights[snapshot.uri]
            generation = flight.answer.result()
            better = serving.epochs.better(snapshot, flight.plan)
            if generation.finish is Finish.UNSURE:
                # A guess from a few lines would be noise: read the full window first.
                thorough = serving.epochs.plan_with(better, snapshot) if better else None
                thorough = thorough or serving.epochs.plan(snapshot)
                continue
            answer = self._land(flight, generation)
            if flight.snapshot is not snapshot:
                rest = self._suggestions.find(snapshot)
                if rest is None:
                    continue  # what was typed since turned out differently: ask anew, all is warm
                answer = (replace(rest, timings=timings_of(generation)),)
            if better:
                serving.warmups.start(snapshot.uri, better)
            return answer

    async def _first(self, flight: Flight, waiter: Waiter) -> None:
        """Wait for the flight's end or the waiter's; when cancelled, let the flight go soon."""
        assert flight.answer is not None
        try:
            futures: set[asyncio.Future[object]] = {
                cast("asyncio.Future[object]", flight.answer),
                cast("asyncio.Future[object]", waiter.superseded),
            }
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(ORPHAN_GRACE_S, self._let_go, flight, waiter)
            raise

    def _let_go(self, flight: Flight, waiter: Waiter) -> None:
        """Cancel a flight nobody waits for any more."""
        uri = flight.snapshot.uri
        if self._flights.get(uri) is flight and self._waiters.get(uri) in (None, waiter):
            self._drop_flight(uri)
            self._set_idle()

    def _drop_flight(self, uri: str, *, keep_step: bool = False) -> None:
        """Stop a document's flight; if it has just ended, remember what it brought."""
        if flight := self._flights.pop(uri, None):
            if generation := flight.result():
                self._land(flight, generation)
            flight.cancel(keep_step=keep_step)

    def _join(self, serving: _Serving, snapshot: Snapshot) -> Flight | None:
        """Return the document's flight if it may still bring what is wanted here.

        Otherwise the flight is stopped; a prompt step that the new request shares is finished.
        """
        flight = self._flights.get(snapshot.uri)
        if flight is None:
            return None
        now = flight.plan.epoch.typed(Around.of(snapshot, serving.epochs.window))
        before = flight.plan.typed
        if now is not None and now.startswith(before) and flight.land(now[len(before) :]):
            return flight
        shared = now is not None and not flight.produced and not flight.thorough
        self._drop_flight(snapshot.uri, keep_step=shared)
        return None

    def _begin(self, serving: _Serving, snapshot: Snapshot, thorough: Plan | None) -> Flight:
        plan = thorough or serving.epochs.plan(snapshot)
        serving.warmups.stop_unless_useful(snapshot, plan.epoch)
        spellings = serving.template.template.spellings
        small = not plan.epoch.full
        rule, patience_s = self._stop_rule(snapshot, small), self._params.patience_ms / 1e3
        flight = Flight(snapshot, plan, rule, patience_s, spellings, thorough=bool(thorough))
        room = serving.engine.n_ctx - len(plan.prompt)
        start, hopes = plan.healed.must_start_with, self._suggestions.hopes(snapshot)
        self._board.change(state=ServiceState.BUSY)
        flight.ticket = serving.engine.submit(
            Request(
                slot=plan.epoch.slot,
                prompt=plan.prompt,
                must_start_with=start,
                max_tokens=max(1, min(self._params.max_tokens + MAX_HEALED_TOKENS, room)),
                stop_tokens=serving.template.stop_tokens,
                deadline=None if thorough else time.monotonic() + self._params.max_ms / 1e3,
                priority=Priority.PREFETCH if thorough else Priority.FOREGROUND,
                watch=flight.watch,
                expected=tuple(start + _bytes(text) for text in hopes.expected),
                related=tuple(map(_bytes, hopes.related)),
                min_probability=0.0 if thorough else small * self._params.cold_confidence,
                omittable=plan.epoch.omittable,
                sampling=self._sampling,
            )
        )
        flight.answer = asyncio.wrap_future(flight.ticket.future)
        flight.answer.add_done_callback(_take_exception)
        self._flights[snapshot.uri] = flight
        return flight

    def _land(self, flight: Flight, generation: Generation) -> Answer:
        """Return and remember the suggestion for the flight's own cursor, or why there is none."""
        timings = timings_of(generation)
        if flight.result() is None:
            return NoCompletion(reason=Reason.CANCELLED, timings=timings)
        if generation.finish is Finish.DEADLINE and not generation.tokens:
            return NoCompletion(reason=Reason.OVER_BUDGET, timings=timings)
        snapshot = flight.snapshot
        trimmed = trim(
            flight.kept(generation),
            before=snapshot.before(NEAR),
            after=snapshot.after(NEAR),
            spellings=flight.spellings,
        )
        if not isinstance(trimmed, Trimmed):
            return NoCompletion(reason=trimmed, timings=timings)
        completion = Completion(
            text=trimmed.text, replace_after=trimmed.replace_after, timings=timings
        )
        self._suggestions.remember(snapshot, completion)
        return (completion,)

    def _stop_rule(self, snapshot: Snapshot, small: bool) -> StopRule:
        """Return how far a suggestion may reach: a few lines of context are good for one line."""
        return stop_rule(
            before=snapshot.before(NEAR),
            after=snapshot.after(NEAR),
            multiline="never" if small else self._params.multiline,
            max_lines=self._params.max_lines,
        )

    # ---- status

    @property
    def status(self) -> Status:
        """The current status."""
        return self._board.status

    def on_status(self, listener: Callable[[Status], None]) -> None:
        """Call ``listener`` whenever the status changes."""
        self._board.listen(listener)

    def _report(self, answer: Answer, begun: float) -> Answer:
        if self._serving is not None and self._serving.engine.state.phase is Phase.READY:
            self._board.change(draft=self._serving.engine.info.draft)
        return self._board.report(answer, (time.monotonic() - begun) * 1e3, self._idle_state())

    def _idle_state(self) -> ServiceState:
        if self._serving is None:
            return self.status.state
        if self._flights:
            return ServiceState.BUSY
        return ServiceState.READY if self._params.enabled else ServiceState.OFF

    def _set_idle(self) -> None:
        self._board.change(state=self._idle_state())

    # ---- the end

    async def close(self) -> None:
        """Drop all work."""
        self._drop_work()

    def _drop_work(self) -> None:
        if self._serving is not None:
            self._serving.warmups.stop_all()
        for waiter in self._waiters.values():
            waiter.supersede()
        for flight in self._flights.values():
            flight.cancel()
        self._waiters.clear()
        self._flights.clear()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _take_exception(answer: asyncio.Future[Generation]) -> None:
    """Look at an error nobody may be waiting for, or asyncio complains about it."""
    if not answer.cancelled():
        answer.exception()
