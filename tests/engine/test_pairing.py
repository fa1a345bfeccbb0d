"""Which models may draft for which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny_gguf

from fimlsp.engine.native.seam import LoadParams
from fimlsp.engine.pairing import (
    FIRST_COMPARED,
    MAX_SIZE_DIFFERENCE,
    n_shared,
    require_same_rules,
    require_same_tokens,
)
from fimlsp.errors import DraftMismatchError


@dataclass(frozen=True)
class Words:
    """As much of a model as a pairing looks at."""

    n_vocab: int = 1000
    bos: int | None = None
    added_eos: int | None = None
    vocabulary_kind: int = 2
    odd: int = -1
    """A token that is spelled in its own way."""

    def token_text(self, token: int) -> bytes:
        assert 0 <= token < self.n_vocab
        return b"odd" if token == self.odd else b"%d" % token


TARGET: Any = Words()


def check(draft: Any, target: Any = TARGET) -> None:
    require_same_rules(target, draft)
    require_same_tokens(target, draft, 0, 1 << 20)


@pytest.mark.parametrize("more", [-MAX_SIZE_DIFFERENCE, 0, MAX_SIZE_DIFFERENCE])
def test_models_whose_vocabularies_differ_by_padding_are_a_pair(more: int) -> None:
    draft: Any = Words(n_vocab=1000 + more)
    check(draft)
    assert n_shared(TARGET, draft) == min(1000, 1000 + more)


@pytest.mark.parametrize("more", [-MAX_SIZE_DIFFERENCE - 1, MAX_SIZE_DIFFERENCE + 1])
def test_more_than_padding_is_another_vocabulary(more: int) -> None:
    with pytest.raises(DraftMismatchError, match=rf"knows {1000 + more} tokens, the target 1000"):
        check(Words(n_vocab=1000 + more))


@pytest.mark.parametrize("token", [FIRST_COMPARED, 500, 999])
def test_a_token_that_is_spelled_otherwise_parts_them(token: int) -> None:
    with pytest.raises(DraftMismatchError, match=rf"token {token} 'odd', the target '{token}'"):
        check(Words(odd=token))


def test_the_first_control_tokens_may_have_other_names() -> None:
    check(Words(odd=FIRST_COMPARED - 1))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Words(vocabulary_kind=1), "vocabulary of kind 1, the target 2"),
        (Words(bos=1), "in front of a text token 1, the target no token"),
        (Words(added_eos=3), "behind a text token 3, the target no token"),
    ],
)
def test_other_rules_for_a_text_part_them(draft: Any, message: str) -> None:
    with pytest.raises(DraftMismatchError, match=message) as caught:
        check(draft)
    assert "models.draft" in str(caught.value)  # says what to do


def test_a_model_that_puts_the_same_tokens_around_a_text_fits() -> None:
    target: Any = replace(TARGET, bos=1, added_eos=2)
    check(replace(target, n_vocab=1001), target)


def test_tokens_are_compared_piece_by_piece() -> None:
    draft: Any = Words(odd=600)
    require_same_tokens(TARGET, draft, 0, 600)
    require_same_tokens(TARGET, draft, 601, 1200)
    with pytest.raises(DraftMismatchError):
        require_same_tokens(TARGET, draft, 600, 601)


@pytest.fixture
def vocabulary(native_module: Any, tmp_path: Path) -> Any:
    """Load nothing but the vocabulary of a tiny model, with one control token renamed."""

    def load(renamed: bytes = b"", **arguments: Any) -> Any:
        path = tmp_path / "tiny.gguf"
        write_tiny_gguf(path, **arguments)
        if renamed:
            path.write_bytes(path.read_bytes().replace(b"<|repo_name|>", renamed))
        return native_module.load(LoadParams(path=path, vocab_only=True), lambda _fraction: True)

    return load


def test_vocabularies_are_compared_without_weights(vocabulary: Any) -> None:
    target, twin = vocabulary(), vocabulary(seed=8)
    check(twin, target)
    padded = vocabulary(extra_control=("<|extra|>",))
    check(padded, target)
    assert n_shared(target, padded) == target.n_vocab < padded.n_vocab


def test_a_control_token_of_another_name_is_seen(vocabulary: Any) -> None:
    """Compared by their pieces, control tokens are all alike: they have none."""
    target = vocabulary()
    with pytest.raises(DraftMismatchError, match=r"<\|repo_namf\|>.*<\|repo_name\|>"):
        check(vocabulary(b"<|repo_namf|>"), target)
