"""Completions while engines come and go: reasons, status, and what is read ahead."""

from __future__ import annotations

import asyncio
import gc
from itertools import groupby

import pytest
from desk import Desk, answer_of, ready_desk, reason_of, scripted_engine, settle, text_of
from fakes import URI, ScriptedEngine, ScriptedTicket, snapshot_at

from fimlsp.completion.api import CompletionParams, ServiceState
from fimlsp.context.params import WindowParams
from fimlsp.document import NoCompletion, Timings
from fimlsp.engine.api import EngineState, Finish, Phase, Priority, Request
from fimlsp.errors import DecodeError, ModelLoadError, PromptTooLongError

COLD = WindowParams(prefix_tokens=200, suffix_tokens=60, cold_ms=600)
"""Against 100 tokens a second: 60 of a document's many tokens at first."""
LINES = "".join(f"line {number:04}\n" for number in range(100))
READY = EngineState(phase=Phase.READY, progress=1.0)


async def loading_desk() -> Desk:
    desk = Desk(CompletionParams(), WindowParams(), 2048)
    desk.engine.state = EngineState(phase=Phase.LOADING, progress=0.25)
    desk.service.use_engine(desk.engine)
    await settle()
    return desk


# ---- why there is nothing


async def test_while_the_model_loads_requests_are_answered_with_that_reason() -> None:
    desk = await loading_desk()
    assert desk.state() is ServiceState.LOADING
    assert desk.service.status.progress == 0.25
    assert reason_of(await desk.ask("x = ‸\n")) == "loading"
    desk.engine.state = READY
    await settle()
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"


async def test_a_failed_load_is_the_reason_and_the_status_until_another_engine_comes() -> None:
    desk = await loading_desk()
    error = ModelLoadError("the file is odd; take another")
    desk.engine.state = EngineState(phase=Phase.FAILED, error=error)
    await settle()
    answer = await desk.ask("x = ‸\n")
    assert reason_of(answer) == "no_model"
    assert isinstance(answer, NoCompletion)
    assert answer.detail == str(error)
    assert desk.state() is ServiceState.ERROR
    assert desk.service.status.message == str(error)
    desk.service.use_engine(scripted_engine(desk))
    await settle()
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"


async def test_an_engine_that_dies_while_serving_stays_an_error() -> None:
    """The next request said "ready" again."""
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    desk.engine.state = EngineState(phase=Phase.FAILED, error=DecodeError("out of memory"))
    await settle()
    assert reason_of(await answer_of(task)) == "superseded"
    assert reason_of(await desk.ask("x = ‸\n")) == "no_model"
    assert desk.state() is ServiceState.ERROR
    assert desk.service.status.message == "out of memory"


async def test_where_no_engine_can_be_had_the_reason_is_what_was_said() -> None:
    """It was an assertion error after an earlier engine had served."""
    desk = await ready_desk()
    await desk.ask("x = ‸\n")
    desk.service.fail("no such model; run `fimlsp models list`")
    answer = await desk.ask("x = ‸\n")
    assert reason_of(answer) == "no_model"
    assert isinstance(answer, NoCompletion)
    assert "models list" in answer.detail
    assert desk.state() is ServiceState.ERROR


async def test_a_model_that_can_not_fill_in_the_middle_is_an_error_that_names_it() -> None:
    desk = Desk(CompletionParams(), WindowParams(), 2048)
    desk.service.use_engine(scripted_engine(desk, fim=False))
    await settle()
    assert desk.state() is ServiceState.ERROR
    assert "scripted.gguf" in desk.service.status.message
    assert desk.service.status.model == "scripted.gguf"
    assert reason_of(await desk.ask("x = ‸\n")) == "no_model"


async def test_switched_off_there_is_nothing_and_nothing_goes_on() -> None:
    desk = await ready_desk(window=COLD)
    desk.engine.holds_background = True
    assert text_of(await desk.ask(f"{LINES}x = ‸\n{LINES}")) == "alpha"
    desk.engine.held = True
    task = await desk.start(f"y‸\n{LINES}{LINES}")
    desk.service.configure(CompletionParams(enabled=False))
    assert not desk.engine.waiting
    assert reason_of(await answer_of(task)) == "superseded"
    assert reason_of(await desk.ask("x = ‸\n")) == "disabled"
    assert desk.state() is ServiceState.OFF
    desk.service.configure(CompletionParams())
    assert desk.state() is ServiceState.READY


