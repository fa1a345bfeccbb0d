"""Which native library to use, by name or by what this machine has.

Only one of them may live in a process: their shared objects have the same names inside.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from fimlsp.engine.native.probe import probe
from fimlsp.errors import BackendUnavailableError

BACKENDS = ("ik_llama", "llama_cpp")
_PACKAGES = {"ik_llama": "ik_llama_cpp", "llama_cpp": "llama_cpp"}


def installed() -> tuple[str, ...]:
    """Return the backends whose packages are present, without loading native code."""
    return tuple(name for name in BACKENDS if importlib.util.find_spec(_PACKAGES[name]))


def backend_module(name: str) -> Any:
    """Import the module of one backend (``load``, ``system_info``, ``gpu_...``, ``NAME``)."""
    if name not in BACKENDS:
        raise BackendUnavailableError(
            f"engine.backend: found {name!r}, expected auto or one of {', '.join(BACKENDS)}"
        )
    return importlib.import_module(f"fimlsp.engine.native.{name}")


def choose(name: str) -> Any:
    """Return the module for ``name``; ``auto`` prefers a GPU build, then the faster CPU library.

    Raises:
        BackendUnavailableError: nothing is installed, or ``name`` is not.
    """
    present = installed()
    if name != "auto":
        if name in BACKENDS and name not in present:
            raise BackendUnavailableError(
                f"engine.backend = {name}: the package is not installed; installed are: "
                f"{', '.join(present) or 'none'}"
            )
        return backend_module(name)
    if not present:
        raise BackendUnavailableError(
            "no native library is installed. Install one with: pip install "
            "ik-llama-cpp-python==0.1.5 (prebuilt) or llama-cpp-python==0.3.36 (compiled here)"
        )
    if present == ("llama_cpp",) or ("llama_cpp" in present and _has_gpu()):
        return backend_module("llama_cpp")
    return backend_module("ik_llama")


def _has_gpu() -> bool:
    """Ask the probe in another process: loading llama_cpp here would exclude ik_llama."""
    return bool(probe("llama_cpp").get("gpu_devices"))
