"""Plain decoding through the engine against the library's own loop in C, ``llama-bench``."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final

from fimlsp.engine.api import Engine, Request
from fimlsp.errors import BenchError

TOKENS: Final = 64
"""Tokens generated in one go, on both sides."""
_REPEATS: Final = 3
"""Goes before llama-bench, and as many after it."""
_TIMEOUT_S: Final = 900.0
_PROMPTS: Final = (
    b"def fibonacci(n):\n",
    b"# The numbers from 1 to 100:\n1, 2, 3, 4, 5,",
    b"a, b,",
)
"""Texts to go on from, until one brings an answer that is long enough."""


def compare(engine: Engine, llama_bench: str) -> dict[str, Any]:
    """Return ``tok_s``, ``library_tok_s`` and ``share``, the first over the second.

    Medians. The engine decodes before and after ``llama-bench``, which loads its own copy of the
    model; the engine's time includes everything it does with a token.

    Args:
        engine: On the llama_cpp library, otherwise idle.
        llama_bench: The program and its own arguments, as in a shell.

    Raises:
        BenchError: another library, or the program failed.
    """
    info = engine.info
    if info.backend != "llama_cpp":
        raise BenchError(
            f"llama-bench measures llama.cpp, and this engine runs {info.backend}; "
            "add --set engine.backend=llama_cpp"
        )
    request = _long_request(engine)
    ours = [_tok_s(engine, request) for _ in range(_REPEATS)]
    model = ("-m", str(info.path), "-t", str(info.threads))
    theirs = library_tok_s((*shlex.split(llama_bench), *model))
    ours += [_tok_s(engine, request) for _ in range(_REPEATS)]
    engine.release(request.slot)
    tok_s = statistics.median(ours)
    return {
        "tokens": TOKENS,
        "tok_s": round(tok_s, 2),
        "library_tok_s": round(theirs, 2),
        "share": round(tok_s / theirs, 4),
    }


def library_tok_s(command: Sequence[str]) -> float:
    """Run llama-bench and return the median tokens per second of its goes.

    Raises:
        BenchError: it did not run, or printed something else.
    """
    # The same attention as the engine's.
    argv = [*command, "-p", "0", "-n", str(TOKENS), "-r", "5", "-fa", "on", "-o", "json"]
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{shlex.join(argv)}: {error}") from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = words[-1] if words else "no message"
        raise BenchError(f"{shlex.join(argv)} ended with code {done.returncode}: {last}")
    try:
        (test,) = (test for test in json.loads(done.stdout) if test["n_gen"] == TOKENS)
        return statistics.median(map(float, test["samples_ts"]))
    except (ValueError, TypeError, LookupError) as error:
        raise BenchError(
            f"{shlex.join(argv)} printed no result for {TOKENS} tokens: {error!r}"
        ) from error


def _long_request(engine: Engine) -> Request:
    """Return a request whose plain answer has all its tokens, with its prompt warm."""
    for text in _PROMPTS:
        prompt = tuple(engine.vocabulary.tokenize(text))
        request = Request(slot="library", prompt=prompt, max_tokens=TOKENS, sources=())
        if len(engine.submit(request).future.result().tokens) == TOKENS:
            return request
    raise BenchError(f"this model ends every sample text before {TOKENS} tokens")


def _tok_s(engine: Engine, request: Request) -> float:
    begun = time.perf_counter()
    generation = engine.submit(request).future.result()
    return TOKENS / (time.perf_counter() - begun - generation.queue_ms / 1e3)
