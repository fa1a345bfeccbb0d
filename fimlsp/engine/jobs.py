"""Requests on their way through the in-process engine."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Protocol

from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.generate import Progress, generation
from fimlsp.errors import EngineError, PromptTooLongError


class Owner(Protocol):
    """The engine, as its jobs see it."""

    def cancel(self, job: Job, *, keep_step: bool) -> None:
        """Stop ``job``, wherever it is; any thread."""


class Job:
    """One submitted request; see :class:`fimlsp.engine.api.Ticket`."""

    def __init__(self, owner: Owner, request: Request, number: int) -> None:
        self.request = request
        self.future: Future[Generation] = Future()
        # From now on Future.cancel() does nothing: a holder that gives up (asyncio.wrap_future
        # passes its cancel on) must not take the right to resolve it from the engine.
        self.future.set_running_or_notify_cancel()
        self.order = (request.priority, number)
        self.submitted = time.monotonic()
        self.cancelled = False
        self.preempted = False
        self._owner = owner

    def __lt__(self, other: Job) -> bool:
        return self.order < other.order

    def cancel(self, *, keep_step: bool = False) -> None:
        """Stop; ``keep_step`` lets the running native step finish, so that its cells stay."""
        self._owner.cancel(self, keep_step=keep_step)


def check_prompt(request: Request, n_vocab: int, n_ctx: int) -> None:
    """Raise EngineError where no decode of ``request`` can end well."""
    prompt = request.prompt
    if not prompt:
        raise EngineError(
            f"the prompt of {request.slot!r} is empty; at least one token is needed (the model's "
            "begin-of-sequence or a FIM token)"
        )
    if len(prompt) + request.max_tokens > n_ctx:
        raise PromptTooLongError(
            f"{len(prompt)} prompt tokens and {request.max_tokens} for the answer do not fit "
            f"engine.n_ctx = {n_ctx}"
        )
    # ik_llama would read past its embeddings.
    wrong = next((token for token in (min(prompt), max(prompt)) if not 0 <= token < n_vocab), None)
    if wrong is not None:
        raise EngineError(
            f"the prompt of {request.slot!r} has token {wrong}; this model's ids are 0 to "
            f"{n_vocab - 1}"
        )


def resolve_unrun(job: Job) -> None:
    """Answer a job that will not run."""
    job.future.set_result(generation(Progress(), Finish.CANCELLED, job.submitted))
