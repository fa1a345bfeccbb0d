"""One request against the native slots: read the prompt's changed tail, then write the answer.

Engine thread only. Each native step evaluates the last token and, where that pays, a draft behind
it; the target samples at every position and what it samples is the answer, whatever the draft said
("sample and match"). A wrong draft costs time and leaves no cell behind. Whatever was evaluated
stays in the cells, however the request ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fimlsp.engine.api import DraftUse, Finish, Generation, Request
from fimlsp.engine.cells import Cells
from fimlsp.engine.cost import Prospect
from fimlsp.engine.healing import Constraint
from fimlsp.engine.native.seam import AbortedError, Logits, NativeSlots
from fimlsp.engine.sampling import Ids, Row, Sampler, logprob
from fimlsp.engine.speculation import Speculation
from fimlsp.engine.vocabulary import ModelVocabulary
from fimlsp.errors import DecodeError

MAX_WIDTH = 64
"""Tokens of one verifying step at most: each needs a row of logits."""


class InterruptedRequestError(Exception):
    """The request was cancelled or pre-empted between two native steps."""


@dataclass(slots=True)
class Progress:
    """What a request has got so far; read when it ends early."""

    started: float = field(default_factory=time.monotonic)
    warm: int = 0
    evaluated: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    steps: int = 0
    text: bytearray = field(default_factory=bytearray)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    probability: float = 1.0
    drafts: list[DraftUse] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Evaluates and generates for one model."""

    native: NativeSlots
    cells: Cells
    vocabulary: ModelVocabulary
    speculation: Speculation
    sources: tuple[str, ...]
    """Draft sources of requests that name none."""
    n_ubatch: int
    """Tokens of one native step at most."""
    n_ctx: int
    """Cells of a slot."""
    exact: bool = False
    """No step is a single token wide; see :class:`fimlsp.engine.api.SpeculationParams`."""

    def run(
        self,
        request: Request,
        progress: Progress,
        check: Callable[[], None],
        chunk: Callable[[], int],
    ) -> Finish:
        """Work off ``request``, filling ``progress`` as it goes.

        Args:
            request: What to evaluate and generate.
            progress: Filled in place.
            check: Called before every native step; raises InterruptedRequestError to stop.
            chunk: Prompt tokens of the next native step, asked anew for each.

        Raises:
            InterruptedRequestError: by ``check``, or an abort inside a step.
            DecodeError: the library failed.
        """
        check()
        if _late(request):
            return Finish.DEADLINE  # it waited too long; the cells of its slot stay as they are
        slot, warm = self.cells.acquire(request.slot, request.prompt)
        progress.warm = warm
        try:
            pending = self._prefill(slot, request, progress, check, chunk)
            if pending is None:
                return Finish.DEADLINE
            if request.max_tokens == 0:
                return Finish.MAX_TOKENS
            return _Answer(self, slot, request, progress, check).write(pending)
        except AbortedError:
            raise InterruptedRequestError from None
        except DecodeError:
            self.cells.truncate(slot, 0)  # what a failed decode leaves behind is not to be trusted
            raise

    def _prefill(
        self,
        slot: int,
        request: Request,
        progress: Progress,
        check: Callable[[], None],
        chunk: Callable[[], int],
    ) -> list[int] | None:
        """Read the prompt's cold tail up to its last step, which is returned.

        That step also gives the first logits, so a draft can go with it. Where nothing is to be
        written it is read too. None where the deadline came first.
        """
        prompt = np.array(request.prompt, dtype=np.int32)
        pos, end = progress.warm, len(prompt)
        while pos < end:
            check()
            if _late(request):
                return None
            n = min(chunk(), end - pos)
            if pos + n == end and request.max_tokens:
                break
            begun = time.monotonic()
            step = prompt[pos : pos + n]
            self.native.decode(slot, step, pos, 0)
            self.cells.append(slot, step.tolist())
            pos += n
            progress.evaluated += n
            progress.prefill_ms += (time.monotonic() - begun) * 1e3
        return list(request.prompt[pos:])


