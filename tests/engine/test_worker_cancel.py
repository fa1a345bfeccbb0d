"""Cancelling: at once, in the middle of a native step, and without losing what was read."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from engine_harness import PATIENCE_S, Oracle, Steps, result, wait

from fimlsp.engine.api import Finish, Generation, Phase, Priority, Request, Ticket
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import EngineClosedError

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture
def reading(text: list[int]) -> Request:
    """Ten native steps of reading, then fifteen of writing."""
    return Request(slot="a", prompt=tuple(text[:320]), max_tokens=16)


def test_a_queued_request_resolves_at_once(
    engine: InProcessEngine, steps: Steps, reading: Request
) -> None:
    gate = steps.hold()
    engine.submit(reading)
    queued = engine.submit(replace(reading, slot="b"))
    with gate:
        queued.cancel()
        assert queued.future.done()
        answer = queued.future.result(0)
    assert (answer.finish, answer.text, answer.tokens) == (Finish.CANCELLED, b"", ())
    assert {step.slot for step in steps.log} == {0}  # it never took a slot


def test_an_active_request_ends_inside_its_native_step(
    engine: InProcessEngine, steps: Steps, reading: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    ticket = engine.submit(reading)
    with gate:
        ticket.cancel()
    answer = result(ticket.future)
    assert answer.finish is Finish.CANCELLED
    assert [step.pos for step in steps.aborts] == [96]
    assert steps.log[-1].pos == 96


def test_what_a_cancelled_request_has_read_stays_warm(
    engine: InProcessEngine, steps: Steps, oracle: Oracle, reading: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    ticket = engine.submit(reading)
    with gate:
        ticket.cancel()
    assert result(ticket.future).prompt_tokens == 96
    after = result(engine.submit(reading).future)
    assert after.reused_tokens == 96
    oracle.check(reading, after)


def test_keep_step_lets_the_running_step_finish_and_keeps_its_cells(
    engine: InProcessEngine, steps: Steps, oracle: Oracle, reading: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    ticket = engine.submit(reading)
    with gate:
        ticket.cancel(keep_step=True)
    answer = result(ticket.future)
    assert (answer.finish, answer.prompt_tokens) == (Finish.CANCELLED, 128)
    assert steps.aborts == []
    after = result(engine.submit(reading).future)
    assert after.reused_tokens == 128
    oracle.check(reading, after)


def test_a_plain_cancel_after_keep_step_stops_the_step_after_all(
    engine: InProcessEngine, steps: Steps, reading: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    ticket = engine.submit(reading)
    with gate:
        ticket.cancel(keep_step=True)
        ticket.cancel()
    assert result(ticket.future).prompt_tokens == 96
    assert len(steps.aborts) == 1


def test_a_request_cancelled_while_writing_returns_what_it_has(
    engine: InProcessEngine, steps: Steps, oracle: Oracle, reading: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == len(reading.prompt) + 3)
    ticket = engine.submit(reading)
    with gate:
        ticket.cancel()
    answer = result(ticket.future)
    assert (answer.finish, len(answer.tokens)) == (Finish.CANCELLED, 4)
    oracle.check(reading, answer)
    assert result(engine.submit(reading).future).prompt_tokens == 1


def test_aborting_at_random_moments_never_changes_what_is_written(
    open_tiny: OpenEngine, steps: Steps, oracle: Oracle, text: list[int]
) -> None:
    """After an abort ik_llama returns success and leaves cells of garbage behind."""
    engine = open_tiny(n_ubatch=128, n_ctx=1024)
    request = Request(slot="a", prompt=tuple(text * 2), max_tokens=12)
    chance = random.Random(5)
    for number in range(60):
        length = chance.randrange(1, 800)
        gate = steps.hold(after=chance.randrange(6))
        ticket = engine.submit(replace(request, prompt=request.prompt[:length]))
        with gate:
            if number % 3 == 0:
                ticket.cancel(keep_step=number % 2 == 0)
        for _spin in range(chance.randrange(6000)):
            pass
        ticket.cancel()
        result(ticket.future)
    assert len(steps.aborts) >= 10
    answer = result(engine.submit(request).future)
    assert len(answer.tokens) == 12
    oracle.check(request, answer)


def test_cancelling_after_the_end_is_harmless(
    engine: InProcessEngine, steps: Steps, reading: Request
) -> None:
    ticket = engine.submit(reading)
    answer = result(ticket.future)
    ticket.cancel()
    ticket.cancel(keep_step=True)
    assert ticket.future.result(0) is answer
    following = result(engine.submit(reading).future)
    assert following.finish is Finish.MAX_TOKENS
    assert steps.aborts == []


def test_many_threads_may_cancel_the_same_request(
    engine: InProcessEngine, steps: Steps, reading: Request
) -> None:
    """Two cancels of one queued request both tried to resolve it; one of them raised."""
    gate = steps.hold()
    active = engine.submit(reading)
    errors: list[Exception] = []
    together = threading.Barrier(4)

    def cancel(ticket: Ticket) -> None:
        together.wait(PATIENCE_S)
        try:
            ticket.cancel()
        except Exception as error:
            errors.append(error)

    with gate:
        for _round in range(20):
            queued = engine.submit(replace(reading, slot="b"))
            threads = [threading.Thread(target=cancel, args=(queued,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert result(queued.future).finish is Finish.CANCELLED
        active.cancel()
    assert errors == []


def test_a_holder_that_cancels_the_future_itself_does_not_break_the_engine(
    engine: InProcessEngine, steps: Steps, reading: Request
) -> None:
    """asyncio.wrap_future passes its cancel on; resolving then raised on the engine's thread."""

    async def give_up() -> None:
        waiting = asyncio.wrap_future(ticket.future)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    gate = steps.hold()
    ticket = engine.submit(reading)
    with gate:
        asyncio.run(give_up())
    assert result(ticket.future).finish is Finish.MAX_TOKENS
    assert engine.state.phase is Phase.READY


