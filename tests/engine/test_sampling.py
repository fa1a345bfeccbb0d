"""From a row of logits to a token: the distribution, the filters, the seed."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculation_harness import chi_square, chi_square_limit

from fimlsp.engine.api import SamplingParams
from fimlsp.engine.sampling import Sampler, greedy, logprob

ROW = np.array([1.0, 3.0, -2.0, 2.5, 0.0, 2.0, -40.0, 1.5], dtype=np.float32)
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Sampling that filters nothing."""

rows = st.lists(
    st.one_of(st.integers(-3, 3), st.floats(-30, 30, width=32)), min_size=1, max_size=40
).map(lambda values: np.array(values, dtype=np.float32))
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)


def sampler(**changes: Any) -> Sampler:
    return Sampler(SamplingParams(**OPEN | changes))


def distribution(row: npt.NDArray[np.float32], params: SamplingParams) -> dict[int, float]:
    """Return the chances by id, in plain Python and in llama.cpp's order of the filters."""
    ids = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))
    ids = ids[: params.top_k or len(ids)]
    weights = [math.exp(float(row[token] - row[ids[0]])) for token in ids]
    chance = {token: w / sum(weights) for token, w in zip(ids, weights, strict=True)}
    nucleus: list[int] = []
    while ids and (not nucleus or sum(chance[token] for token in nucleus) < params.top_p):
        nucleus.append(ids.pop(0))
    kept = [t for t in nucleus if chance[t] >= params.min_p * chance[nucleus[0]]]
    tempered = [math.exp(float(row[t] - row[kept[0]]) / params.temperature) for t in kept]
    return {t: w / sum(tempered) for t, w in zip(kept, tempered, strict=True)}


@pytest.mark.parametrize(
    ("changes", "sure"),
    [
        ({}, {0, 1, 2, 3, 4, 5, 7}),
        ({"temperature": 0.5}, {0, 1, 3, 5, 7}),
        ({"temperature": 2.0}, {0, 1, 2, 3, 4, 5, 7}),
        ({"top_k": 3}, {1, 3, 5}),
        ({"top_p": 0.8}, {1, 3, 5}),
        ({"min_p": 0.2}, {1, 3, 5, 7}),
        ({"temperature": 1.5, "top_k": 6, "top_p": 0.95, "min_p": 0.05}, {0, 1, 3, 5, 7}),
    ],
)
def test_tokens_come_as_often_as_the_filtered_distribution_says(
    changes: dict[str, Any], sure: set[int]
) -> None:
    n = 20_000
    chances = distribution(ROW, SamplingParams(**OPEN | changes))
    pick = sampler(**changes, seed=3).pick
    found = Counter(pick(ROW) for _ in range(n))
    assert sure <= set(found) <= set(chances)
    cells = [(found[token], n * chance) for token, chance in chances.items() if n * chance >= 5]
    rest = n - sum(expected for _, expected in cells)
    assert sum(have for have, _ in cells) >= n - rest - 20
    assert chi_square(cells) < chi_square_limit(len(cells) - 1)


@given(rows, params)
def test_no_token_is_picked_that_a_filter_leaves_out(
    row: npt.NDArray[np.float32], params: SamplingParams
) -> None:
    picked = Sampler(params).pick(row)
    chances = distribution(row, params)
    # Where a bound falls between two tokens by rounding alone, either side is right.
    least = min(float(row[token]) for token in chances)
    assert picked in chances or float(row[picked]) >= least - 1e-4


@given(rows, params, st.data())
def test_only_allowed_tokens_are_picked_as_if_there_were_no_others(
    row: npt.NDArray[np.float32], params: SamplingParams, data: st.DataObject
) -> None:
    ids = data.draw(
        st.lists(st.integers(0, len(row) - 1), min_size=1, unique=True), label="allowed"
    )
    allowed = np.array(ids, dtype=np.int32)
    ordered = np.sort(allowed)
    alone = Sampler(params).pick(row[ordered])
    assert Sampler(params).pick(row, allowed) == ordered[alone]
    assert row[greedy(row, allowed)] == row[allowed].max()


@pytest.mark.parametrize(
    "changes", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-6}]
)
def test_each_filter_at_its_end_leaves_the_likeliest_token(changes: dict[str, Any]) -> None:
    pick = sampler(**changes).pick
    assert {pick(ROW) for _ in range(50)} == {1}


@given(rows)
def test_greedy_takes_the_first_of_the_likeliest(row: npt.NDArray[np.float32]) -> None:
    best = int(np.flatnonzero(row == row.max())[0])
    assert greedy(row) == best
    assert Sampler(SamplingParams()).pick(row) == best


def test_tokens_that_are_equally_likely_are_ranked_by_id_also_where_top_k_cuts() -> None:
    """Which of them the cut kept was the partition's choice, and that is numpy's build's choice."""
    row = np.zeros(5000, dtype=np.float32)
    row[4000] = 1.0
    ids = np.random.default_rng(1).permutation(np.arange(7, 5000, dtype=np.int32))
    pick = sampler(top_k=4).pick
    assert {pick(row, ids) for _ in range(100)} == {4000, 7, 8, 9}


def test_a_token_without_a_chance_is_never_picked() -> None:
    row = np.full(8, -np.inf, dtype=np.float32)
    row[5] = 0.0
    pick = sampler(temperature=2.0).pick
    assert {pick(row) for _ in range(200)} == {5}


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    def text(seed: int) -> list[int]:
        pick = sampler(seed=seed).pick
        return [pick(ROW) for _ in range(40)]

    assert text(7) == text(7)
    assert len({tuple(text(seed)) for seed in range(10)}) == 10


@pytest.mark.parametrize("changes", [{}, {"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.9}])
@pytest.mark.parametrize("allowed", [None, np.array([4], dtype=np.int32)])
def test_each_pick_takes_one_draw_however_few_tokens_are_left(
    changes: dict[str, Any], allowed: npt.NDArray[np.int32] | None
) -> None:
    """Otherwise what is left to choose from at one token would decide all later ones."""
    picking = sampler(seed=5, **changes)
    picking.pick(ROW, allowed)
    assert picking._random.random() == np.random.default_rng(5).random(2)[1]


@given(rows, st.data())
def test_logprob_is_the_log_of_the_chance_among_the_allowed(
    row: npt.NDArray[np.float32], data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, unique=True))
    for allowed in (None, np.array(ids, dtype=np.int32)):
        choices = range(len(row)) if allowed is None else ids
        total = sum(math.exp(float(row[token])) for token in choices)
        for token in choices:
            expected = float(row[token]) - math.log(total)
            assert logprob(row, token, allowed) == pytest.approx(expected, abs=1e-4)
