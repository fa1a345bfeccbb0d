from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fimlsp.completion.trim import Trimmed, trim
from fimlsp.document import Reason

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|file_sep|>", "<|endoftext|>")


def trimmed(document: str, text: str, spellings: tuple[str, ...] = ()) -> Trimmed | Reason:
    """Trim ``text`` at the ``|`` of ``document``."""
    before, after = document.split("|")
    return trim(text, before=before, after=after, spellings=spellings)


def shown(document: str, text: str) -> str:
    """The text that is offered, where there is one and it replaces nothing."""
    result = trimmed(document, text)
    assert isinstance(result, Trimmed)
    assert result.replace_after == 0
    return result.text


def accepted(document: str, text: str) -> str:
    """The document after the suggestion was taken."""
    before, after = document.split("|")
    result = trim(text, before=before, after=after)
    assert isinstance(result, Trimmed)
    return before + result.text + after[result.replace_after :]


@pytest.mark.parametrize("text", ["", " ", "\n", "  \n\t\n ", "\u3000"])
def test_whitespace_alone_is_nothing(text: str) -> None:
    assert trimmed("x =|\n", text) is Reason.EMPTY


def test_an_ordinary_suggestion_is_left_alone() -> None:
    text = "return [\n        a,\n    ]"
    assert shown("    |\n\n    more()\n", text) == text


def test_blank_lines_and_spaces_at_the_end_are_cut() -> None:
    assert shown("|\n", "a = 1  \n\n  \n") == "a = 1"


def test_blank_lines_at_the_start_stay() -> None:
    assert shown("if x:|\n", "\n\n    a()\n") == "\n\n    a()"


def test_a_space_at_the_end_stays_where_text_follows_on_the_line() -> None:
    assert accepted("x =|y\n", " 1 + ") == "x = 1 + y\n"


def test_a_closing_bracket_that_is_there_already_is_replaced() -> None:
    """llama.vim turns ``foo(|)`` and ``x)`` into ``foo(x))``."""
    assert trimmed("foo(|)\n", "x)") == Trimmed(text="x)", replace_after=1)


def test_a_closing_bracket_that_belongs_to_the_suggestion_is_not_replaced() -> None:
    assert accepted("foo(|)\n", "bar(x)") == "foo(bar(x))\n"
    assert accepted("f(\n    a, b|)\n", ", g(c)") == "f(\n    a, b, g(c))\n"


def test_a_rest_of_the_line_in_words_is_replaced_whatever_its_brackets() -> None:
    assert accepted("def br|ame):\n", "eak_here(self, frame):") == "def break_here(self, frame):\n"
    assert accepted("# it do|n't\n", "esn't") == "# it doesn't\n"


def test_a_missing_closing_bracket_is_added() -> None:
    assert accepted("foo(bar(|)\n", ")") == "foo(bar())\n"


def test_the_whole_rest_of_the_line_is_replaced_by_a_text_that_ends_in_it() -> None:
    assert trimmed("foo(|, b);\n", "a, b);") == Trimmed(text="a, b);", replace_after=5)
    assert accepted("if (|) {\n", "x > 0) {") == "if (x > 0) {\n"


def test_a_part_of_the_rest_of_the_line_is_not_written_twice() -> None:
    """llama.vscode #13: the text right of the cursor was there twice."""
    assert accepted("not_|qual = 1\n", "equal") == "not_equal = 1\n"
    assert trimmed("x = [|, 3]\n", "1, 2, 3") == Trimmed(text="1, 2, 3", replace_after=3)


def test_a_rest_in_the_middle_of_the_suggestion_is_replaced_where_brackets_say_so() -> None:
    assert accepted("foo(|)\n", "x) + 1") == "foo(x) + 1\n"
    assert accepted("foo(|b)\n", "a, b) + c") == "foo(a, b) + c\n"
    assert accepted("foo({|})\n", "a: 1}, x)") == "foo({a: 1}, x)\n"


def test_letters_in_the_middle_of_the_suggestion_prove_nothing() -> None:
    assert accepted("x = |b\n", "bar + ") == "x = bar + b\n"


def test_quotes_are_kept_in_pairs() -> None:
    assert accepted('x = "|"\n', 'a"') == 'x = "a"\n'
    assert accepted('x = "|"\n', '" + y + "') == 'x = "" + y + ""\n'
    assert accepted('"""|"""\n', 'Do it."""') == '"""Do it."""\n'
    assert accepted('    already|"""\n', ' there."""') == '    already there."""\n'
    assert accepted('foo("|)\n', 'a")') == 'foo("a")\n'
    assert accepted('return |"\n', '"a"') == 'return "a"\n'


