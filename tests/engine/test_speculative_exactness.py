"""Speculation on a real library writes what plain decoding writes at the same width of a step.

A library sums in another order where a step is wider than one token, so its logits differ by a
little between such classes and a near tie may fall the other way. Plain decoding at the class of a
draft of k tokens is decoding with k tokens that are never right. The last step of an answer may
have no room for a draft: tests ask for one token more than they compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_harness import Oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_harness import COMPARED as N
from speculation_harness import SOURCES, Guess, Rig, knowing, padding, same, sources, write

from fimlsp.engine.api import Finish, Request, SamplingParams

TIE = 0.1
"""Two logits nearer than this are a tie to the sum's order."""
LONG = 160
"""So many tokens that llama.cpp meets a few near ties in them."""


@pytest.fixture(scope="module")
def rig(native_module: Any, tiny_model: Path) -> Iterator[Rig]:
    rig = Rig(native_module, tiny_model)
    yield rig
    rig.close()


@pytest.fixture
def request_(text: list[int]) -> Request:
    return Request(slot="a", prompt=tuple(text[:70]), max_tokens=N + 1)


# Numbers.


def test_where_wide_and_narrow_steps_differ_the_first_difference_is_a_near_tie(
    rig: Rig, oracle: Oracle, text: list[int]
) -> None:
    ties, prompts = 0, range(0, 300, 10)
    for start in prompts:
        request = Request(slot="a", prompt=tuple(text[start : start + 60]), max_tokens=LONG + 1)
        narrow, wide = rig.write(request), rig.plain(request, 3)
        pairs = enumerate(zip(narrow.tokens[:LONG], wide.tokens[:LONG], strict=True))
        first = next((at for at, (a, b) in pairs if a != b), None)
        if first is None:
            continue
        ties += 1
        (row,) = oracle.rows([*request.prompt, *narrow.tokens[:first]], 1)
        best, second = np.argsort(-row)[:2]
        assert {narrow.tokens[first], wide.tokens[first]} == {best, second}
        assert row[best] - row[second] < TIE
    assert ties <= len(prompts) // 5, f"{ties} near ties in {len(prompts)} answers"


def test_plain_decoding_is_the_same_at_every_width_of_its_class(
    rig: Rig, request_: Request
) -> None:
    """What the tests of sources with drafts of changing length stand on."""
    free = rig.plain(request_, 1)
    for n_draft in (2, 3, 4, 7, 8, 15, 16, 23):
        assert same(rig.plain(request_, n_draft), free)
        assert set(rig.native.widths[-N:-n_draft]) == {1 + n_draft}


# Drafts that a test writes.


def filled(rig: Rig, tokens: Sequence[int], n: int) -> list[int]:
    """Return ``tokens`` made up to ``n`` with one that is never right: no step is narrower."""
    return [*tokens[:n], *[rig.control] * (n - len(tokens))]


@pytest.mark.parametrize("n_draft", [1, 2, 3, 4, 7, 8, 15, 16, 24])
def test_drafts_by_an_oracle_give_the_same_tokens_in_fewer_steps(
    rig: Rig, request_: Request, n_draft: int
) -> None:
    free = rig.plain(request_, n_draft)
    draft = Guess(lambda emitted: filled(rig, free.tokens[len(emitted) :], n_draft))
    answer = rig.write(request_, draft, max_draft=n_draft)
    assert same(answer, free)
    assert answer.steps <= 1 + (N + n_draft) // (n_draft + 1)


@pytest.mark.parametrize("at", range(8))
def test_a_draft_corrupted_at_any_position_gives_the_same_tokens(
    rig: Rig, request_: Request, at: int
) -> None:
    free = rig.plain(request_, 8)
    for wrong in (0, 255, rig.vocabulary.n_tokens - 9, rig.vocabulary.n_tokens - 1, None):

        def corrupted(emitted: Sequence[int], wrong: int | None = wrong) -> Sequence[int]:
            draft = filled(rig, free.tokens[len(emitted) :], 8)
            draft[at] = (draft[at] + 1) % 480 if wrong is None else wrong
            return draft

        answer = rig.write(request_, Guess(corrupted), max_draft=8)
        assert same(answer, free)
        accepted = {use.accepted for use in answer.drafts[:-2]}
        assert accepted == {at}


