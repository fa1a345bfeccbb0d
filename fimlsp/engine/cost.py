"""Which draft pays: expected tokens per measured millisecond, plain decoding among the candidates.

With acceptance a_j at position j, survival S_i = a_1 * ... * a_i, a draft of k tokens yields
1 + S_1 + ... + S_k tokens for T_source(k) + T(k + 1) milliseconds (Leviathan et al. 2023, with the
measured verify curve T(n) in place of the flat one: on a CPU T(4)/T(1) is 1.5 to 1.8).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fimlsp.engine.drafters.api import Draft

_WEIGHT = 0.1
"""Share of a new timing in the running figure."""
_PRIOR = 4.0
"""Observations that a prior counts for."""
_FORGET = 0.995
"""Old observations fade, so that acceptance follows the person from file to file."""
_MATCH_BUCKETS = (1, 2, 3, 5, 8, 16)
_POSITION_BUCKETS = (1, 2, 3, 5, 9)


class VerifyCurve:
    """T(n): milliseconds of one target decode of n tokens, interpolated between measured widths."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        assert 1 in measured, measured
        self._widths = sorted(measured)
        self._ms = dict(measured)

    def __call__(self, n: int) -> float:
        """Return the milliseconds of a decode of ``n`` tokens."""
        if n in self._ms:
            return self._ms[n]
        at = bisect_left(self._widths, n)
        if at == len(self._widths):  # beyond: as steep as the last piece
            low, high = self._widths[-2:] if at > 1 else (self._widths[0], self._widths[0])
        elif at == 0:
            return self._ms[self._widths[0]]
        else:
            low, high = self._widths[at - 1], self._widths[at]
        slope = (self._ms[high] - self._ms[low]) / max(1, high - low)
        return self._ms[low] + slope * (n - low)

    def observe(self, n: int, ms: float) -> None:
        """Follow a live decode; only measured widths are kept up to date."""
        if n in self._ms:
            # A decode that another process held up says nothing about this machine.
            ms = min(ms, 2 * self._ms[n])
            self._ms[n] += _WEIGHT * (ms - self._ms[n])

    @property
    def measured(self) -> dict[int, float]:
        """Return the current milliseconds by width."""
        return dict(self._ms)


class Acceptance:
    """How often drafts were right, by source, match length and position; learnt online."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], list[float]] = {}

    def rate(self, source: str, match: int, position: int) -> float:
        """Return the chance that draft token ``position`` (1-based) is right if all before were."""
        key = _key(source, match, position)
        right, seen = self._counts.get(key, (0.0, 0.0))
        return (right + _PRIOR * _prior(match)) / (seen + _PRIOR)

    def observe(self, draft: Draft, offered: int, accepted: int) -> None:
        """Learn from one verification of the first ``offered`` tokens of ``draft``."""
        for position in range(1, min(offered, accepted + 1) + 1):
            counts = self._counts.setdefault(_key(draft.source, draft.match, position), [0.0, 0.0])
            counts[0] = counts[0] * _FORGET + (position <= accepted)
            counts[1] = counts[1] * _FORGET + 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The draft to verify, cut to the length that pays; None decodes plainly."""

    draft: Draft | None
    length: int
    tokens_per_ms: float


def choose(
    drafts: Sequence[Draft], curve: VerifyCurve, acceptance: Acceptance, n_max: int
) -> Choice:
    """Return the (draft, length) with the most expected tokens per millisecond.

    Args:
        drafts: What the sources offer, free of further cost.
        curve: T(n) of the target.
        acceptance: What was learnt about the sources.
        n_max: Draft tokens at most.
    """
    best = Choice(None, 0, 1.0 / curve(1))
    for draft in drafts:
        survival, expected = 1.0, 1.0
        for length in range(1, min(n_max, len(draft.tokens)) + 1):
            survival *= acceptance.rate(draft.source, draft.match, length)
            expected += survival
            rate = expected / curve(length + 1)
            if rate > best.tokens_per_ms:
                best = Choice(draft, length, rate)
    return best


def _key(source: str, match: int, position: int) -> tuple[str, int, int]:
    return (
        source,
        bisect_left(_MATCH_BUCKETS, match),
        bisect_left(_POSITION_BUCKETS, position),
    )


def _prior(match: int) -> float:
    """What n-grams in code give before anything is learnt: short matches mislead."""
    return min(0.9, 0.35 + 0.12 * (match - 1))
