"""Which prompt serves a cursor: the anchored heads of each document, and when to build a new one.

A head is one epoch: header, prefix up to the anchor, suffix. While a person types between the two,
the epoch stays and only the typed text is appended. A cold place gets a small window that can be
read within ``window.cold_ms``; the full window is warmed behind it in another slot and takes over
when it is ready. Knows tokens only by count; evaluates nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fimlsp.context.naming import shown_path
from fimlsp.context.params import WindowParams
from fimlsp.context.similar import REACH, similar_place
from fimlsp.context.window import CHARS_PER_TOKEN, Cut, cut_prefix, cut_suffix
from fimlsp.document import Snapshot
from fimlsp.engine.api import Engine
from fimlsp.prompt.builder import MAX_HEALED_TOKENS, Healed, heal
from fimlsp.prompt.templates import ResolvedTemplate

MAX_TYPED = 600
"""Characters behind the anchor at most; beyond it the prompt is anchored anew."""
REANCHOR_TYPED = 160
"""Typed characters that a fresh anchor must save before it is warmed in idle time."""
MIN_PREFIX, MIN_SUFFIX = 32, 8
"""Tokens of the smallest window."""
ELSEWHERE_SHARE = 0.6
"""Of a cold window's prefix, the most that goes to the place in the file that is like this one."""
BUDGET_STEP = 16
"""Tokens by which a cold window grows: the measured speed wavers, and with every other window the
model may say something else at the same place."""
NEAR_LINES = 5
"""Lines next to the cursor that a cold window shows anyway."""
SUFFIX_SHARE = 0.25
"""Of a cold window, the share that goes to the text right of the cursor."""
ROOM = 0.7
"""A full window is first filled to this share, so that its start can stay while text is added."""
KEEP = 0.35
"""Above the window's start a place must have this share of the window, or the start moves up."""
STABLE_HEAD = 200
"""Characters by which the start of an earlier window is found again."""
HEADER_TOKENS = 64
"""Room kept for repository, path and control tokens."""
MIN_ANSWER = 32
"""Tokens that must be left for an answer, or the prompt is anchored anew."""
SLOTS_PER_DOCUMENT = 2
DRAFT_PREFIX = 256
"""Tokens of the prefix that a draft model reads: a guess does not need to know everything."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One head and the text it stands for."""

    slot: str
    prefix: Cut
    suffix: Cut
    head: tuple[int, ...]
    full: bool
    """The window is as large as it will be at this place."""
    omittable: tuple[int, int] = (0, 0)
    """Span of ``head`` that a draft model need not read: the far part of the prefix."""

    def typed(self, around: Around) -> str | None:
        """Return the text typed since the anchor, None where this epoch does not fit."""
        after, suffix = around.after, self.suffix.text
        if not after.startswith(suffix):
            return None
        if self.suffix.whole and not (around.to_end and len(after) == len(suffix)):
            return None
        before, prefix = around.before, self.prefix.text
        if self.prefix.whole:
            if not (around.from_start and before.startswith(prefix)):
                return None
            start = len(prefix)
        else:
            found = before.rfind(prefix, max(0, len(before) - len(prefix) - MAX_TYPED))
            if found < 0:
                return None
            start = found + len(prefix)
        return before[start:] if len(before) - start <= MAX_TYPED else None


