"""The llama.vim plugin while somebody types on without waiting.

One request at a time. A key that comes while one runs sets a timer; a late answer is kept and shown
if what was typed meanwhile agrees with it. Hints come from the cache at once where it has them.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from fimlsp.bench import llama_vim
from fimlsp.bench.peer import Infill, InfillClient, insertion
from fimlsp.bench.scoring import Answer
from fimlsp.bench.traces import Trace

_RETRY_S: Final = 0.1


class LivePeer:
    """The peer's side when keys come at their own pace."""

    def __init__(self, client: InfillClient) -> None:
        self._client = client
        self._cache = llama_vim.HintCache()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="peer")
        self._job: Future[Infill] | None = None
        self._job_place: llama_vim.Context | None = None
        self._retry_at: float | None = None
        self._trace: Trace | None = None
        self._stroke = 0
        self._answer: Answer | None = None
        """What is shown for the last key."""
        self._pressed = 0.0

    def start(self, trace: Trace) -> None:
        """Begin a trace."""
        self._client.connect()
        self._trace = trace

    def key(self, trace: Trace, stroke: int, deadline: float | None) -> Answer:
        """Play one stroke; return once a hint is shown, nothing more can come, or at ``deadline``.

        ``Answer.ms`` is infinite when the deadline came first.
        """
        self._pressed = time.monotonic()
        self._stroke, self._answer = stroke, None
        self._show()
        self._request()
        while self._answer is None and self._busy:
            if deadline is not None and time.monotonic() >= deadline:
                return Answer(ms=math.inf)
            self._step(deadline)
        return self._answer or Answer(ms=(time.monotonic() - self._pressed) * 1000)

    def wait(self, until: float) -> None:
        """Let time pass as in the editor: answers come in and the timer runs."""
        while self._busy and time.monotonic() < until:
            self._step(until)
        time.sleep(max(0.0, until - time.monotonic()))

    def finish(self) -> None:
        """End the trace; a running request can't be cancelled and is waited for."""
        self._retry_at = None
        if self._job is not None:
            self._take(self._job)
        self._client.close()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True)

    @property
    def _busy(self) -> bool:
        return self._job is not None or self._retry_at is not None

    @property
    def _place(self) -> llama_vim.Context:
        assert self._trace is not None, "start comes before any key"
        return llama_vim.context(self._trace.text(self._stroke), self._trace.cursor(self._stroke))

    def _request(self) -> None:
        """Ask for the current place, or try again later while another request runs."""
        self._retry_at = None
        if self._job is not None:
            self._retry_at = time.monotonic() + _RETRY_S
            return
        place = self._place
        if not self._cache.holds(place):
            self._job_place = place
            self._job = self._thread.submit(self._client.infill, place)

    def _step(self, until: float | None) -> None:
        """Wait for the next event, at most to ``until``, and deal with it."""
        ends = [end for end in (until, self._retry_at) if end is not None]
        patience = max(0.0, min(ends) - time.monotonic()) if ends else None
        if self._job is None:
            assert patience is not None, "only called while a job or a timer is there"
            time.sleep(patience)
        elif wait([self._job], patience).done:
            self._take(self._job)
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            self._request()

    def _take(self, job: Future[Infill]) -> None:
        infill = job.result()
        assert self._job_place is not None, "set together with the job"
        self._cache.insert(self._job_place, infill.content)
        self._job = self._job_place = None
        if self._answer is None:
            self._show(infill.prompt_tokens)

    def _show(self, prompt_tokens: int | None = None) -> None:
        """Show what the cache has for the current place; ``prompt_tokens`` if it just came."""
        assert self._trace is not None, "start comes before any key"
        edit = insertion(self._trace, self._stroke, self._cache.find(self._place))
        if edit is not None:
            self._answer = Answer(
                ms=(time.monotonic() - self._pressed) * 1000,
                edit=edit,
                prompt_tokens=prompt_tokens,
                without_model=prompt_tokens is None,
            )
