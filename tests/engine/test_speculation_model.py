"""When the draft model is asked, and when it is left alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fimlsp.engine import cost
from fimlsp.engine.cost import Prospect, Segment, VerifyCurve
from fimlsp.engine.speculation import Speculation

# A target on which a draft model of a third of its price pays, and one of its own price does not.
CURVE = {1: 60.0, 2: 72.0, 4: 84.0, 8: 140.0, 16: 250.0}
CHEAP, DEAR = 18.0, 60.0


class Scripted:
    """A draft model that writes 1, 2, 3 and so on, and is sure of it."""

    name = "model"

    def __init__(self, token_ms: float, *, lag: int | None = 1, length: int = 100) -> None:
        self.token_ms = token_ms
        self.read_ms = token_ms / 2
        self.asked = 0
        self.forgotten = 0
        self.begun: list[tuple[str, tuple[int, ...]]] = []
        self._lag = lag
        self._length = length

    def begin(self, slot: str, prompt: Sequence[int]) -> None:
        self.begun.append((slot, tuple(prompt)))

    def lag(self, emitted: Sequence[int]) -> int | None:
        return self._lag

    def next(self, emitted: Sequence[int]) -> tuple[int, int] | None:
        self.asked += 1
        return (len(emitted) + 1, 9) if len(emitted) < self._length else None

    def forget(self) -> None:
        self.forgotten += 1


def speculation(model: Scripted | None) -> Speculation:
    return Speculation(VerifyCurve(CURVE), max_draft=8, model=model)


def begin(drafting: Speculation, *sources: str) -> None:
    drafting.begin(sources or ("model",), (1, 2, 3), (), (), slot="a", draft_prompt=(1, 3))


def propose(drafting: Speculation, room: int = 8) -> Prospect:
    begin(drafting)
    return drafting.propose((), 1, room)


def learn(drafting: Speculation, *, right: bool, times: int) -> None:
    segment = Segment("model", (1,), (9,))
    for _ in range(times):
        drafting.learn(Prospect((segment,), 1.0, 1.0, 0.0, 1.0), 1, int(right))


def test_a_cheap_model_writes_the_draft() -> None:
    model = Scripted(CHEAP)
    prospect = propose(speculation(model))
    assert len(prospect.tokens) > 1
    assert prospect.tokens == tuple(range(1, len(prospect.tokens) + 1))
    assert model.begun == [("a", (1, 3))]


def test_a_dear_model_is_not_asked() -> None:
    model = Scripted(DEAR)
    assert propose(speculation(model)).tokens == ()
    assert model.asked == 0


def test_a_model_that_has_not_read_the_prompt_is_not_asked() -> None:
    model = Scripted(CHEAP, lag=None)
    assert propose(speculation(model)).tokens == ()
    assert model.asked == 0


def test_what_it_must_read_first_is_a_part_of_its_price() -> None:
    assert propose(speculation(Scripted(CHEAP, lag=2))).tokens
    late = Scripted(CHEAP, lag=16)
    assert propose(speculation(late)).tokens == ()
    assert late.asked == 0


def test_its_draft_ends_where_it_ends() -> None:
    assert propose(speculation(Scripted(CHEAP, length=1))).tokens == (1,)
    assert propose(speculation(Scripted(CHEAP, length=0))).tokens == ()


@pytest.mark.parametrize("room", [0, 1, 2])
def test_its_draft_keeps_to_the_room(room: int) -> None:
    assert len(propose(speculation(Scripted(0.1)), room).tokens) == room


def test_a_request_that_does_not_name_it_leaves_it_alone() -> None:
    model = Scripted(CHEAP)
    drafting = speculation(model)
    begin(drafting, "ngram")
    assert drafting.propose((), 1, 8).tokens == ()
    assert (model.begun, model.asked) == ([], 0)


@pytest.mark.parametrize(("token_ms", "pays"), [(CHEAP, True), (DEAR, False)])
def test_whether_it_could_pay_depends_on_its_price(token_ms: float, pays: bool) -> None:
    assert speculation(Scripted(token_ms)).model_could_pay is pays


def test_no_model_pays_nothing() -> None:
    assert not speculation(None).model_could_pay


def test_a_model_that_is_mostly_wrong_does_not_pay_and_is_given_another_chance() -> None:
    """Nothing is learnt of a model that is not asked: one bad file shut it out for good."""
    model = Scripted(CHEAP)
    drafting = speculation(model)
    learn(drafting, right=False, times=30)
    assert not drafting.model_could_pay
    assert propose(drafting).tokens == ()
    requests = 0
    while not drafting.model_could_pay:
        begin(drafting)
        requests += 1
        assert requests < 500
    assert requests > 20  # it does not come back at once


def test_a_model_that_is_mostly_right_is_not_talked_down() -> None:
    drafting = speculation(Scripted(CHEAP))
    learn(drafting, right=True, times=100)
    rate = drafting.lessons.model_rate
    for _ in range(100):
        begin(drafting)
    assert drafting.lessons.model_rate == rate > 0.9


def test_new_lessons_make_it_forget_what_it_has_read() -> None:
    model = Scripted(CHEAP)
    drafting = speculation(model)
    drafting.relearn(drafting.lessons)
    assert model.forgotten == 1


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("token_ms", [1.0, 20.0, 60.0])
def test_the_gain_is_that_of_the_best_length(rate: float, token_ms: float) -> None:
    curve = VerifyCurve(CURVE)
    by_length = []
    for length in range(1, 9):
        tokens = 1 + sum(rate**at for at in range(1, length + 1))
        by_length.append(tokens / (length * token_ms + curve(1 + length)) * curve(1))
    assert cost.modelled_gain(rate, token_ms, curve, 8) == pytest.approx(max(by_length))
