"""What a step costs, what a draft is worth, and that the better of two is taken."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fimlsp.engine import cost
from fimlsp.engine.cost import WIDTHS, Acceptance, Prospect, Segment, VerifyCurve, lengthened

curves = st.dictionaries(st.integers(2, 64), st.floats(1, 500), max_size=8).flatmap(
    lambda known: st.floats(1, 500).map(lambda first: VerifyCurve({1: first} | known))
)
CURVE = VerifyCurve({1: 60.0, 4: 90.0, 8: 150.0})


@st.composite
def rising(draw: st.DrawFn) -> VerifyCurve:
    n, ms = 1, 20.0
    known = {n: ms}
    for _ in range(draw(st.integers(1, 8))):
        n += draw(st.integers(1, 9))
        ms += draw(st.floats(0, 50))
        known[n] = ms
    return VerifyCurve(known)


def segment(length: int, source: str = "ngram", evidence: int = 8) -> Segment:
    return Segment(source, tuple(range(length)), (evidence,) * length)


@pytest.mark.parametrize(
    ("n", "ms"), [(1, 60), (2, 70), (3, 80), (4, 90), (6, 120), (8, 150), (10, 180), (64, 990)]
)
def test_between_and_beyond_known_widths_the_curve_is_a_line(n: int, ms: float) -> None:
    assert CURVE(n) == pytest.approx(ms)


@given(curves, st.integers(1, 80))
def test_between_two_known_widths_the_curve_lies_between_their_times(
    curve: VerifyCurve, n: int
) -> None:
    known = curve.known
    below = max((width for width in known if width <= n), default=1)
    above = min((width for width in known if width >= n), default=None)
    if above is None:
        assert curve(n) >= min(known.values())
    else:
        low, high = sorted((known[below], known[above]))
        assert low - 1e-9 <= curve(n) <= high + 1e-9


def test_a_curve_that_falls_at_its_end_is_not_extended_downwards() -> None:
    """A noisy measurement would promise that very wide steps cost nothing."""
    curve = VerifyCurve({1: 60.0, 16: 250.0, 32: 240.0})
    assert curve(64) == curve(200) == 240.0


def test_what_took_longer_than_a_wider_step_was_disturbed() -> None:
    """A busy machine was stored as T(1) = 2848 ms and T(12) = 287 ms; drafts seemed free."""
    curve = VerifyCurve({1: 2848.0, 4: 140.0, 12: 287.0, 16: 270.0})
    assert curve.known == {1: 140.0, 4: 140.0, 12: 270.0, 16: 270.0}


def test_where_only_one_width_is_known_every_step_costs_the_same() -> None:
    curve = VerifyCurve({1: 60.0})
    assert curve(1) == curve(7) == 60.0
    curve.observe(7, 66.0)
    assert curve.known == {1: pytest.approx(60.6)}


def test_an_unmeasured_machine_is_taken_for_a_small_one() -> None:
    curve = VerifyCurve.typical(40.0)
    assert tuple(curve.known) == WIDTHS
    assert curve(1) == 40.0
    assert all(a < b for a, b in pairwise(curve.known.values()))
    assert curve(32) < 32 * curve(1)


@given(rising(), st.data(), st.floats(0.7, 1.4))
def test_live_timings_pull_the_curve_to_them(
    curve: VerifyCurve, data: st.DataObject, off: float
) -> None:
    n = data.draw(st.integers(1, max(curve.known)), label="n")
    live = curve(n) * off
    for _ in range(30):
        far = abs(curve(n) - live)
        curve.observe(n, live)
        assert abs(curve(n) - live) <= far + 1e-9
    for _ in range(200):
        curve.observe(n, live)
    assert curve(n) == pytest.approx(live, rel=0.05)


def test_a_timing_moves_the_nearer_of_two_known_widths_more_and_the_others_little() -> None:
    curve = VerifyCurve({1: 60.0, 4: 90.0, 8: 150.0})
    curve.observe(5, 1.5 * curve(5))
    moved = {n: ms / CURVE(n) for n, ms in curve.known.items()}
    assert moved == {n: pytest.approx(m) for n, m in {1: 1.025, 4: 1.0375, 8: 1.025}.items()}


def test_a_width_found_too_dear_to_be_tried_comes_down_with_the_others() -> None:
    curve = VerifyCurve({1: 600.0, 4: 900.0})
    for _ in range(200):
        curve.observe(1, 60.0)
    assert curve(4) < 450.0


@pytest.mark.parametrize("ms", [1e3, 1e9, 0.0])
def test_one_decode_that_something_held_up_hardly_moves_the_curve(ms: float) -> None:
    curve = VerifyCurve({1: 60.0, 4: 90.0})
    curve.observe(4, ms)
    assert curve(4) == pytest.approx(90.0, rel=0.101)
    assert curve(1) == pytest.approx(60.0, rel=0.051)


def test_a_machine_that_has_become_slow_for_good_is_followed_soon() -> None:
    curve = VerifyCurve({1: 60.0, 4: 90.0})
    for _ in range(30):
        curve.observe(1, 600.0)
    assert curve(1) > 500.0


def test_acceptance_is_learnt_from_what_was_verified() -> None:
    acceptance, chance = Acceptance(), random.Random(1)
    for _ in range(2000):
        right = next((at for at in range(6) if chance.random() >= 0.7), 6)
        acceptance.observe(segment(6), min(6, right + 1), right)
    for position in range(1, 7):
        assert acceptance.rate("ngram", 8, position) == pytest.approx(0.7, abs=0.1)


def test_acceptance_forgets_what_was_long_ago() -> None:
    acceptance = Acceptance()
    for _ in range(2000):
        acceptance.observe(segment(1), 1, 1)
    assert acceptance.rate("ngram", 8, 1) > 0.98
    for _ in range(300):
        acceptance.observe(segment(1), 1, 0)
    assert acceptance.rate("ngram", 8, 1) < 0.3


def test_sources_evidence_and_positions_are_learnt_apart() -> None:
    untaught, taught = Acceptance(), Acceptance()
    for _ in range(50):
        taught.observe(segment(3), 3, 0)
    assert taught.rate("ngram", 8, 1) < untaught.rate("ngram", 8, 1)
    for other in (("previous", 8, 1), ("ngram", 1, 1), ("ngram", 16, 1), ("ngram", 8, 3)):
        assert taught.rate(*other) == untaught.rate(*other)


@given(tested=st.integers(0, 9), accepted=st.integers(0, 9))
def test_tokens_that_were_not_tested_teach_nothing(tested: int, accepted: int) -> None:
    """A request that ends inside a draft says nothing of the tokens behind."""
    accepted = min(accepted, tested)
    untaught, taught = Acceptance(), Acceptance()
    for _ in range(9):
        taught.observe(segment(9), tested, accepted)
    rates = [(taught.rate("ngram", 8, n), untaught.rate("ngram", 8, n)) for n in (1, 2, 3, 5, 9)]
    for position, (after, before) in zip((1, 2, 3, 5, 9), rates, strict=True):
        last_of_bucket = {1: 1, 2: 2, 3: 4, 5: 8, 9: 9}[position]
        if last_of_bucket <= accepted:
            assert after > before
        if position > min(tested, accepted + 1):
            assert after == before


@pytest.mark.parametrize("source", ["previous", "ngram", "model"])
def test_before_anything_is_learnt_more_evidence_promises_more(source: str) -> None:
    acceptance = Acceptance()
    rates = [acceptance.rate(source, evidence, 1) for evidence in range(1, 17)]
    assert rates == sorted(rates)
    assert 0.25 < rates[0] < rates[-1] <= 0.95


@st.composite
def taught(draw: st.DrawFn) -> Acceptance:
    acceptance = Acceptance()
    for _ in range(draw(st.integers(0, 30))):
        tested = draw(st.integers(0, 24))
        evidence = draw(st.sampled_from([1, 3, 16]))
        acceptance.observe(segment(24, evidence=evidence), tested, draw(st.integers(0, tested)))
    return acceptance


def worth(tokens: int, rates: list[float], ms: float) -> float:
    """Return expected tokens per millisecond, from the formula as it is written in the module."""
    expected, survival = 1.0, 1.0
    for rate in rates[:tokens]:
        survival *= rate
        expected += survival
    return expected / ms


@given(
    curves,
    taught(),
    st.integers(1, 40),
    st.lists(st.integers(1, 16), max_size=20),
    st.lists(st.integers(1, 16), max_size=20),
)
def test_the_length_that_is_taken_is_the_best_of_all(
    curve: VerifyCurve, acceptance: Acceptance, width: int, first: list[int], second: list[int]
) -> None:
    base = cost.nothing(width, curve)
    rates: list[float] = []
    for source, evidence in (("ngram", first), ("previous", second)):
        part = Segment(source, tuple(range(len(evidence))), tuple(evidence))
        before = len(base.tokens)
        base = lengthened(base, part, width, curve, acceptance)
        more = [acceptance.rate(source, e, n) for n, e in enumerate(evidence, 1)]
        rates = rates[:before] + more
        found = [
            worth(before + n, rates, curve(width + before + n)) for n in range(len(evidence) + 1)
        ]
        if not before:
            found[0] *= 1 + cost.MARGIN
        assert base.per_ms == pytest.approx(max(found))
        taken = len(base.tokens) - before
        assert found[taken] == pytest.approx(max(found))
        assert all(found[n] < max(found) + 1e-12 for n in range(taken))  # no longer than it pays
        assert base.tokens[before:] == part.tokens[:taken]


def test_what_the_draft_has_cost_counts() -> None:
    spent = Prospect((), 1.0, 1.0, 500.0, 1 / 560)
    free = lengthened(cost.nothing(1, CURVE), segment(12), 1, CURVE, Acceptance())
    dear = lengthened(spent, segment(12), 1, CURVE, Acceptance())
    assert dear.draft_ms == 500.0
    assert dear.per_ms < free.per_ms
    assert len(dear.tokens) > len(free.tokens)  # once it is paid for, use it


def simulate(rate: float, evidence: int, seed: int, steps: int = 1000) -> float:
    """Return the milliseconds per token where every draft token is right at ``rate``."""
    curve, acceptance, chance = VerifyCurve.typical(60.0), Acceptance(), random.Random(seed)
    ms, tokens = 0.0, 0
    draft = segment(24, evidence=evidence)
    for step in range(steps):
        if step % 10 == 0:
            acceptance.fade()  # a request begins
        prospect = lengthened(cost.nothing(1, curve), draft, 1, curve, acceptance)
        drafted = len(prospect.tokens)
        right = next((at for at in range(drafted) if chance.random() >= rate), drafted)
        for part in prospect.segments:
            acceptance.observe(part, min(drafted, right + 1), right)
        ms += curve(1 + drafted)
        tokens += right + 1
    return ms / tokens


def best_in_hindsight(rate: float) -> float:
    curve = VerifyCurve.typical(60.0)
    return min(
        curve(1 + drafted) / sum(rate**at for at in range(drafted + 1)) for drafted in range(25)
    )


@pytest.mark.parametrize("rate", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("evidence", [4, 16])
def test_the_chosen_length_comes_within_5_percent_of_the_best_fixed_one(
    rate: float, evidence: int
) -> None:
    found = [simulate(rate, evidence, seed) for seed in range(4)]
    assert sum(found) / len(found) < 1.05 * best_in_hindsight(rate)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("evidence", [1, 2, 16])
def test_bad_drafts_never_lose_more_than_noise(rate: float, evidence: int) -> None:
    assert max(simulate(rate, evidence, seed) for seed in range(3)) < 60.0 * 1.02
