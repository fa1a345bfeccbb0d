"""Generation that must begin with given bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Oracle, open_engine, result
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import CORPUS

from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.healing import Constraint
from fimlsp.engine.native.seam import LoadParams
from fimlsp.engine.vocabulary import ModelVocabulary
from fimlsp.engine.worker import InProcessEngine

OpenEngine = Callable[..., InProcessEngine]

typed = st.one_of(
    st.binary(min_size=1, max_size=6),  # also half characters
    st.text(alphabet=st.characters(codec="ascii"), min_size=1, max_size=12).map(str.encode),
    st.text(min_size=1, max_size=6).map(str.encode),
    st.text(alphabet=CORPUS, min_size=1, max_size=16).map(str.encode),
    st.integers(1, 24).map(lambda n: b" " * n),
    st.tuples(st.integers(0, len(CORPUS.encode()) - 20), st.integers(1, 20)).map(
        lambda cut: CORPUS.encode()[cut[0] : cut[0] + cut[1]]
    ),
    st.sampled_from([b"<|fim_prefix|>", b"<|im_start|>x", "😀".encode()[:3], "中".encode()[:2]]),
)


@pytest.fixture(scope="module")
def shared_engine(tiny_model: Path, backend: str) -> Iterator[InProcessEngine]:
    engine = open_engine(tiny_model, backend)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def marker_engine(marker_model: Path, backend: str) -> Iterator[InProcessEngine]:
    """It likes to write control tokens, and one of them is text to the library."""
    engine = open_engine(marker_model, backend)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vocabulary(native_module: Any, tiny_model: Path) -> Iterator[ModelVocabulary]:
    model = native_module.load(LoadParams(path=tiny_model), lambda _fraction: True)
    yield ModelVocabulary(model)
    model.close()


def write(engine: InProcessEngine, prompt: list[int], typed: bytes, **more: Any) -> Generation:
    request = Request(
        slot="a", prompt=tuple(prompt), must_start_with=typed, max_tokens=len(typed) + 3, **more
    )
    return result(engine.submit(request).future)


@given(typed=typed, start=st.integers(0, 300))
def test_an_answer_begins_with_the_typed_bytes_and_is_the_best_that_does(
    shared_engine: InProcessEngine, oracle: Oracle, text: list[int], typed: bytes, start: int
) -> None:
    prompt = text[start : start + 20]
    answer = write(shared_engine, prompt, typed)
    assert answer.text.startswith(typed)
    request = Request(slot="a", prompt=tuple(prompt), must_start_with=typed)
    oracle.check(request, answer)


@given(typed=typed, start=st.integers(0, 300))
def test_a_model_that_prefers_control_tokens_still_writes_the_typed_bytes_as_text(
    marker_engine: InProcessEngine, text: list[int], typed: bytes, start: int
) -> None:
    answer = write(marker_engine, text[start : start + 20], typed)
    assert answer.text.startswith(typed)
    last_text = marker_engine.vocabulary.n_tokens - 9
    assert all(token < last_text for token in answer.tokens)
    if answer.text == typed:
        assert answer.finish is Finish.STOP_TOKEN


@given(typed=typed, start=st.integers(0, 300))
def test_a_stop_token_that_is_text_can_not_end_the_answer_inside_the_typed_bytes(
    shared_engine: InProcessEngine, text: list[int], typed: bytes, start: int
) -> None:
    """The typed bytes came back cut short when the best way to spell them was a stop token."""
    prompt = text[start : start + 20]
    free = write(shared_engine, prompt, typed)
    spelled = [t for t in free.tokens[: len(typed)] if t > 255]  # single bytes are always needed
    answer = write(shared_engine, prompt, typed, stop_tokens=frozenset(spelled))
    assert answer.text.startswith(typed)
    assert not set(spelled) & set(answer.tokens)


def test_an_answer_may_reach_across_the_cursor_in_one_token(
    shared_engine: InProcessEngine, vocabulary: ModelVocabulary, text: list[int]
) -> None:
    crossing = 0
    for start in range(0, 300, 10):
        answer = write(shared_engine, text[start : start + 20], b" ret")
        first = vocabulary.token_bytes(answer.tokens[0])
        crossing += first.startswith(b" ret") and first != b" ret"
    assert crossing > 0


def test_a_stop_set_that_forbids_every_spelling_ends_the_request(
    shared_engine: InProcessEngine, vocabulary: ModelVocabulary, text: list[int]
) -> None:
    stops = frozenset(vocabulary.starting_with(b"q").tolist())
    answer = write(shared_engine, text[:20], b"q", stop_tokens=stops)
    assert (answer.text, answer.finish) == (b"", Finish.STOP_TOKEN)


@given(typed=typed, data=st.data())
def test_some_token_is_allowed_as_long_as_bytes_are_left(
    vocabulary: ModelVocabulary, typed: bytes, data: st.DataObject
) -> None:
    constraint = Constraint(vocabulary, typed)
    written = b""
    while constraint.active:
        left = typed[len(written) :]
        allowed = constraint.allowed().tolist()
        pieces = [vocabulary.token_bytes(token) for token in allowed]
        assert allowed
        assert len(set(allowed)) == len(allowed)
        assert all(piece.startswith(left) or left.startswith(piece) for piece in pieces)
        token = data.draw(st.sampled_from(allowed))
        constraint.advance(token)
        written += vocabulary.token_bytes(token)
    assert written.startswith(typed)


def test_nothing_imposed_is_no_constraint(vocabulary: ModelVocabulary) -> None:
    assert not Constraint(vocabulary, b"").active
