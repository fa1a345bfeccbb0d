from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.lsp import positions
from fimlsp.lsp.positions import (
    Encoding,
    IndexedText,
    Position,
    Range,
    code_points_in,
    column_of,
    without_lone_surrogates,
)

ENCODINGS = list(Encoding)

NOT_LINE_ENDS = {
    "vertical tab": "\x0b",
    "form feed": "\x0c",
    "file separator": "\x1c",
    "group separator": "\x1d",
    "record separator": "\x1e",
    "next line": "\x85",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
}
"""Where ``str.splitlines`` splits and LSP does not."""

ALPHABET = ["a", "b", " ", "é", "e\u0301", "中", "😀", "👩‍💻", "\r", "\n", "\r\n", "\n\n", "\r\r"]
ALPHABET += [*NOT_LINE_ENDS.values(), "\ud83d", "\ude00"]


@pytest.fixture
def tiny_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make texts of a few characters have many runs, and so many seams."""
    monkeypatch.setattr(positions, "RUN_SIZE", 3)


def assert_like_new(edited: IndexedText, text: str) -> None:
    """Compare an edited text with one that is made of the same characters, in one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "RUN_SIZE", 1 << 20)
        fresh = IndexedText(text)
    assert edited.text == fresh.text
    assert len(edited) == len(fresh)
    assert edited.line_count == fresh.line_count
    for encoding in Encoding:
        for offset in range(len(fresh) + 1):
            place = fresh.position_at(offset, encoding)
            assert edited.position_at(offset, encoding) == place
            for near in (place, place._replace(character=place.character + 1)):
                assert edited.offset_at(near, encoding) == fresh.offset_at(near, encoding)


# Lines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("", [0]),
        ("a", [0]),
        ("a\n", [0, 2]),
        ("a\nb", [0, 2]),
        ("a\r\nb", [0, 3]),
        ("a\rb", [0, 2]),
        ("\n\n", [0, 1, 2]),
        ("\r\r", [0, 1, 2]),
        ("\n\r", [0, 1, 2]),
        ("\r\r\n", [0, 1, 3]),
        ("\r\n\n", [0, 2, 3]),
        ("a\nb\r\nc\rd", [0, 2, 5, 7]),
    ],
)
def test_lines_start_behind_lf_crlf_and_lone_cr(text: str, starts: list[int]) -> None:
    indexed = IndexedText(text)
    assert indexed.line_count == len(starts)
    for line, start in enumerate(starts):
        assert indexed.offset_at(Position(line, 0), Encoding.UTF16) == start


@pytest.mark.parametrize("separator", NOT_LINE_ENDS.values(), ids=NOT_LINE_ENDS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_separators_are_ordinary_characters(separator: str, encoding: Encoding) -> None:
    """``str.splitlines`` cuts at them; edits below such a character then went to wrong lines."""
    indexed = IndexedText(f"a{separator}b\nc")
    assert indexed.line_count == 2
    assert indexed.offset_at(Position(1, 0), encoding) == 4
    assert indexed.position_at(2, encoding).line == 0


# Positions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("text", "position", "offset"),
    [
        ("", (0, 0), 0),
        ("", (7, 7), 0),
        ("ab", (0, 99), 2),
        ("ab\ncd", (0, 99), 2),
        ("ab\r\ncd", (0, 99), 2),
        ("ab\r\ncd", (0, 3), 2),
        ("ab\rcd", (0, 3), 2),
        ("ab\r\n", (0, 3), 2),
        ("ab\n", (1, 0), 3),
        ("ab\n", (1, 99), 3),
        ("ab\n", (2, 0), 3),
        ("ab", (1, 0), 2),
        ("ab", (2**31 - 1, 2**31 - 1), 2),
        ("ab", (-1, 5), 0),
        ("ab\ncd", (1, -1), 3),
    ],
)
def test_positions_that_do_not_exist_clamp(
    text: str, position: tuple[int, int], offset: int, encoding: Encoding
) -> None:
    assert IndexedText(text).offset_at(Position(*position), encoding) == offset


