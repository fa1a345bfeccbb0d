"""One request against the native slots: prefill the changed tail, then decode token by token.

Engine thread only. Whatever was evaluated stays in the cells, however the request ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.cells import Cells
from fimlsp.engine.healing import Constraint
from fimlsp.engine.native.seam import AbortedError, Logits, NativeSlots
from fimlsp.engine.sampling import greedy, logprob
from fimlsp.engine.vocabulary import ModelVocabulary


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
    text: bytearray = field(default_factory=bytearray)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Evaluates and generates for one model."""

    native: NativeSlots
    cells: Cells
    vocabulary: ModelVocabulary

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
            logits = self._prefill(slot, request, progress, check, chunk)
            if logits is None:
                return Finish.DEADLINE
            if request.max_tokens == 0:
                return Finish.MAX_TOKENS
            return self._decode(slot, request, progress, check, logits)
        except AbortedError:
            raise InterruptedRequestError from None

    def _prefill(
        self,
        slot: int,
        request: Request,
        progress: Progress,
        check: Callable[[], None],
        chunk: Callable[[], int],
    ) -> Logits | None:
        """Read the prompt's cold tail; None where the deadline came before its end."""
        begun = time.monotonic()
        prompt = np.array(request.prompt, dtype=np.int32)
        pos, end = progress.warm, len(prompt)
        logits = np.empty((0, self.vocabulary.n_tokens), dtype=np.float32)
        while pos < end:
            check()
            if _late(request):
                return None
            n = min(chunk(), end - pos)
            wanted = 1 if pos + n == end and request.max_tokens else 0
            step = prompt[pos : pos + n]
            logits = self.native.decode(slot, step, pos, wanted)
            self.cells.append(slot, step.tolist())
            pos += n
            progress.evaluated += n
            progress.prefill_ms = (time.monotonic() - begun) * 1e3
        return logits

    def _decode(
        self,
        slot: int,
        request: Request,
        progress: Progress,
        check: Callable[[], None],
        logits: Logits,
    ) -> Finish:
        begun = time.monotonic()
        constraint = Constraint(
            self.vocabulary, request.must_start_with, forbidden=request.stop_tokens
        )
        pos = len(request.prompt)
        while True:
            allowed = constraint.allowed() if constraint.active else None
            if allowed is not None and not len(allowed):
                return Finish.STOP_TOKEN  # this vocabulary can't spell the typed bytes
            token = greedy(logits[-1], allowed)
            if token in request.stop_tokens or not self.vocabulary.is_text(token):
                return Finish.STOP_TOKEN
            piece = self.vocabulary.token_bytes(token)
            if constraint.active:
                constraint.advance(token)
            progress.tokens.append(token)
            progress.logprobs.append(logprob(logits[-1], token))
            progress.text += piece
            progress.decode_ms = (time.monotonic() - begun) * 1e3
            if request.watch is not None and request.watch(bytes(progress.text)):
                return Finish.WATCH
            if len(progress.tokens) >= request.max_tokens:
                return Finish.MAX_TOKENS
            if _late(request):
                return Finish.DEADLINE
            check()
            logits = self.native.decode(slot, np.array([token], dtype=np.int32), pos, 1)
            self.cells.append(slot, [token])
            pos += 1


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
    )