@settings(max_examples=60)
@given(data=st.data(), start=st.integers(0, 300), max_draft=st.integers(1, 24))
def test_random_garbage_of_any_length_gives_the_same_tokens(
    rig: Rig, text: list[int], data: st.DataObject, start: int, max_draft: int
) -> None:
    last = rig.vocabulary.n_tokens - 1
    token = st.one_of(st.integers(0, last), st.sampled_from([0, last]), st.integers(last - 8, last))
    garbage = data.draw(st.lists(st.lists(token, max_size=24), min_size=1, max_size=6))
    request = Request(slot="a", prompt=tuple(text[start : start + 37]), max_tokens=13)
    draft = Guess(lambda emitted: garbage[len(emitted) % len(garbage)] or [last])
    answer = rig.write(request, draft, max_draft=max_draft)
    assert same(answer, rig.plain(request), 12)


# Real sources.


@pytest.mark.parametrize("names", SOURCES)
@settings(max_examples=15)
@given(
    start=st.integers(0, 300),
    cut=st.integers(0, N),
    edit=st.lists(st.integers(0, 479), max_size=3),
    repeats=st.booleans(),
    others=st.lists(st.binary(max_size=12), max_size=2),
)
def test_every_source_gives_the_same_tokens_whatever_it_expects(
    rig: Rig,
    text: list[int],
    names: tuple[str, ...],
    start: int,
    cut: int,
    edit: list[int],
    repeats: bool,
    others: list[bytes],
) -> None:
    request = Request(slot="a", prompt=tuple(text[start : start + 40]), max_tokens=N + 1)
    free = rig.plain(request)
    if repeats:  # what comes stands in the prompt already
        again = (*request.prompt, *free.tokens, *request.prompt)
        request = replace(request, prompt=again)
        free = rig.plain(request)
    old = [*free.tokens[:cut], *edit, *free.tokens[cut + 1 :]]
    request = replace(request, expected=tuple(others), related=(free.text[3:],))
    writing = rig.generator(*sources(rig, names, old))
    for slot in ("a", "b", "a"):  # the second and third find recent completions and warm cells
        assert same(write(writing, replace(request, slot=slot)), free)
    rig.native.audit()


@pytest.mark.parametrize("names", SOURCES[:3])
def test_a_source_that_knows_the_text_saves_steps(
    rig: Rig, request_: Request, names: tuple[str, ...]
) -> None:
    free = rig.plain(request_)
    writing = rig.generator(*sources(rig, names, free.tokens))
    write(writing, replace(request_, sources=("padding", *names)))  # ngram remembers it
    answer = write(writing, request_)
    assert same(answer, free)
    assert answer.steps < N / 3
    assert answer.draft_source in names


