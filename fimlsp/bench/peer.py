"""llama-server, started and asked the way the llama.vim plugin uses it.

Everything stays on the loopback interface, and the server ends with the benchmark.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from fimlsp.bench import llama_vim
from fimlsp.bench.scoring import Answer, Edit
from fimlsp.bench.traces import Trace
from fimlsp.errors import PeerError

_HOST: Final = "127.0.0.1"
_EXIT_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05
_LOG_TAIL: Final = 2000


def llama_server_flags(model: Path, threads: int, port: int) -> list[str]:
    """Return the flags of the plugin's recommended setting, for this model and these threads.

    ``-c``, ``-b``, ``-ub`` and ``--cache-reuse`` are those of ``--fim-qwen-1.5b-default``, which
    names a file to download and so can't be used itself. Everything else keeps its default.
    """
    return [
        *("-m", str(model), "-t", str(threads), "-tb", str(threads)),
        *("-c", "0", "-b", "1024", "-ub", "1024", "--cache-reuse", "256"),
        *("--host", _HOST, "--port", str(port), "--no-webui"),
    ]


class LlamaServer:
    """A llama-server process on a free loopback port, ready when made. A context manager.

    Args:
        command: The program, and arguments that go before the flags.
        model: The GGUF file.
        threads: For prompt and generation alike.
        timeout_s: Time to load the model.

    Raises:
        PeerError: it did not start, ended, or was not healthy in time.
    """

    def __init__(
        self, command: Sequence[str], model: Path, threads: int, timeout_s: float = 300
    ) -> None:
        self.port = _free_port()
        self.argv = [*command, *llama_server_flags(model, threads, self.port)]
        # Settings from the environment would make it another peer than the flags say.
        env = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        try:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=env,
            )
        except OSError as exc:
            self._log.close()
            raise PeerError(
                f"can't start {command[0]!r}: {exc}; give the path of a llama-server program"
            ) from exc
        atexit.register(self.close)
        try:
            self._wait_healthy(time.monotonic() + timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process, by force if it does not go by itself; idempotent."""
        atexit.unregister(self.close)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def _wait_healthy(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise PeerError(f"{self.argv[0]} ended with {code}; its log ends:\n{self._tail()}")
            if _health(self.port) == http.HTTPStatus.OK:
                return
            time.sleep(_POLL_S)
        raise PeerError(f"{self.argv[0]} was not healthy in time; its log ends:\n{self._tail()}")

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL))
        return self._log.read().decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Infill:
    """What ``/infill`` answered."""

    content: str
    prompt_tokens: int
    """Prompt tokens evaluated for this request."""


class InfillClient:
    """Posts to ``/infill`` over one connection that is kept alive. One thread at a time.

    The plugin starts a ``curl`` for each request; a kept connection is to the peer's advantage.
    """

    def __init__(self, port: int, timeout_s: float = 120) -> None:
        self._connection = http.client.HTTPConnection(_HOST, port, timeout=timeout_s)

    def connect(self) -> None:
        """Open the connection anew, so that no request pays for one that timed out."""
        self.close()
        try:
            self._connection.connect()
        except OSError as exc:
            raise PeerError(f"can't reach the peer on port {self._connection.port}: {exc}") from exc

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._connection.close()

    def infill(self, place: llama_vim.Context) -> Infill:
        """Ask for the text at ``place``.

        Raises:
            PeerError: no answer, an HTTP error, or an answer of another shape.
        """
        body = json.dumps(llama_vim.request_body(place))
        try:
            self._connection.request("POST", "/infill", body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            raise PeerError(f"the peer gave no answer to /infill: {exc!r}") from exc
        if response.status != http.HTTPStatus.OK:
            raise PeerError(f"the peer answered /infill with {response.status}: {answer[:500]!r}")
        return _infill(answer)


class PatientPeer:
    """The peer's side when each key waits for the answer to the one before.

    Every key is measured as a request, also where the plugin's cache knew the text already:
    ``Answer.without_model`` says so.
    """

    def __init__(self, client: InfillClient) -> None:
        self._client = client
        self._cache = llama_vim.HintCache()

    def start(self, trace: Trace) -> None:
        """Begin a trace; the plugin has nothing to send when a file is opened."""
        self._client.connect()

    def key(self, trace: Trace, stroke: int, deadline: float | None) -> Answer:
        """Ask at one state and wait for the answer."""
        place = llama_vim.context(trace.text(stroke), trace.cursor(stroke))
        known = self._cache.find(place)
        begin = time.monotonic()
        infill = self._client.infill(place)
        ms = (time.monotonic() - begin) * 1000
        self._cache.insert(place, infill.content)
        return Answer(
            ms=ms,
            edit=insertion(trace, stroke, infill.content),
            prompt_tokens=infill.prompt_tokens,
            without_model=bool(known),
        )

    def wait(self, until: float) -> None:
        """Let time pass."""
        time.sleep(max(0.0, until - time.monotonic()))

    def finish(self) -> None:
        """End the trace."""
        self._client.close()


def insertion(trace: Trace, stroke: int, content: str) -> Edit | None:
    """Return what the plugin shows of an answer as an edit; None if it shows nothing."""
    text, cursor = trace.text(stroke), trace.cursor(stroke)
    shown = llama_vim.rendered(content, llama_vim.line_at(text, cursor))
    return Edit(start=cursor, end=cursor, text=shown) if shown else None


def _infill(answer: bytes) -> Infill:
    try:
        data: Any = json.loads(answer)
        content, prompt_tokens = data["content"], data["timings/prompt_n"]
    except (ValueError, KeyError, TypeError) as exc:
        raise PeerError(
            f"expected content and timings/prompt_n from /infill, found {answer[:500]!r}"
        ) from exc
    return Infill(content=str(content), prompt_tokens=int(prompt_tokens))


def _health(port: int) -> int | None:
    connection = http.client.HTTPConnection(_HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
