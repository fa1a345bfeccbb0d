from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fimlsp.completion.stop import (
    Shape,
    StopRule,
    bracket_depth,
    decode,
    is_trivial,
    opens_block,
    stop_rule,
)


def rule_at(document: str, *, multiline: str = "auto", max_lines: int = 12) -> StopRule:
    """The rule for a document with the cursor at ``|``."""
    before, after = document.split("|")
    return stop_rule(before=before, after=after, multiline=multiline, max_lines=max_lines)


def kept(
    document: str, generated: str, *, multiline: str = "auto", max_lines: int = 12
) -> tuple[str, str]:
    """Generate byte by byte until the rule stops; return (what is kept, what was generated)."""
    rule = rule_at(document, multiline=multiline, max_lines=max_lines)
    data = generated.encode()
    for count in range(1, len(data) + 1):
        if rule(data[:count]):
            return rule.keep(data[:count]), data[:count].decode()
    return rule.keep(data), generated


def test_inside_a_line_a_suggestion_ends_with_the_line() -> None:
    assert kept("foo(|)\n", "x, y\nbar(") == ("x, y", "x, y\n")


def test_inside_a_line_a_leading_newline_ends_the_suggestion_at_once() -> None:
    assert kept("foo(|)\n", "\nbar") == ("", "\n")


def test_spaces_right_of_the_cursor_are_not_the_inside_of_a_line() -> None:
    assert rule_at("    |   \n").shape is Shape.FREE


def test_at_the_end_of_a_statement_only_the_rest_of_the_line_is_taken() -> None:
    assert kept("x = |\n", "1\ny = 2\n") == ("1", "1\n")


def test_at_the_end_of_a_complete_statement_a_newline_ends_the_suggestion() -> None:
    assert kept("x = 1|\n", "\ny = 2\n") == ("", "\n")


def test_a_block_opener_in_front_of_the_cursor_takes_its_block() -> None:
    text = "\n    a()\n    b()\nc()\n"
    assert kept("for x in y:|\n", text) == ("\n    a()\n    b()", "\n    a()\n    b()\nc(")


def test_a_block_opener_that_the_suggestion_completes_takes_its_block() -> None:
    text = " in items:\n    use(item)\nprint()\n"
    assert kept("for item|\n", text)[0] == " in items:\n    use(item)"


def test_newlines_after_a_block_opener_are_part_of_the_text() -> None:
    """llm-ls #63: cutting at a leading newline left nothing to show at a block's start."""
    assert kept("def f():|\n", "\n\n    return 1\n\n\n")[0] == "\n\n    return 1"
    assert kept("def |\n", "f():\n\n    return 1\n\n\n")[0] == "f():\n\n    return 1"


def test_single_line_mode_keeps_the_first_line_with_content_after_a_block_opener() -> None:
    """llm-ls #63."""
    text = "\n    a()\n    b()\n"
    assert kept("for x in y:|\n", text, multiline="never") == ("\n    a()", "\n    a()\n")


def test_single_line_mode_keeps_one_line_on_a_blank_line() -> None:
    assert kept("    |\n", "a()\n    b()\n", multiline="never") == ("a()", "a()\n")


def test_an_opener_without_a_deeper_line_has_no_block() -> None:
    assert kept("if x:|\n", "\ny = 1\n") == ("", "\ny")


@pytest.mark.parametrize(
    "line",
    [
        "if x:",
        "if x:  # why",
        "if a // b:",
        "int main() {",
        "foo(",
        "foo(a,",
        "x = [",
        "const f = (a) =>",
        "while true do",
        "list.each do |item|",
        "if x then",
        "} else {",
        "case 1 ->",
        "total = a + \\",
        "    begin",
    ],
)
def test_lines_that_open_a_block(line: str) -> None:
    assert opens_block(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x = 1",
        "foo(a)",
        "print('(')",
        'say("{")',
        "}",
        "return x;",
        "todo",
        "x  # see (",
        "redo",
    ],
)
def test_lines_that_open_no_block(line: str) -> None:
    assert not opens_block(line)


def test_a_blank_line_after_content_ends_a_suggestion() -> None:
    assert kept("    |\n", "a()\n    b()\n\n    c()") == ("a()\n    b()", "a()\n    b()\n\n")


