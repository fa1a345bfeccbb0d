"""The end of a prompt: text typed since the anchor, cut where tokens may reach across the cursor.

Anchored FIM (EFIM, arXiv 2505.21889): the head of the prompt (everything up to the middle token)
stays as it is while a person types; what they type is appended behind it. The last typed tokens are
not evaluated but handed to the engine as bytes that the answer must start with, since the model has
hardly ever seen a token boundary in the middle of a word.
"""

from __future__ import annotations

from dataclasses import dataclass

from fimlsp.engine.api import Vocabulary

MAX_HEALED_TOKENS = 8
"""Trailing tokens that healing may give back; words, indentation and operators need one or two."""


@dataclass(frozen=True, slots=True)
class Healed:
    """Typed text as tokens to evaluate and bytes to impose; together they are the typed bytes."""

    tokens: tuple[int, ...]
    must_start_with: bytes


def heal(typed: str, vocabulary: Vocabulary) -> Healed:
    """Split ``typed`` so that no token boundary is forced where a longer token could stand.

    The longest run of trailing tokens is given back whose bytes some longer token starts with:
    ``ret`` (``return``), four spaces (deeper indentation), ``(`` (``(self``), half a character.
    """
    data = encode(typed)
    tokens = vocabulary.tokenize(data)
    keep, tail = len(tokens), b""
    for index in range(len(tokens) - 1, max(-1, len(tokens) - 1 - MAX_HEALED_TOKENS), -1):
        tail = vocabulary.token_bytes(tokens[index]) + tail
        if vocabulary.can_continue(tail):
            keep = index
    kept = b"".join(vocabulary.token_bytes(token) for token in tokens[:keep])
    if not data.startswith(kept):  # a tokeniser that normalises: impose everything, lose nothing
        return Healed((), data)
    return Healed(tuple(tokens[:keep]), data[len(kept) :])


def encode(text: str) -> bytes:
    """Return UTF-8; a lone surrogate becomes ``?``, which never happens past the document store."""
    return text.encode("utf-8", "replace")
