"""Interrupting speculation on a real library: deadlines, aborts, other documents.

Whatever ended a request, what is written after it is what would have been written without.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Gate, Oracle, Steps, result
from speculation_harness import COMPARED as N
from speculation_harness import SOURCES, Rig, knowing, padding, same, sources, write

from fimlsp.engine.api import Finish, Request
from fimlsp.engine.generate import InterruptedRequestError
from fimlsp.engine.worker import InProcessEngine

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture(scope="module")
def rig(native_module: Any, tiny_model: Path) -> Iterator[Rig]:
    rig = Rig(native_module, tiny_model)
    yield rig
    rig.close()


@pytest.fixture
def request_(text: list[int]) -> Request:
    return Request(slot="a", prompt=tuple(text[:70]), max_tokens=N + 1)


def test_the_deadline_ends_the_writing_with_the_accepted_tokens_of_its_step(
    rig: Rig, request_: Request, clock: list[float]
) -> None:
    free = rig.plain(request_)
    late = clock[0] + 1.0

    def watch(text: bytes) -> bool:
        if len(text) > 8:
            clock[0] = late
        return False

    writing = rig.generator(knowing(free.tokens), padding(rig.control, 1), max_draft=5)
    answer = write(writing, replace(request_, deadline=late, watch=watch))
    assert answer.finish is Finish.DEADLINE
    assert len(free.tokens) > len(answer.tokens) == sum(use.accepted + 1 for use in answer.drafts)
    assert answer.tokens == free.tokens[: len(answer.tokens)]
    assert same(write(writing, request_), free)


@pytest.mark.parametrize("names", SOURCES)
def test_aborts_at_random_points_never_change_what_is_written_after_them(
    rig: Rig, request_: Request, names: tuple[str, ...]
) -> None:
    free = rig.plain(request_)
    half = [*free.tokens[:5], 7, *free.tokens[6:]]
    writing = rig.generator(*sources(rig, names, half, free.tokens), max_draft=3)
    chance = random.Random(3)
    left = 0
    ended = dict.fromkeys(Finish, 0)

    def step() -> None:
        nonlocal left
        left -= 1

    def abort() -> None:
        step()
        if left == 0:
            rig.abort.set()  # the library sees it inside this decode

    def give_up() -> None:
        step()
        if left == 0:
            raise InterruptedRequestError  # between two decodes

    for number in range(60):
        left = chance.randrange(1, 12)
        typed = chance.randrange(4)
        rig.native.before_step = abort if number % 2 else lambda: None
        asked = replace(request_, prompt=(*request_.prompt, *free.tokens[:typed]))
        answer = write(writing, asked, (lambda: None) if number % 2 else give_up)
        ended[answer.finish] += 1
        rig.abort.clear()
        rig.native.audit()
        assert answer.tokens[: N - typed] == free.tokens[typed:N][: len(answer.tokens)]
        rig.native.before_step = lambda: None
        taken = free.tokens[: min(typed + len(answer.tokens), N - 8)]
        onward = replace(request_, prompt=(*request_.prompt, *taken))
        assert write(writing, onward).tokens[:8] == free.tokens[len(taken) :][:8]
    assert ended[Finish.CANCELLED] > 20
    assert same(write(writing, request_), free)


def test_two_documents_are_written_in_turn_and_neither_disturbs_the_other(
    rig: Rig, request_: Request, text: list[int]
) -> None:
    """Rolling back one slot's draft must leave the other slot's cells alone, shared ones too."""
    other = replace(request_, slot="b", prompt=(*request_.prompt[:50], *text[100:130]))
    free = {each: rig.plain(each) for each in (request_, other)}
    known = [answer.tokens for answer in free.values()]
    writing = rig.generator(*sources(rig, SOURCES[-1], *known))
    for typed in range(0, 12, 3):
        for each in (request_, other):
            done = free[each].tokens
            asked = replace(each, prompt=(*each.prompt, *done[:typed]))
            assert write(writing, asked).tokens[: N - typed] == done[typed:N]
    rig.native.audit()


# The whole engine.


@pytest.mark.parametrize("names", SOURCES[:3])
def test_an_engine_with_sources_writes_what_a_cold_slot_finds_most_likely(
    open_tiny: OpenEngine, oracle: Oracle, text: list[int], names: tuple[str, ...]
) -> None:
    engine = open_tiny(sources=names)
    accepted = 0
    for start in range(0, 200, 20):
        request = Request(slot="a", prompt=tuple(text[start : start + 50]), max_tokens=20)
        for _again in range(3):
            answer = result(engine.submit(request).future)
            assert len(answer.tokens) == 20
            oracle.check(request, answer)
            request = replace(request, expected=(answer.text,))
            accepted += answer.accepted
    assert accepted > 0


def gate_passed(gate: Gate) -> Callable[[object], None]:
    """Return a callback for a request that may end without coming to ``gate``."""
    return lambda _future: gate.reached.set()


def test_cancelling_an_engine_with_sources_at_random_moments_changes_nothing_after(
    open_tiny: OpenEngine, steps: Steps, oracle: Oracle, text: list[int]
) -> None:
    engine = open_tiny(sources=("previous", "ngram"), n_ctx=1024)
    request = Request(slot="a", prompt=tuple(text[:100] * 2), max_tokens=40)
    free = result(engine.submit(request).future)
    request = replace(request, expected=(free.text,))
    chance = random.Random(5)
    for _round in range(40):
        length = chance.randrange(1, 200)
        gate = steps.hold(after=chance.randrange(8))
        ticket = engine.submit(replace(request, prompt=request.prompt[:length]))
        ticket.future.add_done_callback(gate_passed(gate))
        with gate:
            pass
        for _spin in range(chance.randrange(4000)):
            pass
        ticket.cancel()
        result(ticket.future)
    answer = result(engine.submit(request).future)
    assert len(answer.tokens) == 40
    oracle.check(request, answer)
