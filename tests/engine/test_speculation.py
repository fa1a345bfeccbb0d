"""What speculation may do: choose what is verified. What is written, the target alone decides.

On a model in Python whose logits are the same at every width, so that equal means equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculation_harness import (
    EVIDENCE,
    MARKER,
    N_TEXT,
    PIECES,
    Flat,
    Guess,
    TableModel,
    TableSlots,
    chi_square,
    chi_square_limit,
    generator,
    knowing,
    table_row,
    write,
)

from fimlsp.engine.api import DraftUse, Finish, Generation, Request, SamplingParams
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.drafters.api import Drafter
from fimlsp.engine.drafters.ngram import NgramDrafter
from fimlsp.engine.drafters.previous import PreviousDrafter
from fimlsp.engine.native.seam import Logits
from fimlsp.engine.speculation import Speculation
from fimlsp.engine.vocabulary import ModelVocabulary

VOCABULARY = ModelVocabulary(TableModel())
ANY_ID = st.integers(0, len(PIECES) - 1)
"""Text, control tokens, and both edges of the vocabulary."""
TEXT = st.text(alphabet="abc\n", max_size=12).map(str.encode)
REQUEST = Request(slot="a", prompt=(0, 1, 2, 3, 4), max_tokens=24)

samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.5, 1.5]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([0.6, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 99),
)
requests = st.builds(
    Request,
    slot=st.sampled_from(["a", "b", "c"]),
    prompt=st.lists(ANY_ID, min_size=1, max_size=40).map(tuple),
    must_start_with=st.one_of(st.just(b""), TEXT),
    max_tokens=st.integers(0, 20),
    stop_tokens=st.frozensets(st.integers(0, N_TEXT - 1), max_size=1),
    expected=st.lists(TEXT, max_size=2).map(tuple),
    related=st.lists(TEXT, max_size=1).map(tuple),
    min_probability=st.sampled_from([0.0, 0.0, 1e-3]),
    sampling=samplings,
)


def plain(request: Request) -> Generation:
    """Return what token by token on an empty engine gives."""
    answer = write(generator(TableSlots(), VOCABULARY), request)
    assert answer.drafts == ()
    return answer


def speculated(request: Request, *drafters: Drafter, max_draft: int = 24) -> Generation:
    return write(generator(TableSlots(), VOCABULARY, *drafters, max_draft=max_draft), request)


def said(answer: Generation) -> tuple[object, ...]:
    """Return all of an answer that speculation must not change."""
    return answer.tokens, answer.text, answer.finish, answer.logprobs


@given(
    st.lists(requests, min_size=1, max_size=4),
    st.lists(st.lists(ANY_ID, max_size=30), max_size=4),
    st.integers(0, 8),
    st.integers(1, 31),
)
def test_no_draft_of_any_source_changes_what_is_written(
    asked: list[Request], garbage: list[list[int]], lines: int, max_draft: int
) -> None:
    guess = Guess(lambda emitted: garbage[len(emitted) % len(garbage)] if garbage else ())
    native = TableSlots(n_slots=2)
    engine = generator(
        native, VOCABULARY, guess, PreviousDrafter(), NgramDrafter(), n_slots=2, max_draft=max_draft
    )
    for request in asked:
        watched = replace(request, watch=lambda text: text.count(b"\n") > lines)
        answer = write(engine, watched)
        assert said(answer) == said(plain(watched))
        assert len(answer.tokens) <= request.max_tokens
        cells = [len(engine.cells.tokens(slot)) for slot in range(2)]
        assert cells == [native.n_cells(slot) for slot in range(2)]


@pytest.mark.parametrize("length", [1, 2, 5, 23])
def test_a_right_draft_gives_all_its_tokens_and_one_more_in_one_step(length: int) -> None:
    free = plain(REQUEST)
    answer = speculated(REQUEST, knowing(free.tokens), max_draft=length)
    assert said(answer) == said(free)
    assert answer.steps == math.ceil(len(free.tokens) / (length + 1))
    assert answer.accepted == answer.drafted == len(free.tokens) - answer.steps
    assert answer.draft_source == "oracle"


@pytest.mark.parametrize("at", range(6))
def test_a_draft_that_is_wrong_at_one_place_gives_what_stands_before_it(at: int) -> None:
    free = plain(REQUEST)

    def corrupted(emitted: Sequence[int]) -> Sequence[int]:
        draft = list(free.tokens[len(emitted) :][:6])
        return draft[:at] + [(token + 1) % N_TEXT for token in draft[at : at + 1]] + draft[at + 1 :]

    answer = speculated(REQUEST, Guess(corrupted), max_draft=6)
    assert said(answer) == said(free)
    assert {use.accepted for use in answer.drafts[:-1]} == {at}


def test_the_typed_bytes_are_imposed_inside_a_draft() -> None:
    """A draft that follows the model's own wish must not carry it past the constraint."""
    wish = plain(REQUEST)
    typed = b"cab" if not wish.text.startswith(b"c") else b"bab"
    request = replace(REQUEST, must_start_with=typed)
    free = plain(request)
    assert free.text.startswith(typed)
    assert free.tokens[0] != wish.tokens[0]
    for tokens in (wish.tokens, free.tokens):
        answer = speculated(request, knowing(tokens))
        assert said(answer) == said(free)
    assert answer.accepted == len(free.tokens) - 1