def test_a_line_of_spaces_is_blank() -> None:
    assert kept("    |\n", "a()\n    \n    c()")[0] == "a()"


def test_blank_lines_before_any_content_do_not_end_a_suggestion() -> None:
    assert kept("import os\n|\n", "\ndef f():\n    pass\n\n\n")[0] == "\ndef f():\n    pass"


def test_endless_blank_lines_end_with_nothing() -> None:
    text, generated = kept("|\n", "\n" * 50)
    assert text.strip() == ""
    assert len(generated) < 6


def test_a_line_indented_less_than_the_anchor_ends_a_suggestion() -> None:
    text = "a()\n        b()\n    c()\n"
    assert kept("    if x:\n        |\n", text) == ("a()\n        b()", "a()\n        b()\n    c")


def test_the_first_line_sets_the_indentation_where_the_cursor_is_at_column_zero() -> None:
    assert kept("def f():\n|\n", "    a()\n    b()\nc()\n")[0] == "    a()\n    b()"


def test_tabs_and_spaces_are_compared_in_columns() -> None:
    assert kept("\tif x {\n\t\t|\n", "a()\n\t\tb()\n\t}\n")[0] == "a()\n\t\tb()"


def test_deeper_lines_and_the_way_back_stay() -> None:
    text = "if a:\n        b()\n    else:\n        c()\n    d()\n\n"
    assert kept("    |\n", text)[0] == text.rstrip("\n")


def test_a_closing_bracket_of_the_suggestions_own_block_is_kept() -> None:
    text = " {\n  a();\n}\nfunction g() {\n"
    assert kept("function f()|\n", text)[0] == " {\n  a();\n}"


def test_a_closing_bracket_of_an_older_block_is_not_kept() -> None:
    """In a body whose brace the editor has closed already, the model closes it once more."""
    assert kept("function f() {\n  |\n}\n", "return 1;\n}\n")[0] == "return 1;"
    assert kept("  {\n  |\n", "return 1;\n  }\n")[0] == "return 1;"


def test_a_signature_over_several_lines_keeps_its_body() -> None:
    text = "\n    a,\n    b,\n):\n    return a\nf()\n"
    assert kept("def f(|\n", text)[0] == "\n    a,\n    b,\n):\n    return a"


def test_else_belongs_to_the_block_before_it() -> None:
    text = "\n  a();\n} else {\n  b();\n}\nc();\n"
    assert kept("if (x) {|\n", text)[0] == "\n  a();\n} else {\n  b();\n}"
    text = "\n    a()\nexcept E:\n    b()\nelsewhere()\n"
    assert kept("try:|\n", text)[0] == "\n    a()\nexcept E:\n    b()"


def test_a_closing_word_is_kept() -> None:
    assert kept("while x do|\n", "\n  a\nend\nb\n")[0] == "\n  a\nend"


def test_a_name_that_begins_like_a_closing_word_leaves_the_block() -> None:
    assert kept("while x do|\n", "\n  a\nendless()\n")[0] == "\n  a"


def test_list_items_may_stand_at_the_indentation_of_their_key() -> None:
    assert kept("steps:|\n", "\n- a\n- b\nname: x\n")[0] == "\n- a\n- b"


def test_a_line_that_repeats_the_next_line_of_the_document_ends_a_suggestion() -> None:
    document = "    |\n\n    total = sum(x)\n    return total\n"
    text = "x = 1\n    total = sum(x)  \n    more\n"
    assert kept(document, text) == ("x = 1", "x = 1\n    total = sum(x)  \n")


def test_a_bracket_alone_is_no_repetition() -> None:
    text = "if (a) {\n}\nb()\n\n"
    assert kept("|\n}\n", text)[0] == "if (a) {\n}\nb()"


def test_a_bracket_and_a_telling_line_are_a_repetition() -> None:
    text = "f(\n)\ntotal = sum(x)\nmore\n"
    assert kept("|\n)\ntotal = sum(x)\n", text)[0] == "f("


def test_a_first_line_that_repeats_the_next_one_stops_and_is_left_to_trim() -> None:
    document = "    |\n    return total\n"
    text = ("return total", "return total\n")
    assert kept(document, "return total\n    more\n") == text


