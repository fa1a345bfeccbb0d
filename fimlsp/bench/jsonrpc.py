"""Raw JSON-RPC to a language server over two byte streams, standard library only.

It is raw on purpose: it can send what no typed client would, and it notices an answer that comes
twice or that nobody asked for. It knows nothing of fimlsp.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

MessageId = int | str
Json = dict[str, Any]
Predicate = Callable[[Any], bool]

_HEADER_LIMIT: Final = 64
"""Header lines of one message at most; more means that the stream is not the protocol."""


class RpcError(Exception):
    """The server answered a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


class ConnectionEndedError(ConnectionError):
    """The server closed its stream, or wrote something that is not the protocol."""


class _Omitted:
    """Type of ``OMITTED``."""


OMITTED: Final = _Omitted()
"""As ``params``: the message has no such field at all (``None`` sends ``null``)."""


class JsonRpcPeer:
    """One end of an LSP connection over two byte streams, with a reader thread of its own.

    Public methods may be called from any thread. ``notifications`` holds every notification as
    ``{"method": ..., "params": ...}`` in order of arrival; ``requests`` every request the server
    made; ``unexpected`` every answer to an id that was not waiting: a second answer, for example.
    """

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self.notifications: list[Json] = []
        self.requests: list[Json] = []
        self.unexpected: list[Json] = []
        self.configuration: Any = None
        """What each item of a ``workspace/configuration`` request is answered with."""
        self.answers: dict[str, Callable[[Any], Any]] = {
            "workspace/configuration": lambda p: [self.configuration for _ in p["items"]],
            "workspace/applyEdit": lambda p: {"applied": True},
        }
        """How the server's requests are answered, by method; any other method gets ``null``."""
        self._reader, self._writer = reader, writer
        self._changed = threading.Condition()
        self._write_lock = threading.Lock()
        self._last_id = 0
        self._waiting: set[MessageId] = set()
        self._answered: dict[MessageId, Json] = {}
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._read_all, name="lsp-client", daemon=True)
        self._thread.start()

    def initialize(
        self,
        options: Any = None,
        root_uri: str | None = None,
        encodings: Sequence[str] = ("utf-16",),
        capabilities: Mapping[str, Any] | None = None,
    ) -> Json:
        """Do the handshake, ``initialized`` included, and return the server's answer.

        ``capabilities`` is merged into those of a capable editor, key by key.
        """
        params = {
            "processId": os.getpid(),
            "rootUri": root_uri,
            "capabilities": _merged(_capabilities(encodings), capabilities or {}),
            "initializationOptions": options,
        }
        result: Json = self.request("initialize", params)
        self.notify("initialized", {})
        return result

    def request(self, method: str, params: Any = OMITTED, timeout_s: float = 60) -> Any:
        """Send a request and wait for its result.

        Raises:
            RpcError: the server answered with an error.
            TimeoutError: no answer came in time.
            ConnectionEndedError: the server went away first.
        """
        return self.result(self.send(method, params), timeout_s)

    def send(
        self, method: str, params: Any = OMITTED, message_id: MessageId | None = None
    ) -> MessageId:
        """Send a request without waiting; return its id, a fresh number unless given."""
        with self._changed:
            if message_id is None:
                self._last_id += 1
                message_id = self._last_id
            self._waiting.add(message_id)
        self._send_message({"id": message_id, "method": method}, params)
        return message_id

    def result(self, message_id: MessageId, timeout_s: float = 60) -> Any:
        """Wait for the answer to a sent request; raises like :meth:`request`."""
        self._wait(lambda: message_id in self._answered, timeout_s, f"answer to {message_id!r}")
        message = self._answered.pop(message_id)
        if "error" in message:
            raise RpcError(message["error"]["code"], message["error"]["message"])
        return message["result"]

    def answered(self, message_id: MessageId) -> bool:
        """Tell whether the answer to ``message_id`` is there and not yet taken."""
        return message_id in self._answered

    def notify(self, method: str, params: Any = OMITTED) -> None:
        """Send a notification."""
        self._send_message({"method": method}, params)

    def cancel(self, message_id: MessageId) -> None:
        """Tell the server that the answer to ``message_id`` is no longer wanted."""
        self.notify("$/cancelRequest", {"id": message_id})

    def send_raw(self, data: bytes) -> None:
        """Write bytes as they are, well-formed or not.

        Raises:
            ConnectionEndedError: the server no longer reads.
        """
        with self._write_lock:
            try:
                self._writer.write(data)
                self._writer.flush()
            except (OSError, ValueError) as exc:
                raise ConnectionEndedError(
                    f"the server no longer reads: {exc}{self._why()}"
                ) from exc

    def wait_notification(
        self,
        method: str,
        predicate: Predicate | None = None,
        timeout_s: float = 60,
        since: int = 0,
    ) -> Any:
        """Return the params of the first notification that fits, also one already received.

        Args:
            method: The notification's method.
            predicate: Judges the params; every params fit when it is None.
            timeout_s: Seconds to wait.
            since: Index into ``notifications``; earlier ones don't count.

        Raises:
            TimeoutError: none came in time.
            ConnectionEndedError: the server went away first.
        """
        found: list[Any] = []
        seen = since

        def arrived() -> bool:
            nonlocal seen
            for message in self.notifications[seen:]:
                seen += 1
                params = message["params"]
                if message["method"] == method and (predicate is None or predicate(params)):
                    found.append(params)
                    return True
            return False

        self._wait(arrived, timeout_s, f"notification {method}")
        return found[0]

    def wait_end(self, timeout_s: float = 60) -> str:
        """Wait until the server closes the connection; return how it ended."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._ended is None:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"the connection was still open after {timeout_s:g} s")
            return self._ended

    def _wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not ready():
                if self._ended is not None:
                    raise ConnectionEndedError(f"no {what}: {self._ended}{self._why()}")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"no {what} in {timeout_s:g} s{self._why()}")

    def _why(self) -> str:
        """Return what else is known about a failure, to append to its message."""
        return ""

    def _send_message(self, message: Json, params: Any) -> None:
        if params is not OMITTED:
            message["params"] = params
        self.send_raw(frame(message))

    def _read_all(self) -> None:
        end = "the server closed its output"
        try:
            while (message := read_message(self._reader)) is not None:
                self._receive(message)
        except (OSError, ValueError) as exc:
            end = f"the stream broke: {exc}"
        with self._changed:
            self._ended = end
            self._changed.notify_all()

    def _receive(self, message: Json) -> None:
        if "method" in message and "id" in message:
            self._answer(message)
        with self._changed:
            if "method" not in message:
                self._receive_answer(message)
            else:
                kind = self.requests if "id" in message else self.notifications
                kind.append({"method": message["method"], "params": message.get("params")})
            self._changed.notify_all()

    def _receive_answer(self, message: Json) -> None:
        if message["id"] in self._waiting:
            self._waiting.remove(message["id"])
            self._answered[message["id"]] = message
        else:
            self.unexpected.append(message)

    def _answer(self, message: Json) -> None:
        answer = self.answers.get(message["method"])
        result = None if answer is None else answer(message.get("params"))
        try:
            self.send_raw(frame({"id": message["id"], "result": result}))
        except ConnectionEndedError:
            return  # the reader sees the end of the stream next and says so


def frame(message: Json) -> bytes:
    """Return a message as the bytes that go over the wire; ``jsonrpc`` is added if absent."""
    body = json.dumps({"jsonrpc": "2.0"} | message, ensure_ascii=False).encode("utf-8")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_message(reader: IO[bytes]) -> Json | None:
    """Read one message; None at a clean end of the stream.

    Raises:
        ValueError: the bytes are not the protocol; the message quotes them.
    """
    length: int | None = None
    for _ in range(_HEADER_LIMIT):
        line = reader.readline()
        if not line and length is None:
            return None
        if line == b"\r\n" and length is not None:
            break
        name, colon, value = line.partition(b":")
        if not colon or not line.endswith(b"\r\n"):
            raise ValueError(f"expected a header line, found {line[:200]!r}")
        if name.lower() == b"content-length":
            length = int(value)
    else:
        raise ValueError(f"no end of the header in {_HEADER_LIMIT} lines")
    body = reader.read(length)
    if len(body) != length:
        raise ValueError(f"the stream ended after {len(body)} of {length} bytes of a message")
    message: Json = json.loads(body)
    return message


def _capabilities(encodings: Sequence[str]) -> Json:
    return {
        "general": {"positionEncodings": list(encodings)},
        "textDocument": {"inlineCompletion": {"dynamicRegistration": False}},
        "window": {"workDoneProgress": True},
        "workspace": {"configuration": True, "applyEdit": True},
    }


def _merged(base: Json, changes: Mapping[str, Any]) -> Json:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result
