"""What stays warm, and that warm cells write the same as cold ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from engine_harness import Oracle, Steps, result

from fimlsp.engine.api import Generation, Request
from fimlsp.engine.cells import MIN_COPY, Cells, common_prefix
from fimlsp.engine.native.seam import Logits, Tokens
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import DecodeError

OpenEngine = Callable[..., InProcessEngine]


def ask(engine: InProcessEngine, slot: str, prompt: Sequence[int], n: int = 8) -> Generation:
    return result(engine.submit(Request(slot=slot, prompt=tuple(prompt), max_tokens=n)).future)


def test_only_the_changed_tail_of_a_prompt_is_evaluated(
    engine: InProcessEngine, steps: Steps, text: list[int]
) -> None:
    ask(engine, "a", text[:100], n=0)
    steps.clear()
    grown = ask(engine, "a", text[:103], n=0)
    assert (grown.reused_tokens, grown.prompt_tokens) == (100, 3)
    assert [step.tokens for step in steps.log] == [tuple(text[100:103])]
    steps.clear()
    edited = ask(engine, "a", [*text[:60], *text[200:210]], n=0)
    assert (edited.reused_tokens, edited.prompt_tokens) == (60, 10)
    assert [step.tokens for step in steps.log] == [tuple(text[200:210])]


def test_the_last_token_of_a_wholly_warm_prompt_is_read_again_for_its_logits(
    engine: InProcessEngine, text: list[int]
) -> None:
    first = ask(engine, "a", text[:50])
    again = ask(engine, "a", text[:50])
    assert (again.reused_tokens, again.prompt_tokens) == (49, 1)
    assert again.tokens == first.tokens


def test_the_answer_itself_is_warm_when_it_is_typed(
    engine: InProcessEngine, text: list[int]
) -> None:
    written = ask(engine, "a", text[:50], n=6)
    typed = ask(engine, "a", [*text[:50], *written.tokens[:5]], n=2)
    assert typed.prompt_tokens == 1


@pytest.mark.parametrize("warm", [1, 31, 32, 33, 90])
def test_a_warm_slot_writes_the_same_as_a_cold_one(
    open_tiny: OpenEngine, oracle: Oracle, text: list[int], warm: int
) -> None:
    request = Request(slot="a", prompt=tuple(text[:120]), max_tokens=24)
    cold = result(open_tiny().submit(request).future)
    engine = open_tiny()
    ask(engine, "a", [*text[:warm], 1 - min(text[warm], 1), *text[300:310]], n=5)
    heated = result(engine.submit(request).future)
    assert heated.reused_tokens == warm
    assert len(heated.tokens) == 24
    oracle.check(request, cold)
    oracle.check(request, heated)


def test_a_warm_slot_with_the_same_chunks_writes_exactly_the_same_tokens(
    engine: InProcessEngine, open_tiny: OpenEngine, text: list[int]
) -> None:
    cold = ask(open_tiny(), "a", text[:96], n=32)
    ask(engine, "a", text[:64], n=0)  # two chunks of 32, as the cold one reads them
    heated = ask(engine, "a", text[:96], n=32)
    assert heated.reused_tokens == 64
    assert heated.tokens == cold.tokens


def test_two_documents_switch_without_reading_either_again(
    engine: InProcessEngine, oracle: Oracle, text: list[int]
) -> None:
    left, right = text[:120], text[150:270]
    ask(engine, "left", left, n=0)
    ask(engine, "right", right, n=0)
    for key in range(1, 5):
        for name, document in (("left", left), ("right", right)):
            request = Request(slot=name, prompt=(*document, *text[130 : 130 + key]), max_tokens=6)
            answer = result(engine.submit(request).future)
            assert answer.prompt_tokens == 1
            oracle.check(request, answer)


def test_a_third_document_evicts_the_least_recently_used(
    engine: InProcessEngine, text: list[int]
) -> None:
    old, recent, new = text[:60], text[80:140], text[160:220]
    ask(engine, "recent", recent, n=0)
    ask(engine, "old", old, n=0)
    ask(engine, "recent", recent, n=0)
    ask(engine, "new", new, n=0)
    assert engine.reusable("recent", recent) == 59
    assert engine.reusable("new", new) == 59
    assert engine.reusable("old", old) == 0


def test_a_released_document_is_evicted_first_and_helps_until_then(
    open_tiny: OpenEngine, text: list[int]
) -> None:
    engine = open_tiny(slots=3)
    a, b, c = text[:60], text[80:140], text[160:220]
    for name, prompt in (("a", a), ("b", b), ("c", c)):
        ask(engine, name, prompt, n=0)
    engine.release("c")
    assert engine.reusable("c again", c) == 59
    ask(engine, "d", text[230:290], n=0)
    assert [engine.reusable(n, p) for n, p in (("a", a), ("b", b), ("c", c))] == [59, 59, 0]


def test_a_prefix_warm_in_another_slot_is_copied_and_writes_the_same(
    engine: InProcessEngine, steps: Steps, oracle: Oracle, text: list[int]
) -> None:
    ask(engine, "a", text[:100])
    steps.clear()
    request = Request(slot="b", prompt=(*text[:90], *text[200:205]), max_tokens=16)
    copied = result(engine.submit(request).future)
    assert (copied.reused_tokens, copied.prompt_tokens) == (90, 5)
    assert steps.log[0].tokens == tuple(text[200:205])
    oracle.check(request, copied)
    request = Request(slot="a", prompt=tuple(text[:102]), max_tokens=16)
    source = result(engine.submit(request).future)
    assert source.prompt_tokens == 2  # the source still has its own
    oracle.check(request, source)


def test_a_copy_and_its_source_go_on_independently(
    engine: InProcessEngine, oracle: Oracle, text: list[int]
) -> None:
    ask(engine, "a", text[:80], n=0)
    tails = {"a": list(text[80:84]), "b": list(text[300:304])}
    for _round in range(4):
        for name, tail in tails.items():
            request = Request(slot=name, prompt=(*text[:80], *tail), max_tokens=4)
            answer = result(engine.submit(request).future)
            oracle.check(request, answer)
            tail += answer.tokens
    assert engine.reusable("a", [*text[:80], *tails["a"], 0]) >= 80 + 4 + 3 * 4


def test_reusable_says_what_a_request_will_find_warm(
    engine: InProcessEngine, text: list[int]
) -> None:
    ask(engine, "a", text[:60], n=0)
    ask(engine, "b", [*text[:10], *text[200:220]], n=0)
    for name, prompt in (
        ("a", text[:62]),
        ("b", text[: 10 + MIN_COPY - 1]),  # a little more is warm in a, not worth a copy
        ("b", text[: 10 + MIN_COPY]),
        ("b", text[:61]),
        ("c", text[:30]),
        ("c", text[100:130]),
    ):
        promised = engine.reusable(name, prompt)
        assert ask(engine, name, prompt, n=0).reused_tokens == promised, (name, len(prompt))


def test_a_failed_copy_leaves_an_empty_slot_in_the_books_and_in_the_library() -> None:
    """The books kept the old tokens of a slot whose cells the failed copy had removed."""

    class Refusing:
        def __init__(self) -> None:
            self.held = {0: 30, 1: 40}

        def copy(self, source: int, target: int, n_cells: int) -> None:
            self.held[target] = 7  # half a copy
            raise DecodeError("no room")

        def truncate(self, slot: int, n_cells: int) -> None:
            self.held[slot] = min(self.held[slot], n_cells)

        def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
            return np.empty((0, 1), dtype=np.float32)

        def n_cells(self, slot: int) -> int:
            return self.held[slot]

        def close(self) -> None:
            """Nothing to free."""

    native = Refusing()
    cells = Cells(native, 2)
    cells.acquire("b", [9])  # slot 0 is the least recently used
    cells.append(0, range(100, 130))
    cells.acquire("a", [9])
    cells.append(1, range(40))
    with pytest.raises(DecodeError):
        cells.acquire("b", range(40))
    assert cells.tokens(0) == []
    assert native.held == {0: 0, 1: 40}


def test_common_prefix_counts_equal_leading_tokens() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([2], [1]) == 0
