"""One request's life: supersede, answer from memory, plan, generate, stop, trim, warm what follows.

Event loop thread only; the engine has its own. Knows the engine through ``engine.api`` alone and
nothing of LSP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from fimlsp.completion.api import CompletionParams, ServiceState, Status, Trigger
from fimlsp.completion.epochs import MAX_TYPED, Around, Epochs
from fimlsp.completion.flight import Flight, Waiter
from fimlsp.completion.stop import StopRule, stop_rule
from fimlsp.completion.suggestions import NEAR, Suggestions
from fimlsp.completion.trim import Trimmed, trim
from fimlsp.context.params import WindowParams
from fimlsp.document import Completion, NoCompletion, Reason, Snapshot, Timings
from fimlsp.engine.api import (
    Engine,
    EngineState,
    Finish,
    Generation,
    Phase,
    Priority,
    Request,
    Ticket,
)
from fimlsp.errors import FimlspError
from fimlsp.prompt.builder import MAX_HEALED_TOKENS
from fimlsp.prompt.templates import ResolvedTemplate, resolve_template

log = logging.getLogger(__name__)

ORPHAN_GRACE_S = 0.02
"""A client cancels just before it asks again: work that the next request can use survives this
long. Still well inside the 50 ms in which a cancel must free the engine."""
HEADER_TOKENS = 64
"""Room kept for repository, path and control tokens."""

Answer = tuple[Completion, ...] | NoCompletion


class Completions:
    """See :class:`fimlsp.completion.api.CompletionService`."""

    def __init__(self, params: CompletionParams, window: WindowParams) -> None:
        self._params = params
        self._window = window
        self._engine: Engine | None = None
        self._template: ResolvedTemplate | None = None
        self._epochs: Epochs | None = None
        self._suggestions = Suggestions()
        self._waiters: dict[str, Waiter] = {}
        self._flights: dict[str, Flight] = {}
        self._warmups: dict[str, Ticket] = {}
        self._listeners: list[Callable[[Status], None]] = []
        self._status = Status(state=ServiceState.LOADING, message="starting")

    # ---- the engine comes, changes, goes

    def use_engine(self, engine: Engine) -> None:
        """Serve from ``engine`` from now on; it may still be loading. Its maker closes it."""
        self._drop_work()
        self._engine, self._template, self._epochs = engine, None, None
        self._suggestions = Suggestions()
        loop = asyncio.get_running_loop()

        def changed(state: EngineState) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._engine_changed, engine, state)

        engine.on_state(changed)

    def fail(self, message: str) -> None:
        """There is no engine to be had; ``message`` says why and what to do."""
        self._drop_work()
        self._engine = None
        self._set_status(Status(state=ServiceState.ERROR, message=message))

    def configure(self, params: CompletionParams) -> None:
        """Use new parameters from the next request on."""
        self._params = params
        self._set_status(replace(self._status, state=self._idle_state()))

    def configure_window(self, window: WindowParams) -> None:
        """Use another window from the next prompt on."""
        self._window = window
        if self._epochs is not None and self._engine is not None:
            self._epochs.window = self._fitting_window(self._engine)

    def _engine_changed(self, engine: Engine, state: EngineState) -> None:
        if engine is not self._engine:
            return
        if state.phase is Phase.LOADING:
            status = replace(
                self._status,
                state=ServiceState.LOADING,
                message="loading the model",
                progress=state.progress,
            )
        elif state.phase is Phase.READY:
            status = self._ready(engine)
        elif state.phase is Phase.FAILED:
            status = Status(state=ServiceState.ERROR, message=str(state.error))
        else:
            return
        self._set_status(status)

    def _ready(self, engine: Engine) -> Status:
        info = engine.info
        try:
            self._template = resolve_template(engine.vocabulary, info.path.name)
        except FimlspError as error:
            return Status(state=ServiceState.ERROR, message=str(error), model=info.path.name)
        self._epochs = Epochs(engine, self._template, self._fitting_window(engine))
        return Status(
            state=ServiceState.READY if self._params.enabled else ServiceState.OFF,
            message=f"{info.description}, {info.threads} threads",
            model=info.path.name,
            backend=info.backend,
            progress=1.0,
        )

    def _fitting_window(self, engine: Engine) -> WindowParams:
        """Shrink the configured window so that prompt, typed text and answer fit the context."""
        answer = self._params.max_tokens + MAX_HEALED_TOKENS
        room = max(64, engine.n_ctx - HEADER_TOKENS - MAX_TYPED // 2 - answer)
        wanted = self._window.prefix_tokens + self._window.suffix_tokens
        if wanted <= room:
            return self._window
        share = room / wanted
        return replace(
            self._window,
            prefix_tokens=max(16, int(self._window.prefix_tokens * share)),
            suffix_tokens=int(self._window.suffix_tokens * share),
        )

    # ---- documents

    def opened(self, snapshot: Snapshot) -> None:
        """Take note of a new document; nothing is read before its cursor is known."""

    def closed(self, uri: str) -> None:
        """Forget everything about a document and stop what is being done for it."""
        self._stop_warming(uri)
        if waiter := self._waiters.pop(uri, None):
            waiter.supersede()
        if flight := self._flights.pop(uri, None):
            flight.cancel()
        self._suggestions.forget(uri)
        if self._epochs is not None:
            self._epochs.forget(uri)

    # ---- one request

    async def complete(self, snapshot: Snapshot, trigger: Trigger) -> Answer:
        """Answer one request; see the protocol."""
        begun = time.monotonic()
        if older := self._waiters.pop(snapshot.uri, None):
            older.supersede()
        refusal = self._refusal(snapshot)
        if refusal is not None:
            return self._report(refusal, begun)
        known = self._suggestions.find(snapshot)
        if known is not None:
            if flight := self._flights.pop(snapshot.uri, None):
                flight.cancel()
            return self._report((known,), begun)
        waiter = self._waiters[snapshot.uri] = Waiter()
        try:
            return self._report(await self._generate(snapshot, waiter), begun)
        except asyncio.CancelledError:
            self._report(NoCompletion(reason=Reason.CANCELLED), begun)
            raise
        except FimlspError as error:
            log.warning("no suggestion: %s", error)
            return self._report(NoCompletion(reason=Reason.FAILED, detail=str(error)), begun)
        finally:
            if self._waiters.get(snapshot.uri) is waiter:
                del self._waiters[snapshot.uri]

    def _refusal(self, snapshot: Snapshot) -> NoCompletion | None:
        """Return why nothing is generated at all, if so."""
        if not self._params.enabled:
            return NoCompletion(reason=Reason.DISABLED, detail="completion.enabled is false")
        if snapshot.language_id in self._params.disabled_languages:
            return NoCompletion(
                reason=Reason.DISABLED,
                detail=f"completion.disabled_languages has {snapshot.language_id}",
            )
        if self._epochs is None:
            loading = self._status.state is ServiceState.LOADING
            return NoCompletion(
                reason=Reason.LOADING if loading else Reason.NO_MODEL, detail=self._status.message
            )
        return None

    async def _generate(self, snapshot: Snapshot, waiter: Waiter) -> Answer:
        while True:
            flight, typed = self._join(snapshot) or (self._begin(snapshot), "")
            assert flight.answer is not None
            await self._first(flight, waiter)
            if waiter.superseded.done():
                return NoCompletion(reason=Reason.SUPERSEDED)
            if self._flights.get(snapshot.uri) is flight:
                del self._flights[snapshot.uri]
            generation = flight.answer.result()
            text = flight.text_of(generation.text)
            if typed and not (text.startswith(typed) and len(text) > len(typed)):
                continue  # what was typed since turned out differently: ask anew, all is warm
            answer = self._shape(snapshot, flight, generation, text[len(typed) :])
            self._warm_behind(snapshot, flight)
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
        for uri, flying in list(self._flights.items()):
            if flying is flight and self._waiters.get(uri) in (None, waiter):
                del self._flights[uri]
                flight.cancel()
                self._set_status(replace(self._status, state=self._idle_state()))

    def _join(self, snapshot: Snapshot) -> tuple[Flight, str] | None:
        """Return the document's flight and what was typed since, if it may still be right.

        Otherwise the flight is stopped; a prompt step that the new request shares is finished.
        """
        flight = self._flights.get(snapshot.uri)
        if flight is None or self._epochs is None:
            return None
        now = flight.plan.epoch.typed(Around.of(snapshot, self._epochs.window))
        before = flight.plan.typed
        if now is not None and now.startswith(before) and flight.land(now[len(before) :]):
            return flight, now[len(before) :]
        del self._flights[snapshot.uri]
        flight.cancel(keep_step=now is not None and not flight.produced)
        return None

    def _begin(self, snapshot: Snapshot) -> Flight:
        assert self._epochs is not None
        assert self._engine is not None
        assert self._template is not None
        plan = self._epochs.plan(snapshot)
        flight = Flight(plan, self._stop_rule(snapshot))
        self._set_status(replace(self._status, state=ServiceState.BUSY))
        flight.ticket = self._engine.submit(
            Request(
                slot=plan.epoch.slot,
                prompt=plan.prompt,
                must_start_with=plan.healed.must_start_with,
                max_tokens=self._params.max_tokens + MAX_HEALED_TOKENS,
                stop_tokens=self._template.stop_tokens,
                deadline=time.monotonic() + self._params.max_ms / 1e3,
                watch=flight.watch,
            )
        )
        flight.answer = asyncio.wrap_future(flight.ticket.future)
        self._flights[snapshot.uri] = flight
        return flight

    def _shape(
        self, snapshot: Snapshot, flight: Flight, generation: Generation, text: str
    ) -> Answer:
        """Turn generated text into a suggestion or the reason why there is none."""
        timings = Timings(
            prompt_tokens=generation.prompt_tokens,
            reused_tokens=generation.reused_tokens,
            queue_ms=generation.queue_ms,
            prefill_ms=generation.prefill_ms,
            tokens=len(generation.tokens),
            decode_ms=generation.decode_ms,
            drafted=generation.drafted,
            accepted=generation.accepted,
            draft_source=generation.draft_source,
        )
        if generation.finish is Finish.CANCELLED:
            return NoCompletion(reason=Reason.CANCELLED, timings=timings)
        assert self._template is not None
        ended = generation.finish in (Finish.STOP_TOKEN, Finish.WATCH)
        kept = self._stop_rule(snapshot).keep(text.encode(), ended=ended)
        trimmed = trim(
            kept,
            before=snapshot.before(NEAR),
            after=snapshot.after(NEAR),
            spellings=self._template.template.spellings,
        )
        if not isinstance(trimmed, Trimmed):
            return NoCompletion(reason=trimmed, timings=timings)
        completion = Completion(
            text=trimmed.text, replace_after=trimmed.replace_after, timings=timings
        )
        self._suggestions.remember(snapshot, completion)
        return (completion,)

    def _stop_rule(self, snapshot: Snapshot) -> StopRule:
        return stop_rule(
            before=snapshot.before(NEAR),
            after=snapshot.after(NEAR),
            multiline=self._params.multiline,
            max_lines=self._params.max_lines,
        )

    # ---- behind the person's back

    def _warm_behind(self, snapshot: Snapshot, flight: Flight) -> None:
        """Read the better prompt for this place while the person looks at the suggestion."""
        assert self._epochs is not None
        assert self._engine is not None
        better = self._epochs.better(snapshot, flight.plan)
        if better is None:
            return
        self._stop_warming(snapshot.uri)
        self._warmups[snapshot.uri] = self._engine.submit(
            Request(slot=better.slot, prompt=better.head, max_tokens=0, priority=Priority.WARMUP)
        )

    def _stop_warming(self, uri: str) -> None:
        if ticket := self._warmups.pop(uri, None):
            ticket.cancel()

    # ---- status

    @property
    def status(self) -> Status:
        """The current status."""
        return self._status

    def on_status(self, listener: Callable[[Status], None]) -> None:
        """Call ``listener`` whenever the status changes."""
        self._listeners.append(listener)

    def _report(self, answer: Answer, begun: float) -> Answer:
        """Put an answer's timings and reason into the status, and the total into the answer."""
        total_ms = (time.monotonic() - begun) * 1e3
        if isinstance(answer, tuple):
            answer = tuple(
                replace(c, timings=replace(c.timings, total_ms=total_ms)) for c in answer
            )
            reason, last = "", answer[0].timings
        elif answer.reason is Reason.SUPERSEDED:
            return answer  # the status belongs to the request that came after
        else:
            last = replace(answer.timings, total_ms=total_ms)
            answer = replace(answer, timings=last)
            reason = answer.reason.value
        status = replace(self._status, state=self._idle_state(), reason=reason, last=last)
        self._set_status(status)
        return answer

    def _idle_state(self) -> ServiceState:
        if self._epochs is None:
            return self._status.state
        if self._flights:
            return ServiceState.BUSY
        return ServiceState.READY if self._params.enabled else ServiceState.OFF

    def _set_status(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            for listener in self._listeners:
                listener(status)

    # ---- the end

    async def close(self) -> None:
        """Drop all work."""
        self._drop_work()

    def _drop_work(self) -> None:
        for uri in [*self._warmups]:
            self._stop_warming(uri)
        for waiter in self._waiters.values():
            waiter.supersede()
        for flight in self._flights.values():
            flight.cancel()
        self._waiters.clear()
        self._flights.clear()