@pytest.mark.parametrize("stop", range(N_TEXT))
def test_nothing_follows_a_stop_token_inside_an_accepted_draft(stop: int) -> None:
    free = plain(REQUEST)
    request = replace(REQUEST, stop_tokens=frozenset({stop}))
    answer = speculated(request, knowing(free.tokens))
    assert said(answer) == said(plain(request))
    if stop in free.tokens:
        assert answer.tokens == free.tokens[: free.tokens.index(stop)]
        assert answer.finish is Finish.STOP_TOKEN
        assert answer.steps == 1


@pytest.mark.parametrize("count", range(1, 24))
def test_nothing_follows_the_watch_s_stop_inside_an_accepted_draft(count: int) -> None:
    free = plain(REQUEST)
    enough = len(b"".join(PIECES[token] for token in free.tokens[:count]))
    seen: list[int] = []

    def watch(text: bytes) -> bool:
        seen.append(len(text))
        return len(text) >= enough

    answer = speculated(replace(REQUEST, watch=watch), knowing(free.tokens))
    assert (answer.tokens, answer.finish) == (free.tokens[:count], Finish.WATCH)
    assert len(seen) == count  # as often as without a draft
    assert answer.steps == 1


def test_the_rest_of_a_draft_in_which_the_answer_ended_is_not_learnt_as_wrong() -> None:
    free = plain(REQUEST)
    engine = generator(TableSlots(), VOCABULARY, knowing(free.tokens))
    untaught = engine.speculation.acceptance.rate("oracle", EVIDENCE, 9)
    enough = len(b"".join(PIECES[token] for token in free.tokens[:8]))
    watched = replace(REQUEST, watch=lambda text: len(text) >= enough)
    for _request in range(5):
        assert write(engine, watched).tokens == free.tokens[:8]
    assert engine.speculation.acceptance.rate("oracle", EVIDENCE, 9) == untaught
    assert engine.speculation.acceptance.rate("oracle", EVIDENCE, 8) > untaught


@pytest.mark.parametrize("limit", [0, 1, 2, 7])
def test_a_draft_never_gives_more_than_max_tokens(limit: int) -> None:
    free = plain(REQUEST)
    native = TableSlots()
    engine = generator(native, VOCABULARY, knowing(free.tokens))
    answer = write(engine, replace(REQUEST, max_tokens=limit))
    assert (answer.tokens, answer.finish) == (free.tokens[:limit], Finish.MAX_TOKENS)
    assert sum(native.widths) == len(REQUEST.prompt) + max(0, limit - 1)  # nor evaluates more


def test_prompt_and_draft_together_are_no_wider_than_a_native_step() -> None:
    free = plain(REQUEST)
    native = TableSlots(n_ubatch=8)
    engine = generator(native, VOCABULARY, knowing(free.tokens), n_ubatch=8)
    assert said(write(engine, REQUEST)) == said(free)
    assert native.widths == [8, 8, 8, 4]  # the first: 5 of the prompt, 3 drafted


def test_sources_continue_one_another_in_one_draft() -> None:
    free = plain(REQUEST)

    def part(name: str, start: int, end: int) -> Guess:
        return Guess(
            lambda emitted: free.tokens[len(emitted) : end] if len(emitted) >= start else (), name
        )

    answer = speculated(REQUEST, part("first", 0, 4), part("second", 4, 9), part("third", 9, 12))
    assert said(answer) == said(free)
    assert answer.drafts[:3] == (
        DraftUse("first", 4, 4),
        DraftUse("second", 5, 5),
        DraftUse("third", 3, 3),
    )


def test_a_source_that_the_request_does_not_name_is_not_asked() -> None:
    free = plain(REQUEST)
    right, other = knowing(free.tokens, "right"), knowing(free.tokens, "other")
    answer = speculated(replace(REQUEST, sources=("right",)), right, other)
    assert {use.source for use in answer.drafts} == {"right"}
    assert right.asked
    assert other.asked == []
    assert speculated(replace(REQUEST, sources=()), right).drafts == ()


def half_right(tokens: Sequence[int]) -> Guess:
    return Guess(lambda emitted: (*tokens[len(emitted) : len(emitted) + 3], MARKER, 0))


def test_seeded_text_is_the_same_with_and_without_drafts() -> None:
    """A draw per draft token instead of per emitted one would shift all that follows."""
    texts = set()
    for seed in range(20):
        sampling = SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=seed)
        request = replace(REQUEST, sampling=sampling)
        free = plain(request)
        texts.add(free.text)
        answer = speculated(request, half_right(free.tokens))
        assert said(answer) == said(free)
        assert answer.accepted > 5 or len(free.tokens) < 8
    assert len(texts) > 10