async def test_a_language_that_is_switched_off_gets_nothing_and_the_others_do() -> None:
    desk = await ready_desk(CompletionParams(disabled_languages=("markdown",)))
    answer = await desk.ask(snapshot_at("x = ‸\n", language_id="markdown"))
    assert reason_of(answer) == "disabled"
    assert isinstance(answer, NoCompletion)
    assert "markdown" in answer.detail
    assert not desk.engine.tickets
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"
    assert desk.state() is ServiceState.READY


async def test_a_refused_request_still_supersedes_and_leaves_nothing_running() -> None:
    desk = await ready_desk(CompletionParams(disabled_languages=("markdown",)))
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    await desk.ask(snapshot_at("x = ‸\n", language_id="markdown"))
    assert reason_of(await answer_of(task)) == "superseded"
    assert not desk.engine.waiting
    assert desk.state() is ServiceState.READY


async def test_nothing_worth_showing_is_a_reason() -> None:
    desk = await ready_desk()
    desk.texts = ["  \n"]
    assert reason_of(await desk.ask("x =‸\n")) == "empty"
    assert desk.service.status.reason == "empty"
    desk.texts = ["telling(line)\n"]
    assert reason_of(await desk.ask("‸\ntelling(line)\n")) == "repeats_suffix"


async def test_an_error_of_the_engine_is_an_answer_and_the_next_request_works() -> None:
    desk = await ready_desk()
    desk.texts = [DecodeError("the library said no"), "alpha"]
    answer = await desk.ask("x = ‸\n")
    assert reason_of(answer) == "failed"
    assert isinstance(answer, NoCompletion)
    assert answer.detail == "the library said no"
    assert desk.state() is ServiceState.READY
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"


async def test_an_error_nobody_waits_for_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    desk.texts = [DecodeError("the library said no")]
    desk.engine.resume()
    desk.service.closed(URI)
    assert reason_of(await answer_of(task)) == "superseded"
    desk.engine.tickets.clear()
    desk.texts.clear()  # the error remembers the frames it went through
    gc.collect()  # asyncio complains when it drops an error that nobody has looked at
    await settle()
    assert caplog.records == []


async def test_a_prompt_that_does_not_fit_is_an_answer() -> None:
    desk = await ready_desk(n_ctx=300)
    answer = await desk.ask(f"{'é中' * 150}‸\n")
    assert reason_of(answer) == "failed"
    assert desk.state() is ServiceState.READY
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"


# ---- sizes


