"""What an engine does when nobody wants anything, and how it steps back when somebody does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import PATIENCE_S, Oracle, Step, Steps, open_engine, result, wait

from fimlsp.engine.api import (
    Phase,
    Priority,
    Request,
)
from fimlsp.engine.cost import WIDTHS
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import DecodeError

REQUEST = Request(slot="a", prompt=(5, 6, 7, 8), max_tokens=6)
Open = Callable[..., InProcessEngine]


class Waits:
    """How the engine's thread waits for work."""

    def __init__(self) -> None:
        self.forever = threading.Event()
        """It waits without a timeout: it will use no more of the machine by itself."""
        self.for_a_while = threading.Event()

    def begin(self, timeout: float | None) -> None:
        (self.forever if timeout is None else self.for_a_while).set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits()
    really_wait = threading.Condition.wait

    def seen(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "fimlsp-engine" and timeout != PATIENCE_S:
            waits.begin(timeout)
        return really_wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", seen)
    return waits


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    return tmp_path / "curves.json"


@pytest.fixture
def open_idle(
    tiny_model: Path, backend: str, curves: Path, waits: Waits, steps: Steps
) -> Iterator[Open]:
    """Open engines that are READY and have perhaps begun with what is done in idle time."""
    opened: list[InProcessEngine] = []

    def open_one(*, sources: tuple[str, ...] = ("ngram",), **params: Any) -> InProcessEngine:
        waits.forever.clear()
        opened.append(open_engine(tiny_model, backend, sources=sources, curves=curves, **params))
        return opened[-1]

    yield open_one
    steps.open_all()
    for engine in opened:
        engine.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the machine for quiet, whatever else the tests' machine does."""
    monkeypatch.setattr("fimlsp.engine.calibrate.is_disturbed", lambda _measured: False)


def test_a_curve_measured_on_a_busy_machine_is_used_but_not_kept(
    open_idle: Open, waits: Waits, curves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fimlsp.engine.calibrate.is_disturbed", lambda _measured: True)
    engine = open_idle()
    wait(waits.forever)
    assert tuple(dict(engine.speed.verify_ms)) == WIDTHS
    assert not curves.exists()


def first_chore(step: Step) -> bool:
    """Tell whether this is the first step after loading, which itself begins with wide ones."""
    return step.pos == 0 and len(step.tokens) == 1


def widths(steps: Steps) -> set[int]:
    return {len(step.tokens) for step in steps.log}


def test_the_verify_curve_is_measured_in_idle_time_and_kept(
    open_idle: Open, waits: Waits, steps: Steps, curves: Path
) -> None:
    engine = open_idle()
    wait(waits.forever)
    assert engine.rested
    measured = dict(engine.speed.verify_ms)
    assert tuple(measured) == WIDTHS
    assert min(measured.values()) > 0
    ((key, kept),) = json.loads(curves.read_bytes()).items()
    assert key.startswith("tiny.gguf ")
    assert {int(n): pytest.approx(ms, abs=1e-3) for n, ms in kept.items()} == measured
    assert steps.native is not None
    assert [steps.native.n_cells(slot) for slot in range(2)] == [0, 0]  # nothing is left behind


def test_a_small_native_step_bounds_what_is_measured(open_idle: Open, waits: Waits) -> None:
    engine = open_idle(n_ubatch=4)
    wait(waits.forever)
    assert [n for n, _ms in engine.speed.verify_ms] == [1, 2, 3, 4]


def test_a_request_takes_the_engine_from_a_measurement_which_is_done_later(
    open_idle: Open,
    waits: Waits,
    steps: Steps,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fimlsp.engine.worker._TYPING_S", 0.0)  # idle as soon as it is answered
    gate = steps.hold(lambda step: len(step.tokens) == 5)
    engine = open_idle()
    with gate:
        ticket = engine.submit(REQUEST)
    answer = result(ticket.future)
    assert len(answer.tokens) == 6
    oracle.check(REQUEST, answer)
    assert [len(step.tokens) for step in steps.aborts] == [5]
    wait(waits.forever)
    assert tuple(dict(engine.speed.verify_ms)) == WIDTHS
    assert engine.reusable("a", (*REQUEST.prompt, *answer.tokens)) >= len(REQUEST.prompt)


def test_while_a_person_types_nothing_is_measured(
    open_idle: Open, waits: Waits, steps: Steps, clock: list[float]
) -> None:
    gate = steps.hold(first_chore)
    engine = open_idle(slots=3)
    with gate:
        ticket = engine.submit(REQUEST)
    result(ticket.future)
    wait(waits.for_a_while)
    assert not engine.rested
    assert not {2, 3, 5, 12} & widths(steps)
    clock[0] += 10.0
    warm_up = Request(slot="b", prompt=(1, 2), max_tokens=0, priority=Priority.WARMUP)
    waits.forever.clear()
    result(engine.submit(warm_up).future)  # sooner than the second's end wakes it
    wait(waits.forever)
    assert tuple(dict(engine.speed.verify_ms)) == WIDTHS


def test_a_stored_curve_is_taken_and_not_measured_again(
    open_idle: Open, waits: Waits, steps: Steps, curves: Path
) -> None:
    open_idle()
    wait(waits.forever)
    ((key, kept),) = json.loads(curves.read_bytes()).items()
    known = {int(n): 7.0 + int(n) for n in kept}
    curves.write_text(json.dumps({key: known}))
    before = curves.read_bytes()
    steps.clear()
    engine = open_idle()
    wait(waits.forever)
    assert not {2, 3, 5, 12} & widths(steps)
    assert engine.speculation.curve.known == known
    assert curves.read_bytes() == before


def test_a_curve_of_another_number_of_threads_is_another_curve(
    open_idle: Open, waits: Waits, steps: Steps, curves: Path
) -> None:
    open_idle()
    wait(waits.forever)
    steps.clear()
    open_idle(threads=2)
    wait(waits.forever)
    assert {2, 3, 5, 12} <= widths(steps)
    assert len(json.loads(curves.read_bytes())) == 2


def test_whoever_decodes_token_by_token_measures_nothing(
    open_idle: Open, waits: Waits, steps: Steps, curves: Path
) -> None:
    engine = open_idle(sources=())
    wait(waits.forever)
    assert engine.rested
    assert not {2, 3, 5, 12} & widths(steps)
    assert not curves.exists()


def test_no_warm_prompt_is_given_up_for_a_measurement(
    open_idle: Open, waits: Waits, steps: Steps, curves: Path
) -> None:
    """Where every slot is in use the engine rests instead of asking again and again."""
    gate = steps.hold(first_chore)
    engine = open_idle(slots=1)
    with gate:
        ticket = engine.submit(REQUEST)
    result(ticket.future)
    wait(waits.forever)
    assert engine.rested
    assert not curves.exists()
    assert engine.reusable("a", (*REQUEST.prompt, 1)) == len(REQUEST.prompt)


def test_a_measurement_that_fails_is_reported_once_and_given_up(
    open_idle: Open,
    waits: Waits,
    curves: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_args: object) -> float:
        raise DecodeError("no such kernel")

    monkeypatch.setattr("fimlsp.engine.calibrate.verify_ms", fail)
    engine = open_idle()
    wait(waits.forever)
    assert [record.message for record in caplog.records] == ["idle work failed: no such kernel"]
    assert len(result(engine.submit(REQUEST).future).tokens) == 6
    assert engine.speculation.curve(4) > 0  # the typical one
    assert not curves.exists()


def test_closing_ends_a_measurement_in_its_middle(
    open_idle: Open, steps: Steps, curves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flagged = threading.Event()
    set_flag = AbortFlag.set

    def set_and_tell(flag: AbortFlag) -> None:
        set_flag(flag)
        flagged.set()

    monkeypatch.setattr(AbortFlag, "set", set_and_tell)
    gate = steps.hold(lambda step: len(step.tokens) == 12)
    engine = open_idle()
    closing = threading.Thread(target=engine.close)
    with gate:
        closing.start()
        wait(flagged)
    closing.join(PATIENCE_S)
    assert engine.state.phase is Phase.CLOSED
    assert [len(step.tokens) for step in steps.aborts] == [12]
    assert not curves.exists()
