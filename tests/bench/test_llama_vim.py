from fimlsp.bench.llama_vim import Context, HintCache, context, line_at, rendered, request_body

TEXT = "one\ntwo\n\tthree = 3\nfour\n"


def cut(left: str, right: str) -> Context:
    return context(left + right, len(left))


def test_the_line_left_of_the_cursor_is_apart_from_the_lines_above() -> None:
    found = cut("one\ntwo\n\tthree", " = 3\nfour\n")
    assert found == Context(prefix="one\ntwo\n", middle="\tthree", suffix=" = 3\nfour\n", indent=1)


def test_typing_on_a_line_leaves_the_prefix_as_it_is() -> None:
    assert cut("one\nab", "\n").prefix == cut("one\nabc", "\n").prefix


def test_the_window_is_256_lines_above_and_64_below() -> None:
    above = [f"above {n}" for n in range(300)]
    below = [f"below {n}" for n in range(100)]
    found = cut("\n".join([*above, "here"]), "\n" + "\n".join(below) + "\n")
    assert found.prefix == "\n".join(above[-256:]) + "\n"
    assert found.suffix == "\n" + "\n".join(below[:64]) + "\n"


def test_a_blank_line_is_sent_as_if_it_were_empty() -> None:
    found = cut("def f():\n    ", "  \nnext\n")
    assert found == Context(prefix="def f():\n", middle="", suffix="\nnext\n", indent=0)


def test_the_first_line_still_has_a_line_end_before_it() -> None:
    assert cut("a", "").prefix == "\n"


def test_carriage_returns_are_hidden_as_vim_hides_them() -> None:
    assert cut("a\r\nb", "c\r\nd\r\n") == cut("a\nb", "c\nd\n")


def test_the_request_is_the_plugins() -> None:
    body = request_body(cut("a\n  b", "c\nd\n"))
    assert body["input_prefix"] == "a\n"
    assert body["prompt"] == "  b"
    assert body["input_suffix"] == "c\nd\n"
    assert body["n_indent"] == 2
    assert (body["n_predict"], body["t_max_prompt_ms"], body["t_max_predict_ms"]) == (128, 500, 250)
    assert (body["top_k"], body["top_p"]) == (40, 0.9)
    assert body["samplers"] == ["top_k", "top_p", "infill"]
    assert (body["cache_prompt"], body["id_slot"], body["stream"]) == (True, 0, False)
    assert body["input_extra"] == []
    assert {"content", "timings/prompt_n"} <= set(body["response_fields"])


def test_empty_lines_at_the_end_are_not_shown() -> None:
    assert rendered("call()\n  more\n\n\n", "x = ") == "call()\n  more"
    assert rendered("\n\n", "x = ") == ""
    assert rendered("  \n\t", "x = ") == ""


def test_blanks_that_are_on_the_line_already_are_not_shown_again() -> None:
    assert rendered("    return 1\n    more", "    ") == "return 1\n    more"
    assert rendered("        return 1", "    ") == "    return 1"
    assert rendered("return 1", "    ") == "return 1"
    assert rendered("  + 1", "x = ") == "  + 1"


def test_the_cursors_line_ends_at_any_line_end() -> None:
    assert line_at("a\r\nb c\r\nd", 4) == "b c"
    assert line_at("abc", 3) == "abc"


def test_a_hint_is_found_again_while_it_is_typed() -> None:
    cache = HintCache()
    cache.insert(cut("one\nx = ", "\ntwo\n"), "call(1)\nmore")
    assert cache.find(cut("one\nx = ", "\ntwo\n")) == "call(1)\nmore"
    assert cache.find(cut("one\nx = cal", "\ntwo\n")) == "l(1)\nmore"
    assert cache.find(cut("one\nx = cat", "\ntwo\n")) == ""
    assert cache.find(cut("one\nx = cal", "\nelse\n")) == ""


def test_a_hint_is_found_where_typing_began_on_a_blank_line() -> None:
    cache = HintCache()
    cache.insert(cut("if a:\n    ", "\n"), "    return 1")
    assert cache.find(cut("if a:\n    re", "\n")) == "turn 1"


def test_nothing_left_of_a_hint_is_no_hint() -> None:
    cache = HintCache()
    cache.insert(cut("x = ", "\n"), "1")
    assert cache.find(cut("x = 1", "\n")) == ""
    assert not cache.holds(cut("x = 1", "\n"))


def test_a_window_that_scrolled_by_up_to_three_lines_still_finds_its_hint() -> None:
    lines = [f"{n}\n" for n in range(260)]
    cache = HintCache()
    cache.insert(cut("".join(lines[:256]) + "x", "\n"), "yz")
    for scrolled, known in ((3, True), (4, False)):
        place = Context(prefix="".join(lines[scrolled:256]), middle="x", suffix="\n\n", indent=0)
        assert cache.holds(place) is known


def test_the_cache_forgets_the_oldest_of_250_keys() -> None:
    cache = HintCache()
    places = [Context(prefix="\n", middle=str(n), suffix="\n", indent=0) for n in range(200)]
    for place in places:
        cache.insert(place, "text")  # two keys each: as it is, and without its one line
    assert [cache.holds(place) for place in (places[0], places[74], places[75], places[199])] == [
        False,
        False,
        True,
        True,
    ]
