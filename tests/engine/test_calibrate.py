"""What is measured on this machine, and that it is there again at the next start."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculation_harness import TableSlots

from fimlsp.engine import calibrate
from fimlsp.engine.api import Speed
from fimlsp.engine.calibrate import CurveFile, updated
from fimlsp.engine.cost import WIDTHS, VerifyCurve
from fimlsp.engine.native.seam import AbortedError, Logits, Tokens


class TimedSlots(TableSlots):
    """A library whose step of n tokens takes what ``cost`` says, on a clock of its own.

    Every second step is disturbed: it takes a second more.
    """

    def __init__(self, cost: Callable[[int], float], **sizes: int) -> None:
        super().__init__(**sizes)
        self.now = 100.0
        self.abort_at = -1
        self._cost = cost

    def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
        if len(self.widths) == self.abort_at:
            raise AbortedError
        logits = super().decode(slot, tokens, pos, n_logits)
        self.now += self._cost(len(tokens)) / 1e3 + len(self.widths) % 2
        return logits


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> TimedSlots:
    slots = TimedSlots(lambda n: 10.0 + 2.0 * n, n_ubatch=64)
    monkeypatch.setattr(time, "perf_counter", lambda: slots.now)
    return slots


@pytest.mark.parametrize("n", WIDTHS)
def test_a_width_is_measured_by_its_undisturbed_step_with_all_rows(
    slots: TimedSlots, n: int
) -> None:
    assert calibrate.verify_ms(slots, 0, n) == pytest.approx(10.0 + 2.0 * n)
    assert slots.widths.count(n) >= 2
    assert slots.n_cells(0) == 0


@pytest.mark.parametrize("at", range(3))
def test_an_aborted_measurement_leaves_the_slot_empty(slots: TimedSlots, at: int) -> None:
    slots.abort_at = at
    with pytest.raises(AbortedError):
        calibrate.verify_ms(slots, 0, 4)
    assert slots.n_cells(0) == 0


@pytest.mark.parametrize("n_ubatch", [1, 2, 5, 8])
def test_no_measuring_step_is_wider_than_a_native_step(n_ubatch: int) -> None:
    """The cells before the timed steps were read 8 at once, and with smaller steps that failed."""
    slots = TableSlots(n_ubatch=n_ubatch)
    assert calibrate.measure(slots, n_ubatch).decode_ms > 0
    for n in (width for width in WIDTHS if width <= n_ubatch):
        assert calibrate.verify_ms(slots, 0, n) > 0
    assert slots.n_cells(0) == 0


def test_the_first_figures_come_from_one_wide_and_two_narrow_steps(slots: TimedSlots) -> None:
    speed = calibrate.measure(slots, 64)
    assert speed.decode_ms == pytest.approx(12.0)
    assert slots.n_cells(0) == 0


def test_running_figures_follow_long_prompts_and_the_curve() -> None:
    speed = Speed(prefill_tok_s=100.0, decode_ms=60.0)
    curve = VerifyCurve({1: 50.0, 4: 80.0})
    short = updated(speed, curve=curve, evaluated=3, prefill_ms=300.0)
    assert short.prefill_tok_s == 100.0  # that was rather a decode
    assert (short.decode_ms, short.verify_ms) == (50.0, ((1, 50.0), (4, 80.0)))
    long = updated(speed, curve=curve, evaluated=200, prefill_ms=1000.0)
    assert 100.0 < long.prefill_tok_s < 200.0


def test_a_full_window_does_not_make_cold_windows_smaller() -> None:
    """After a few of them the next cold file got a window too small to be of use."""
    speed, curve = Speed(prefill_tok_s=70.0, decode_ms=60.0), VerifyCurve({1: 60.0})
    deep = updated(speed, curve=curve, evaluated=900, prefill_ms=900 / 60 * 1e3)
    assert deep.prefill_tok_s == 70.0
    behind = updated(speed, curve=curve, warm=700, evaluated=100, prefill_ms=100 / 60 * 1e3)
    assert behind.prefill_tok_s == 70.0
    busy = updated(speed, curve=curve, evaluated=900, prefill_ms=900 / 20 * 1e3)
    assert busy.prefill_tok_s < 65.0


# The file.

KNOWN = {1: 61.25, 2: 75.0, 32: 400.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "curves.json"


def test_a_stored_curve_is_found_under_its_key_alone(path: Path) -> None:
    CurveFile(path).save("this machine", KNOWN)
    found = CurveFile(path).load("this machine")
    assert found is not None
    assert found.known == KNOWN
    assert CurveFile(path).load("another") is None


def test_other_keys_are_kept_and_one_s_own_is_replaced(path: Path) -> None:
    file = CurveFile(path)
    file.save("a", {1: 1.0})
    file.save("b", {1: 2.0})
    file.save("a", {1: 3.0})
    found = {key: curve(1) for key in "ab" if (curve := file.load(key))}
    assert found == {"a": 3.0, "b": 2.0}


def test_the_file_does_not_grow_without_end(path: Path) -> None:
    file = CurveFile(path)
    for number in range(200):
        file.save(f"key {number}", KNOWN)
    assert file.load("key 199") is not None
    assert file.load("key 190") is not None
    assert file.load("key 0") is None
    assert path.stat().st_size < 10_000


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["key", "1", "2", "0", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.one_of(
        st.binary(max_size=60),
        json_values.map(lambda value: json.dumps(value).encode()),
        json_values.map(lambda value: json.dumps({"key": value}).encode()),
        st.integers(0, 60).map(lambda n: json.dumps({"key": {"1": 5.0, "2": 7.5}}).encode()[:n]),
    )
)
def test_whatever_the_file_holds_costs_a_measurement_at_most(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "corrupt.json"
    path.write_bytes(content)
    curve = CurveFile(path).load("key")
    if curve is not None:
        assert all(0 < curve(n) < float("inf") for n in range(1, 65))
    CurveFile(path).save("key", KNOWN)
    again = CurveFile(path).load("key")
    assert again is not None
    assert again.known == KNOWN


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"key": {"1": ' + b"9" * 400 + b"}}",
        b'{"key": {"1": 5.0, "2": NaN}}',
        b'{"key": {"1": 5.0, "2": Infinity}}',
        b'{"key": {"1": 5.0, "-3": 2.0}}',
        b'{"key": {"1": 0, "2": 7}}',
        b'{"key": {"2": 7.0}}',
    ],
)
def test_a_curve_that_no_machine_can_have_is_not_believed(path: Path, content: bytes) -> None:
    """Numbers too large and brackets too deep raised, and the engine failed to load."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert CurveFile(path).load("key") is None


def test_where_nothing_can_be_written_the_engine_lives_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    file = CurveFile(tmp_path / "cache" / "curves.json")
    assert file.load("key") is None
    with caplog.at_level(logging.INFO):
        file.save("key", KNOWN)
    assert "are not kept" in caplog.text
    assert file.load("key") is None


def test_a_file_is_replaced_whole_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CurveFile(path).save("old", KNOWN)
    before = path.read_bytes()
    at_replace: list[tuple[bytes, object]] = []

    def full_disk(source: str, target: Path) -> None:
        at_replace.append((target.read_bytes(), json.loads(Path(source).read_bytes())))
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    CurveFile(path).save("new", {1: 9.0})
    ((old, new),) = at_replace
    assert old == before  # until the last moment
    assert isinstance(new, dict)
    assert set(new) == {"old", "new"}  # and the new one was complete by then
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]  # nothing is left lying about


def test_a_width_that_takes_much_longer_than_a_wider_one_shows_a_busy_machine() -> None:
    assert not calibrate.is_disturbed({1: 60.0, 2: 80.0, 4: 95.0, 8: 90.0})
    assert calibrate.is_disturbed({1: 60.0, 2: 800.0, 4: 95.0, 8: 140.0})
    assert not calibrate.is_disturbed({})
