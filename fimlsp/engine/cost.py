"""Which draft pays: expected tokens per measured millisecond, plain decoding among the candidates.

With acceptance a_j at position j, survival S_i = a_1 * ... * a_i, a draft of k tokens yields
1 + S_1 + ... + S_k tokens for T_source(k) + T(w + k) milliseconds, where w tokens have to be
evaluated anyway (Leviathan et al. 2023, with the measured verify curve T(n) in place of the flat
one: on a CPU T(4)/T(1) is 1.3 to 1.8).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

_WEIGHT = 0.1
"""Share of a new timing in the running figure."""
_SHARED = 0.5
"""Share of that by which widths move that are not next to the observed one."""
_OUTLIER = 2.0
"""A decode that another process held up says nothing about this machine."""
_TYPICAL = {1: 1.0, 2: 1.35, 3: 1.5, 4: 1.6, 5: 1.9, 8: 2.4, 12: 3.4, 16: 4.2, 32: 8.0}
"""T(n)/T(1) of a small CPU, on the careful side; used until this machine was measured."""
WIDTHS = tuple(_TYPICAL)
"""Widths of which the verify curve is measured."""

_PRIOR = 4.0
"""Observations that a prior counts for."""
MARGIN = 0.05
"""Gain that a draft has to promise."""
_FORGET = 0.995
"""Old observations fade, so that acceptance follows the person from file to file."""
_FADE = 0.99
"""What is left of all observations after a request; of three hundred requests, almost nothing."""
_EVIDENCE_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 12)
_MATCHED = (0.07, 0.29, 0.43, 0.6, 0.78, 0.82, 0.88, 0.9)
"""Acceptance by matched tokens, 0 to 7 and more, of typing traces in five languages."""
_POSITION_BUCKETS = (1, 2, 3, 5, 9)


class VerifyCurve:
    """T(n): milliseconds of one target decode of n tokens, interpolated between known widths."""

    def __init__(self, known: Mapping[int, float]) -> None:
        assert 1 in known, known
        self._widths = sorted(known)
        # What disturbs a timing only adds to it, and a wider step is never quicker: whatever took
        # longer than a wider step was disturbed.
        falling = sorted(known, reverse=True)
        bounds = accumulate((known[n] for n in falling), min)
        self._ms = dict(zip(falling, bounds, strict=True))

    @classmethod
    def typical(cls, decode_ms: float) -> VerifyCurve:
        """Return the curve to assume where only T(1) is known."""
        return cls({n: decode_ms * ratio for n, ratio in _TYPICAL.items()})

    def __call__(self, n: int) -> float:
        """Return the milliseconds of a decode of ``n`` tokens."""
        found = self._ms.get(n)
        if found is not None:
            return found
        low, high = self._around(n)
        if low == high:
            return self._ms[low]
        slope = (self._ms[high] - self._ms[low]) / (high - low)
        return self._ms[low] + max(0.0, slope) * (n - low)

    def observe(self, n: int, ms: float) -> None:
        """Follow a live decode; it moves the known widths on both sides by their nearness.

        The others move a little too: a busy or a hot machine is slower at every width, and a width
        that was found too dear is never tried, so nothing else would put it right.
        """
        expected = self(n)
        error = min(ms, _OUTLIER * expected) / expected
        low, high = self._around(n)
        near_high = min(1.0, (n - low) / (high - low)) if high > low else 0.0
        nearness = {low: 1 - near_high}
        nearness[high] = max(near_high, nearness.get(high, 0.0))
        for width in self._widths:
            share = max(_SHARED, nearness.get(width, 0.0))
            self._ms[width] *= 1 + _WEIGHT * share * (error - 1)

    @property
    def known(self) -> dict[int, float]:
        """Return the milliseconds by known width."""
        return {n: self._ms[n] for n in self._widths}

    def _around(self, n: int) -> tuple[int, int]:
        """Return the known widths between which ``n`` lies, or the two that are next to it."""
        if n in self._ms:
            return n, n
        at = min(max(1, bisect_left(self._widths, n)), len(self._widths) - 1)
        return self._widths[max(0, at - 1)], self._widths[at]


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a draft that one source gave."""

    source: str
    tokens: tuple[int, ...]
    evidence: tuple[int, ...]
    """Per token; see :class:`fimlsp.engine.drafters.api.Draft`."""


