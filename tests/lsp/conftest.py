"""A client in the same process and loop as the server: quick, and nothing is hidden."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes import Script, ScriptedService, giving

from fimlsp.bench.jsonrpc import OMITTED, RpcError, frame, read_message
from fimlsp.document import Completion
from fimlsp.lsp.server import build_server
from fimlsp.lsp.settings import SettingsSource

URI = "file:///project/a.py"
Json = dict[str, Any]


class Client:
    """Speaks to its own server. ``script``, ``complaints`` and ``answers`` say what comes back."""

    def __init__(self) -> None:
        self.script: Script = giving(Completion(text="REPLY"))
        self.service = ScriptedService(lambda snapshot, trigger: self.script(snapshot, trigger))
        self.settings: list[tuple[SettingsSource, Any]] = []
        self.complaints: list[str] = []
        self.answers: dict[str, Any] = {}
        """Result of each of the server's requests by method; one that is missing is not answered,
        an ``RpcError`` is answered with that."""
        self.messages: list[Json] = []
        self.server = build_server(self.service, self._on_settings)
        self._last_id = 0
        self._expected: dict[Any, asyncio.Future[Json]] = {}
        self.server.started(self)

    def write(self, data: bytes) -> None:
        message = read_message(io.BytesIO(data))
        assert message is not None
        self.messages.append(message)
        if "method" in message and "id" in message:
            self._answer(message)
        elif "method" not in message and message["id"] in self._expected:
            self._expected.pop(message["id"]).set_result(message)

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass

    async def initialize(self, capabilities: Json | None = None, **params: Any) -> Json:
        params = {"capabilities": capabilities or {}, **params}
        result: Json = await self.request("initialize", params)
        self.notify("initialized", {})
        await self.settle()
        return result

    def open(self, text: str, language: str = "python", version: int = 1, uri: str = URI) -> None:
        document = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def change(self, text: str, version: int, uri: str = URI) -> None:
        document = {"uri": uri, "version": version}
        changes = [{"text": text}]
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})

    async def inline(self, line: int, character: int, uri: str = URI, **more: Any) -> Any:
        position = {"line": line, "character": character}
        params = {"textDocument": {"uri": uri}, "position": position} | more
        return await self.request("textDocument/inlineCompletion", params)

    async def request(self, method: str, params: Any = OMITTED) -> Any:
        """Send a request and return its result, or raise ``RpcError``."""
        answer = await self.send(method, params)
        if "error" in answer:
            raise RpcError(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    def send(
        self, method: str, params: Any = OMITTED, message_id: Any = None
    ) -> asyncio.Future[Json]:
        """Send a request; its whole answer comes by the future."""
        if message_id is None:
            self._last_id += 1
            message_id = self._last_id
        future = asyncio.get_running_loop().create_future()
        self._expected[message_id] = future
        self.receive({"id": message_id, "method": method}, params)
        return asyncio.ensure_future(asyncio.wait_for(future, 5))

    def notify(self, method: str, params: Any = OMITTED) -> None:
        self.receive({"method": method}, params)

    def receive(self, message: Json, params: Any = OMITTED) -> None:
        if params is not OMITTED:
            message["params"] = params
        self.server.receive(frame(message).split(b"\r\n\r\n", 1)[1])

    def got(self, method: str) -> list[Any]:
        """Return the params of every message of that method, in order."""
        return [m["params"] for m in self.messages if m.get("method") == method]

    def last(self, method: str) -> Any:
        return self.got(method)[-1]

    async def settle(self) -> None:
        """Let every task and callback run that can run now."""
        for _ in range(10):
            await asyncio.sleep(0)

    def _answer(self, message: Json) -> None:
        if message["method"] not in self.answers:
            return
        answer = self.answers[message["method"]]
        reply: Json = {"id": message["id"], "result": answer}
        if isinstance(answer, RpcError):
            error = {"code": answer.code, "message": answer.message}
            reply = {"id": message["id"], "error": error}
        asyncio.get_running_loop().call_soon(self.receive, reply)

    def _on_settings(self, source: SettingsSource, options: Any) -> list[str]:
        self.settings.append((source, options))
        return self.complaints


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Return a client before its handshake."""
    client = Client()
    yield client
    await client.server.finish()


@pytest.fixture
async def ready(client: Client) -> Client:
    """Return a client after its handshake."""
    await client.initialize()
    return client
