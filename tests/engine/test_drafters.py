"""The free sources: what they guess, and from how much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fimlsp.engine.drafters.api import Draft, Drafter
from fimlsp.engine.drafters.ngram import (
    MAX_MATCH,
    RECENT,
    TOKENS_PER_MATCH,
    NgramDrafter,
    longest_match,
)
from fimlsp.engine.drafters.previous import FOLLOWED, PreviousDrafter

FEW = st.integers(0, 3)
"""So few ids that texts repeat themselves."""
texts = st.lists(FEW, max_size=40)


def ids(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def by_brute_force(history: list[int], context: list[int]) -> tuple[int, int]:
    best = (0, 0)
    for end in range(1, len(history)):
        length = 0
        while (
            length < min(end, len(context), MAX_MATCH)
            and history[end - 1 - length] == context[-1 - length]
        ):
            length += 1
        if length and length >= best[1]:
            best = (end, length)
    return best


@given(texts, texts)
def test_the_longest_match_is_found_and_the_last_among_equals(
    history: list[int], context: list[int]
) -> None:
    assert longest_match(ids(history), ids(context)) == by_brute_force(history, context)
    assert longest_match(ids(history), ids(history)) == by_brute_force(history, history)


def test_of_two_long_matches_the_last_one_is_found() -> None:
    history = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3, 4, 5, 6]
    assert longest_match(ids(history), ids(history)) == (13, 6)


def test_a_match_is_compared_no_further_than_max_match() -> None:
    history = list(range(30)) * 2
    assert longest_match(ids(history), ids(history)) == (30, MAX_MATCH)


# What was seen before.


def ngram(prompt: list[int]) -> NgramDrafter:
    drafter = NgramDrafter()
    drafter.begin(prompt, (), ())
    return drafter


@pytest.mark.parametrize(
    ("prompt", "emitted", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2], [], Draft("ngram", (3, 4, 9, 1, 2), 0)),
        ([1, 2, 3, 4, 9, 1], [2, 3], Draft("ngram", (4, 9, 1, 2, 3), 3)),
        ([5, 1, 7, 6, 1, 8, 5, 1], [], Draft("ngram", (7, 6, 1, 8, 5, 1), 0)),  # the longer one
        ([1, 7, 1, 8, 1], [], Draft("ngram", (8, 1), 0)),  # the later one
        ([1, 2, 3], [], None),
        ([1], [], None),
        ([1], [2, 1], Draft("ngram", (2, 1), 1)),
    ],
)
def test_what_followed_the_last_tokens_before_is_the_draft(
    prompt: list[int], emitted: list[int], expected: Draft | None
) -> None:
    assert ngram(prompt).draft(emitted, 24) == expected


@pytest.mark.parametrize("match", range(1, 6))
def test_a_longer_match_speaks_for_a_longer_draft(match: int) -> None:
    prompt = [*range(100, 100 + match), *range(50), *range(100, 99 + match)]
    draft = ngram(prompt).draft([99 + match], 40)
    assert draft == Draft("ngram", tuple(range(match * TOKENS_PER_MATCH)), match)


def test_what_stands_before_an_answer_speaks_less_for_a_draft_than_what_was_written() -> None:
    """Indentation and brackets match everywhere: 1 of 28 such drafts began right."""
    prompt = [1, 2, 3, 9, 1, 2, 3]
    before, after = ngram(prompt).draft([], 4), ngram(prompt[:-1]).draft([3], 4)
    assert before is not None
    assert after is not None
    assert before.tokens == after.tokens
    assert before.evidence < after.evidence


@given(st.lists(texts, max_size=5), texts.filter(bool), texts, st.integers(1, 30))
def test_an_ngram_draft_is_text_that_was_seen_and_no_longer_than_asked(
    earlier: list[list[int]], prompt: list[int], emitted: list[int], n_max: int
) -> None:
    drafter = NgramDrafter()
    for completion in earlier:
        drafter.begin([7], (), ())
        drafter.end(completion)
    drafter.begin(prompt, (), ())
    draft = drafter.draft(emitted, n_max)
    if draft is not None:
        assert 1 <= len(draft.tokens) <= min(n_max, MAX_MATCH * TOKENS_PER_MATCH)
        assert min(draft.tokens) >= 0  # what stands between two texts is no token
        seen = [*earlier, [*prompt, *emitted]]
        assert any(draft.tokens in windows(text, len(draft.tokens)) for text in seen)


def windows(text: list[int], n: int) -> set[tuple[int, ...]]:
    return {tuple(text[at : at + n]) for at in range(len(text) - n + 1)}


def test_recent_completions_are_remembered_and_the_old_ones_forgotten() -> None:
    drafter = NgramDrafter()
    for number in range(RECENT + 1):
        drafter.begin([1], (), ())
        drafter.end([1000 + number, 2000 + number, 3000 + number])
    drafter.begin([5, 1001], (), ())
    assert drafter.draft([], 9) == Draft("ngram", (2001, 3001), 0)
    drafter.begin([5, 1000], (), ())
    assert drafter.draft([], 9) is None


def test_a_draft_that_was_wrong_is_not_taken_for_the_text() -> None:
    """What another source had drafted stayed in the history where the model wrote otherwise."""
    drafter = ngram([1, 2, 3, 4, 5, 6, 7, 8])
    assert drafter.draft([1, 2, 3], 1) == Draft("ngram", (4,), 3)  # 2 and 3 are a draft
    assert drafter.draft([1, 6, 7], 1) == Draft("ngram", (8,), 2)
    assert drafter.draft([5], 2) == Draft("ngram", (6, 7), 1)


@given(texts.filter(bool), st.lists(texts, max_size=6))
def test_what_was_asked_before_does_not_change_a_draft(
    prompt: list[int], asked: list[list[int]]
) -> None:
    drafter = ngram(prompt)
    for emitted in asked:
        assert drafter.draft(emitted, 8) == ngram(prompt).draft(emitted, 8)


def test_an_answer_may_be_longer_than_the_room_that_was_laid_out() -> None:
    drafter = ngram([1, 2, 3])
    answer = list(range(10, 1000))
    for end in (200, 300, 990):
        drafter.draft(answer[:end], 4)
    assert drafter.draft([*answer, 600], 4) == Draft("ngram", (601, 602, 603, 604), 1)


# What was suggested before.


def previous(
    *expected: list[int], prompt: tuple[int, ...] = (90, 91), related: tuple[list[int], ...] = ()
) -> PreviousDrafter:
    drafter = PreviousDrafter()
    drafter.begin(prompt, expected, related)
    return drafter


def test_as_long_as_the_answer_follows_the_suggestion_the_rest_is_the_draft() -> None:
    drafter = previous([1, 2, 3, 4, 5])
    assert drafter.draft([], 24) == Draft("previous", (1, 2, 3, 4, 5), FOLLOWED)
    assert drafter.draft([1, 2], 2) == Draft("previous", (3, 4), FOLLOWED)
    assert drafter.draft([1, 2, 3, 4, 5], 24) is None


def test_after_something_else_was_written_the_place_is_found_again() -> None:
    drafter = previous([1, 2, 3, 4, 5])
    assert drafter.draft([1, 9], 24) is None
    assert drafter.draft([1, 9, 3], 24) == Draft("previous", (4, 5), 1)
    assert drafter.draft([1, 9, 3, 4], 24) == Draft("previous", (5,), 2)


def test_the_place_is_found_by_what_the_person_typed_at_the_prompt_s_end() -> None:
    drafter = previous([1, 2, 3, 4, 5], prompt=(90, 2, 3))
    assert drafter.draft([4], 24) == Draft("previous", (5,), 3)


def test_the_likelier_of_two_suggestions_is_followed_first() -> None:
    drafter = previous([1, 2, 3], [1, 7, 8])
    assert drafter.draft([1], 24) == Draft("previous", (2, 3), FOLLOWED)
    assert drafter.draft([1, 7], 24) == Draft("previous", (8,), FOLLOWED)


def test_where_one_suggestion_has_ended_another_may_go_on() -> None:
    drafter = previous([1, 2], [9, 1, 2, 3])
    assert drafter.draft([1, 2], 24) == Draft("previous", (3,), 2)


def test_parts_of_a_related_text_may_come_but_not_its_beginning_for_nothing() -> None:
    drafter = previous(related=([1, 2, 3, 4],))
    assert drafter.draft([], 24) is None
    assert drafter.draft([2], 24) == Draft("previous", (3, 4), 1)


def test_a_new_request_brings_its_own_suggestions() -> None:
    drafter = previous([1, 2, 3])
    drafter.end([1, 2])
    drafter.begin((90,), (), ())
    assert drafter.draft([], 24) is None
    assert drafter.draft([1], 24) is None


@given(st.lists(texts, max_size=3), st.lists(texts, max_size=2), texts, st.integers(1, 30))
def test_a_previous_draft_is_part_of_a_given_text_and_no_longer_than_asked(
    expected: list[list[int]], related: list[list[int]], emitted: list[int], n_max: int
) -> None:
    draft = previous(*expected, related=tuple(related)).draft(emitted, n_max)
    if draft is not None:
        assert 1 <= len(draft.tokens) <= n_max
        assert any(
            draft.tokens in windows(text, len(draft.tokens)) for text in [*expected, *related]
        )


@pytest.mark.parametrize("drafter", [PreviousDrafter(), NgramDrafter()])
def test_no_room_gives_no_draft(drafter: Drafter) -> None:
    drafter.begin((1, 2, 1), ((2, 1, 2, 1),), ())
    assert drafter.draft((), 0) is None
    assert drafter.draft((2, 1), 0) is None
