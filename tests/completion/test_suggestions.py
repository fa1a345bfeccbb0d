from __future__ import annotations

from fakes import URI, snapshot_at
from hypothesis import given
from hypothesis import strategies as st

from fimlsp.completion.suggestions import KEPT, NEAR, Hopes, Suggestions
from fimlsp.document import Completion, Timings

TEXT = "return [\n        a,\n    ]"
FAR = "x = 1\n" * NEAR
"""More than is compared, so that both sides are cut."""

eols = st.sampled_from(["\n", "\r\n", "\r"])
code = st.text(alphabet="ab(\n é😀", min_size=1, max_size=20)


def shown(marked: str, text: str, *, replace_after: int = 0) -> Suggestions:
    """Return a memory in which ``text`` was suggested at the ``‸``."""
    suggestions = Suggestions()
    completion = Completion(
        text=text, replace_after=replace_after, timings=Timings(prompt_tokens=9, decode_ms=5.0)
    )
    suggestions.remember(snapshot_at(marked), completion)
    return suggestions


def rest(suggestions: Suggestions, marked: str) -> str | None:
    found = suggestions.find(snapshot_at(marked))
    return None if found is None else found.text


def test_typing_along_gets_the_rest_character_by_character_across_lines() -> None:
    suggestions = shown("def f():\n    ‸\nf()\n", TEXT)
    for typed in range(len(TEXT)):
        marked = f"def f():\n    {TEXT[:typed]}‸\nf()\n"
        assert rest(suggestions, marked) == TEXT[typed:]


@given(st.text("ab\n", max_size=8), code, st.text("ab\n", max_size=8), eols, st.booleans())
def test_typing_along_works_with_every_line_end_and_in_long_documents(
    before: str, text: str, after: str, eol: str, far: bool
) -> None:
    """Long documents with CRLF: characters were counted before line ends were made one."""
    head, tail = (FAR, "\n" + FAR) if far else ("", "")
    if rest_of_line := after.partition("\n")[0]:
        text = text.replace("\n", "") + rest_of_line + "!"  # never equal to what is there

    def marked(typed: str) -> str:
        return f"{head}{before}{typed}‸{after}{tail}".replace("\n", eol)

    suggestions = shown(marked(""), text)
    for typed in range(len(text)):
        found = rest(suggestions, marked(text[:typed]))
        assert found is not None
        assert text.endswith(found)
        # Where text repeats, a longer rest may fit just as well; never a wrong one.
        assert len(found) >= len(text) - typed


def test_an_accepted_part_counts_as_typed() -> None:
    suggestions = shown("x = ‸\n", "alpha + beta")
    assert rest(suggestions, "x = alpha +‸\n") == " beta"


def test_going_back_inside_what_was_typed_along_gets_the_longer_rest() -> None:
    suggestions = shown("x = ‸\n", "alpha")
    assert rest(suggestions, "x = alp‸\n") == "ha"
    assert rest(suggestions, "x = al‸\n") == "pha"


def test_going_back_behind_the_place_of_the_suggestion_is_no_hit() -> None:
    assert rest(shown("x = ‸\n", "alpha"), "x =‸\n") is None


def test_something_else_typed_is_no_hit() -> None:
    assert rest(shown("x = ‸\n", "alpha"), "x = b‸\n") is None
    assert rest(shown("x = ‸\n", "alpha"), "x = alx‸\n") is None


def test_changed_text_right_of_the_cursor_is_no_hit() -> None:
    suggestions = shown("f(‸)\n", "alpha")
    assert rest(suggestions, "f(a‸)\n") == "lpha"
    assert rest(suggestions, "f(a‸))\n") is None
    assert rest(suggestions, "f(a‸\n") is None


def test_changed_text_above_is_no_hit() -> None:
    assert rest(shown("y = 1\nx = ‸\n", "alpha"), "y = 2\nx = a‸\n") is None


def test_changes_far_away_are_none_that_matter() -> None:
    suggestions = shown(f"y{FAR}x = ‸\n{FAR}y", "alpha")
    assert rest(suggestions, f"z = 2{FAR}x = a‸\n{FAR}z") == "lpha"


def test_an_exhausted_suggestion_is_no_hit() -> None:
    assert rest(shown("x = ‸\n", "alpha"), "x = alpha‸\n") is None


def test_a_rest_that_only_repeats_what_it_replaces_is_no_hit() -> None:
    """``x)`` over the ``)`` of ``f(|)``: with ``x`` typed nothing was left but to replace it."""
    suggestions = shown("f(‸)\n", "x)", replace_after=1)
    assert rest(suggestions, "f(‸)\n") == "x)"
    assert rest(suggestions, "f(x‸)\n") is None


