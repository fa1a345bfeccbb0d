"""A language client without an editor: a server process and a raw connection to it.

It drives our server and its peers in benchmarks and tests. Standard library only; it knows nothing
of fimlsp.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Final, Self

from fimlsp.bench.jsonrpc import OMITTED, ConnectionEndedError, JsonRpcPeer, RpcError

__all__ = ["OMITTED", "ConnectionEndedError", "JsonRpcPeer", "LspClient", "RpcError"]

_STDERR_LINES: Final = 400
"""How much of the server's stderr is kept, for error messages."""
_EXIT_TIMEOUT_S: Final = 10.0


class LspClient(JsonRpcPeer):
    """A server process and the connection to it.

    As a context manager it closes the server on the way out, whatever happened.

    Args:
        argv: The server's command.
        env: Its whole environment; this process's when None.
        cwd: Its working directory.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stderr: deque[bytes] = deque(maxlen=_STDERR_LINES)
        self._stderr_thread = Thread(
            target=self._stderr.extend, args=(self.process.stderr,), daemon=True
        )
        self._stderr_thread.start()
        super().__init__(self.process.stdout, self.process.stdin)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the server; a no-op after :meth:`close`."""
        self.close()

    @property
    def stderr(self) -> str:
        """The last lines that the server wrote to stderr."""
        return b"".join(self._stderr.copy()).decode("utf-8", "replace")

    def close(self, timeout_s: float = _EXIT_TIMEOUT_S) -> int:
        """Shut the server down as the protocol asks and return its exit code; idempotent.

        A server that does not end in ``timeout_s`` is killed, which the code then shows.
        """
        if self.process.poll() is None:
            try:
                self.request("shutdown", timeout_s=timeout_s)
                self.notify("exit")
            except (ConnectionEndedError, RpcError, TimeoutError):
                self.hang_up()
        return self.wait_exit(timeout_s)

    def hang_up(self) -> None:
        """Close the server's input without a goodbye, as a crashed editor does."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # unsent bytes to a process that is gone
            self.process.stdin.close()

    def wait_exit(self, timeout_s: float = _EXIT_TIMEOUT_S) -> int:
        """Wait for the process to end by itself, kill it if it does not, return its code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._release()

    def _release(self) -> None:
        self._thread.join(_EXIT_TIMEOUT_S)
        self._stderr_thread.join(_EXIT_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):  # unsent bytes to a process that is gone
                stream.close()

    def _why(self) -> str:
        code = self.process.poll()
        state = "it still runs" if code is None else f"it exited with {code}"
        return f"\n{state}; its stderr ends:\n{self.stderr}" if self._stderr else f" ({state})"
