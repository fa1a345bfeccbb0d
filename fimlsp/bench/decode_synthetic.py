"""Drafts that are right with a chosen probability: how well the length of drafts is chosen.

The drafter offers the true answer of plain decoding in which each token is wrong by the throw of a
seeded die, one throw for each place, so that every policy meets the same luck. For each rate the
engine's own choice is compared with the one length that would have been best all along: found by
reckoning all lengths with the measured T(n), then really run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fimlsp.bench.decode_cases import Case
from fimlsp.bench.decode_replay import Player, Replay, StepLog
from fimlsp.engine.api import Finish, Generation
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.drafters.api import Draft
from fimlsp.engine.speculation import Lessons

NAME: Final = "synthetic"
_EVIDENCE: Final = 3
"""A source of which little is known beforehand: the engine has to learn how good it is."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What plain decoding answers to a case, and where drafts of it go wrong."""

    tokens: tuple[int, ...]
    right: tuple[bool, ...]
    """Per token."""
    ends_by_token: bool
    """A stop token follows, which takes a step but is no part of the answer."""
    max_tokens: int

    @classmethod
    def of(cls, case: Case, answer: Generation, rate: float) -> Truth:
        """Throw the dice for one case; the same case and rate always give the same."""
        die = random.Random(f"{case.trace} {case.stroke} {rate}")
        right = tuple(die.random() < rate for _ in answer.tokens)
        ends = answer.finish is Finish.STOP_TOKEN
        return cls(answer.tokens, right, ends, case.request.max_tokens)

    def widths(self, length: int) -> list[int]:
        """Return the tokens of each step if every draft had ``length`` tokens."""
        found, at = [], 0
        while at < len(self.tokens) + self.ends_by_token:
            room = min(length, self.max_tokens - at - 1)
            right = self.right[at : at + room]
            found.append(1 + len(right))
            at += (*right, False).index(False) + 1
        return found


class SyntheticDrafter:
    """A free source that knows the answer and is wrong where the dice say so."""

    name = NAME

    def __init__(self, n_vocab: int, length: int | None = None) -> None:
        self.truth = Truth((), (), False, 0)
        """The answer to the next request; set between two requests."""
        self._n_vocab = n_vocab
        self._length = length
        self._start = 0
        self._offered: tuple[int, ...] = ()

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        """Forget the last draft."""
        self._offered = ()

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        """Offer the next tokens of the answer, ``length`` of them where that is fixed."""
        if self._offered and tuple(emitted[self._start :]) == self._offered:
            return None  # asked to go on behind its own draft: its length would not be ``length``
        start = len(emitted)
        count = n_max if self._length is None else min(n_max, self._length)
        truth = self.truth
        self._start = start
        self._offered = tuple(
            token if right else (token + 1) % self._n_vocab
            for token, right in zip(
                truth.tokens[start : start + count],
                truth.right[start : start + count],
                strict=True,
            )
        )
        return Draft(self.name, self._offered, _EVIDENCE) if self._offered else None

    def end(self, emitted: Sequence[int]) -> None:
        """There is nothing to learn."""


def study(
    player: Player,
    answered: Sequence[tuple[Case, Generation]],
    rates: Sequence[float],
    max_draft: int,
    say: Callable[[str], object],
) -> list[dict[str, Any]]:
    """Measure each rate.

    Returns:
        For each: ``rate``; ``acceptance``, ``mean_length`` and ``tok_s`` of the engine's choice;
        ``best_length`` and ``best_tok_s`` of the best fixed length; ``share``, the first speed
        over the second; ``reckoned_share``, the same by the measured T(n) alone, without the
        noise of a clock; ``by_length``, the reckoned tokens per second of every fixed length.
    """
    found = []
    for rate in rates:
        say(f"synthetic drafts, {rate:.0%} right")
        truths = [Truth.of(case, answer, rate) for case, answer in answered]
        found.append({"rate": rate, **_curve(player, [c for c, _ in answered], truths, max_draft)})
    return found


def _curve(
    player: Player, cases: Sequence[Case], truths: Sequence[Truth], max_draft: int
) -> dict[str, Any]:
    curve = player.curve
    tokens = sum(len(truth.tokens) for truth in truths)
    reckoned = {
        length: sum(curve(n) for truth in truths for n in truth.widths(length))
        for length in range(max_draft + 1)
    }
    best = min(reckoned, key=reckoned.__getitem__)
    chosen, fixed = _play(player, cases, truths, best)
    steps = [n for replay in chosen for n in replay.widths]
    drafted = sum(replay.generation.drafted for replay in chosen)
    accepted = sum(replay.generation.accepted for replay in chosen)
    chosen_ms, fixed_ms = (sum(replay.ms for replay in side) for side in (chosen, fixed))
    return {
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "mean_length": round(sum(steps) / len(steps) - 1, 2),
        "tok_s": round(tokens / chosen_ms * 1e3, 2),
        "best_length": best,
        "best_tok_s": round(tokens / fixed_ms * 1e3, 2),
        "share": round(fixed_ms / chosen_ms, 3),
        "reckoned_share": round(reckoned[best] / sum(map(curve, steps)), 3),
        "by_length": {str(n): round(tokens / ms * 1e3, 2) for n, ms in reckoned.items()},
    }


def _play(
    player: Player, cases: Sequence[Case], truths: Sequence[Truth], length: int
) -> tuple[list[Replay], list[Replay]]:
    """Run the engine's choice and the fixed length in turns."""
    speculation = player.engine.speculation
    n_vocab = player.engine.info.n_vocab
    before = speculation.lessons
    # Where a step costs the same whatever its width, the longest draft always pays.
    policies: list[tuple[SyntheticDrafter, VerifyCurve, list[Replay]]] = [
        (SyntheticDrafter(n_vocab), player.curve, []),
        (SyntheticDrafter(n_vocab, length), StepLog({1: player.curve(1)}), []),
    ]
    lessons = [Lessons((drafter,)) for drafter, _, _ in policies]
    try:
        for number, (case, truth) in enumerate(zip(cases, truths, strict=True)):
            for policy in (0, 1) if number % 2 == 0 else (1, 0):
                drafter, speculation.curve, replays = policies[policy]
                drafter.truth = truth
                speculation.relearn(lessons[policy])
                replays.append(player.play(case, (NAME,)))
                lessons[policy] = speculation.lessons
    finally:
        speculation.curve = player.curve
        speculation.relearn(before)
    return policies[0][2], policies[1][2]
