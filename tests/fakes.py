"""Stand-ins with known behaviour, for tests of the rooms above them.

``ScriptedService`` answers LSP requests as a function says. ``ScriptedEngine`` generates what a
function says, token by token of a ``WordVocabulary``, and remembers what it was asked.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from fimlsp.completion.api import CompletionParams, ServiceState, Status, Trigger
from fimlsp.document import Completion, NoCompletion, Reason, Snapshot
from fimlsp.engine.api import (
    EngineState,
    Finish,
    Generation,
    ModelInfo,
    Phase,
    Priority,
    Request,
    Speed,
)
from fimlsp.errors import EngineError, FimlspError, PromptTooLongError

MIN_COPY = 16
"""Fewer warm tokens are not worth copying from another slot."""

Answer = tuple[Completion, ...] | NoCompletion
URI = "file:///project/a.py"
Script = Callable[[Snapshot, Trigger], Awaitable[Answer]]


def snapshot_at(
    marked: str, *, uri: str = URI, language_id: str = "python", path: str = "a.py"
) -> Snapshot:
    """Return the document with the cursor where ``marked`` has its ``‸``."""
    before, after = marked.split("‸")
    return Snapshot(
        uri=uri,
        version=1,
        language_id=language_id,
        path=path,
        text=before + after,
        cursor=len(before),
    )


def giving(*completions: Completion) -> Script:
    """Return a script that always answers with ``completions``."""

    async def script(snapshot: Snapshot, trigger: Trigger) -> Answer:
        return completions

    return script


def nothing(reason: Reason) -> Script:
    """Return a script that never has a suggestion."""

    async def script(snapshot: Snapshot, trigger: Trigger) -> Answer:
        return NoCompletion(reason=reason)

    return script


async def hang(snapshot: Snapshot, trigger: Trigger) -> Answer:
    """Be a script that never answers."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")