def test_max_lines_counts_lines_with_their_first() -> None:
    text = "".join(f"line{n}\n" for n in range(9))
    assert kept("|\n", text, max_lines=3)[0] == "line0\nline1\nline2"
    block = "\n    a1()\n    a2()\n    a3()\n"
    assert kept("if x:|\n", block, max_lines=2)[0] == "\n    a1()\n    a2()"


def test_always_takes_lines_also_from_inside_a_line() -> None:
    assert kept("foo(|)\n", "a,\n    b\n\n", multiline="always")[0] == "a,\n    b"
    assert kept("x = 1|\n", "\ny = 2\n\n", multiline="always")[0] == "\ny = 2"


def test_carriage_returns_become_line_ends() -> None:
    assert kept("    |\n", "a()\r\n    b()\r\n\r\n")[0] == "a()\n    b()"


def test_a_last_line_that_ran_out_of_tokens_is_dropped_where_another_is_left() -> None:
    rule = rule_at("    |\n")
    assert rule.keep(b"a()\n    retu", ended=False) == "a()"
    assert rule.keep(b"a()\n    retu", ended=True) == "a()\n    retu"
    assert rule.keep(b"retu", ended=False) == "retu"
    assert rule_at("if x:|\n").keep(b"\n    retu", ended=False) == "\n    retu"


def test_the_models_own_end_completes_the_last_line() -> None:
    """The last line is judged like one that a newline ended."""
    assert rule_at("    if x:\n        |\n").keep(b"a()\n    }") == "a()"
    assert rule_at("x = 1|\n").keep(b"\n") == ""


def test_a_cut_utf8_sequence_is_left_out_and_does_not_stop() -> None:
    data = "x = '語".encode()
    rule = rule_at("    |\n")
    for cut in (1, 2):
        assert not rule(data[:-cut])
        assert rule.keep(data[:-cut]) == "x = '"


def test_bytes_that_are_not_utf8_stop_and_are_left_out() -> None:
    rule = rule_at("    |\n")
    for bad in (b"a\xffb", b"a\xed\xa0\x80b", b"a\xe8\xaab"):
        assert rule(bad)
        assert rule.keep(bad) == "a"
    assert decode(b"a\xe8\xaa") == ("a", True)


def test_brackets_in_quotes_and_comments_do_not_count() -> None:
    assert bracket_depth('f(\'(\', "[\\"[") # ((') == 0
    assert bracket_depth("f(a, [b, {c") == 3


@pytest.mark.parametrize("line", ["}", "  });", "else:", "end", "", "# ----", "return;"])
def test_trivial_lines(line: str) -> None:
    assert is_trivial(line)


@pytest.mark.parametrize("line", ["x = 1", "return total", "名前を返す", "clear();", "elsewhere"])
def test_telling_lines(line: str) -> None:
    assert not is_trivial(line)


WORDS = "a() |x = 1|if x:|else|end|return total|- |-|{|}|(|)|'|#|    |語|\U0001f469\u200d\U0001f680"
FRAGMENTS = st.sampled_from([*WORDS.split("|"), "\n", "\n\n", "\r", "\r\n", "\t", '"'])
DOCUMENTS = st.sampled_from(
    ["|\n", "    |\n    return total\n}\n", "if x:|\n", "foo(|)\n", "x = |", "f() {\n  |\n}\n"]
)
MODES = st.sampled_from(["auto", "never", "always"])


@given(DOCUMENTS, MODES, st.integers(1, 5), st.lists(FRAGMENTS, max_size=30))
def test_what_is_kept_does_not_depend_on_how_much_more_was_generated(
    document: str, mode: str, max_lines: int, fragments: list[str]
) -> None:
    rule = rule_at(document, multiline=mode, max_lines=max_lines)
    data = "".join(fragments).encode()
    stops = [rule(data[:count]) for count in range(len(data) + 1)]
    assert stops == sorted(stops)
    if True in stops:
        results = {rule.keep(data[:n]) for n in range(stops.index(True), len(data) + 1)}
        assert len(results) == 1


@given(DOCUMENTS, MODES, st.integers(-1, 5), st.binary(max_size=80))
def test_no_bytes_make_the_rule_raise_or_make_up_text(
    document: str, mode: str, max_lines: int, data: bytes
) -> None:
    rule = rule_at(document, multiline=mode, max_lines=max_lines)
    rule(data)
    text = rule.keep(data)
    assert data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").startswith(text.encode())
