"""Chooses what to verify: the draft, of whichever source, that pays most per millisecond.

Engine thread only. Knows token ids and measured costs; what is right, the target alone decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fimlsp.engine import cost
from fimlsp.engine.api import DraftUse
from fimlsp.engine.cost import Acceptance, Prospect, Segment, VerifyCurve
from fimlsp.engine.drafters.api import Draft, Drafter

_SEGMENTS = 3
"""Sources that may continue one another in one draft."""
_MODEL_RATE = 0.75
"""Acceptance of the draft model's tokens that is assumed before any was verified."""
_WEIGHT = 0.05
"""Share of one verified token in the running acceptance of the draft model."""
_RECOVERY = 0.01
"""Share of the assumed acceptance that comes back with each request: a file that the draft model
understood badly must not shut it out for good, since an idle model proves nothing."""


class DraftModel(Protocol):
    """A small model that drafts token by token, each at a price; see ``drafters.model``."""

    name: str
    token_ms: float
    """Milliseconds of one of its decodes, measured."""
    read_ms: float
    """Milliseconds of each further token that a decode reads."""

    def begin(self, slot: str, prompt: Sequence[int]) -> None:
        """Start a request of which the draft model shall read ``prompt``."""

    def lag(self, emitted: Sequence[int]) -> int | None:
        """Return how many tokens it must read before it can draft, at least the last one.

        None: too many, not now.
        """

    def next(self, emitted: Sequence[int]) -> tuple[int, int] | None:
        """Return the likeliest token after ``emitted`` and the tenths of its probability (0-9).

        None where its vocabulary or its context ends.
        """

    def forget(self) -> None:
        """Drop everything that was read; no request is under way."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """What requests have taught: acceptance, and the texts that free sources remember."""

    free: tuple[Drafter, ...]
    acceptance: Acceptance = field(default_factory=Acceptance)
    model_rate: float = _MODEL_RATE


class Speculation:
    """The sources of one engine, their costs, and what was learnt about them.

    Args:
        curve: T(n) of the target; kept up to date here.
        max_draft: Draft tokens per step at most.
        free: Sources without a price.
        model: The draft model, if there is one.
    """

    def __init__(
        self,
        curve: VerifyCurve,
        *,
        max_draft: int,
        free: Sequence[Drafter] = (),
        model: DraftModel | None = None,
    ) -> None:
        self.curve = curve
        self.acceptance = Acceptance()
        self._max_draft = max_draft
        self._all_free = tuple(free)
        self.model = model
        self._model_rate = _MODEL_RATE
        self._free: tuple[Drafter, ...] = ()
        self._model: DraftModel | None = None

    def begin(
        self,
        sources: Sequence[str],
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
        *,
        slot: str,
        draft_prompt: Sequence[int],
    ) -> None:
        """Start a request.

        Args:
            sources: Names of the sources that may draft.
            prompt: All prompt token ids.
            expected: Token sequences that may follow the prompt, the likeliest first.
            related: Token sequences of which parts may come.
            slot: Name of the warm prompt.
            draft_prompt: What the draft model reads instead of ``prompt``.
        """
        self.acceptance.fade()
        self._free = tuple(drafter for drafter in self._all_free if drafter.name in sources)
        for drafter in self._free:
            drafter.begin(prompt, expected, related)
        self._model = self.model if self.model and self.model.name in sources else None
        if self._model:
            self._model_rate += _RECOVERY * max(0.0, _MODEL_RATE - self._model_rate)
            self._model.begin(slot, draft_prompt)

    def propose(self, emitted: Sequence[int], width: int, room: int) -> Prospect:
        """Return the draft to verify in the next step; often an empty one.

        Args:
            emitted: Tokens of the answer so far.
            width: Tokens that the step evaluates beside the draft.
            room: Draft tokens at most.
        """
        n_max = min(room, self._max_draft)
        best = cost.nothing(width, self.curve)
        if n_max <= 0:
            return best
        for _ in range(_SEGMENTS):
            longer = self._best_free(best, emitted, width, n_max)
            if longer is best:
                break
            best = longer
        if self._model:
            best = self._modelled(self._model, best, emitted, width, n_max)
        return best

    def learn(self, prospect: Prospect, tested: int, accepted: int) -> list[DraftUse]:
        """Take the outcome of a verification and return it by source.

        Args:
            prospect: What was verified.
            tested: Draft tokens that were compared; the request may have ended before the others.
            accepted: The first of them, that were right.
        """
        uses = []
        at = 0
        for segment in prospect.segments:
            right = min(max(0, accepted - at), len(segment.tokens))
            seen = min(max(0, tested - at), len(segment.tokens))
            self.acceptance.observe(segment, seen, right)
            if self.model and segment.source == self.model.name:
                for position in range(seen):
                    self._model_rate += _WEIGHT * ((position < right) - self._model_rate)
            uses.append(DraftUse(segment.source, len(segment.tokens), right))
            at += len(segment.tokens)
        return uses

    def end(self, emitted: Sequence[int]) -> None:
        """End the request."""
        for drafter in self._free:
            drafter.end(emitted)

    @property
    def model_could_pay(self) -> bool:
        """Tell whether the draft model, once it has read a prompt, is expected to gain time."""
        if self.model is None:
            return False
        rate, token_ms = self._model_rate, self.model.token_ms
        return cost.modelled_gain(rate, token_ms, self.curve, self._max_draft) > 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources that there are."""
        models = (self.model.name,) if self.model else ()
        return tuple(drafter.name for drafter in self._all_free) + models

    @property
    def lessons(self) -> Lessons:
        """What was learnt so far; it goes on learning until others are put in its place."""
        return Lessons(self._all_free, self.acceptance, self._model_rate)

    def relearn(self, lessons: Lessons) -> None:
        """Go on from ``lessons`` alone, between two requests. Measured costs stay.

        The draft model forgets what it has read, so that nothing is warm that ``lessons`` do not
        account for.
        """
        self._all_free = lessons.free
        self.acceptance = lessons.acceptance
        self._model_rate = lessons.model_rate
        if self.model:
            self.model.forget()

    def _best_free(
        self, base: Prospect, emitted: Sequence[int], width: int, n_max: int
    ) -> Prospect:
        """Return ``base`` with the free segment that helps it most, or ``base`` itself."""
        drafted = base.tokens
        best = base
        for drafter in self._free:
            draft = drafter.draft([*emitted, *drafted], n_max - len(drafted))
            if draft is not None:
                segment = _segment(draft)
                found = cost.lengthened(base, segment, width, self.curve, self.acceptance)
                if found.per_ms > best.per_ms:
                    best = found
        return best

    def _modelled(
        self, model: DraftModel, free: Prospect, emitted: Sequence[int], width: int, n_max: int
    ) -> Prospect:
        """Let the draft model write where that promises more than ``free``."""
        lag = model.lag(emitted)
        if lag is None or not self._promises(model, free, width, n_max, lag):
            return free
        begun = time.monotonic()
        tokens: list[int] = []
        evidence: list[int] = []
        survival, expected = 1.0, 1.0
        while len(tokens) < n_max:
            found = model.next([*emitted, *tokens])
            if found is None:
                break
            token, tenths = found
            tokens.append(token)
            evidence.append(tenths)
            survival *= self.acceptance.rate(model.name, tenths, len(tokens))
            expected += survival
            spent = (time.monotonic() - begun) * 1e3
            now = expected / (spent + self.curve(width + len(tokens)))
            another = spent + model.token_ms + self.curve(width + len(tokens) + 1)
            if (expected + survival * self._model_rate) / another <= now:
                break
        spent = (time.monotonic() - begun) * 1e3
        bare = Prospect((), 1.0, 1.0, spent, 1.0 / (spent + self.curve(width)))
        segment = Segment(model.name, tuple(tokens), tuple(evidence))
        drafted = cost.lengthened(bare, segment, width, self.curve, self.acceptance)
        # What the model has cost is spent, whichever draft is taken now.
        return max(drafted, free, key=lambda prospect: _rate_from_here(prospect, width, self.curve))

    def _promises(
        self, model: DraftModel, free: Prospect, width: int, n_max: int, lag: int
    ) -> bool:
        """Tell whether some number of modelled tokens is worth more than ``free``."""
        survival, expected = 1.0, 1.0
        for length in range(1, n_max + 1):
            survival *= self._model_rate
            expected += survival
            ms = (lag - 1) * model.read_ms + length * model.token_ms + self.curve(width + length)
            if expected / ms > free.per_ms:
                return True
        return False


def _segment(draft: Draft) -> Segment:
    # If its first tokens are right, those that follow had a longer match.
    evidence = tuple(draft.evidence + right for right in range(len(draft.tokens)))
    return Segment(draft.source, draft.tokens, evidence)


def _rate_from_here(prospect: Prospect, width: int, curve: VerifyCurve) -> float:
    return prospect.expected / curve(width + len(prospect.tokens))
