"""Asks a native library what it can do, in a process that may die of it.

``python -m fimlsp.engine.native.probe NAME`` prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

PROBE_TIMEOUT_S = 30.0


def probe(name: str) -> dict[str, Any]:
    """Return the probe's answer, ``{"error": ..., "returncode": ...}`` where it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fimlsp.engine.native.probe", name],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {PROBE_TIMEOUT_S:.0f} s", "returncode": None}
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"error": last[-1] if last else "", "returncode": done.returncode}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _describe(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"fimlsp.engine.native.{name}")
    return {
        "backend": name,
        "version": module.PINNED,
        "system_info": module.system_info(),
        "gpu_devices": module.gpu_devices(),
        "gpu_backends": module.gpu_backends(),
    }


if __name__ == "__main__":
    answer = json.dumps(_describe(sys.argv[1]))
    sys.stdout.write(answer + "\n")
