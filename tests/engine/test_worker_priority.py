"""Who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from engine_harness import Oracle, Steps, result, wait

from fimlsp.engine.api import Finish, Priority, Request
from fimlsp.engine.worker import InProcessEngine

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture
def warmup(text: list[int]) -> Request:
    return Request(
        slot="background", prompt=tuple(text[:320]), max_tokens=0, priority=Priority.WARMUP
    )


@pytest.fixture
def foreground(text: list[int]) -> Request:
    return Request(slot="document", prompt=tuple(text[330:370]), max_tokens=8)


def test_foreground_takes_the_engine_inside_a_warm_ups_step_and_the_warm_up_goes_on(
    engine: InProcessEngine, steps: Steps, oracle: Oracle, warmup: Request, foreground: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    warming = engine.submit(warmup)
    with gate:
        typed = engine.submit(foreground)
    answer = result(typed.future)
    oracle.check(foreground, answer)
    assert answer.finish is Finish.MAX_TOKENS
    warmed = result(warming.future)
    assert warmed.finish is Finish.MAX_TOKENS
    assert warmed.reused_tokens == 96  # what it had read before it gave way
    assert [step.pos for step in steps.aborts] == [96]
    after = [step.slot for step in steps.log[steps.log.index(steps.aborts[0]) + 1 :]]
    assert after == sorted(after, reverse=True)  # all of the foreground, then the warm-up
    assert engine.reusable("background", warmup.prompt) == 319


def test_a_warm_up_gives_way_many_times_and_completes(
    engine: InProcessEngine, steps: Steps, warmup: Request, foreground: Request
) -> None:
    gate = steps.hold()
    warming = engine.submit(warmup)
    for _time in range(5):
        with gate:
            gate = steps.hold(lambda step: step.slot == 0, after=1)
            typed = engine.submit(foreground)
        assert result(typed.future).finish is Finish.MAX_TOKENS
    gate.open()
    assert result(warming.future).finish is Finish.MAX_TOKENS
    assert len(steps.aborts) == 5
    assert engine.reusable("background", warmup.prompt) == 319


def test_a_warm_up_cancelled_while_it_waits_for_the_foreground_resolves_at_once(
    engine: InProcessEngine, steps: Steps, warmup: Request, foreground: Request
) -> None:
    first = steps.hold(lambda step: step.pos == 96)
    warming = engine.submit(warmup)
    with first:
        second = steps.hold(lambda step: step.slot == 1)
        typed = engine.submit(foreground)
    with second:
        warming.cancel()
        assert warming.future.result(0).finish is Finish.CANCELLED
    assert result(typed.future).finish is Finish.MAX_TOKENS


def test_a_pre_empted_prefetch_ends_for_good(
    engine: InProcessEngine, steps: Steps, warmup: Request, foreground: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    prefetch = engine.submit(replace(warmup, priority=Priority.PREFETCH, max_tokens=16))
    with gate:
        typed = engine.submit(foreground)
    assert result(prefetch.future).finish is Finish.CANCELLED
    assert result(typed.future).finish is Finish.MAX_TOKENS
    assert engine.reusable("background", warmup.prompt) == 96  # and what it read stays warm


def test_a_prefetch_takes_the_engine_from_a_warm_up(
    engine: InProcessEngine, steps: Steps, warmup: Request, foreground: Request
) -> None:
    gate = steps.hold(lambda step: step.pos == 96)
    warming = engine.submit(warmup)
    with gate:
        prefetch = engine.submit(replace(foreground, priority=Priority.PREFETCH))
    assert result(prefetch.future).finish is Finish.MAX_TOKENS
    assert result(warming.future).finish is Finish.MAX_TOKENS


@pytest.mark.parametrize("priority", [Priority.FOREGROUND, Priority.PREFETCH, Priority.WARMUP])
def test_equals_wait_for_each_other(
    engine: InProcessEngine, steps: Steps, foreground: Request, priority: Priority
) -> None:
    gate = steps.hold()
    first = engine.submit(replace(foreground, priority=priority))
    with gate:
        second = engine.submit(replace(foreground, slot="other", priority=priority))
    assert result(first.future).finish is Finish.MAX_TOKENS
    assert result(second.future).finish is Finish.MAX_TOKENS
    assert steps.aborts == []


def test_the_queue_goes_by_priority_and_then_by_age(
    engine: InProcessEngine, steps: Steps, foreground: Request
) -> None:
    gate = steps.hold()
    engine.submit(foreground)
    ended: list[str] = []
    everything = threading.Event()
    with gate:
        for name, priority in (
            ("warm 1", Priority.WARMUP),
            ("ahead 1", Priority.PREFETCH),
            ("typed 1", Priority.FOREGROUND),
            ("warm 2", Priority.WARMUP),
            ("typed 2", Priority.FOREGROUND),
            ("ahead 2", Priority.PREFETCH),
        ):
            ticket = engine.submit(replace(foreground, slot=name, priority=priority))

            def note(_future: object, name: str = name) -> None:
                ended.append(name)
                if len(ended) == 6:
                    everything.set()

            ticket.future.add_done_callback(note)
    wait(everything)
    assert ended == ["typed 1", "typed 2", "ahead 1", "ahead 2", "warm 1", "warm 2"]


def test_background_steps_are_short_while_a_person_types(
    open_tiny: OpenEngine,
    steps: Steps,
    warmup: Request,
    foreground: Request,
    clock: list[float],
) -> None:
    engine = open_tiny(n_ubatch=128)

    def longest_step(request: Request) -> int:
        # A slow machine; the tiny model reads 120 ms' worth of tokens in one step anywhere.
        engine._speed = replace(engine.speed, prefill_tok_s=100.0)
        steps.clear()
        result(engine.submit(request).future)
        return max(len(step.tokens) for step in steps.log)

    clock[0] += 2.0
    assert longest_step(warmup) == 128
    assert longest_step(replace(foreground, prompt=warmup.prompt[::-1])) == 128
    assert longest_step(replace(warmup, slot="b", prompt=warmup.prompt[1:])) == 12
    clock[0] += 2.0
    assert longest_step(replace(warmup, slot="c", prompt=warmup.prompt[2:])) == 128