@pytest.mark.parametrize("n_ctx", [300, 600, 2048])
@pytest.mark.parametrize("max_tokens", [8, 64, 4096])
async def test_prompt_and_answer_fit_every_context(n_ctx: int, max_tokens: int) -> None:
    desk = await ready_desk(n_ctx=n_ctx)
    desk.service.configure(CompletionParams(max_tokens=max_tokens))
    assert text_of(await desk.ask(f"{LINES}x = ‸\n{LINES}")) == "alpha"
    request = desk.engine.tickets[0].request
    assert request.max_tokens >= min(max_tokens, n_ctx // 8)


async def test_another_window_counts_from_the_next_prompt_on() -> None:
    desk = await ready_desk()
    await desk.ask(f"{LINES}x = ‸\n")
    desk.service.configure_window(WindowParams(prefix_tokens=50, cold_ms=60_000))
    await desk.ask(f"{LINES}x = \nyy = ‸\nz\n")
    large, small = (len(ticket.request.prompt) for ticket in desk.engine.tickets)
    assert small < 100 < large


# ---- another engine


async def test_another_engine_takes_over_with_nothing_of_the_old_one() -> None:
    desk = await ready_desk()
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"
    old = desk.engine
    old.held = True
    task = await desk.start("y‸\nx = \n")
    asked = desk.service.status.requests
    desk.texts = ["beta"]
    new = scripted_engine(desk)
    desk.service.use_engine(new)
    assert desk.state() is ServiceState.LOADING
    assert reason_of(await desk.ask("x = ‸\n")) == "loading"
    await settle()
    assert reason_of(await answer_of(task)) == "superseded"
    assert not old.waiting
    assert text_of(await desk.ask("x = ‸\n")) == "beta"
    assert len(new.tickets) == 1
    old.state = EngineState(phase=Phase.FAILED, error=ModelLoadError("closed too late"))
    await settle()
    assert desk.state() is ServiceState.READY
    assert desk.service.status.requests == asked + 2


async def test_an_engine_that_outlives_the_loop_does_no_harm() -> None:
    def run() -> ScriptedEngine:
        async def serve() -> ScriptedEngine:
            return (await ready_desk()).engine

        return asyncio.run(serve())

    engine = await asyncio.to_thread(run)
    engine.state = EngineState(phase=Phase.CLOSED)


async def test_the_end_drops_all_work() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    await desk.service.close()
    assert reason_of(await answer_of(task)) == "superseded"
    assert not desk.engine.waiting
    assert not desk.engine.is_closed  # that is for whoever made it


# ---- the status


async def test_the_status_tells_busy_ready_timings_reason_and_count() -> None:
    desk = await ready_desk()
    desk.statuses.clear()
    desk.texts = ["alpha", ""]
    await desk.ask("x = ‸\n")
    status = desk.service.status
    assert [state for state, _ in groupby(s.state for s in desk.statuses)] == [
        ServiceState.BUSY,
        ServiceState.READY,
    ]
    assert (status.reason, status.requests) == ("", 1)
    assert status.last.prompt_tokens > 0
    assert status.last.tokens == len("alpha") + 1  # and the healed space
    assert status.last.total_ms > 0
    await desk.ask("x = b‸\n")
    status = desk.service.status
    assert (status.reason, status.requests) == ("empty", 2)
    assert status.last.reused_tokens > 0
    assert (status.model, status.backend) == ("scripted.gguf", "scripted")


async def test_a_superseded_request_leaves_the_status_to_the_newer_one() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = ‸\n")
    await desk.start("x = a‸\n")
    assert desk.state() is ServiceState.BUSY
    assert (desk.service.status.requests, desk.service.status.last) == (0, Timings())


# ---- read ahead


async def test_the_full_window_is_read_behind_a_small_one_once() -> None:
    desk = await ready_desk(window=COLD)
    desk.engine.holds_background = True
    await desk.ask(f"{LINES}x = ‸\n{LINES}")
    await desk.ask(f"{LINES}x = b‸\n{LINES}")
    (warmup,) = desk.background()
    small = desk.foreground()[0].request
    assert warmup.request.max_tokens == 0
    assert len(warmup.request.prompt) > 2 * len(small.prompt)
    assert warmup.request.slot != small.slot
    desk.engine.resume()
    await desk.ask(f"{LINES}x = c‸\n{LINES}")
    served = desk.foreground()[-1].request
    assert served.prompt[: len(warmup.request.prompt)] == warmup.request.prompt
    assert len(desk.background()) == 1


async def test_reading_ahead_ends_when_the_document_is_closed() -> None:
    desk = await ready_desk(window=COLD)
    desk.engine.holds_background = True
    await desk.ask(f"{LINES}x = ‸\n{LINES}")
    desk.service.closed(URI)
    assert not desk.engine.waiting


async def test_reading_ahead_ends_when_another_place_is_asked_for_but_not_when_typing_on() -> None:
    """It went on into a slot that served the new place by then."""
    desk = await ready_desk(window=COLD)
    desk.engine.holds_background = True
    await desk.ask(f"{LINES}x = ‸\n{LINES}")
    desk.engine.held = True
    await desk.start(f"{LINES}x = b‸\n{LINES}")
    (warmup,) = desk.background()
    assert not warmup.future.done()
    await desk.start(f"y = ‸\n{LINES}x = \n{LINES}")
    assert warmup.future.result(timeout=0).finish is Finish.CANCELLED


async def test_reading_ahead_goes_on_in_one_document_while_another_is_typed_in() -> None:
    desk = await ready_desk(window=COLD)
    desk.engine.holds_background = True
    await desk.ask(f"{LINES}x = ‸\n{LINES}")
    await desk.ask(snapshot_at("x = ‸\n", uri="file:///b.py"))
    (warmup,) = desk.background()
    assert not warmup.future.done()


async def test_a_suggestion_is_shown_although_nothing_can_be_read_ahead() -> None:
    class NoBackground(ScriptedEngine):
        def submit(self, request: Request) -> ScriptedTicket:
            if request.priority is not Priority.FOREGROUND:
                raise PromptTooLongError("no")
            return super().submit(request)

    desk = await ready_desk(window=COLD)
    engine = NoBackground(desk.script, desk.engine.vocabulary)
    desk.service.use_engine(engine)
    await settle()
    assert text_of(await desk.ask(f"{LINES}x = ‸\n{LINES}")) == "alpha"
    assert desk.state() is ServiceState.READY


async def test_a_prompt_that_takes_too_long_to_read_is_said_to_be_over_budget() -> None:
    """It once read as if the model had nothing to say."""
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    desk.engine.finish(desk.engine.waiting[0], Finish.DEADLINE)
    assert reason_of(await answer_of(task)) == "over_budget"