@dataclass(frozen=True, slots=True)
class Around:
    """The text near a cursor, with line feeds as line ends."""

    before: str
    after: str
    from_start: bool
    to_end: bool
    path: str

    @classmethod
    def of(cls, snapshot: Snapshot, window: WindowParams) -> Around:
        """Take as much of ``snapshot`` as the largest window can need."""
        n_before = max(REACH, window.prefix_tokens * CHARS_PER_TOKEN) + MAX_TYPED
        n_after = max(REACH, window.suffix_tokens * CHARS_PER_TOKEN) + MAX_TYPED
        return cls(
            before=snapshot.before(n_before),
            after=snapshot.after(n_after),
            from_start=snapshot.cursor <= n_before,
            to_end=len(snapshot.text) - snapshot.cursor <= n_after,
            path=shown_path(snapshot.path, snapshot.language_id),
        )

    def anchor(self) -> int:
        """Return the start of the cursor's line in ``before``, or a bound inside a huge line."""
        return max(self.before.rfind("\n") + 1, len(self.before) - MAX_TYPED // 2, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask the engine for one cursor."""

    epoch: Epoch
    typed: str
    healed: Healed

    @property
    def prompt(self) -> tuple[int, ...]:
        """All token ids to evaluate."""
        return self.epoch.head + self.healed.tokens


def fit_window(window: WindowParams, n_ctx: int, max_tokens: int) -> WindowParams:
    """Shrink ``window`` so that prompt, typed text and answer fit ``n_ctx`` tokens."""
    answer = min(max_tokens, n_ctx // 4) + MAX_HEALED_TOKENS
    room = max(64, n_ctx - HEADER_TOKENS - MAX_TYPED // 2 - answer)
    share = room / (window.prefix_tokens + window.suffix_tokens)
    if share >= 1:
        return window
    return replace(
        window,
        prefix_tokens=max(16, int(window.prefix_tokens * share)),
        suffix_tokens=int(window.suffix_tokens * share),
    )


class Epochs:
    """The epochs of all documents for one engine and template. Event loop thread only."""

    def __init__(self, engine: Engine, template: ResolvedTemplate, window: WindowParams) -> None:
        self._engine = engine
        self._template = template
        self._tokenize = engine.vocabulary.tokenize
        self.window = window
        self._by_uri: dict[str, list[Epoch]] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the best prompt that can be had within the cold budget."""
        around = Around.of(snapshot, self.window)
        epochs = self._by_uri.get(snapshot.uri, [])
        warm = [plan for plan in self._fitting(around, epochs) if self._is_warm(plan)]
        if warm:
            plan = max(warm, key=lambda plan: (len(plan.epoch.head), -len(plan.typed)))
        else:
            epoch = self._affordable(snapshot.uri, around, epochs)
            plan = self._plan(epoch, around.before[around.anchor() :])
        self._remember(snapshot.uri, plan.epoch)
        return plan

    def better(self, snapshot: Snapshot, plan: Plan) -> Epoch | None:
        """Return the epoch worth warming in idle time after ``plan`` was answered, if any."""
        around = Around.of(snapshot, self.window)
        saved = len(plan.typed) - (len(around.before) - around.anchor())
        if plan.epoch.full and saved < REANCHOR_TYPED:
            return None
        epoch = self._full(snapshot.uri, around, self._by_uri.get(snapshot.uri, []), plan.epoch)
        if epoch.head == plan.epoch.head:
            return None
        self._remember(snapshot.uri, epoch)
        return epoch if self._missing(epoch.slot, epoch.head) > 1 else None

    def plan_with(self, epoch: Epoch, snapshot: Snapshot) -> Plan | None:
        """Return the prompt that ``epoch`` gives for ``snapshot``, warm or not."""
        return next(self._fitting(Around.of(snapshot, self.window), [epoch]), None)

    def fits(self, epoch: Epoch, snapshot: Snapshot) -> bool:
        """Tell whether ``epoch`` could serve the cursor of ``snapshot``, warm or not."""
        return epoch.typed(Around.of(snapshot, self.window)) is not None

    def forget(self, uri: str) -> None:
        """Drop the epochs of a closed document."""
        for epoch in self._by_uri.pop(uri, []):
            self._engine.release(epoch.slot)

    @property
    def _budget(self) -> int:
        """Prompt tokens that can be read within ``window.cold_ms``, in whole steps."""
        tokens = int(self._engine.speed.prefill_tok_s * self.window.cold_ms / 1e3)
        return tokens - tokens % BUDGET_STEP

    def _plan(self, epoch: Epoch, typed: str) -> Plan:
        return Plan(epoch, typed, heal(typed, self._engine.vocabulary))

    def _fitting(self, around: Around, epochs: list[Epoch]) -> Iterator[Plan]:
        for epoch in epochs:
            typed = epoch.typed(around)
            if typed is not None:
                yield self._plan(epoch, typed)

    def _is_warm(self, plan: Plan) -> bool:
        """Tell whether the head was read, and what was typed or pasted since is soon read too."""
        head, slot = plan.epoch.head, plan.epoch.slot
        if len(plan.prompt) + MIN_ANSWER > self._engine.n_ctx:
            return False
        # A new, small window saves time only if it is much shorter than what is left to read.
        bound = 2 * self._budget + MIN_PREFIX + MIN_SUFFIX
        return self._missing(slot, head) <= 1 and self._missing(slot, plan.prompt) <= bound

    def _missing(self, slot: str, prompt: tuple[int, ...]) -> int:
        return len(prompt) - self._engine.reusable(slot, prompt)

    def _remember(self, uri: str, epoch: Epoch) -> None:
        """Keep one epoch per slot, the one used last at the end."""
        kept = [e for e in self._by_uri.get(uri, []) if e.slot != epoch.slot]
        self._by_uri[uri] = [*kept[-(SLOTS_PER_DOCUMENT - 1) :], epoch]

    def _slot(self, uri: str, epochs: list[Epoch], serving: Epoch | None) -> str:
        """Name the document's slot that does not hold ``serving``, else the one last used."""
        busy = serving or (epochs[-1] if epochs else None)
        first, second = f"{uri}#0", f"{uri}#1"
        return second if busy is not None and busy.slot == first else first

    def _affordable(self, uri: str, around: Around, epochs: list[Epoch]) -> Epoch:
        budget = self._budget
        full = self._full(uri, around, epochs, None)
        if self._missing(full.slot, full.head) <= budget:
            return full
        slot = full.slot
        suffix_budget = self.window.suffix_tokens
        while suffix_budget > MIN_SUFFIX:  # a warm prefix with less of the suffix
            suffix_budget //= 2
            epoch = self._epoch(slot, around, full.prefix, suffix_budget, full=False)
            if self._missing(slot, epoch.head) <= budget:
                return epoch
        header = len(full.head) - len(full.prefix.tokens) - len(full.suffix.tokens)
        room = budget - header
        n_suffix = min(max(MIN_SUFFIX, int(room * SUFFIX_SHARE)), self.window.suffix_tokens)
        n_suffix = len(self._suffix(around, n_suffix).tokens)
        n_prefix = min(max(MIN_PREFIX, room - n_suffix), self.window.prefix_tokens)
        elsewhere: tuple[int, ...] = ()
        prefix = self._prefix(around, n_prefix)
        if not prefix.whole:
            elsewhere = self._elsewhere(around, int(n_prefix * ELSEWHERE_SHARE))
            shorter = self._prefix(around, n_prefix - len(elsewhere))
            if _starts_a_line(shorter, around):
                prefix = shorter
            else:  # the nearest line itself says more
                elsewhere = ()
        # Whole lines never quite fill a budget; what is left over may do for one more below.
        n_suffix = max(MIN_SUFFIX, room - len(elsewhere) - len(prefix.tokens))
        n_suffix = min(n_suffix, self.window.suffix_tokens)
        return self._epoch(slot, around, prefix, n_suffix, full=False, elsewhere=elsewhere)

    def _elsewhere(self, around: Around, budget: int) -> tuple[int, ...]:
        """Return the tokens of the place in the file that is most like the cursor's."""
        anchor = around.anchor()
        indent = len(around.before) - anchor or None
        lines = similar_place(around.before[:anchor], around.after, NEAR_LINES, indent)
        for part in (lines, lines[:2], lines[1:2]):  # whole lines: half a one would run on
            tokens = tuple(self._tokenize("".join(part).encode("utf-8", "replace")))
            if len(tokens) <= budget:
                return tokens
        return ()

    def _full(self, uri: str, around: Around, epochs: list[Epoch], serving: Epoch | None) -> Epoch:
        slot = self._slot(uri, epochs, serving)
        prefix = self._stable_prefix(around, epochs)
        return self._epoch(slot, around, prefix, self.window.suffix_tokens, full=True)

    def _stable_prefix(self, around: Around, epochs: list[Epoch]) -> Cut:
        """Keep the start of an earlier full window while it fits, so that its cells stay warm."""
        text = around.before[: around.anchor()]
        for epoch in reversed(epochs):
            old = epoch.prefix.text
            if epoch.prefix.whole or not epoch.full:
                continue
            start = text.rfind(old)  # its first lines alone may occur again further down
            if start < 0:
                start = text.rfind(old[:STABLE_HEAD])
            if start >= 0:
                tokens = self._tokenize(text[start:].encode("utf-8", "replace"))
                if KEEP * self.window.prefix_tokens <= len(tokens) <= self.window.prefix_tokens:
                    return Cut(text[start:], tuple(tokens), False)
        cut = self._prefix(around, self.window.prefix_tokens)
        if cut.whole:
            return cut
        return self._prefix(around, int(self.window.prefix_tokens * ROOM))

    def _prefix(self, around: Around, budget: int) -> Cut:
        text = around.before[: around.anchor()]
        return cut_prefix(text, budget, self._tokenize, from_start=around.from_start)

    def _suffix(self, around: Around, budget: int) -> Cut:
        return cut_suffix(around.after, budget, self._tokenize, to_end=around.to_end)

    def _epoch(
        self,
        slot: str,
        around: Around,
        prefix: Cut,
        suffix_budget: int,
        *,
        full: bool,
        elsewhere: tuple[int, ...] = (),
    ) -> Epoch:
        suffix = self._suffix(around, suffix_budget)
        head = self._template.render(
            repo=None,
            path=around.path,
            prefix=elsewhere + prefix.tokens,
            suffix=suffix.tokens,
            tokenize=self._tokenize,
        )
        whole = prefix.whole and suffix.whole
        return Epoch(slot, prefix, suffix, head, full or whole, _omittable(head, prefix.tokens))


def _starts_a_line(prefix: Cut, around: Around) -> bool:
    before = around.before[: around.anchor()]
    return before[: len(before) - len(prefix.text)].endswith("\n")


def _omittable(head: tuple[int, ...], prefix: tuple[int, ...]) -> tuple[int, int]:
    """Return the span of ``head`` that holds the part of ``prefix`` far from the cursor."""
    n = len(prefix)
    if n <= DRAFT_PREFIX:
        return 0, 0
    start = next(i for i in range(len(head) - n + 1) if head[i : i + n] == prefix)
    return start, start + n - DRAFT_PREFIX
