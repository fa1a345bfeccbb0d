"""The vocabulary against a brute-force reading of every token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from engine_harness import PATIENCE_S
from gguf import TokenType
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import CONTROL, CORPUS, make_vocabulary, write_tiny_gguf

from fimlsp.engine.native.seam import LoadParams, NativeModel
from fimlsp.engine.vocabulary import ModelVocabulary
from fimlsp.errors import EngineClosedError


def load(native_module: Any, path: Path) -> NativeModel:
    model: NativeModel = native_module.load(LoadParams(path=path), lambda _fraction: True)
    return model


@pytest.fixture(scope="module", params=["control", "user-defined"])
def vocabulary(
    request: pytest.FixtureRequest, native_module: Any, tiny_model: Path, marker_model: Path
) -> Iterator[ModelVocabulary]:
    """The vocabularies of two files; they differ in what they call their control tokens."""
    model = load(native_module, tiny_model if request.param == "control" else marker_model)
    yield ModelVocabulary(model)
    model.close()


def texts(vocabulary: ModelVocabulary) -> dict[int, bytes]:
    """Return every token that may be text with its bytes, by looking at each."""
    n_control = len(CONTROL)
    return {t: vocabulary.token_bytes(t) for t in range(vocabulary.n_tokens - n_control)}


heads = st.one_of(
    st.binary(max_size=4),
    st.text(alphabet=CORPUS, max_size=6).map(str.encode),
    st.integers(0, len(CORPUS.encode())).flatmap(
        lambda i: st.integers(0, 12).map(lambda n: CORPUS.encode()[i : i + n])
    ),
    st.sampled_from([b"<|fim_prefix|", b"<|im_start|>", b"\xff", b"\xff\xff", b"\xf0\x9f\x98"]),
)


@given(head=heads)
def test_starting_with_finds_every_text_token_with_that_head(
    vocabulary: ModelVocabulary, head: bytes
) -> None:
    found = vocabulary.starting_with(head).tolist()
    assert sorted(found) == [t for t, piece in texts(vocabulary).items() if piece.startswith(head)]


@given(head=heads)
def test_can_continue_tells_whether_a_longer_token_exists(
    vocabulary: ModelVocabulary, head: bytes
) -> None:
    longer = any(p.startswith(head) and p != head for p in texts(vocabulary).values())
    assert vocabulary.can_continue(head) == longer


@given(text=heads)
def test_proper_prefixes_finds_every_shorter_token_that_begins_the_text(
    vocabulary: ModelVocabulary, text: bytes
) -> None:
    found = vocabulary.proper_prefixes(text)
    shorter = [t for t, p in texts(vocabulary).items() if text.startswith(p) and p != text]
    assert sorted(found) == shorter


class Pieces:
    """A model that is nothing but the bytes of its tokens; no bytes: a control token."""

    backend = description = "pieces"
    n_ctx_train = size_bytes = 1
    bos = None

    def __init__(self, pieces: list[bytes]) -> None:
        self.n_vocab = len(pieces)
        self.piece = pieces.__getitem__

    def is_eog(self, token: int) -> bool:
        return token == 0


@given(
    pieces=st.lists(st.lists(st.sampled_from(b"a\xfe\xff"), max_size=3).map(bytes), max_size=12),
    head=st.lists(st.sampled_from(b"a\xfe\xff"), max_size=3).map(bytes),
)
def test_the_largest_bytes_and_equal_tokens_are_found_like_any_other(
    pieces: list[bytes], head: bytes
) -> None:
    vocabulary = ModelVocabulary(cast("NativeModel", Pieces(pieces)))
    text = {t: piece for t, piece in enumerate(pieces) if piece and t != 0}
    found = sorted(vocabulary.starting_with(head).tolist())
    assert found == [t for t, piece in text.items() if piece.startswith(head)]
    assert vocabulary.can_continue(head) == any(text[t] != head for t in found)
    shorter = [t for t, piece in text.items() if head.startswith(piece) and piece != head]
    assert sorted(vocabulary.proper_prefixes(head)) == shorter


@given(text=st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode), heads))
def test_tokens_of_any_bytes_spell_those_bytes(vocabulary: ModelVocabulary, text: bytes) -> None:
    if b"\x00" in text or text.decode("utf-8", "ignore").encode() != text:
        return  # the libraries replace what is not UTF-8; the engine is given whole documents
    tokens = vocabulary.tokenize(text)
    assert b"".join(vocabulary.token_bytes(token) for token in tokens) == text


@given(
    parts=st.lists(
        st.one_of(st.sampled_from(CONTROL), st.sampled_from(["<|", "|>", " ", "x", "\n", "é"])),
        max_size=6,
    )
)
def test_user_text_with_control_spellings_stays_text(
    vocabulary: ModelVocabulary, parts: list[str]
) -> None:
    text = "".join(parts).encode()
    tokens = vocabulary.tokenize(text)
    assert all(vocabulary.is_text(token) for token in tokens)
    assert b"".join(vocabulary.token_bytes(token) for token in tokens) == text


@pytest.mark.parametrize("spelling", CONTROL)
def test_control_finds_each_control_token_and_it_has_no_bytes(
    vocabulary: ModelVocabulary, spelling: str
) -> None:
    token = vocabulary.control(spelling)
    assert token == vocabulary.n_tokens - len(CONTROL) + CONTROL.index(spelling)
    assert vocabulary.token_bytes(token) == b""
    assert not vocabulary.is_text(token)


@pytest.mark.parametrize("word", [" return", "self", "x", "", "<|fim_prefix|><|fim_suffix|>", "<|"])
def test_no_ordinary_text_is_a_control_token(vocabulary: ModelVocabulary, word: str) -> None:
    """A word of one token was taken for a control token, and broken up in text from then on."""
    before = vocabulary.tokenize(word.encode())
    assert vocabulary.control(word) is None
    assert vocabulary.tokenize(word.encode()) == before


def test_a_user_defined_token_becomes_control_once_a_template_asks_for_it(
    native_module: Any, tmp_path: Path
) -> None:
    """``[MARK]`` is text in one family and a control token in another: the template decides."""
    path = tmp_path / "mark.gguf"
    write_tiny_gguf(path, control_type=TokenType.USER_DEFINED, extra_control=("[MARK]",))
    model = load(native_module, path)
    try:
        vocabulary = ModelVocabulary(model)
        mark = vocabulary.n_tokens - 1
        assert mark in vocabulary.tokenize(b"a[MARK]b")
        assert mark in vocabulary.starting_with(b"[MA")
        assert vocabulary.control("[MARK]") == mark
        tokens = vocabulary.tokenize(b"a[MARK]b")
        assert mark not in tokens
        assert b"".join(map(vocabulary.token_bytes, tokens)) == b"a[MARK]b"
        assert mark not in vocabulary.starting_with(b"[MA")
        assert not vocabulary.can_continue(b"[MAR")
        assert vocabulary.control("[MARK]") == mark  # asking again changes nothing
    finally:
        model.close()


def test_the_file_s_own_tokens_come_out_as_their_bytes(vocabulary: ModelVocabulary) -> None:
    listed = make_vocabulary().tokens
    assert vocabulary.n_tokens == len(listed)
    assert [vocabulary.token_bytes(t) for t in (0, 10, 255)] == [b"\x00", b"\n", b"\xff"]
    assert vocabulary.bos is None
    assert vocabulary.control("<|endoftext|>") in vocabulary.eog


def test_some_tokens_end_inside_a_character(vocabulary: ModelVocabulary) -> None:
    halves = [
        piece
        for piece in texts(vocabulary).values()
        if len(piece) > 1 and piece.decode("utf-8", "ignore").encode() != piece
    ]
    assert len(halves) > 10


def test_threads_may_tokenise_while_the_model_is_freed(
    native_module: Any, tiny_model: Path
) -> None:
    """A vocabulary that outlived its engine read freed memory."""
    model = load(native_module, tiny_model)
    vocabulary = ModelVocabulary(model)
    expected = vocabulary.tokenize(CORPUS.encode())
    outcomes: list[object] = []
    started = threading.Barrier(4)

    def tokenise() -> None:
        started.wait(PATIENCE_S)
        try:
            while True:
                assert vocabulary.tokenize(CORPUS.encode()) == expected
        except EngineClosedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=tokenise) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE_S)
    model.close()
    model.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [type(outcome) for outcome in outcomes] == [EngineClosedError] * 3
    for use in (vocabulary.tokenize, model.piece, model.is_eog, model.is_special):
        with pytest.raises(EngineClosedError):
            _call(use)


def _call(use: Callable[..., object]) -> object:
    return use(b"x" if use.__name__ == "tokenize" else 1)