def test_spaces_after_the_rest_of_the_line_do_not_hide_it() -> None:
    assert accepted("foo(|)  \n", "x)") == "foo(x)  \n"


def test_a_suggestion_that_is_the_rest_of_the_line_is_nothing_new() -> None:
    assert trimmed("foo(a|, b)\n", ", b)") is Reason.REPEATS_SUFFIX
    assert trimmed("foo(a|, b)\n", ",") is Reason.REPEATS_SUFFIX


def test_a_suggestion_of_several_lines_inserts_rather_than_replaces() -> None:
    result = trimmed("foo(|)\n", "a,\n    b)")
    assert result == Trimmed(text="a,\n    b", replace_after=0)


def test_a_first_line_that_closes_the_rest_may_be_followed_by_more() -> None:
    assert accepted("foo(|)\n", "x)\nbar()") == "foo(x)\nbar()\n"


def test_last_lines_that_are_the_next_lines_of_the_document_are_cut() -> None:
    """llama.vim and llama.vscode show the lines twice."""
    assert shown("a|\nb = 2\nc = 3\n", "\nnew = 1\nb = 2\nc = 3\n") == "\nnew = 1"


def test_trailing_spaces_and_blank_lines_do_not_hide_a_repetition() -> None:
    assert shown("|\n\nb = 2  \n\nc = 3\n", "new = 1\nb = 2\nc = 3  ") == "new = 1"


def test_a_repetition_that_is_cut_off_in_its_last_line_is_found() -> None:
    assert shown("|\nb = 2\nreturn b\n", "new = 1\nb = 2\nretu") == "new = 1"


def test_lines_that_go_on_differently_are_no_repetition() -> None:
    text = "new = 1\nb = 2\nd = 4"
    assert shown("|\nb = 2\nc = 3\n", text) == text


def test_indentation_tells_lines_apart() -> None:
    assert shown("|\nreturn total\n", "if x:\n    return total") == "if x:\n    return total"


def test_a_bracket_alone_is_no_repetition() -> None:
    assert shown("|\n}\n", "if (a) {\n}") == "if (a) {\n}"


def test_a_bracket_that_closes_an_older_block_twice_is_cut() -> None:
    assert shown("f() {\n|\n}\n", "  return 1;\n}") == "  return 1;"


def test_a_suggestion_that_is_what_follows_is_nothing_new() -> None:
    assert trimmed("    |\n    return total\n", "return total") is Reason.REPEATS_SUFFIX
    assert trimmed("x|\n\nb = 2\nc = 3\n", "\nb = 2\n") is Reason.REPEATS_SUFFIX
    assert trimmed("b = |\nb = 2\n", "2") is Reason.REPEATS_SUFFIX


def test_a_suggestion_past_the_last_line_of_the_file_is_not_compared_with_nothing() -> None:
    """llama.vscode looks up lines past the end of the file and fails with a popup."""
    assert shown("|\nb = 2", "new = 1\nb = 2\nc = 3") == "new = 1\nb = 2\nc = 3"


def test_control_tokens_that_the_model_wrote_as_text_end_a_suggestion() -> None:
    """llama.vim #90."""
    assert trimmed("x = |\n", "1<|file_sep|>a.py\n", QWEN) == Trimmed(text="1")
    assert trimmed("x = |\n", "1 <EOT>", ("▁<EOT>",)) == Trimmed(text="1")
    assert trimmed("x = |\n", "<|endoftext|>", QWEN) is Reason.EMPTY


def test_control_spellings_stay_in_a_document_about_them() -> None:
    text = '"<|fim_middle|>"'
    before = 'A = "<|fim_middle|>"\nB = '
    assert trim(text, before=before, after="\n", spellings=QWEN) == Trimmed(text=text)


def test_spellings_that_ordinary_code_holds_are_never_cut() -> None:
    text = '"usage: x <filename> </s>"'
    assert trimmed("y = |\n", text, ("<filename>", "</s>")) == Trimmed(text=text)


def test_a_line_three_times_is_shown_once() -> None:
    assert shown("|\n", "a = f(x)\n" * 3) == "a = f(x)"
    assert shown("    |\n", "a = f(x)\n" + "    a = f(x)\n" * 4 + "    a =") == "a = f(x)"


def test_a_line_twice_is_no_loop() -> None:
    assert shown("|\n", "next(lines)\nnext(lines)") == "next(lines)\nnext(lines)"