class _Answer:
    """The writing of one answer."""

    def __init__(
        self,
        generator: Generator,
        slot: int,
        request: Request,
        progress: Progress,
        check: Callable[[], None],
    ) -> None:
        self._generator = generator
        self._slot = slot
        self._request = request
        self._progress = progress
        self._check = check
        self._sampler = Sampler(request.sampling)
        self._constraint = Constraint(
            generator.vocabulary, request.must_start_with, forbidden=request.stop_tokens
        )

    def write(self, pending: list[int]) -> Finish:
        """Generate after ``pending``, the prompt's tokens that are not in the cells yet."""
        generator, request, progress = self._generator, self._request, self._progress
        speculation = generator.speculation
        start, end = request.omittable
        sources = generator.sources if request.sources is None else request.sources
        speculation.begin(
            sources,
            request.prompt,
            self._tokens(request.expected) if sources else (),
            self._tokens(request.related) if sources else (),
            slot=request.slot,
            draft_prompt=request.prompt[:start] + request.prompt[end:],
        )
        pos = len(request.prompt) - len(pending)
        try:
            while True:
                self._check()
                begun = time.monotonic()
                prospect = speculation.propose(progress.tokens, len(pending), self._room(pending))
                logits = self._step(pending, prospect, pos)
                self._count(pending, prospect, begun)
                accepted, finish = self._verify(prospect, logits)
                if finish is None and _late(request):
                    finish = Finish.DEADLINE
                if finish is not None:
                    return finish
                pos += len(pending) + accepted
                generator.cells.truncate(self._slot, pos)
                pending = progress.tokens[-1:]
        finally:
            speculation.end(progress.tokens)

    def _tokens(self, texts: Sequence[bytes]) -> list[list[int]]:
        return [self._generator.vocabulary.tokenize(text) for text in texts]

    def _room(self, pending: list[int]) -> int:
        """Return how many draft tokens the next step may have."""
        wanted = self._request.max_tokens - len(self._progress.tokens) - 1
        return min(wanted, min(self._generator.n_ubatch, MAX_WIDTH) - len(pending))

    def _step(self, pending: list[int], prospect: Prospect, pos: int) -> Logits:
        """Evaluate ``pending`` and the draft; return the rows from the last pending token on."""
        generator = self._generator
        tokens, rows = [*pending, *prospect.tokens], 1 + len(prospect.tokens)
        exact = (generator.exact or self._request.exact) and generator.cells.rewindable
        if exact and len(tokens) == 1 and pos + 2 <= generator.n_ctx:
            tokens *= 2  # the second is taken back before the next step
        begun = time.monotonic()
        logits = generator.native.decode(
            self._slot, np.array(tokens, dtype=np.int32), pos, len(tokens) - len(pending) + 1
        )[:rows]
        generator.speculation.curve.observe(len(tokens), (time.monotonic() - begun) * 1e3)
        generator.cells.append(self._slot, tokens)
        return logits

    def _count(self, pending: list[int], prospect: Prospect, begun: float) -> None:
        """Book the step's time; what a draft adds to the prompt's last step is decoding."""
        progress = self._progress
        ms = (time.monotonic() - begun) * 1e3
        progress.steps += 1
        if progress.tokens:
            progress.decode_ms += ms
            return
        curve = self._generator.speculation.curve
        share = curve(len(pending)) / curve(len(pending) + len(prospect.tokens))
        progress.prefill_ms += share * ms
        progress.decode_ms += (1 - share) * ms
        progress.evaluated += len(pending)

    def _verify(self, prospect: Prospect, logits: Logits) -> tuple[int, Finish | None]:
        """Emit what the target samples along the draft, up to and with the first difference.

        Returns:
            The draft tokens that were right, and why the answer ends here, if it does.
        """
        draft = prospect.tokens
        accepted = tested = 0
        finish: Finish | None = None
        for at, row in enumerate(logits):
            allowed = self._constraint.allowed() if self._constraint.active else None
            token = self._pick(row, allowed)
            right = at < len(draft) and token == draft[at]
            tested += at < len(draft)
            accepted += right
            finish = Finish.STOP_TOKEN if token is None else self._emit(token, row, allowed)
            if finish is not None or not right:
                break
        speculation = self._generator.speculation
        self._progress.drafts += speculation.learn(prospect, tested, accepted)
        return accepted, finish

    def _pick(self, row: Row, allowed: Ids | None) -> int | None:
        """Return the next token of the answer; None where it ends."""
        if allowed is not None and not len(allowed):
            return None  # this vocabulary can't spell the typed bytes
        token = self._sampler.pick(row, allowed)
        ends = token in self._request.stop_tokens or not self._generator.vocabulary.is_text(token)
        return None if ends else token

    def _emit(self, token: int, row: Row, allowed: Ids | None) -> Finish | None:
        """Append a token; return why the answer ends with it, None if it goes on."""
        request, progress = self._request, self._progress
        begun = time.monotonic()
        if self._constraint.active:
            self._constraint.advance(token)
        progress.tokens.append(token)
        progress.logprobs.append(logprob(row, token, allowed))
        progress.probability *= math.exp(progress.logprobs[-1])
        progress.text += self._generator.vocabulary.token_bytes(token)
        finished = request.watch is not None and request.watch(bytes(progress.text))
        progress.decode_ms += (time.monotonic() - begun) * 1e3
        if progress.probability < request.min_probability:
            return Finish.UNSURE
        if finished:
            return Finish.WATCH
        return Finish.MAX_TOKENS if len(progress.tokens) >= request.max_tokens else None


def _late(request: Request) -> bool:
    return request.deadline is not None and time.monotonic() >= request.deadline


def generation(progress: Progress, finish: Finish, submitted: float) -> Generation:
    """Freeze what a request has got; ``submitted`` is its ``time.monotonic()``."""
    return Generation(
        text=bytes(progress.text),
        tokens=tuple(progress.tokens),
        logprobs=tuple(progress.logprobs),
        finish=finish,
        prompt_tokens=progress.evaluated,
        reused_tokens=progress.warm,
        queue_ms=max(0.0, (progress.started - submitted) * 1e3),
        prefill_ms=progress.prefill_ms,
        decode_ms=progress.decode_ms,
        steps=progress.steps,
        drafts=tuple(progress.drafts),
    )
