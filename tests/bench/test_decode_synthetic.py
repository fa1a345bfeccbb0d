"""Drafts that are right with a chosen probability."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from engine_harness import open_engine
from tiny_gguf import CORPUS, write_tiny_gguf

from fimlsp.bench.decode_cases import Case
from fimlsp.bench.decode_replay import Player, StepLog, rest
from fimlsp.bench.decode_synthetic import NAME, SyntheticDrafter, Truth, study
from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.speculation import Lessons
from fimlsp.engine.worker import InProcessEngine

ANSWER = tuple(range(10, 22))
CASE = Case(trace="a", stroke=0, request=Request(slot="a", prompt=(1, 2), max_tokens=48))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessEngine]:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path)
    backend = os.environ.get("FIMLSP_TEST_BACKEND", "ik_llama")
    engine = open_engine(path, backend, sources=("ngram",), slots=4)
    rest(engine)
    yield engine
    engine.close()


def answered(engine: InProcessEngine, player: Player, count: int) -> list[tuple[Case, Generation]]:
    corpus = engine.vocabulary.tokenize(CORPUS.encode())
    found = []
    for number in range(count):
        prompt = tuple(corpus[20 * number : 20 * number + 40])
        request = Request(slot=f"s{number}", prompt=prompt, max_tokens=24)
        case = Case(trace="a", stroke=number, request=request)
        found.append((case, player.play(case, ()).generation))
    return found


def truth(right: str, *, ends_by_token: bool = False, max_tokens: int = 48) -> Truth:
    """Return a truth whose tokens are right where ``right`` has a ``+``."""
    return Truth(
        ANSWER[: len(right)], tuple(sign == "+" for sign in right), ends_by_token, max_tokens
    )


@pytest.mark.parametrize(
    ("found", "length", "widths"),
    [
        (truth("++++++"), 0, [1, 1, 1, 1, 1, 1]),
        (truth("++++++"), 2, [3, 3]),
        (truth("+-++--"), 3, [4, 4, 2]),
        (truth("++++", ends_by_token=True), 3, [4, 1]),
        (truth("++++", max_tokens=4), 8, [4]),
    ],
)
def test_the_steps_of_a_fixed_length_are_reckoned(
    found: Truth, length: int, widths: list[int]
) -> None:
    assert found.widths(length) == widths


def test_the_dice_are_the_same_for_every_policy_and_others_for_another_case() -> None:
    answer = Generation(
        text=b"",
        tokens=ANSWER * 20,
        finish=Finish.WATCH,
        prompt_tokens=1,
        reused_tokens=0,
        queue_ms=0.0,
        prefill_ms=0.0,
        decode_ms=0.0,
    )
    once = Truth.of(CASE, answer, 0.7)
    assert once == Truth.of(CASE, answer, 0.7)
    other = Case(trace="a", stroke=1, request=CASE.request)
    assert once.right != Truth.of(other, answer, 0.7).right
    assert 0.6 < sum(once.right) / len(once.right) < 0.8
    assert all(Truth.of(CASE, answer, 1.0).right)


def test_a_draft_is_the_truth_except_where_the_dice_say_wrong() -> None:
    drafter = SyntheticDrafter(100)
    drafter.truth = truth("++-+")
    drafter.begin((), (), ())
    offered = drafter.draft([ANSWER[0]], 8)
    assert offered is not None
    assert offered.tokens == (ANSWER[1], ANSWER[2] + 1, ANSWER[3])


def test_a_fixed_length_is_not_exceeded_by_going_on_behind_its_own_draft() -> None:
    drafter = SyntheticDrafter(100, 2)
    drafter.truth = truth("++++++")
    drafter.begin((), (), ())
    offered = drafter.draft([], 8)
    assert offered is not None
    assert offered.tokens == ANSWER[:2]
    assert drafter.draft([*offered.tokens], 6) is None
    after = drafter.draft(ANSWER[:3], 8)  # all right, and one more: the next step
    assert after is not None
    assert after.tokens == ANSWER[3:5]


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_the_engine_takes_the_very_steps_that_were_reckoned(
    engine: InProcessEngine, length: int
) -> None:
    player = Player(engine)
    for case, answer in answered(engine, player, 3):
        found = Truth.of(case, answer, 0.6)
        drafter = SyntheticDrafter(engine.info.n_vocab, length)
        drafter.truth = found
        engine.speculation.curve = StepLog({1: 1.0})
        engine.speculation.relearn(Lessons((drafter,)))
        replay = player.play(case, (NAME,))
        assert replay.generation.tokens == answer.tokens
        assert list(replay.widths) == found.widths(length)


def test_a_study_measures_what_was_asked_for_and_leaves_the_engine_as_it_was(
    engine: InProcessEngine,
) -> None:
    player = Player(engine)
    before = engine.speculation.lessons
    never, always = study(player, answered(engine, player, 3), (0.0, 1.0), 8, lambda _line: None)
    assert engine.speculation.lessons == before
    assert engine.speculation.curve is player.curve
    assert (never["rate"], always["rate"]) == (0.0, 1.0)
    assert never["acceptance"] in (0.0, None)
    assert always["acceptance"] in (1.0, None)
    assert never["best_length"] == 0
    assert set(always["by_length"]) == {str(n) for n in range(9)}
    assert min(never["share"], always["share"]) > 0
