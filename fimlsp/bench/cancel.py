"""``fimlsp bench cancel``: how soon the engine is free after a cancel in the middle of its work.

The engine counts as free when the cancelled request's future resolves: its thread has then left
the native library.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from fimlsp.bench.scoring import percentile
from fimlsp.engine.api import Engine, Finish, Generation, Request

_TEXT = b"def add(a, b):\n    return a + b\n\n\nclass Stack:\n    def push(self, item):\n        "
_LONG = 512
"""Prompt tokens of the requests that are cancelled while they are read."""
_PROMPT, _SEED = 32, 7


def run_cancel(engine: Engine, count: int) -> dict[str, Any]:
    """Cancel ``count`` requests at random moments, half while reading, half while writing.

    Returns:
        ``cancel_p50_ms``, ``cancel_p99_ms``, ``cancel_max_ms``, ``cancelled`` (how many were
        really interrupted), and the same for ``prefill`` and ``decode`` alone.
    """
    chance = random.Random(_SEED)
    tokens = engine.vocabulary.tokenize(_TEXT * 40)
    kinds: dict[str, list[float]] = {"prefill": [], "decode": []}
    for number in range(count):
        kind = "prefill" if number % 2 else "decode"
        length = _LONG if kind == "prefill" else _PROMPT
        start = chance.randrange(len(tokens) - length)
        request = Request(
            slot=f"cancel-{number}",
            prompt=tuple(tokens[start : start + length]),
            max_tokens=256,
        )
        waited = _cancelled_after(engine, request, kind, chance)
        if waited is not None:
            kinds[kind].append(waited)
    every = kinds["prefill"] + kinds["decode"]
    return {"requests": count, "cancelled": len(every), **_figures(every)} | {
        kind: _figures(times) for kind, times in kinds.items()
    }


def _cancelled_after(
    engine: Engine, request: Request, kind: str, chance: random.Random
) -> float | None:
    """Return the milliseconds from the cancel to the free engine, None if it ended by itself."""
    writing = threading.Event()
    if kind == "decode":
        request = _watched(request, writing)
    ticket = engine.submit(request)
    step_s = engine.speed.decode_ms / 1e3
    if kind == "decode":
        writing.wait(60.0)
        time.sleep(chance.uniform(0.0, 3 * step_s))
    else:
        time.sleep(chance.uniform(0.0, _LONG / engine.speed.prefill_tok_s / 2))
    begun = time.perf_counter()
    ticket.cancel()
    generation: Generation = ticket.future.result(60.0)
    waited = (time.perf_counter() - begun) * 1e3
    return waited if generation.finish is Finish.CANCELLED else None


def _watched(request: Request, writing: threading.Event) -> Request:
    def watch(_text: bytes) -> bool:
        writing.set()
        return False

    return Request(
        slot=request.slot, prompt=request.prompt, max_tokens=request.max_tokens, watch=watch
    )


def _figures(times: list[float]) -> dict[str, Any]:
    return {
        "cancel_p50_ms": _rounded(percentile(times, 50)),
        "cancel_p99_ms": _rounded(percentile(times, 99)),
        "cancel_max_ms": _rounded(max(times, default=None)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