def test_every_future_resolves_exactly_once_also_at_close(
    engine: InProcessEngine, steps: Steps, text: list[int]
) -> None:
    answers: list[Generation] = []
    gate = steps.hold(lambda step: step.pos == 64)
    tickets = [
        engine.submit(
            Request(
                slot=f"{priority.name}-{number}",
                prompt=tuple(text[:128]),
                max_tokens=4,
                priority=priority,
            )
        )
        for priority in (Priority.FOREGROUND, Priority.PREFETCH, Priority.WARMUP)
        for number in range(4)
    ]
    for ticket in tickets:
        ticket.future.add_done_callback(lambda future: answers.append(future.result(0)))
    with gate:
        tickets[5].cancel()
        closing = threading.Thread(target=engine.close)
        closing.start()
        tickets[6].cancel()
    closing.join(PATIENCE_S)
    assert all(ticket.future.done() for ticket in tickets)
    assert len(answers) == len(tickets)
    for ticket in tickets:
        ticket.cancel()
    assert len(answers) == len(tickets)


def test_closing_in_the_middle_of_a_step_ends_it_and_frees_the_model(
    engine: InProcessEngine, steps: Steps, reading: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = engine.vocabulary
    flagged = threading.Event()
    set_flag = AbortFlag.set

    def set_and_tell(flag: AbortFlag) -> None:
        set_flag(flag)
        flagged.set()

    monkeypatch.setattr(AbortFlag, "set", set_and_tell)
    gate = steps.hold(lambda step: step.pos == 96)
    ticket = engine.submit(reading)
    thread = next(t for t in threading.enumerate() if t.name == "fimlsp-engine")
    closing = threading.Thread(target=engine.close)
    with gate:
        closing.start()
        wait(flagged)
    closing.join(PATIENCE_S)
    assert not thread.is_alive()
    assert result(ticket.future).finish is Finish.CANCELLED
    assert [step.pos for step in steps.aborts] == [96]
    with pytest.raises(EngineClosedError, match="closed"):
        vocabulary.tokenize(b"a vocabulary that somebody still holds")


def test_closing_twice_and_from_a_callback_is_harmless(
    engine: InProcessEngine, reading: Request
) -> None:
    closed = threading.Event()

    def close_and_tell(_future: object) -> None:
        engine.close()  # on the engine's own thread: it must not wait for itself
        closed.set()

    ticket = engine.submit(reading)
    ticket.future.add_done_callback(close_and_tell)
    wait(closed)
    engine.close()
    engine.close()
    assert engine.state.phase is Phase.CLOSED
    with pytest.raises(EngineClosedError):
        engine.submit(reading)
