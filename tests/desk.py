"""A real completion service over a scripted engine, with documents written as ``before‸after``."""

from __future__ import annotations

import asyncio

from fakes import Answer, ScriptedEngine, ScriptedTicket, WordVocabulary, snapshot_at

from fimlsp.completion.api import CompletionParams, ServiceState, Status, Trigger
from fimlsp.completion.service import Completions
from fimlsp.context.params import WindowParams
from fimlsp.document import Snapshot
from fimlsp.engine.api import Priority, Request

CONTROLS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
WORDS = (b"return", b"    ", b"self", "é".encode())


def scripted_engine(desk: Desk, n_ctx: int = 2048, fim: bool = True) -> ScriptedEngine:
    """Return an engine that answers as ``desk`` says, one token a byte but for ``WORDS``."""
    vocabulary = WordVocabulary(WORDS, CONTROLS if fim else ())
    return ScriptedEngine(desk.script, vocabulary, n_ctx)


class Desk:
    """Asks the service as an editor does. Make it with :func:`ready_desk`, in a running loop."""

    def __init__(self, params: CompletionParams, window: WindowParams, n_ctx: int) -> None:
        self.texts: list[str | bytes | Exception] = ["alpha"]
        """What the model writes right of the cursor, one for each answer; the last one stays."""
        self.future: str | None = None
        """The document as it will be once, which the model then writes instead of ``texts``."""
        self.service = Completions(params, window)
        self.statuses: list[Status] = []
        self.service.on_status(self.statuses.append)
        self.engine = scripted_engine(self, n_ctx)

    def script(self, request: Request) -> bytes:
        if self.future is not None:
            return self.future.encode()[len(self._read(request)) :]
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, Exception):
            raise text
        return request.must_start_with + (text.encode() if isinstance(text, str) else text)

    def _read(self, request: Request) -> bytes:
        """Return the text left of the cursor as the prompt has it, imposed bytes excluded."""
        vocabulary = self.engine.vocabulary
        controls = {vocabulary.control(name) for name in CONTROLS}
        pieces = [b"\0" if t in controls else vocabulary.token_bytes(t) for t in request.prompt]
        _, _, prefix, _, typed = b"".join(pieces).split(b"\0")
        return prefix + typed

    async def ask(self, at: str | Snapshot) -> Answer:
        """Return the answer at the ``‸``."""
        snapshot = snapshot_at(at) if isinstance(at, str) else at
        return await self.service.complete(snapshot, Trigger.AUTOMATIC)

    async def start(self, at: str | Snapshot) -> asyncio.Task[Answer]:
        """Ask, and come back when the service waits for the engine or has answered."""
        task = asyncio.ensure_future(self.ask(at))
        await settle()
        return task

    def write(self, ticket: ScriptedTicket, text: str) -> None:
        """Let a held request have ``text`` so far, right of the cursor, and go on."""
        assert ticket.request.watch is not None
        assert not ticket.request.watch(ticket.request.must_start_with + text.encode())

    def state(self) -> ServiceState:
        """Return the one word of the status."""
        return self.service.status.state

    def foreground(self) -> list[ScriptedTicket]:
        """Return the tickets of requests that somebody waited for."""
        return [t for t in self.engine.tickets if t.request.priority is Priority.FOREGROUND]

    def background(self) -> list[ScriptedTicket]:
        """Return the tickets of what was read ahead."""
        return [t for t in self.engine.tickets if t.request.priority is Priority.WARMUP]


async def ready_desk(
    params: CompletionParams | None = None,
    window: WindowParams | None = None,
    n_ctx: int = 2048,
) -> Desk:
    """Return a desk whose engine is loaded; it reads a whole window in no time by default."""
    unhurried = WindowParams(cold_ms=60_000)
    desk = Desk(params or CompletionParams(), window or unhurried, n_ctx)
    desk.service.use_engine(desk.engine)
    await settle()
    return desk


async def answer_of(task: asyncio.Task[Answer]) -> Answer:
    """Return what a request was answered; it must not wait for anything any more."""
    await settle()
    assert task.done(), "the request still waits"
    return task.result()


async def settle() -> None:
    """Let everything run that can, without waiting for time to pass."""
    for _ in range(12):
        await asyncio.sleep(0)


def text_of(answer: Answer) -> str:
    """Return the one suggestion of ``answer``."""
    assert isinstance(answer, tuple), answer
    (completion,) = answer
    return completion.text


def reason_of(answer: Answer) -> str:
    """Return why ``answer`` is none."""
    assert not isinstance(answer, tuple), answer
    return answer.reason.value