@pytest.mark.parametrize(
    ("encoding", "columns"),
    [
        (Encoding.UTF8, {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 3, 7: 3, 8: 3, 9: 3, 10: 4, 11: 5}),
        (Encoding.UTF16, {0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 4, 6: 5}),
        (Encoding.UTF32, {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}),
    ],
)
def test_a_column_inside_a_character_is_its_start(
    encoding: Encoding, columns: dict[int, int]
) -> None:
    line = "aé中😀b"
    assert {column: code_points_in(line, column, encoding) for column in columns} == columns
    for index in range(len(line) + 1):
        assert code_points_in(line, column_of(line[:index], encoding), encoding) == index


def test_combining_characters_are_characters_of_their_own() -> None:
    line = "e\u0301x"
    assert [column_of(line[:n], Encoding.UTF8) for n in range(4)] == [0, 1, 3, 4]
    assert [column_of(line[:n], Encoding.UTF16) for n in range(4)] == [0, 1, 2, 3]
    assert code_points_in(line, 1, Encoding.UTF16) == 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_offset_inside_a_crlf_is_before_it(encoding: Encoding) -> None:
    indexed = IndexedText("ab\r\ncd")
    assert indexed.position_at(3, encoding) == (0, 2)
    assert indexed.position_at(4, encoding) == (1, 0)


def test_offsets_that_do_not_exist_clamp() -> None:
    indexed = IndexedText("ab\nc")
    assert indexed.position_at(-1, Encoding.UTF16) == (0, 0)
    assert indexed.position_at(99, Encoding.UTF16) == (1, 1)


@pytest.mark.parametrize(
    ("encoding", "start", "end"),
    [(Encoding.UTF8, 4, 8), (Encoding.UTF16, 2, 5), (Encoding.UTF32, 1, 4)],
)
def test_a_range_is_in_the_units_of_the_encoding(encoding: Encoding, start: int, end: int) -> None:
    span = IndexedText("x\n😀abé\n").range_of(3, 6, encoding)
    assert span == Range(Position(1, start), Position(1, end))


# Lone surrogates --------------------------------------------------------------------------------


def test_a_lone_surrogate_becomes_a_character_that_can_be_encoded() -> None:
    r"""``"\ud800"`` is valid JSON; encoding the text for the tokenizer then raised."""
    indexed = IndexedText("a\ud83db").replaced(3, 3, "\ude00")
    assert indexed.text == "a\ufffdb\ufffd"
    assert indexed.text.encode("utf-8")


@pytest.mark.parametrize("encoding", [Encoding.UTF16, Encoding.UTF32])
def test_a_lone_surrogate_keeps_the_columns_behind_it(encoding: Encoding) -> None:
    indexed = IndexedText("\ud83dab")
    assert indexed.position_at(2, encoding) == (0, 2)
    assert indexed.offset_at(Position(0, 2), encoding) == 2


@pytest.mark.parametrize("text", ["", "plain", "é中😀", "\ufffd"])
def test_text_without_lone_surrogates_is_left_as_it_is(text: str) -> None:
    assert without_lone_surrogates(text) is text