def test_a_round_of_lines_three_times_is_shown_once() -> None:
    assert (
        shown("|\n", "start = 1\n" + "a = f(x)\nb = g(a)\n" * 4) == "start = 1\na = f(x)\nb = g(a)"
    )


def test_brackets_and_numbers_alone_are_no_loop() -> None:
    text = "[\n0,\n0,\n0,\n0,"
    assert shown("x = |\n", text) == text


def test_a_phrase_over_and_over_is_shown_once() -> None:
    assert shown("# |\n", "the best of " + "all the world " * 6) == "the best of all the world"
    assert shown("x = |\n", "1 + " + "a + " * 7 + "a") == "1 + a"


@pytest.mark.parametrize(
    "text", ["# " + "-" * 70, "0x" + "0" * 32, "| --- " * 8 + "|", "[1, 2, 3, 4, 5, 6, 7]"]
)
def test_rulers_zeros_and_tables_are_no_loop(text: str) -> None:
    assert shown("|\n", text) == text


def test_a_loop_is_never_cut_inside_a_character() -> None:
    text = "x" + "\u0301abcdefghijk e" * 5
    assert shown("# |\n", text) == "x\u0301abcdefghijk e\u0301"


def test_one_space_on_both_sides_of_the_cursor_becomes_one() -> None:
    """A leading space after a space: tabby #3261."""
    assert shown("x = |\n", " 1") == "1"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("    ", " x"),
        ("x =", " 1"),
        ("x  =  ", " 1"),
        ("x = ", "  1"),
        ("x = 1 ", " # why"),
        ("x = 1; ", " // why"),
        ("# A sentence. ", " Another"),
    ],
)
def test_indentation_alignment_and_comments_keep_their_spaces(line: str, text: str) -> None:
    assert shown(line + "|\n", text) == text


@pytest.mark.parametrize(
    "text",
    [
        "名前 = 「値」。",
        "\U0001f469\u200d\U0001f680 = '\U0001f1ef\U0001f1f5'",
        "e\u0301 = 'n\u0303'",
        "שלום = 'مرحبا'\u200f",
        "全角\u3000",
        "a\u2028b\x0c",
        "x\ufe0f",
    ],
)
def test_text_of_every_script_survives(text: str) -> None:
    assert shown("|\n", text) == text


def test_a_cut_sequence_leaves_no_replacement_character_or_surrogate() -> None:
    assert shown("|\n", "x = '語\ufffd") == "x = '語"
    assert shown("|\n", "x = '語\ud83d") == "x = '語"


def test_carriage_returns_become_line_ends() -> None:
    assert shown("|\n", "a = 1\r\nb = 2\r\n") == "a = 1\nb = 2"


def is_subsequence(piece: str, text: str) -> bool:
    characters = iter(text)
    return all(char in characters for char in piece)


PIECES = st.sampled_from(
    [*"()[]{},;:\"'` \n\tab=", "foo(", "x)", "return total", "語", "\U0001f680", "e\u0301", "\r\n"]
)
TEXT = st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=20))


@given(before=TEXT, after=TEXT, text=TEXT)
@example(before="foo(", after=")", text="x)")
@example(before="foo({", after="})\n", text="a}, x)\nb)")
@example(before="", after=")\n", text="\n)")
def test_text_right_of_the_cursor_is_never_lost(before: str, after: str, text: str) -> None:
    before, after = before.replace("\r", ""), after.replace("\r", "")
    result = trim(text, before=before, after=after)
    if isinstance(result, Reason):
        assert result in (Reason.EMPTY, Reason.REPEATS_SUFFIX)
        return
    rest = after.partition("\n")[0]
    assert 0 <= result.replace_after <= len(rest)
    assert is_subsequence(after[: result.replace_after], result.text)
    written = before + result.text + after[result.replace_after :]
    assert is_subsequence(after, written[len(before) :])
    assert written.endswith(after[result.replace_after :])


@given(before=TEXT, after=TEXT, text=TEXT)
def test_trim_only_removes_and_always_leaves_something_to_show(
    before: str, after: str, text: str
) -> None:
    result = trim(text, before=before, after=after)
    if isinstance(result, Trimmed):
        assert result.text.strip()
        assert "\r" not in result.text
        plain = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "ignore").decode()
        assert result.text in plain


@given(before=TEXT, after=TEXT, text=TEXT)
def test_a_trimmed_suggestion_can_be_encoded(before: str, after: str, text: str) -> None:
    result = trim(text + "\ud800\ufffd", before=before, after=after)
    if isinstance(result, Trimmed):
        assert result.text.encode().decode() == result.text