@pytest.mark.parametrize("beyond", [b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf7\xbf\xbf\xbf"])
def test_an_expected_text_may_be_any_bytes(rig: Rig, request_: Request, beyond: bytes) -> None:
    """Both libraries' tokenisers ended the process on UTF-8 of a number beyond Unicode."""
    request = replace(request_, expected=(b"a" + beyond + b"b", b"\xff\x80\xe2"))
    answer = rig.write(request, *sources(rig, ("previous",)))
    assert same(answer, rig.plain(request_))


# What ends an answer or constrains it.


@pytest.mark.parametrize("typed", [b" ", b"re", b"self.na", "中丸".encode(), b"q\xff\x00"])
def test_the_typed_bytes_are_imposed_inside_drafts(
    rig: Rig, request_: Request, typed: bytes
) -> None:
    wish = rig.plain(request_)
    request = replace(request_, must_start_with=typed)
    free = rig.plain(request)
    assert free.text.startswith(typed)
    for tokens in (wish.tokens, free.tokens):
        answer = rig.write(request, knowing(tokens), padding(rig.control, 1))
        assert same(answer, free)
    assert answer.accepted > N - 4
    for tokens in (wish.tokens, free.tokens):
        answer = rig.write(request, *sources(rig, ("previous", "ngram"), tokens))
        assert same(answer, free)


def test_stops_inside_an_accepted_draft_end_the_answer_there(rig: Rig, request_: Request) -> None:
    free = rig.plain(request_)
    for at in range(1, N):
        stop = free.tokens[at]
        first = free.tokens.index(stop)
        stopped = rig.write(replace(request_, stop_tokens=frozenset({stop})), knowing(free.tokens))
        assert (stopped.tokens, stopped.finish) == (free.tokens[:first], Finish.STOP_TOKEN)
        enough = len(b"".join(map(rig.vocabulary.token_bytes, free.tokens[: at + 1])))

        def watch(text: bytes, enough: int = enough) -> bool:
            return len(text) >= enough

        watched = rig.write(replace(request_, watch=watch), knowing(free.tokens))
        assert (watched.tokens, watched.finish) == (free.tokens[: at + 1], Finish.WATCH)
        assert stopped.steps <= 2
        assert watched.steps <= 2


def test_what_lies_behind_a_stop_is_not_in_the_way_of_the_next_request(
    rig: Rig, request_: Request
) -> None:
    """The draft's rest stays in the cells until then; it must count as cells, and not as text."""
    free = rig.plain(request_)
    writing = rig.generator(knowing(free.tokens), padding(rig.control, 1))
    for count in range(1, N):
        watched = replace(request_, watch=lambda _text: True)
        assert write(writing, watched).tokens == free.tokens[:1]
        typed = replace(request_, prompt=(*request_.prompt, *free.tokens[:count]))
        onward = write(writing, replace(typed, sources=("padding",)))
        assert onward.tokens[: N - count] == free.tokens[count:N]
    rig.native.audit()


@pytest.mark.parametrize("limit", [1, 2, 5, 24])
def test_max_tokens_and_the_context_are_never_exceeded(
    rig: Rig, request_: Request, text: list[int], limit: int
) -> None:
    free = rig.plain(request_)
    for wrong in (0, 3, 99):
        draft = knowing([*free.tokens[:wrong], *[7] * 99])
        answer = rig.write(replace(request_, max_tokens=limit), draft)
        assert (len(answer.tokens), answer.finish) == (limit, Finish.MAX_TOKENS)
        assert same(answer, free, limit - 1)
    full = replace(request_, prompt=tuple((text * 2)[: 512 - limit]), max_tokens=limit)
    answer = rig.write(full, Guess(lambda _emitted: [7] * 24))
    assert len(answer.tokens) == limit


@pytest.mark.parametrize("seed", range(6))
def test_seeded_text_is_the_same_with_and_without_drafts(
    rig: Rig, request_: Request, seed: int
) -> None:
    sampling = SamplingParams(temperature=1.5, top_k=50, top_p=1.0, min_p=0.0, seed=seed)
    request = replace(request_, sampling=sampling)
    free = rig.plain(request)
    n = min(N, len(free.tokens))
    assert free.tokens != rig.plain(request_).tokens

    def half_right(emitted: Sequence[int]) -> Sequence[int]:
        return [*free.tokens[len(emitted) :][:3], rig.control, 7]

    for drafters in ([Guess(half_right)], sources(rig, ("previous", "ngram"), free.tokens)):
        answer = rig.write(request, *drafters)
        assert same(answer, free, n)
        assert answer.accepted > n / 2


def test_exact_decodes_no_token_alone_so_that_drafts_change_nothing_at_all(
    rig: Rig, request_: Request
) -> None:
    """Rounding decided otherwise at ties where some steps were one token wide."""
    exact = replace(request_, exact=True)
    free = rig.write(exact)
    assert set(rig.native.widths[-N:]) == {2}
    sometimes = Guess(lambda emitted: free.tokens[len(emitted) :][: len(emitted) % 5])
    answer = rig.write(exact, sometimes)
    assert answer.tokens == free.tokens
    assert answer.accepted > 0
    assert 1 not in rig.native.widths
    assert len(answer.tokens) == request_.max_tokens