# Edits ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny_runs")
@pytest.mark.parametrize(
    ("text", "edit", "result"),
    [
        pytest.param("a\r\nb", (2, 2, "x"), "a\rx\nb", id="splits a CRLF"),
        pytest.param("a\r\nb", (2, 2, "\n\r"), "a\r\n\r\nb", id="splits a CRLF with another"),
        pytest.param("a\rb", (2, 2, "\n"), "a\r\nb", id="puts LF behind CR"),
        pytest.param("a\nb", (1, 1, "\r"), "a\r\nb", id="puts CR before LF"),
        pytest.param("a\rbcd\ne", (2, 5, ""), "a\r\ne", id="joins CR and LF"),
        pytest.param(
            "aaaaaa\rbbbbbb\ncccccc",
            (7, 13, ""),
            "aaaaaa\r\ncccccc",
            id="joins CR and LF at a seam",
        ),
        pytest.param(
            "aaaaaa\rbbbbbb\rcccccc",
            (7, 7, "\n"),
            "aaaaaa\r\nbbbbbb\rcccccc",
            id="puts LF at a seam",
        ),
        pytest.param("aaaaaa\r\nbbbbbb", (7, 8, ""), "aaaaaa\rbbbbbb", id="takes the LF of a CRLF"),
        pytest.param("aaaaaa\r\nbbbbbb", (6, 7, ""), "aaaaaa\nbbbbbb", id="takes the CR of a CRLF"),
        pytest.param("a\nb", (3, 3, "c"), "a\nbc", id="appends to the last line"),
        pytest.param("aaaaaaa\n", (8, 8, "b"), "aaaaaaa\nb", id="appends behind a last newline"),
        pytest.param("aaaaaaa\r", (8, 8, "\n"), "aaaaaaa\r\n", id="appends LF to a last CR"),
        pytest.param("aaaaaaa\nb\n", (9, 10, ""), "aaaaaaa\nb", id="takes the last newline"),
        pytest.param("aaaaaaa\nb", (8, 9, ""), "aaaaaaa\n", id="takes the last line"),
        pytest.param("aaaaaaa\nbbbbbbb\nc", (0, 17, ""), "", id="takes everything"),
        pytest.param("", (0, 0, "a\r\nb"), "a\r\nb", id="fills an empty text"),
        pytest.param("abcd", (3, 1, "x"), "axd", id="goes the other way round"),
        pytest.param("abcd", (2, 99, "x"), "abx", id="goes past the end"),
        pytest.param("abcd", (-5, 2, "x"), "xcd", id="starts before the start"),
    ],
)
def test_an_edit(text: str, edit: tuple[int, int, str], result: str) -> None:
    edited = IndexedText(text).replaced(*edit)
    assert edited.text == result
    assert_like_new(edited, result)


def test_an_edit_leaves_the_old_text_as_it_was() -> None:
    old = IndexedText("a\nb")
    new = old.replaced(1, 2, "")
    assert (old.text, old.line_count) == ("a\nb", 2)
    assert (new.text, new.line_count) == ("ab", 1)


def test_a_big_text_is_kept_in_small_runs_and_stays_so() -> None:
    """An edit copies one run; runs that only grew would make it copy the file again."""
    indexed = IndexedText("x" * 99 + "\n").replaced(0, 0, "y" * 49 + "\n")
    for _ in range(2000):
        indexed = indexed.replaced(50, 50, "z" * 49 + "\r\n")
    assert len(indexed) == 150 + 2000 * 51
    assert max(run.size for run in indexed._runs) <= 2 * positions.RUN_SIZE
    assert indexed.position_at(len(indexed), Encoding.UTF8) == (2002, 0)


def test_a_big_text_has_few_runs() -> None:
    """An edit adds up the sizes of all runs."""
    text = ("x" * 49 + "\n") * 4000
    assert len(IndexedText(text)._runs) <= len(text) / positions.RUN_SIZE


def test_runs_are_cut_behind_line_ends_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ab\r\n\rcd\n\r\n\r\n" * 9
    for size in range(1, 14):
        monkeypatch.setattr(positions, "RUN_SIZE", size)
        runs = [run.text for run in IndexedText(text)._runs]
        assert "".join(runs) == text
        assert len(runs) > 1
        for left, right in pairwise(runs):
            assert left.endswith(("\r", "\n"))
            assert not (left.endswith("\r") and right.startswith("\n"))


some_text = st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join)
some_edits = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), some_text), max_size=6)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=some_text, edits=some_edits, run_size=st.integers(1, 6))
def test_an_edited_text_is_like_a_new_one(
    text: str, edits: list[tuple[int, int, str]], run_size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "RUN_SIZE", run_size)
        indexed = IndexedText(text)
        for start, end, new in edits:
            left, right = sorted((start, end))
            expected = indexed.text[:left] + new + indexed.text[right:]
            indexed = indexed.replaced(start, end, new)
            assert_like_new(indexed, expected)
