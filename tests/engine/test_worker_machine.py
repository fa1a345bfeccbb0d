"""Random lives of an engine: whatever is asked and cancelled, the books match the library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from engine_harness import Gate, Oracle, Steps, open_engine, result
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fimlsp.engine.api import Finish, Priority, Request
from fimlsp.engine.cells import Cells
from fimlsp.engine.worker import InProcessEngine

NAMES = st.sampled_from(["left", "right", "spare", "other"])
N_CTX, SLOTS = 160, 3


@dataclass
class World:
    """What every example shares; set by the fixture, since hypothesis builds the machine."""

    engine: InProcessEngine
    steps: Steps
    oracle: Oracle
    text: list[int]


world: World | None = None


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        assert world is not None
        self.world = world
        self.tickets: list[tuple[Request, Any]] = []
        self.resolved: Counter[int] = Counter()
        self.gate: Gate | None = None

    @rule(
        name=NAMES,
        document=st.sampled_from([0, 0, 130, 260]),
        length=st.integers(1, 100),
        edit=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.integers(0, 479))),
        max_tokens=st.integers(0, 6),
        typed=st.sampled_from([b"", b"", b" ret", b"  ", "é中".encode()]),
        priority=st.sampled_from(Priority),
    )
    def submit(
        self,
        name: str,
        document: int,
        length: int,
        edit: tuple[int, int] | None,
        max_tokens: int,
        typed: bytes,
        priority: Priority,
    ) -> None:
        prompt = self.world.text[document : document + length]
        if edit is not None and edit[0] < length:
            prompt[edit[0]] = edit[1]
        request = Request(
            slot=name,
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            must_start_with=typed,
            priority=priority,
        )
        ticket = self.world.engine.submit(request)
        number = len(self.tickets)
        self.tickets.append((request, ticket))
        ticket.future.add_done_callback(lambda _future: self.resolved.update([number]))

    @precondition(lambda self: self.gate is None)
    @rule(after=st.integers(0, 4))
    def stop_the_engine_at_a_step_to_come(self, after: int) -> None:
        self.gate = self.world.steps.hold(after=after)

    @precondition(lambda self: self.gate is not None)
    @rule()
    def let_it_go_on(self) -> None:
        assert self.gate is not None
        self.gate.open()
        self.gate = None

    @precondition(lambda self: self.tickets)
    @rule(which=st.integers(0, 99), keep_step=st.booleans())
    def cancel(self, which: int, keep_step: bool) -> None:
        self.tickets[which % len(self.tickets)][1].cancel(keep_step=keep_step)

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        self.world.engine.release(name)

    @rule(name=NAMES, length=st.integers(0, 130))
    def look(self, name: str, length: int) -> None:
        warm = self.world.engine.reusable(name, self.world.text[:length])
        assert 0 <= warm <= max(0, length - 1)

    @rule()
    def wait_and_check(self) -> None:
        self._settle()
        native, cells = self.world.steps.native, self.world.engine._cells
        assert isinstance(cells, Cells)
        if native is not None:  # nothing runs: this thread may look
            counted = [native.n_cells(slot) for slot in range(SLOTS)]
            assert counted == [len(cells.tokens(slot)) for slot in range(SLOTS)]
        for request, ticket in self.tickets:
            generation = ticket.future.result(0)
            self.world.oracle.check(request, generation)
            if generation.finish is Finish.MAX_TOKENS:
                assert len(generation.tokens) == request.max_tokens
                written = generation.prompt_tokens + generation.reused_tokens
                assert written == len(request.prompt)
        assert self.resolved == Counter(range(len(self.tickets)))

    @invariant()
    def no_future_resolves_twice(self) -> None:
        assert all(count == 1 for count in self.resolved.values())

    def _settle(self) -> None:
        """Let every request end; one more, answered last, shows that the engine is idle."""
        self.world.steps.open_all()
        self.world.steps.clear()
        self.gate = None
        for _request, ticket in self.tickets:
            result(ticket.future)
        idle = Request(slot="idle", prompt=(1,), max_tokens=0, priority=Priority.WARMUP)
        result(self.world.engine.submit(idle).future)

    def teardown(self) -> None:
        self.wait_and_check()


@pytest.fixture
def shared_world(
    tiny_model: Any, backend: str, steps: Steps, oracle: Oracle, text: list[int]
) -> Iterator[None]:
    global world
    engine = open_engine(tiny_model, backend, n_ctx=N_CTX, slots=SLOTS, n_ubatch=16)
    world = World(engine, steps, oracle, text)
    yield
    steps.open_all()
    engine.close()
    world = None


@pytest.mark.usefixtures("shared_world")
def test_books_and_library_agree_after_any_sequence_of_requests_and_cancels() -> None:
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=60, stateful_step_count=30)
    )
