"""The real 0.5B model: what a tiny random one can't show is that the text makes sense."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_harness import open_engine, result

from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.worker import InProcessEngine

pytestmark = pytest.mark.model

BEFORE = (
    b"class Stack:\n"
    b'    """A last-in, first-out list."""\n\n'
    b"    def __init__(self):\n"
    b"        self.items = []\n\n"
    b"    def push(self, item):\n"
    b"        self.items.append(item)\n\n"
    b"    def pop(self):\n"
    b"        "
)
AFTER = b"\n\n    def __len__(self):\n        return len(self.items)\n"
OTHER = b"def celsius(fahrenheit):\n    return (fahrenheit - 32) * 5 / 9\n\n\nprint(cels"


@pytest.fixture(scope="module")
def engine(real_model: Callable[[str], Path], backend: str) -> Iterator[InProcessEngine]:
    engine = open_engine(
        real_model("qwen2.5-coder-0.5b"), backend, threads=2, n_ctx=512, n_ubatch=64
    )
    yield engine
    engine.close()


def head(engine: InProcessEngine, before: bytes, after: bytes) -> tuple[int, ...]:
    """Return Qwen's prompt up to the middle token."""
    vocabulary = engine.vocabulary
    pre, suf, mid = (
        vocabulary.control(f"<|fim_{part}|>") for part in ("prefix", "suffix", "middle")
    )
    assert pre is not None
    assert suf is not None
    assert mid is not None
    return (pre, *vocabulary.tokenize(before), suf, *vocabulary.tokenize(after), mid)


def ask(
    engine: InProcessEngine, slot: str, prompt: tuple[int, ...], typed: bytes, n: int = 12
) -> Generation:
    request = Request(
        slot=slot,
        prompt=prompt,
        must_start_with=typed,
        max_tokens=n,
        watch=lambda text: b"\n" in text,
    )
    return result(engine.submit(request).future)


@pytest.mark.parametrize("typed", [b"", b"ret", b"return self", b"return self.items.p"])
def test_the_obvious_text_is_written_wherever_the_cursor_stands_in_it(
    engine: InProcessEngine, typed: bytes
) -> None:
    answer = ask(engine, f"obvious {typed!r}", head(engine, BEFORE, AFTER), typed)
    assert answer.text.startswith(b"return self.items.pop()"), answer.text
    assert answer.finish in (Finish.STOP_TOKEN, Finish.WATCH)


def test_a_warm_slot_writes_the_same_as_a_cold_one(engine: InProcessEngine) -> None:
    prompt = head(engine, OTHER, b"\n")
    cold = ask(engine, "a", prompt, b"")
    warm = ask(engine, "a", prompt, b"")
    assert (cold.reused_tokens < 16, warm.prompt_tokens) == (True, 1)
    assert warm.tokens == cold.tokens


def test_switching_between_two_documents_reads_no_more_than_what_was_typed(
    engine: InProcessEngine,
) -> None:
    heads = {
        "stack": head(engine, BEFORE, AFTER),
        "temperature": head(engine, OTHER, b"\n"),
    }
    lines = {"stack": b"return self.items.pop(", "temperature": b"ius(100)"}
    for name, prompt in heads.items():
        ask(engine, name, prompt, b"", n=2)
    typed_before: dict[str, int] = dict.fromkeys(heads, 0)
    for end in range(1, 8):
        for name, prompt in heads.items():
            typed = engine.vocabulary.tokenize(lines[name][:end])
            answer = ask(engine, name, (*prompt, *typed), b"", n=2)
            changed = len(typed) - typed_before[name]
            assert answer.prompt_tokens <= max(1, changed) + 1, (name, end)  # a re-split token
            typed_before[name] = len(typed)