class ScriptedService:
    """A ``CompletionService`` whose answers come from ``script``.

    It supersedes as the real one does: a newer request of the same document ends the older.
    """

    def __init__(self, script: Script) -> None:
        self.asked: list[tuple[Snapshot, Trigger]] = []
        self.cancelled: list[Snapshot] = []
        """Requests whose work was stopped, whether cancelled or superseded."""
        self.open_uris: list[str] = []
        self.is_closed = False
        self._script = script
        self._status = Status(state=ServiceState.READY, model="scripted.gguf", backend="none")
        self._listeners: list[Callable[[Status], None]] = []
        self._newest: dict[str, asyncio.Future[None]] = {}

    async def complete(self, snapshot: Snapshot, trigger: Trigger) -> Answer:
        self.asked.append((snapshot, trigger))
        superseded = asyncio.get_running_loop().create_future()
        older = self._newest.get(snapshot.uri)
        if older is not None and not older.done():
            older.set_result(None)
        self._newest[snapshot.uri] = superseded
        work = asyncio.ensure_future(self._script(snapshot, trigger))
        try:
            await asyncio.wait({work, superseded}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                self.cancelled.append(snapshot)
        return work.result() if work.done() else NoCompletion(reason=Reason.SUPERSEDED)

    def opened(self, snapshot: Snapshot) -> None:
        self.open_uris.append(snapshot.uri)

    def closed(self, uri: str) -> None:
        self.open_uris.remove(uri)

    def configure(self, params: CompletionParams) -> None:
        pass

    @property
    def status(self) -> Status:
        return self._status

    @status.setter
    def status(self, status: Status) -> None:
        self._status = status
        for listener in self._listeners:
            listener(status)

    def on_status(self, listener: Callable[[Status], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        self.is_closed = True


class WordVocabulary:
    """One token for each byte (its id is the byte), one for each of ``words``, then ``controls``.

    Text becomes the longest words that fit, from the left.
    """

    def __init__(
        self, words: Sequence[bytes] = (), controls: Sequence[str] = (), bos: str | None = None
    ) -> None:
        self._pieces = [bytes([byte]) for byte in range(256)] + list(words)
        self._controls = {name: len(self._pieces) + i for i, name in enumerate(controls)}
        self._longest = max(map(len, self._pieces))
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}
        self.bos = None if bos is None else self._controls[bos]
        self.eog: frozenset[int] = frozenset()

    @property
    def n_tokens(self) -> int:
        return len(self._pieces) + len(self._controls)

    def tokenize(self, text: bytes) -> list[int]:
        tokens = []
        while text:
            size = next(n for n in range(self._longest, 0, -1) if text[:n] in self._ids)
            tokens.append(self._ids[text[:size]])
            text = text[len(self._pieces[tokens[-1]]) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""

    def control(self, text: str) -> int | None:
        return self._controls.get(text)

    def can_continue(self, tail: bytes) -> bool:
        return any(len(piece) > len(tail) and piece.startswith(tail) for piece in self._pieces)


@dataclass(eq=False)
class ScriptedTicket:
    """A request that a ``ScriptedEngine`` has been given."""

    request: Request
    engine: ScriptedEngine
    future: Future[Generation] = field(default_factory=Future)
    cancel_calls: list[bool] = field(default_factory=list)
    """``keep_step`` of each call."""

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # as the real one: only the engine resolves it

    def cancel(self, *, keep_step: bool = False) -> None:
        self.cancel_calls.append(keep_step)
        if not self.future.done():
            self.engine.finish(self, Finish.CANCELLED)


class ScriptedEngine:
    """An ``Engine`` that generates ``script(request)``: all text, healed bytes included.

    It answers inside ``submit``, unless ``held``: then requests wait in ``waiting`` until
    ``resume`` or a cancel. What a slot has read stays warm and can be copied to another, as in the
    real engine. What the script raises becomes the request's failure.
    """

    def __init__(
        self,
        script: Callable[[Request], bytes],
        vocabulary: WordVocabulary | None = None,
        n_ctx: int = 2048,
    ) -> None:
        self.vocabulary = vocabulary or WordVocabulary()
        self.n_ctx = n_ctx
        self.held = False
        self.holds_background = False
        """Only what nobody waits for is held."""
        self.tickets: list[ScriptedTicket] = []
        self.released: list[str] = []
        self.is_closed = False
        self.speed = Speed(prefill_tok_s=100.0, decode_ms=50.0)
        self.logprob = 0.0
        """What every token gets: 0 is sure."""
        self.info = ModelInfo(
            path=Path("scripted.gguf"),
            backend="scripted",
            description="a script",
            n_vocab=self.vocabulary.n_tokens,
            n_ctx_train=n_ctx,
            size_bytes=0,
            threads=1,
        )
        self._script = script
        self._state = EngineState(phase=Phase.READY, progress=1.0)
        self._listeners: list[Callable[[EngineState], None]] = []
        self._warm: dict[str, tuple[int, ...]] = {}

    @property
    def requests(self) -> list[Request]:
        """Everything that was asked, in order."""
        return [ticket.request for ticket in self.tickets]

    @property
    def waiting(self) -> list[ScriptedTicket]:
        """Tickets without a result."""
        return [ticket for ticket in self.tickets if not ticket.future.done()]

    @property
    def state(self) -> EngineState:
        return self._state

    @state.setter
    def state(self, state: EngineState) -> None:
        self._state = state
        for listener in self._listeners:
            listener(state)

    def on_state(self, listener: Callable[[EngineState], None]) -> None:
        self._listeners.append(listener)
        listener(self._state)

    def submit(self, request: Request) -> ScriptedTicket:
        if self._state.phase is not Phase.READY:
            raise self._state.error or EngineError(f"the engine is {self._state.phase.value}")
        if len(request.prompt) + request.max_tokens > self.n_ctx:
            raise PromptTooLongError(f"{len(request.prompt)} prompt tokens, n_ctx {self.n_ctx}")
        ticket = ScriptedTicket(request, self)
        self.tickets.append(ticket)
        background = request.priority is not Priority.FOREGROUND
        if not self.held and not (self.holds_background and background):
            self.finish(ticket)
        return ticket

    def release(self, slot: str) -> None:
        self.released.append(slot)
        self._warm.pop(slot, None)

    def resume(self) -> None:
        """Answer everything that waits, most urgent first, and hold no more."""
        self.held = self.holds_background = False
        for ticket in sorted(self.waiting, key=lambda ticket: ticket.request.priority):
            self.finish(ticket)

    def finish(self, ticket: ScriptedTicket, finish: Finish | None = None) -> None:
        """Answer a ticket now; with nothing if ``finish`` says how it ended."""
        request = ticket.request
        reused = self.reusable(request.slot, request.prompt)
        text = request.must_start_with
        tokens: list[int] = []
        if finish is None:
            try:
                text, tokens, finish = self._generate(request)
            except FimlspError as error:
                ticket.future.set_exception(error)
                return
            self._warm[request.slot] = (*request.prompt, *tokens)
            if math.exp(self.logprob * len(tokens)) < request.min_probability:
                finish = Finish.UNSURE
        ticket.future.set_result(
            Generation(
                text=text,
                tokens=tuple(tokens),
                logprobs=(self.logprob,) * len(tokens),
                finish=finish,
                prompt_tokens=len(request.prompt) - reused,
                reused_tokens=reused,
                queue_ms=0.0,
                prefill_ms=0.0,
                decode_ms=0.0,
            )
        )

    def reusable(self, slot: str, prompt: Sequence[int]) -> int:
        common = {
            name: sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(warm, prompt, strict=False)))
            for name, warm in self._warm.items()
        }
        copied = max((n for n in common.values() if n >= MIN_COPY), default=0)
        return min(max(common.get(slot, 0), copied), max(0, len(prompt) - 1))

    def close(self) -> None:
        self.is_closed = True

    def _generate(self, request: Request) -> tuple[bytes, list[int], Finish]:
        text = b""
        tokens: list[int] = []
        whole = self._script(request) if request.max_tokens else b""
        for token in self.vocabulary.tokenize(whole):
            if len(tokens) == request.max_tokens:
                return text, tokens, Finish.MAX_TOKENS
            tokens.append(token)
            text += self.vocabulary.token_bytes(token)
            if request.watch is not None and request.watch(text):
                return text, tokens, Finish.WATCH
        return text, tokens, Finish.STOP_TOKEN if request.max_tokens else Finish.MAX_TOKENS
