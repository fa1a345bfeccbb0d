"""``textDocument/inlineCompletion``: from a request to an answer that fits the document now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lsprotocol import types

from fimlsp.completion.api import CompletionService, Trigger
from fimlsp.document import Completion, NoCompletion, Reason, Snapshot
from fimlsp.errors import UnknownDocumentError
from fimlsp.lsp.documents import DocumentStore
from fimlsp.lsp.params import InlineRequest, TriggerKinds, read_inline_request

log = logging.getLogger(__name__)

Answer = tuple[Completion, ...] | NoCompletion

_NO_ANSWER: Final = {Reason.SUPERSEDED, Reason.CANCELLED, Reason.STALE, Reason.FAILED}
"""Reasons answered with ``null``, "as if you had not asked": what is on the screen may stay. Any
other reason is an answer, an empty list, and clears it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineJob:
    """A request with the document as it was when the request arrived."""

    request: InlineRequest
    trigger: Trigger
    snapshot: Snapshot | None
    """None when the document is not open."""
    received: float = field(default_factory=time.perf_counter)


class InlineCompletions:
    """Answers inline completion requests."""

    def __init__(
        self,
        service: CompletionService,
        documents: DocumentStore,
        on_refused: Callable[[Reason], None],
    ) -> None:
        """Make one.

        Args:
            service: Makes the suggestions.
            documents: What is open.
            on_refused: Told why a request gave nothing that the service knows nothing of.
        """
        self._service = service
        self._documents = documents
        self._on_refused = on_refused
        self._kinds = TriggerKinds()

    def receive(self, raw: Any) -> InlineJob:
        """Read a request's params and freeze its document.

        Must run as the message arrives: the handler's task starts only when all messages that came
        with it are taken in, and one of them may be the next edit.

        Raises:
            JsonRpcInvalidParams: the params are malformed.
        """
        request = read_inline_request(raw)
        try:
            snapshot = self._documents.snapshot(request.uri, *request.position)
        except UnknownDocumentError:
            snapshot = None
        trigger = self._kinds.trigger(request.trigger_kind)
        return InlineJob(request=request, trigger=trigger, snapshot=snapshot)

    async def answer(self, job: InlineJob) -> types.InlineCompletionList | None:
        """Return the answer in the client's terms; never one for an older text."""
        try:
            answer = self._refusal(job) or await self._ask(job)
        except asyncio.CancelledError:
            # The protocol has answered already; whoever reads the log wants to know why.
            log.info("%s", _summary(job, NoCompletion(reason=Reason.CANCELLED)))
            raise
        if job.snapshot and not self._documents.is_current(job.snapshot):
            answer = NoCompletion(reason=Reason.STALE, detail="the document changed meanwhile")
        log.info("%s", _summary(job, answer))
        if isinstance(answer, tuple):
            assert job.snapshot is not None
            items = [to_item(found, job.snapshot, self._documents) for found in answer]
            return types.InlineCompletionList(items=items)
        return None if answer.reason in _NO_ANSWER else types.InlineCompletionList(items=[])

    def _refusal(self, job: InlineJob) -> NoCompletion | None:
        """Return why the service is not even asked, if so."""
        if job.snapshot is None:
            refusal = NoCompletion(reason=Reason.UNKNOWN_DOCUMENT, detail="it is not open")
        elif job.request.version not in (None, job.snapshot.version):
            detail = f"asked for version {job.request.version} of {job.snapshot.version}"
            refusal = NoCompletion(reason=Reason.STALE, detail=detail)
        elif not self._documents.is_current(job.snapshot):
            refusal = NoCompletion(reason=Reason.STALE, detail="an edit came right behind")
        else:
            return None
        self._on_refused(refusal.reason)
        return refusal

    async def _ask(self, job: InlineJob) -> Answer:
        assert job.snapshot is not None
        try:
            answer = await self._service.complete(job.snapshot, job.trigger)
        except Exception:
            # Our own mistake, by the service's contract. An error answer would be a popup at every
            # key in VS Code, so the person sees it in the status and we in the log.
            log.exception("a completion failed")
            self._on_refused(Reason.FAILED)
            return NoCompletion(reason=Reason.FAILED, detail="see the log")
        return answer or NoCompletion(reason=Reason.EMPTY)


def to_item(
    completion: Completion, snapshot: Snapshot, documents: DocumentStore
) -> types.InlineCompletionItem:
    """Return a suggestion as LSP's item, with a range on one line and the document's line ends."""
    replaced = min(completion.replace_after, len(snapshot.rest_of_line()))
    start, end = documents.range_of(snapshot, snapshot.cursor, snapshot.cursor + replaced)
    return types.InlineCompletionItem(
        insert_text=completion.text.replace("\n", snapshot.eol),
        range=types.Range(start=types.Position(*start), end=types.Position(*end)),
    )


def _summary(job: InlineJob, answer: Answer) -> str:
    """Return one line for the log: lengths and times, no text."""
    ms = 1000 * (time.perf_counter() - job.received)
    version = job.snapshot.version if job.snapshot else "?"
    head = f"inlineCompletion {job.trigger.value} v{version} in {ms:.0f} ms:"
    if isinstance(answer, NoCompletion):
        return f"{head} nothing ({answer.reason.value}) {answer.detail}".rstrip()
    timings = answer[0].timings
    return (
        f"{head} {len(answer)} of {len(answer[0].text)} characters; prompt {timings.prompt_tokens} "
        f"+ {timings.reused_tokens} reused in {timings.prefill_ms:.0f} ms, {timings.tokens} tokens "
        f"in {timings.decode_ms:.0f} ms, {timings.accepted} of {timings.drafted} drafted"
    )
