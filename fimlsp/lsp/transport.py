"""How bytes come and go: stdio with descriptors of its own, or one TCP connection.

Reading and writing happen on daemon threads (stdio) or in asyncio (TCP); neither can hold up the
event loop, so the server answers signals also when its client has stopped reading. This module must
not know any LSP method.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
_MAX_BODY: Final = 1 << 28
"""Bytes of one message at most (256 MiB); a larger length is a broken stream, not a document."""
_FLUSH_S: Final = 0.3
"""How long the end waits for the last answers to go out, and for the service to close."""


class Receiver(Protocol):
    """What a transport needs of a server; everything is called on the event loop's thread."""

    stopped: asyncio.Event
    """Set when the server wants to end."""

    def started(self, writer: Writer) -> None:
        """The loop runs and ``writer`` takes messages."""

    def receive(self, body: bytes) -> None:
        """Take in one message."""

    async def finish(self) -> None:
        """Drop all work."""

    @property
    def exit_code(self) -> int:
        """0 if the client has said shutdown, else 1."""


class Writer(Protocol):
    """Takes framed messages without ever blocking."""

    def write(self, data: bytes) -> None:
        """Queue ``data``."""

    def close(self) -> None:
        """Take nothing more; what is queued still goes out."""

    async def wait_closed(self) -> None:
        """Wait a moment for what is queued to go out."""


def run_stdio(server: Receiver) -> int:
    """Serve one client on stdin and stdout; return the exit code.

    From here on fd 1 is stderr and fd 0 is empty for everybody else in the process, native
    libraries and children included: only the protocol holds the real ones.
    """
    in_fd, out_fd = _claim_stdio()

    async def main() -> int:
        reader = asyncio.StreamReader(limit=_CHUNK)
        writer = _ThreadWriter(out_fd, server.stopped.set)
        _start_reading(in_fd, reader)
        return await _serve(server, reader, writer)

    return _run(main, server)


def run_tcp(
    server: Receiver,
    host: str = "127.0.0.1",
    port: int = 0,
    on_listening: Callable[[str, int], None] | None = None,
) -> int:
    """Serve the first client that connects, then return the exit code.

    Args:
        server: The server.
        host: Address to listen on. There is no authentication: anything but loopback lets the
            network read the answers.
        port: Port to listen on; 0 takes a free one.
        on_listening: Told the address once connections are accepted.

    Raises:
        OSError: the address can't be listened on.
    """

    async def main() -> int:
        reader, stream = await _first_connection(server, host, port, on_listening)
        if reader is None or stream is None:
            return server.exit_code
        return await _serve(server, reader, _StreamWriter(stream))

    return _run(main, server)


def _run(main: Callable[[], Coroutine[Any, Any, int]], server: Receiver) -> int:
    try:
        return asyncio.run(main())
    except KeyboardInterrupt:  # where the loop can't handle signals itself
        return server.exit_code


async def _serve(server: Receiver, reader: asyncio.StreamReader, writer: Writer) -> int:
    _stop_on_signals(server.stopped.set)
    server.started(writer)
    reading = asyncio.create_task(_read_messages(reader, server))
    stopping = asyncio.create_task(server.stopped.wait())
    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (reading, stopping):
        task.cancel()
    finishing = asyncio.create_task(server.finish())
    await asyncio.wait({finishing}, timeout=_FLUSH_S)
    writer.close()
    await writer.wait_closed()
    return server.exit_code


async def _read_messages(reader: asyncio.StreamReader, server: Receiver) -> None:
    """Hand over messages until the stream ends, breaks, or the server stops."""
    try:
        while (body := await _read_body(reader)) is not None and not server.stopped.is_set():
            server.receive(body)
    except (OSError, ValueError, asyncio.IncompleteReadError) as exc:
        log.warning("the client's stream broke: %s", exc)


async def _read_body(reader: asyncio.StreamReader) -> bytes | None:
    """Return the body of the next message, None at the end of the stream.

    Lines that are no header are skipped, so that a stray newline does not end the session.
    """
    length = None
    while line := await reader.readline():
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            if not value.strip().isdigit():  # where the next message begins can't be known
                raise ValueError(f"found Content-Length {value.strip()[:20]!r}, expected digits")
            length = int(value)
        elif length is not None and not line.strip():
            if length > _MAX_BODY:
                raise ValueError(f"found a message of {length} bytes, expected {_MAX_BODY} at most")
            return await reader.readexactly(length)
    return None


def _stop_on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        # Windows knows neither all of them nor handlers in the loop; nor does a thread.
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(getattr(signal, name), stop)


def _claim_stdio() -> tuple[int, int]:
    sys.stdout.flush()
    in_fd, out_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a stderr
        os.dup2(nothing, 1)
    os.close(nothing)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what is printed is seen when it happens
    return in_fd, out_fd


def _start_reading(fd: int, reader: asyncio.StreamReader) -> None:
    """Feed ``reader`` from ``fd`` by a thread, since asyncio can't wait for every kind of stdin.

    Plain ``os.read`` and no buffered file object: the thread is still inside the call when the
    process ends, and must hold no lock then.
    """
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            while chunk := _read_chunk(fd):
                loop.call_soon_threadsafe(reader.feed_data, chunk)
            loop.call_soon_threadsafe(reader.feed_eof)
        except RuntimeError:
            return  # the loop is closed: the server has ended

    threading.Thread(target=read, name="lsp-read", daemon=True).start()


def _read_chunk(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:
        return b""  # a broken stream ends like a closed one


class _ThreadWriter:
    """Writes to a descriptor from a thread of its own."""

    def __init__(self, fd: int, on_lost: Callable[[], None]) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done = asyncio.Event()
        threading.Thread(target=self._write_all, name="lsp-write", daemon=True).start()

    def write(self, data: bytes) -> None:
        self._queue.put(data)

    def close(self) -> None:
        self._queue.put(None)

    async def wait_closed(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), _FLUSH_S)

    def _write_all(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            try:
                while (data := self._queue.get()) is not None:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self._loop.call_soon_threadsafe(self._on_lost)
            self._loop.call_soon_threadsafe(self._done.set)


class _StreamWriter:
    """Writes to a TCP connection."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._stream.wait_closed(), _FLUSH_S)


async def _first_connection(
    server: Receiver,
    host: str,
    port: int,
    on_listening: Callable[[str, int], None] | None,
) -> tuple[asyncio.StreamReader | None, asyncio.StreamWriter | None]:
    """Wait for a client, then stop listening; nothing if the server is stopped first."""
    _stop_on_signals(server.stopped.set)
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    connected = asyncio.get_running_loop().create_future()

    def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connected.done():
            writer.close()  # a second client in the same moment
        else:
            connected.set_result((reader, writer))

    listener = await asyncio.start_server(on_connect, host, port, limit=_CHUNK)
    address = listener.sockets[0].getsockname()
    log.info("listening on %s port %d", address[0], address[1])
    if on_listening is not None:
        on_listening(address[0], address[1])
    stopping = asyncio.create_task(server.stopped.wait())
    either: set[asyncio.Future[Any]] = {connected, stopping}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    listener.close()
    return connected.result() if connected.done() else (None, None)