class Acceptance:
    """How often drafts were right, by source, evidence and position; learnt online."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], list[float]] = {}

    def rate(self, source: str, evidence: int, position: int) -> float:
        """Return the chance that draft token ``position`` (1-based) is right if all before were."""
        right, seen = self._counts.get(_key(source, evidence, position), (0.0, 0.0))
        return (right + _PRIOR * _prior(source, evidence)) / (seen + _PRIOR)

    def fade(self) -> None:
        """Forget a little of everything.

        A source that failed often enough is tried no more, so that nothing it could do now would
        ever be seen.
        """
        for counts in self._counts.values():
            counts[0] *= _FADE
            counts[1] *= _FADE

    def observe(self, segment: Segment, tested: int, accepted: int) -> None:
        """Learn from one verification: of ``tested`` tokens the first ``accepted`` were right."""
        for at in range(min(tested, accepted + 1)):
            key = _key(segment.source, segment.evidence[at], at + 1)
            counts = self._counts.setdefault(key, [0.0, 0.0])
            counts[0] = counts[0] * _FORGET + (at < accepted)
            counts[1] = counts[1] * _FORGET + 1.0


@dataclass(frozen=True, slots=True)
class Prospect:
    """A draft under consideration and what is to be expected of it."""

    segments: tuple[Segment, ...]
    survival: float
    """The chance that all of it is right."""
    expected: float
    """Tokens that the step will give, the one after the last right one included."""
    draft_ms: float
    """What the draft itself has cost."""
    per_ms: float
    """``expected`` per millisecond of drafting and verifying."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The draft."""
        return tuple(token for segment in self.segments for token in segment.tokens)


def nothing(width: int, curve: VerifyCurve) -> Prospect:
    """Return the prospect of a step that evaluates ``width`` tokens and verifies none.

    What is known of acceptance is never exact, so a draft has to promise a little more.
    """
    return Prospect((), 1.0, 1.0, 0.0, (1.0 + MARGIN) / curve(width))


def lengthened(
    base: Prospect,
    segment: Segment,
    width: int,
    curve: VerifyCurve,
    acceptance: Acceptance,
) -> Prospect:
    """Return ``base`` with as many tokens of the free ``segment`` as pay, which may be none.

    Args:
        base: The draft so far.
        segment: What may follow it.
        width: Tokens that the step evaluates beside the draft.
        curve: T(n) of the target.
        acceptance: What was learnt about the sources.
    """
    best, length = base, 0
    survival, expected = base.survival, base.expected
    drafted = len(base.tokens)
    for position, evidence in enumerate(segment.evidence, 1):
        survival *= acceptance.rate(segment.source, evidence, position)
        expected += survival
        per_ms = expected / (base.draft_ms + curve(width + drafted + position))
        if per_ms > best.per_ms:
            length = position
            best = Prospect(base.segments, survival, expected, base.draft_ms, per_ms)
    if not length:
        return base
    part = Segment(segment.source, segment.tokens[:length], segment.evidence[:length])
    return replace(best, segments=(*base.segments, part))


def modelled_gain(rate: float, token_ms: float, curve: VerifyCurve, n_max: int) -> float:
    """Return how many times faster a draft model makes its target, at the best draft length.

    Args:
        rate: The chance that a draft token is right if all before it were.
        token_ms: Milliseconds of one decode of the draft model.
        curve: T(n) of the target.
        n_max: Draft tokens at most.
    """
    survival, expected, best = 1.0, 1.0, 0.0
    for length in range(1, n_max + 1):
        survival *= rate
        expected += survival
        best = max(best, expected / (length * token_ms + curve(1 + length)))
    return best * curve(1)


def _key(source: str, evidence: int, position: int) -> tuple[str, int, int]:
    return (
        source,
        bisect_right(_EVIDENCE_BUCKETS, evidence),
        bisect_right(_POSITION_BUCKETS, position),
    )


def _prior(source: str, evidence: int) -> float:
    """What is to be expected before anything is learnt: short matches mislead."""
    if source == "model":
        return min(0.95, 0.3 + 0.07 * evidence)
    return _MATCHED[min(evidence, len(_MATCHED) - 1)]
