"""Makes a Q4_0 copy of a draft model, in a process of its own that steps aside for every other.

A draft needs speed, not quality: whatever it gets wrong the target puts right. The library can't be
stopped while it writes a copy, and a person must not wait for it, so it runs beside the engine::

    python -m fimlsp.engine.drafters.requantise BACKEND SOURCE COPY

The copy appears under its name when it is whole and computes what the source does, or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from filelock import FileLock, Timeout

from fimlsp.engine.native.choose import backend_module
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import LoadParams, SlotParams
from fimlsp.errors import FimlspError, ModelError

_SAMPLE = (
    b"def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    "
)
_SAMPLE_TOKENS = 16
_LIKENESS = 0.8
"""Correlation of the logits of copy and source; a sound copy has more than 0.95."""
_SPARE_BYTES = 1 << 30
"""Disk that the copy must leave free."""


def copy_path(folder: Path, source: Path, backend: str, version: str) -> Path:
    """Return where the copy of ``source`` for one version of a library belongs."""
    found = source.stat()
    identity = f"{source.absolute()} {found.st_size} {found.st_mtime_ns} {version}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return folder / f"{_stem(source, backend)}{digest}.gguf"


class Requantisation:
    """A running process that makes a copy.

    Args:
        backend: Name of the native library.
        source: The model.
        copy: Where the copy belongs.
        on_end: Called once when the process has ended, on a thread of its own.
    """

    def __init__(self, backend: str, source: Path, copy: Path, on_end: Callable[[], None]) -> None:
        self.error = ""
        """Why there is no copy, once ``ended``."""
        self.ended = False
        self._on_end = on_end
        command = [sys.executable, "-m", __name__, backend, str(source), str(copy)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        threading.Thread(target=self._watch, name="fimlsp-requantise", daemon=True).start()

    def close(self) -> None:
        """End it, whole or not."""
        self._process.kill()

    def _watch(self) -> None:
        _, told = self._process.communicate()
        if self._process.returncode != 0:
            lines = told.decode("utf-8", "replace").strip().splitlines()
            self.error = lines[-1] if lines else f"exit code {self._process.returncode}"
        self.ended = True
        self._on_end()


def make_copy(backend: str, source: Path, copy: Path) -> None:
    """Write, prove and name the copy; the copies of earlier versions of the source go.

    Raises:
        ModelError: there is no room, another process is at it, or the copy is not sound.
    """
    module = backend_module(backend)
    copy.parent.mkdir(parents=True, exist_ok=True)
    needed, free = source.stat().st_size + _SPARE_BYTES, shutil.disk_usage(copy.parent).free
    if free < needed:
        raise ModelError(f"{copy.parent}: {free >> 20} MB are free, {needed >> 20} MB are needed")
    part = copy.with_suffix(".part")
    try:
        with FileLock(copy.with_suffix(".lock"), timeout=0):
            if copy.exists():
                return
            try:
                module.quantize_q4_0(source, part, 1)
                _prove(module, source, part)
                os.replace(part, copy)
            finally:
                part.unlink(missing_ok=True)
    except Timeout:
        raise ModelError(f"another process is making {copy.name}") from None
    for other in copy.parent.glob(f"{_stem(source, backend)}*.gguf"):
        if other != copy:
            with contextlib.suppress(OSError):  # in use
                other.unlink()


def _stem(source: Path, backend: str) -> str:
    return f"{source.stem}-{backend}-q4_0-"


def _prove(module: Any, source: Path, copy: Path) -> None:
    """Compare what both files compute."""
    expected, found = _logits(module, source), _logits(module, copy)
    if expected.shape != found.shape or not np.isfinite(found).all():
        raise ModelError(f"the Q4_0 copy of {source.name} is broken")
    likeness = float(np.corrcoef(expected.ravel(), found.ravel())[0, 1])
    if not likeness >= _LIKENESS:
        raise ModelError(
            f"the Q4_0 copy of {source.name} computes something else: its logits correlate by "
            f"{likeness:.2f} with the source's, expected {_LIKENESS} or more"
        )


def _logits(module: Any, path: Path) -> npt.NDArray[np.float32]:
    model = module.load(LoadParams(path=path, n_gpu_layers=0), lambda _fraction: True)
    try:
        tokens = np.array(model.tokenize(_SAMPLE, special=False)[:_SAMPLE_TOKENS], dtype=np.int32)
        n = len(tokens)
        sizes = SlotParams(n_slots=1, n_ctx=256, n_ubatch=n, threads=1, n_outputs=n)
        slots = model.open_slots(sizes, AbortFlag())
        try:
            return np.array(slots.decode(0, tokens, 0, n))
        finally:
            slots.close()
    finally:
        model.close()


def _step_aside() -> None:
    """Take the processor only where nobody else wants it."""
    process = psutil.Process()
    if sys.platform == "win32":
        process.nice(psutil.IDLE_PRIORITY_CLASS)
    else:
        process.nice(19)


def main(arguments: Sequence[str]) -> int:
    """Make a copy as the command line says; the reason of a failure is the last line on stderr."""
    backend, source, copy = arguments
    _step_aside()
    try:
        make_copy(backend, Path(source), Path(copy))
    except (FimlspError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
