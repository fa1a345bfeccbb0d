"""``fimlsp bench backends``: prefill, decode and the verify curve of each installed library.

Each library is measured in a process of its own, since two of them can't share one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fimlsp.engine.native.choose import backend_module, installed
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import LoadParams, NativeSlots, SlotParams

WIDTHS = (1, 2, 3, 4, 5, 8, 12, 16, 24, 32)
"""Tokens per decode whose time makes the verify curve T(n)."""
FILLED = 256
"""Cells in the slot before each timed decode."""
PREFILL = 192
"""Tokens of the timed prefill."""
TIMEOUT_S = 600.0


def run_backends(model: Path, threads: int, repeats: int) -> dict[str, Any]:
    """Measure every installed library on ``model``; keys are described in ``measure``."""
    found: dict[str, Any] = {}
    for name in installed():
        command = [sys.executable, "-m", __name__, name, str(model), str(threads), str(repeats)]
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()
            found[name] = {"error": words[-1] if words else f"exit code {done.returncode}"}
        else:
            found[name] = json.loads(done.stdout)
    return {"model": model.name, "threads": threads, "backends": found}


def measure(name: str, model: Path, threads: int, repeats: int) -> dict[str, Any]:
    """Measure one library in this process.

    Returns:
        ``prefill_tok_s`` in steps of 64 tokens, ``decode_ms`` per token, and ``verify_ms``: the
        median milliseconds of one decode of n tokens after 256, by n.
    """
    native_model = backend_module(name).load(LoadParams(path=model), lambda _fraction: True)
    params = SlotParams(n_slots=1, n_ctx=1024, n_ubatch=64, threads=threads)
    native: NativeSlots = native_model.open_slots(params, AbortFlag())
    tokens = np.arange(1000, 1000 + FILLED + PREFILL, dtype=np.int32)
    for pos in range(0, FILLED, 64):
        native.decode(0, tokens[pos : pos + 64], pos, 0)
    prefill = [_timed_prefill(native, tokens) for _ in range(max(1, repeats // 2))]
    verify = {
        n: statistics.median(_timed(native, tokens, n) for _ in range(repeats)) for n in WIDTHS
    }
    native.close()
    native_model.close()
    return {
        "prefill_tok_s": round(PREFILL / statistics.median(prefill) * 1e3, 1),
        "decode_ms": round(verify[1], 1),
        "verify_ms": {str(n): round(ms, 1) for n, ms in verify.items()},
    }


def _timed(native: NativeSlots, tokens: np.ndarray, n: int) -> float:
    native.truncate(0, FILLED)
    begun = time.perf_counter()
    native.decode(0, tokens[FILLED : FILLED + n], FILLED, n)
    return (time.perf_counter() - begun) * 1e3


def _timed_prefill(native: NativeSlots, tokens: np.ndarray) -> float:
    native.truncate(0, FILLED)
    begun = time.perf_counter()
    for pos in range(FILLED, FILLED + PREFILL, 64):
        native.decode(0, tokens[pos : pos + 64], pos, 1)
    return (time.perf_counter() - begun) * 1e3


def _main(name: str, model: str, threads: str, repeats: str) -> None:
    answer = json.dumps(measure(name, Path(model), int(threads), int(repeats)))
    sys.stdout.write(answer + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