def test_a_draft_does_not_bend_the_distribution_of_what_is_sampled() -> None:
    n = 4000
    first = chances(table_row(REQUEST.prompt))
    expected = {
        (a, b): n * float(first[a] * chances(table_row((*REQUEST.prompt, a)))[b])
        for a, b in product(range(N_TEXT), repeat=2)
    }
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(n):
        sampling = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=seed)
        request = replace(REQUEST, max_tokens=2, sampling=sampling)
        found[speculated(request, Guess(lambda _emitted: (3, 1))).tokens] += 1
    often = {pair: count for pair, count in expected.items() if count >= 5}
    cells = [(found[pair], count) for pair, count in often.items()]
    cells.append((n - sum(found[pair] for pair in often), n - sum(often.values())))
    assert len(cells) > 10
    assert chi_square(cells) < chi_square_limit(len(cells) - 1)


def chances(row: Logits) -> Logits:
    weights = np.exp(row - row.max())
    return np.asarray(weights / weights.sum())


# Choice and learning, without a model.


def begun(*drafters: Drafter, curve: VerifyCurve | None = None, max_draft: int = 24) -> Speculation:
    speculation = Speculation(curve or Flat(), max_draft=max_draft, free=drafters)
    names = [drafter.name for drafter in drafters]
    speculation.begin(names, (0, 1), (), (), slot="a", draft_prompt=())
    return speculation


@given(width=st.integers(1, 40), room=st.integers(-1, 40), length=st.integers(0, 40))
def test_a_proposal_keeps_to_the_room_and_to_max_draft(width: int, room: int, length: int) -> None:
    speculation = begun(Guess(lambda _emitted: [1] * length), max_draft=10)
    prospect = speculation.propose((), width, room)
    assert len(prospect.tokens) == max(0, min(room, 10, 3 * length))  # three segments at most


def test_the_source_that_promises_most_per_millisecond_is_taken() -> None:
    sure = Guess(lambda _emitted: [1] * 4, "sure", EVIDENCE)
    vague = Guess(lambda _emitted: [2] * 4, "vague", 1)
    for drafters in ((sure, vague), (vague, sure)):
        prospect = begun(*drafters, max_draft=4).propose((), 1, 24)
        assert {segment.source for segment in prospect.segments} == {"sure"}


def test_where_verifying_costs_as_much_as_decoding_nothing_is_drafted() -> None:
    steep = VerifyCurve({n: float(n) for n in (1, 2, 4, 8, 32)})
    speculation = begun(Guess(lambda _emitted: [1] * 8), curve=steep)
    prospect = speculation.propose((), 1, 24)
    assert prospect.tokens == ()
    assert prospect.expected == 1.0


def test_a_source_that_is_always_wrong_is_soon_not_verified_any_more() -> None:
    speculation = begun(Guess(lambda _emitted: [1] * 8), curve=VerifyCurve.typical(60.0))
    verified = 0
    for _step in range(300):
        prospect = speculation.propose((), 1, 24)
        if prospect.tokens:
            verified += 1
            speculation.learn(prospect, 1, 0)
    assert 0 < verified < 20
    assert speculation.propose((), 1, 24).tokens == ()


def test_draft_tokens_that_an_ended_request_left_untested_are_not_learnt_as_wrong() -> None:
    def rate_after(tested: int, accepted: int, position: int) -> float:
        speculation = begun(Guess(lambda _emitted: [1] * 12), max_draft=12)
        for _request in range(30):
            speculation.learn(speculation.propose((), 1, 12), tested, accepted)
        return speculation.acceptance.rate("guess", EVIDENCE, position)

    untouched = begun().acceptance.rate("guess", EVIDENCE, 12)
    assert rate_after(tested=3, accepted=3, position=12) == untouched
    assert rate_after(tested=3, accepted=3, position=3) > untouched
    assert rate_after(tested=12, accepted=11, position=12) < untouched


def test_each_segment_learns_from_its_own_part_of_the_draft() -> None:
    first = Guess(lambda emitted: [1] * 4 if not emitted else (), "first")
    second = Guess(lambda emitted: [2] * 4 if emitted else (), "second")
    speculation = begun(first, second)
    prospect = speculation.propose((), 1, 8)
    before = speculation.acceptance.rate("second", EVIDENCE, 1)
    assert speculation.learn(prospect, 4, 3) == [DraftUse("first", 4, 3), DraftUse("second", 4, 0)]
    assert speculation.acceptance.rate("second", EVIDENCE, 1) == before  # it was not its turn
    assert speculation.learn(prospect, 5, 4) == [DraftUse("first", 4, 4), DraftUse("second", 4, 0)]
    assert speculation.acceptance.rate("second", EVIDENCE, 1) < before