def test_the_range_to_replace_stays() -> None:
    found = shown("f(‸)\n", "xy)", replace_after=1).find(snapshot_at("f(x‸)\n"))
    assert found is not None
    assert (found.text, found.replace_after) == ("y)", 1)


def test_a_hit_has_cost_nothing() -> None:
    found = shown("x = ‸\n", "alpha").find(snapshot_at("x = a‸\n"))
    assert found is not None
    assert found.timings == Timings()


def test_undo_back_to_an_older_state_hits_again() -> None:
    suggestions = shown("x = ‸\n", "alpha")
    suggestions.remember(snapshot_at("x = b‸\n"), Completion(text="eta"))
    assert rest(suggestions, "x = b‸\n") == "eta"
    assert rest(suggestions, "x = ‸\n") == "alpha"


def test_the_newest_of_two_fitting_suggestions_wins() -> None:
    suggestions = shown("x = ‸\n", "alpha")
    suggestions.remember(snapshot_at("x = a‸\n"), Completion(text="lien"))
    assert rest(suggestions, "x = al‸\n") == "ien"
    suggestions.remember(snapshot_at("x = ‸\n"), Completion(text="alto"))
    assert rest(suggestions, "x = alt‸\n") == "o"


def test_only_the_last_suggestions_are_kept() -> None:
    suggestions = Suggestions()
    for number in range(KEPT + 1):
        suggestions.remember(snapshot_at(f"{number}: ‸\n"), Completion(text="alpha"))
    assert rest(suggestions, "0: ‸\n") is None
    assert rest(suggestions, "1: ‸\n") == "alpha"


def test_the_same_place_takes_one_entry() -> None:
    suggestions = shown("first: ‸\n", "alpha")
    for number in range(3 * KEPT):
        suggestions.remember(snapshot_at("x = ‸\n"), Completion(text=f"{number}"))
    assert rest(suggestions, "first: ‸\n") == "alpha"


def test_documents_do_not_share_suggestions_and_forget_their_own() -> None:
    suggestions = shown("x = ‸\n", "alpha")
    other = snapshot_at("x = ‸\n", uri="file:///project/b.py")
    assert suggestions.find(other) is None
    suggestions.remember(other, Completion(text="beta"))
    suggestions.forget(URI)
    suggestions.forget("file:///never/seen.py")
    assert rest(suggestions, "x = ‸\n") is None
    found = suggestions.find(other)
    assert found is not None
    assert found.text == "beta"


def hopes(suggestions: Suggestions, marked: str) -> Hopes:
    return suggestions.hopes(snapshot_at(marked))


def test_what_was_typed_along_leaves_the_rest_to_hope_for() -> None:
    suggestions = shown("x = ‸\n", "alpha(beta)")
    assert hopes(suggestions, "x = ‸\n") == Hopes(expected=("alpha(beta)",))
    assert hopes(suggestions, "x = alp‸\n") == Hopes(expected=("ha(beta)",))


def test_a_suggestion_typed_over_may_still_come_in_parts() -> None:
    suggestions = shown("x = ‸\n", "alpha(beta)")
    assert hopes(suggestions, "x = gam‸\n") == Hopes(related=("alpha(beta)",))


def test_what_was_deleted_is_hoped_for_again_with_the_suggestion_behind_it() -> None:
    suggestions = shown("total = coun‸\n", "t(items)")
    assert hopes(suggestions, "total = ‸\n") == Hopes(expected=("count(items)",))


def test_a_change_below_the_cursor_does_not_end_hope() -> None:
    """Bracket pairs change what follows; the model then writes much the same again."""
    suggestions = shown("f‸\n", "(a, b)")
    assert hopes(suggestions, "f(‸)\n") == Hopes(expected=("a, b)",))


def test_nothing_is_hoped_for_far_from_every_suggestion() -> None:
    suggestions = shown("total = ‸\n" + FAR, "alpha")
    assert hopes(suggestions, "total = \n" + FAR + "y = ‸") == Hopes()


def test_the_newest_suggestions_come_first_and_only_a_few() -> None:
    suggestions = Suggestions()
    for number in range(8):
        typed = "ab"[:number]
        completion = Completion(text=f"{number}", timings=Timings())
        suggestions.remember(snapshot_at(f"x = {typed}{number}‸\n"), completion)
    found = hopes(suggestions, "x = ab7‸\n")
    assert found.expected[0] == "7"
    assert len(found.expected) + len(found.related) <= 3


def test_everything_typed_leaves_nothing_to_hope_for() -> None:
    assert hopes(shown("x = ‸\n", "alpha"), "x = alpha‸\n") == Hopes()


@given(code, code, st.text("ab\n(", max_size=12))
def test_hopes_never_fail_and_are_never_empty_texts(before: str, text: str, now: str) -> None:
    found = hopes(shown(f"{before}‸\n", text), f"{before}{now}‸\n")
    assert all(found.expected)
    assert all(found.related)
