"""Measures prefill, decode and the verify curve, and follows them with live work.

Engine thread only. The speeds take about a second at load, with a 1.5B model on two cores; the
first step also pages the weights in. The curve is measured in idle time, step by step, and kept in
a file, so that the next start knows it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np

from fimlsp.engine.api import Speed
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.native.seam import NativeSlots, Tokens

log = logging.getLogger(__name__)

_SAMPLE = 64
"""Tokens of the timed prefill step; fewer where a native step takes fewer. Half as many are read
at 0.8 of the speed."""
_SHORT = 256
"""Tokens of a prompt that is read as quickly as a cold window."""
_BUSY = 0.75
"""Share of the known speed below which the machine must be busy."""
_WARM = 8
"""Cells before the timed decodes; what more of them cost shows in live work."""
_WEIGHT = 0.2
"""Share of a new observation in the running figure."""
_MIN_PREFILL = 16
"""Shorter prefills say more about decode than about prefill."""
_REPEATS = 3
"""Timings of each width, of which the shortest counts: others only add what disturbed them."""
_DISTURBED = 1.2
"""A width that takes this many times as long as a wider one was held up by other work."""
_TURNS = 5
"""Decodes of each of two models that are compared."""
_KEPT = 32
"""Curves kept in the file."""


def measure(native: NativeSlots, n_ubatch: int) -> Speed:
    """Time one prefill step and two decode steps in slot 0, which must be empty."""
    tokens = _some(min(_SAMPLE, n_ubatch))
    n = len(tokens)
    try:
        native.decode(0, tokens, 0, 0)
        prefill_ms = _timed(native, 0, tokens, n)
        # One behind the other: not every model can take a token back.
        decode_ms = min(_timed(native, 0, tokens[:1], 2 * n + more) for more in range(2))
    finally:
        native.truncate(0, 0)
    return Speed(prefill_tok_s=n / prefill_ms * 1e3, decode_ms=decode_ms)


def verify_ms(native: NativeSlots, slot: int, n: int) -> float:
    """Return the milliseconds of a decode of ``n`` tokens with a row of logits each.

    ``slot`` must be empty and is left empty, however this ends.
    """
    try:
        warm = min(_WARM, n)  # a native step may take no more than n
        native.decode(slot, _some(warm), 0, 0)
        taken = []
        for _ in range(_REPEATS):
            native.truncate(slot, warm)
            taken.append(_timed(native, slot, _some(n), warm, n))
        return min(taken)
    finally:
        native.truncate(slot, 0)


def is_disturbed(measured: Mapping[int, float]) -> bool:
    """Tell whether some width took much longer than a wider one: the machine was busy."""
    by_width = [measured[n] for n in sorted(measured)]
    least_wider = list(accumulate(reversed(by_width), min))[::-1]
    pairs = zip(by_width, least_wider, strict=True)
    return any(ms > _DISTURBED * wider for ms, wider in pairs)


def decodes_ms(one: NativeSlots, other: NativeSlots) -> tuple[float, float]:
    """Return the milliseconds of a decode of one token by each, taken in turns.

    Slot 0 of both must be empty and is left empty, however this ends.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    try:
        for native in (one, other):
            native.decode(0, _some(_WARM), 0, 0)
        for more in range(_TURNS):
            for native, times in zip((one, other), taken, strict=True):
                times.append(_timed(native, 0, _some(1), _WARM + more))
    finally:
        for native in (one, other):
            native.truncate(0, 0)
    return min(taken[0]), min(taken[1])


class CurveFile:
    """Measured curves by key, as JSON in the user's cache.

    A file that can't be read or written costs a measurement, nothing else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, key: str) -> VerifyCurve | None:
        """Return the curve stored under ``key``."""
        found = self._read().get(key)
        if not isinstance(found, dict):
            return None
        try:
            known = {int(n): float(ms) for n, ms in found.items()}
        except (TypeError, ValueError, OverflowError):
            return None
        sane = all(n >= 1 and 0 < ms < math.inf for n, ms in known.items())
        return VerifyCurve(known) if 1 in known and sane else None

    def save(self, key: str, known: Mapping[int, float]) -> None:
        """Store a curve, whole or not at all."""
        others = {k: v for k, v in self._read().items() if k != key}
        kept = dict(list(others.items())[-(_KEPT - 1) :])
        kept[key] = {str(n): round(ms, 3) for n, ms in known.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(kept, file, indent=1)
                os.replace(name, self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            log.info("the measured speeds are not kept: %s", error)

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def updated(
    speed: Speed,
    *,
    curve: VerifyCurve,
    warm: int = 0,
    evaluated: int = 0,
    prefill_ms: float = 0.0,
) -> Speed:
    """Return ``speed`` with the current curve, and moved towards one request's prefill.

    Args:
        speed: As it was known before.
        curve: The verify curve.
        warm: Prompt tokens that were reused.
        evaluated: Prompt tokens that were read, in ``prefill_ms`` milliseconds.
        prefill_ms: See ``evaluated``.
    """
    prefill = speed.prefill_tok_s
    if evaluated >= _MIN_PREFILL and prefill_ms > 0:
        found = evaluated / prefill_ms * 1e3
        # The speed is used to cut cold windows, which are short; far behind a prompt's start each
        # token takes a little longer. A busy machine shows all the same.
        if warm + evaluated <= _SHORT or found < _BUSY * prefill:
            prefill += _WEIGHT * (found - prefill)
    known = curve.known
    return Speed(prefill_tok_s=prefill, decode_ms=known[1], verify_ms=tuple(known.items()))


def _some(n: int) -> Tokens:
    return np.arange(1, n + 1, dtype=np.int32)


def _timed(native: NativeSlots, slot: int, tokens: Tokens, warm: int, n_logits: int = 1) -> float:
    begun = time.perf_counter()
    native.decode(slot, tokens, warm, n_logits)
    return max(1e-3, (time.perf_counter() - begun) * 1e3)
