"""Measures prefill and decode speed at load, and follows them with live work.

Engine thread only. Takes about a second on two cores with a 1.5B model; the first step also pages
the weights in.
"""

from __future__ import annotations

import time

import numpy as np

from fimlsp.engine.api import Speed
from fimlsp.engine.native.seam import NativeSlots, Tokens

_SAMPLE = 32
"""Tokens of the timed prefill step; fewer where a native step takes fewer."""
_WEIGHT = 0.2
"""Share of a new observation in the running figure."""
_MIN_PREFILL = 16
"""Shorter prefills say more about decode than about prefill."""


def measure(native: NativeSlots, n_ubatch: int) -> Speed:
    """Time one prefill step and two decode steps in slot 0, which must be empty."""
    tokens = np.arange(1, min(_SAMPLE, n_ubatch) + 1, dtype=np.int32)
    native.decode(0, tokens, 0, 1)
    warm = len(tokens)
    prefill_ms = _timed(native, tokens, warm)
    decode_ms = min(_timed(native, tokens[:1], warm) for _ in range(2))
    native.truncate(0, 0)
    return Speed(prefill_tok_s=warm / prefill_ms * 1e3, decode_ms=decode_ms)


def _timed(native: NativeSlots, tokens: Tokens, warm: int) -> float:
    native.truncate(0, warm)
    begun = time.perf_counter()
    native.decode(0, tokens, warm, 1)
    return max(1e-3, (time.perf_counter() - begun) * 1e3)


def updated(
    speed: Speed, *, evaluated: int, prefill_ms: float, generated: int, decode_ms: float
) -> Speed:
    """Return ``speed`` moved towards one request's figures."""
    prefill, decode = speed.prefill_tok_s, speed.decode_ms
    if evaluated >= _MIN_PREFILL and prefill_ms > 0:
        prefill += _WEIGHT * (evaluated / prefill_ms * 1e3 - prefill)
    if generated >= 2 and decode_ms > 0:
        decode += _WEIGHT * (decode_ms / (generated - 1) - decode)
    return Speed(prefill_tok_s=prefill, decode_ms=decode)
