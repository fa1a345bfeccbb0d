import math

import pytest

from fimlsp.bench.scoring import Edit, judge, percentile
from fimlsp.bench.traces import Trace


def place(typed: str, after: str) -> Trace:
    return Trace(id="t", lang="python", path="t.py", before="x = ", after=after, typed=typed)


def insert(trace: Trace, stroke: int, text: str, replace: int = 0) -> Edit:
    cursor = trace.cursor(stroke)
    return Edit(start=cursor, end=cursor + replace, text=text)


def test_the_true_rest_of_the_line_is_exact() -> None:
    trace = place("call(a)", "\nnext\n")
    assert judge(trace, 0, insert(trace, 0, "call(a)")) is True
    assert judge(trace, 3, insert(trace, 3, "l(a)")) is True


@pytest.mark.parametrize("text", ["call(b)", "call(a) ", "call(a", " call(a)", "\ncall(a)"])
def test_any_other_text_is_not_exact(text: str) -> None:
    trace = place("call(a)", "\nnext\n")
    assert judge(trace, 0, insert(trace, 0, text)) is False


def test_only_the_line_of_the_cursor_is_judged() -> None:
    trace = place("call(a)", "\nnext\n")
    assert judge(trace, 0, insert(trace, 0, "call(a)\nsomething else\n")) is True


def test_typed_text_with_several_lines_is_judged_to_its_first_line_end() -> None:
    trace = place("[\n    1,", "\n]\n")
    assert judge(trace, 0, insert(trace, 0, "[")) is True
    assert judge(trace, 1, insert(trace, 1, "]")) is None
    assert judge(trace, 2, insert(trace, 2, "    1,")) is True


def test_text_right_of_the_cursor_counts_as_it_stands_after_applying() -> None:
    trace = place("a", ")\nnext\n")
    assert judge(trace, 0, insert(trace, 0, "a")) is True
    assert judge(trace, 0, insert(trace, 0, "a)")) is False
    assert judge(trace, 0, insert(trace, 0, "a)", replace=1)) is True


def test_a_line_end_of_any_kind_ends_the_line() -> None:
    trace = place("call(a)", "\r\nnext\r\n")
    assert judge(trace, 0, insert(trace, 0, "call(a)\nnext")) is True


def test_a_state_at_the_true_end_of_the_line_is_not_judged() -> None:
    trace = place("ab", "\nnext\n")
    assert judge(trace, 2, None) is None
    assert judge(trace, 2, insert(trace, 2, "more")) is None


def test_silence_where_text_was_due_is_not_exact() -> None:
    assert judge(place("ab", "\n"), 0, None) is False


def test_a_suggestion_that_rewrites_what_was_typed_is_not_exact() -> None:
    trace = place("ab", "\n")
    assert judge(trace, 0, Edit(start=0, end=4, text="y = ab")) is False
    assert judge(trace, 0, Edit(start=0, end=4, text="x = ab")) is True


def test_percentile_is_the_nearest_rank() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [percentile(values, p) for p in (1, 25, 50, 90, 100)] == [10, 10, 20, 40, 40]


def test_percentile_of_nothing_and_of_never_is_unknown() -> None:
    assert percentile([], 50) is None
    assert percentile([1.0, math.inf, math.inf], 50) is None
    assert percentile([1.0, 2.0, math.inf], 50) == 2
