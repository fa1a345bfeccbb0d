"""Writing a smaller copy of a model: what both libraries need beside their own parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fimlsp.engine.native.parts import NativeLog
from fimlsp.errors import ModelError

Q4_0 = 2
"""``LLAMA_FTYPE_MOSTLY_Q4_0``: the plainest type of 4 bits, with fast kernels everywhere."""


def write_copy(quantize: Any, log: NativeLog, source: Path, target: Path, params: Any) -> None:
    """Call ``llama_model_quantize`` with the library's own ``params``.

    Raises:
        ModelError: no copy was written; the library's own words are in the message.
    """
    with log.capture():
        code = quantize(str(source).encode(), str(target).encode(), params)
    if code != 0:
        raise ModelError(f"{source} can't be quantised anew: {log.text()}")
