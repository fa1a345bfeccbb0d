from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes import WordVocabulary
from hypothesis import given
from hypothesis import strategies as st

from fimlsp.context.window import CHARS_PER_TOKEN, Cut, cut_prefix, cut_suffix

by_byte = WordVocabulary().tokenize
by_word = WordVocabulary(words=[b"line", b"\n\n", b"    ", b" = ", "中文".encode()]).tokenize

lines = st.lists(st.text(alphabet="ab中😀\f\u2028\x85 =\t", max_size=30), max_size=12)
text = st.builds("\n".join, lines)
budgets = st.integers(min_value=0, max_value=60)

Side = Callable[[str, int], Cut]


def prefix(before: str, budget: int, *, from_start: bool = True) -> Cut:
    return cut_prefix(before, budget, by_byte, from_start=from_start)


def suffix(after: str, budget: int, *, to_end: bool = True) -> Cut:
    return cut_suffix(after, budget, by_byte, to_end=to_end)


@given(text, budgets, st.booleans(), st.sampled_from([by_byte, by_word]))
def test_a_window_is_the_near_end_of_its_side_and_never_over_budget(
    content: str, budget: int, reaches: bool, tokenize: Callable[[bytes], list[int]]
) -> None:
    before = cut_prefix(content, budget, tokenize, from_start=reaches)
    after = cut_suffix(content, budget, tokenize, to_end=reaches)
    assert content.endswith(before.text)
    assert content.startswith(after.text)
    for cut in (before, after):
        assert len(cut.tokens) <= budget
        assert cut.tokens == tuple(tokenize(cut.text.encode()))
        assert cut.whole == (reaches and cut.text == content)


@given(text, budgets)
def test_what_fits_is_taken_whole(content: str, budget: int) -> None:
    if len(by_byte(content.encode())) <= budget:
        assert prefix(content, budget) == Cut(content, tuple(content.encode()), True)
        assert suffix(content, budget) == Cut(content, tuple(content.encode()), True)


@given(st.lists(st.text("ab中😀\f\u2028", max_size=9), min_size=2), st.booleans())
def test_where_the_nearest_line_fits_only_whole_lines_are_taken(
    content_lines: list[str], reaches: bool
) -> None:
    content_lines = [f"a{line}" for line in content_lines]  # none is blank
    content = "\n".join(content_lines)
    above = prefix(content, len(content_lines[-1].encode()) + 12, from_start=reaches).text
    below = suffix(content, len(content_lines[0].encode()) + 12, to_end=reaches).text
    rest = content[: len(content) - len(above)]
    assert above
    assert rest.endswith("\n") or (reaches and not rest)
    assert below.endswith("\n") or (reaches and below == content)


def test_the_last_lines_above_and_the_first_lines_below_are_kept() -> None:
    content = "one\ntwo\nthree\n"
    assert prefix(content, 10).text == "two\nthree\n"
    assert suffix(content, 10).text == "one\ntwo\n"
    assert suffix(")\nnext\nlast", 7).text == ")\nnext\n"


def test_a_line_that_the_caller_has_cut_is_not_taken_for_a_line() -> None:
    assert prefix("lf of a line\nnext\n", 100, from_start=False).text == "next\n"
    assert suffix("here\nhalf of a li", 100, to_end=False).text == "here\n"


def test_text_that_is_mostly_spaces_is_still_cut_at_a_line() -> None:
    """Few tokens may stand for more characters than are looked at."""
    spaces = WordVocabulary(words=[b" " * 64]).tokenize
    line = " " * 64 + "x\n"
    budget = 12
    assert len(line) * 3 > budget * CHARS_PER_TOKEN
    cut = cut_prefix(line * 3, budget, spaces, from_start=True)
    assert cut == Cut(line, tuple(spaces(line.encode())), False)
    assert cut_suffix(line * 3, budget, spaces, to_end=True).text == line


@pytest.mark.parametrize("budget", [1, 7, 32, 200])
def test_a_minified_line_is_cut_inside(budget: int) -> None:
    content = "a=1;" * 5000
    assert 0 < len(prefix(content, budget).tokens) <= budget
    assert 0 < len(suffix(content, budget).tokens) <= budget
    assert prefix(content + "\n", budget).tokens
    assert suffix("\n" + content, budget).tokens


def test_blank_lines_beside_a_huge_line_are_not_all_there_is() -> None:
    huge = "a=1;" * 5000
    assert prefix(huge + "\n\n", 40).text.strip()
    assert suffix("\n\n" + huge, 40).text.strip()


@pytest.mark.parametrize("content", ["中文注释" * 40, "😀👩‍👩‍👧" * 40])
def test_characters_of_many_bytes_are_counted_in_tokens_and_stay_whole(content: str) -> None:
    for cut in (prefix(content, 50), suffix(content, 50)):
        assert 0 < len(cut.tokens) <= 50
        assert bytes(cut.tokens).decode() == cut.text


@pytest.mark.parametrize("character", ["\f", "\u2028", "\x85", "\x1c"])
def test_only_a_line_feed_ends_a_line(character: str) -> None:
    content = f"above\nleft{character}right\n"
    assert prefix(content, 14).text == f"left{character}right\n"


@pytest.mark.parametrize("content", ["", "x", "a\nb\n"])
def test_without_budget_nothing_is_taken(content: str) -> None:
    assert prefix(content, 0) == Cut("", (), not content)
    assert suffix(content, 0) == Cut("", (), not content)


def test_a_tokeniser_that_joins_lines_worse_than_it_splits_them_stays_in_budget() -> None:
    def one_more_per_line_end(data: bytes) -> list[int]:
        inner = data[:-1].count(b"\n")
        return [*data, *[0] * (2 * inner)]

    content = "one\ntwo\nthree\nfour\n"
    before = cut_prefix(content, 12, one_more_per_line_end, from_start=True)
    after = cut_suffix(content, 12, one_more_per_line_end, to_end=True)
    assert (before.text, len(before.tokens)) == ("four\n", 5)
    assert (after.text, len(after.tokens)) == ("one\ntwo\n", 10)


def test_a_tokeniser_that_marks_every_start_can_not_loop_for_ever() -> None:
    def with_start(data: bytes) -> list[int]:
        return [1, *data]

    assert cut_prefix("abc\n", 0, with_start, from_start=True).text == ""
