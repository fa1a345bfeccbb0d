"""The figures of a decode benchmark, from replays made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fimlsp.bench.decode_cases import Case
from fimlsp.bench.decode_replay import ALL, Measured, Replay
from fimlsp.bench.decode_report import Costs, figures
from fimlsp.engine.api import DraftUse, Finish, Generation, Request
from fimlsp.engine.cost import VerifyCurve

COSTS = Costs(VerifyCurve({1: 10.0, 4: 20.0}), {"model": 1.0})


def replay(
    ms: float,
    tokens: Sequence[int] = (1, 2, 3, 4),
    *,
    widths: Sequence[int] = (1, 1, 1, 1),
    logprobs: Sequence[float] = (),
    drafts: Sequence[DraftUse] = (),
) -> Replay:
    generation = Generation(
        text=b"",
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        finish=Finish.WATCH,
        prompt_tokens=1,
        reused_tokens=9,
        queue_ms=0.0,
        prefill_ms=0.0,
        decode_ms=ms,
        steps=len(widths),
        drafts=tuple(drafts),
    )
    return Replay(ms, generation, tuple(widths))


def measured(
    plain: list[list[Replay]], drafted: list[list[Replay]], traces: Sequence[str] = ("a",)
) -> Measured:
    cases = [
        Case(trace=name, stroke=0, request=Request(slot=name, prompt=(1, 2))) for name in traces
    ]
    return Measured(cases, plain, {ALL: drafted})


def test_the_ratio_is_of_sums_and_the_worst_is_of_single_traces() -> None:
    plain = [[replay(40.0), replay(100.0)]]
    drafted = [[replay(50.0), replay(25.0)]]
    found = figures(measured(plain, drafted, ("slow", "fast")), COSTS)
    assert found["ratio"] == pytest.approx(140 / 75, abs=1e-3)
    assert (found["worst_ratio"], found["worst_trace"]) == (0.8, "slow")
    assert found["plain_tok_s"] == pytest.approx(8 / 0.140, abs=0.01)
    assert found["speculative_tok_s"] == pytest.approx(8 / 0.075, abs=0.01)


def test_a_case_counts_with_the_median_of_its_runs() -> None:
    plain = [[replay(ms)] for ms in (40.0, 900.0, 42.0)]
    drafted = [[replay(ms)] for ms in (21.0, 21.0, 900.0)]
    assert figures(measured(plain, drafted), COSTS)["ratio"] == 2.0


def test_efficiency_is_the_gain_over_what_the_steps_should_have_gained() -> None:
    use = DraftUse("model", 3, 3)
    drafted = [[replay(25.0, widths=(4,), drafts=[use])]]
    found = figures(measured([[replay(40.0)]], drafted), COSTS)
    assert found["predicted_ratio"] == pytest.approx(40 / (20 + 3), abs=1e-3)
    assert found["efficiency"] == pytest.approx((40 / 25) / (40 / 23), abs=1e-3)
    assert found["tokens_per_step"] == 4.0


def test_drafts_are_counted_by_source_and_by_length() -> None:
    uses = [DraftUse("ngram", 4, 2), DraftUse("previous", 4, 4), DraftUse("ngram", 2, 0)]
    found = figures(measured([[replay(1.0)]], [[replay(1.0, drafts=uses)]]), COSTS)
    assert (found["drafted"], found["accepted"], found["acceptance"]) == (10, 6, 0.6)
    assert found["accepted_lengths"] == {"0": 1, "2": 1, "4": 1}
    assert found["by_source"]["ngram"]["in_all"]["acceptance"] == pytest.approx(0.333)
    assert found["by_source"]["previous"]["in_all"]["acceptance"] == 1.0


@pytest.mark.parametrize(
    ("tokens", "logprobs", "gap", "near_tie"),
    [
        ((1, 2, 9, 4), (-0.1, -0.1, -0.74, -0.1), 0.04, True),
        ((1, 2, 9, 4), (-0.1, -0.1, -2.0, -0.1), 1.3, False),
        ((1, 2), (-0.1, -0.1), None, None),
    ],
)
def test_the_first_difference_is_shown_and_whether_it_was_a_near_tie(
    tokens: Sequence[int], logprobs: Sequence[float], gap: float | None, near_tie: bool | None
) -> None:
    plain = [[replay(1.0, logprobs=(-0.1, -0.1, -0.7, -0.1))]]
    found = figures(measured(plain, [[replay(1.0, tokens, logprobs=logprobs)]]), COSTS)
    (different,) = found["differences"]
    assert (different["trace"], different["stroke"], different["at"]) == ("a", 0, 2)
    assert different["gap"] == (None if gap is None else pytest.approx(gap))
    assert (different["near_tie"], found["near_ties"]) == (near_tie, int(near_tie is True))


def test_a_difference_in_any_run_counts_once_for_its_case() -> None:
    plain = [[replay(1.0)] for _ in range(3)]
    drafted = [[replay(1.0)], [replay(1.0, (1, 9))], [replay(1.0, (1, 8))]]
    found = figures(measured(plain, drafted), COSTS)
    assert found["different"] == 1
    assert found["differences"][0]["speculative"] == 9


def test_answers_that_differ_in_steps_of_the_same_kind_are_not_identical() -> None:
    once = measured([[replay(1.0)]], [[replay(1.0)]])
    assert figures(once, COSTS)["identical"]
    once.unequal.append(0)
    assert not figures(once, COSTS)["identical"]
