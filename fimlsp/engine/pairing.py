"""May this model draft for that one? Only if a token means the same to both.

The rule is llama.cpp's (``common_speculative_are_compatible``): the same kind of vocabulary, the
same tokens put around a text, sizes that differ by padding only, the same spelling of every token
behind the first few. Needs vocabularies, no weights.
"""

from __future__ import annotations

from fimlsp.engine.native.seam import NativeModel
from fimlsp.errors import DraftMismatchError

MAX_SIZE_DIFFERENCE = 128
"""Models of one family pad their vocabularies differently: Qwen2.5-Coder 7B by 128 more than 1.5B
(llama.cpp: ``SPEC_VOCAB_MAX_SIZE_DIFFERENCE``)."""
FIRST_COMPARED = 5
"""The ids before are control tokens that finetunes rename (``SPEC_VOCAB_CHECK_START_TOKEN_ID``)."""

_TO_DO = (
    "set models.draft to a smaller model of the same family (`fimlsp models list` names partners), "
    'or to "" for none'
)


def n_shared(target: NativeModel, draft: NativeModel) -> int:
    """Return how many ids both have, from 0 on."""
    return min(target.n_vocab, draft.n_vocab)


def require_same_rules(target: NativeModel, draft: NativeModel) -> None:
    """Compare everything but the tokens themselves.

    Raises:
        DraftMismatchError: they differ.
    """
    for does, expected, found in (
        ("has a vocabulary of kind", target.vocabulary_kind, draft.vocabulary_kind),
        ("wants in front of a text", _token(target.bos), _token(draft.bos)),
        ("wants behind a text", _token(target.added_eos), _token(draft.added_eos)),
    ):
        if expected != found:
            raise _mismatch(f"{does} {found}, the target {expected}")
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        raise _mismatch(
            f"knows {draft.n_vocab} tokens, the target {target.n_vocab}; at most "
            f"{MAX_SIZE_DIFFERENCE} more or fewer are padding"
        )


def require_same_tokens(target: NativeModel, draft: NativeModel, start: int, stop: int) -> None:
    """Compare the spelling of the ids ``start`` to ``stop`` (half-open) that both have.

    Raises:
        DraftMismatchError: one differs.
    """
    for token in range(max(start, FIRST_COMPARED), min(stop, n_shared(target, draft))):
        expected, found = target.token_text(token), draft.token_text(token)
        if expected != found:
            raise _mismatch(f"spells token {token} {_shown(found)}, the target {_shown(expected)}")


def _mismatch(difference: str) -> DraftMismatchError:
    return DraftMismatchError(f"the draft model {difference}: {_TO_DO}")


def _token(token: int | None) -> str:
    return "no token" if token is None else f"token {token}"


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
