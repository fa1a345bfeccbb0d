"""Pieces of ctypes that both native libraries need: abort flag, log capture, batch, logits."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fimlsp.engine.native.seam import Logits, Tokens
from fimlsp.errors import EngineClosedError

_WARN, _ERROR = 3, 4  # ggml_log_level

GGML_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}
"""``enum ggml_type`` of the types that a cache may have; the fork kept these numbers."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)


class AbortFlag:
    """A flag that native code polls inside a decode, settable from any thread.

    The callback handed to the library is libc's ``strlen`` over a two-byte buffer: it returns 0 or
    1 without entering Python. A Python callback would take the interpreter lock at every graph
    node, up to the 5 ms switch interval each.
    """

    def __init__(self) -> None:
        self._bytes = (ctypes.c_ubyte * 2)(0, 0)
        self._libc = _libc()
        self.address = ctypes.addressof(self._bytes)

    def callback(self, prototype: Any) -> Any:
        """Return the native poll function cast to ``prototype``; keep the flag alive with it."""
        return ctypes.cast(self._libc.strlen, prototype)

    def set(self) -> None:
        """Ask the running decode to stop."""
        self._bytes[0] = 1

    def clear(self) -> None:
        """Let decodes run."""
        self._bytes[0] = 0

    def is_set(self) -> bool:
        """Tell whether the running decode should stop."""
        return bool(self._bytes[0])


class NativeLog:
    """Collects the library's warnings and errors while it loads or allocates.

    They are the only description of a failure. Outside of ``capture`` a native no-op is installed,
    so that no log line of a decode enters Python.
    """

    def __init__(self, log_set: Any, prototype: Any) -> None:
        self._lines: deque[str] = deque(maxlen=40)
        self._log_set = log_set

        def collect(level: int, text: bytes | None, _data: Any) -> None:
            if level in (_WARN, _ERROR) and text:
                self._lines.append(text.decode("utf-8", "replace").strip())

        self._collect = prototype(collect)
        self._noop = ctypes.cast(_libc().abs, prototype)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Collect anew inside the block; drop everything after it, natively."""
        self._lines.clear()
        self._log_set(self._collect, None)
        try:
            yield
        finally:
            self._log_set(self._noop, None)

    def text(self) -> str:
        """Return the collected lines, the last ones last."""
        return "; ".join(line for line in self._lines if line) or "it gave no reason"


class Handle:
    """A model's pointer, which any thread may use until one thread frees what it points to.

    ``with handle as pointer`` keeps the model alive inside the block. A class, not a generator: a
    vocabulary is read with 300,000 such blocks.
    """

    def __init__(self, pointer: int, free: Any) -> None:
        self._pointer = pointer
        self._free = free
        self._lock = threading.Lock()

    def __enter__(self) -> int:
        self._lock.acquire()
        if not self._pointer:
            self._lock.release()
            raise EngineClosedError("the model was closed; its vocabulary can't be used any more")
        return self._pointer

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """Free the model, once."""
        with self._lock:
            if self._pointer:
                self._free(self._pointer)
                self._pointer = 0


class Batch:
    """A native batch filled by numpy slices instead of one ctypes write per member."""

    def __init__(self, init: Any, free: Any, capacity: int) -> None:
        self.capacity = capacity
        self._free = free
        self.native = init(capacity, 0, 1)
        shape = (capacity,)
        self._token = np.ctypeslib.as_array(self.native.token, shape)
        self._pos = np.ctypeslib.as_array(self.native.pos, shape)
        self._n_seq_id = np.ctypeslib.as_array(self.native.n_seq_id, shape)
        self._logits = np.ctypeslib.as_array(self.native.logits, shape)
        self._n_seq_id[:] = 1  # all members come uninitialised
        self._seq: int | None = None

    def fill(self, tokens: Tokens, pos: int, seq: int, n_logits: int) -> Any:
        """Return the native batch holding ``tokens`` of one sequence, logits for the last rows."""
        n = len(tokens)
        assert 1 <= n <= self.capacity, (n, self.capacity)
        assert 0 <= n_logits <= n, (n_logits, n)
        self._token[:n] = tokens
        self._pos[:n] = np.arange(pos, pos + n, dtype=np.int32)
        if seq != self._seq:
            for i in range(self.capacity):
                self.native.seq_id[i][0] = seq
            self._seq = seq
        self._logits[:n] = 0
        self._logits[n - n_logits : n] = 1
        self.native.n_tokens = n
        return self.native

    def close(self) -> None:
        """Free the native arrays."""
        self._free(self.native)


def logits_rows(get_ith: Any, ctx: Any, n_tokens: int, n_logits: int, n_vocab: int) -> Logits:
    """Return the last ``n_logits`` rows ``[n_logits, n_vocab]`` of a decode without copying."""
    if n_logits == 0:
        return np.empty((0, n_vocab), dtype=np.float32)
    rows = [get_ith(ctx, i) for i in range(n_tokens - n_logits, n_tokens)]
    first = ctypes.addressof(rows[0].contents)
    stride = n_vocab * ctypes.sizeof(ctypes.c_float)
    in_order = all(
        ctypes.addressof(row.contents) == first + k * stride for k, row in enumerate(rows)
    )
    if in_order:
        return np.ctypeslib.as_array(rows[0], (n_logits, n_vocab))
    return np.stack([np.ctypeslib.as_array(row, (n_vocab,)) for row in rows])
