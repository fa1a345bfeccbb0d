"""The vocabulary as bytes: sorted once, so that constraints are two bisections.

Knows nothing of prompts; :mod:`fimlsp.engine.healing` turns its answers into masks.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fimlsp.engine.native.seam import NativeModel, Tokens

_MARKER = re.compile(rb"<\|[^|<>\s]+\|>")
"""A spelling that no family uses for anything but control tokens."""


LIKELY_NEXT = (
    b"",
    b"a",
    b"e",
    b"i",
    b"r",
    b"s",
    b"t",
    b"A",
    b"_",
    b"1",
    b" ",
    b"\n",
    b"(",
    b".",
    b"=",
)
"""How a text may go on: what follows decides where its first token ends."""


@dataclass(frozen=True, slots=True)
class _TextTokens:
    """Every token that may be text, in the order of its bytes. Replaced as a whole."""

    ids: Tokens
    pieces: list[bytes]

    def span(self, head: bytes) -> tuple[int, int]:
        """Return the half-open range of the tokens that start with ``head``."""
        first = bisect_left(self.pieces, head)
        end = _successor(head)
        return first, len(self.pieces) if end is None else bisect_left(self.pieces, end)

    def exactly(self, piece: bytes) -> list[int]:
        """Return the ids whose bytes are ``piece``; usually one."""
        found = []
        index = bisect_left(self.pieces, piece)
        while index < len(self.pieces) and self.pieces[index] == piece:
            found.append(int(self.ids[index]))
            index += 1
        return found

    def without(self, token: int) -> _TextTokens:
        """Return all but one of these tokens."""
        (found,) = np.flatnonzero(self.ids == token)
        index = int(found)
        pieces = self.pieces[:index] + self.pieces[index + 1 :]
        return _TextTokens(np.delete(self.ids, index), pieces)


class ModelVocabulary:
    """See :class:`fimlsp.engine.api.Vocabulary`."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self.n_tokens = model.n_vocab
        self._pieces = [model.piece(token) for token in range(model.n_vocab)]
        self._longest = max(map(len, self._pieces), default=0)
        self.eog = frozenset(t for t in range(model.n_vocab) if model.is_eog(t))
        self.bos = model.bos
        self._lock = threading.Lock()
        self._spelled = frozenset(
            t for t, piece in enumerate(self._pieces) if _MARKER.fullmatch(piece)
        )
        """Control tokens that the file calls user-defined: the library finds those in plain text
        too, so ``tokenize`` has to break their spellings up."""
        self._text = _text_tokens(self._pieces, self.eog | self._spelled)

    def tokenize(self, text: bytes) -> list[int]:
        """Return the ids of user text; control spellings stay text."""
        ids = self._model.tokenize(text, special=False)
        if self._spelled.isdisjoint(ids):
            return ids
        plain: list[int] = []
        for token in ids:
            if token in self._spelled:
                piece = self._pieces[token]
                plain += self._model.tokenize(piece[:1], special=False)
                plain += self._model.tokenize(piece[1:], special=False)
            else:
                plain.append(token)
        return plain

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, ``b""`` for a control token."""
        return b"" if token in self._spelled else self._pieces[token]

    def is_text(self, token: int) -> bool:
        """Tell whether a token may be part of an answer: no control token, no end."""
        return bool(self.token_bytes(token)) and token not in self.eog

    def control(self, text: str) -> int | None:
        """Return the id of the control token spelled ``text``."""
        ids = self._model.tokenize(text.encode(), special=True)
        if len(ids) != 1 or not self._model.is_special(ids[0]):
            return None
        if self.token_bytes(ids[0]):
            with self._lock:
                if self.is_text(ids[0]):
                    self._text = self._text.without(ids[0])
                self._spelled |= {ids[0]}
        return ids[0]

    def can_continue(self, tail: bytes) -> bool:
        """Tell whether some token starts with ``tail`` and is longer."""
        text = self._text
        first, last = text.span(tail)
        return last > first and text.pieces[last - 1] != tail

    def starting_with(self, head: bytes) -> Tokens:
        """Return the ids of all text tokens that start with ``head``."""
        text = self._text
        first, last = text.span(head)
        return text.ids[first:last]

    def first_tokens(self, text: bytes) -> set[int]:
        """Return the ids with which the tokeniser begins ``text`` and likely longer texts."""
        return {self.tokenize(text + more)[0] for more in LIKELY_NEXT}

    def proper_prefixes(self, text: bytes) -> list[int]:
        """Return the ids of all text tokens that are proper prefixes of ``text``."""
        tokens = self._text
        lengths = range(1, min(len(text), self._longest + 1))
        return [t for n in lengths for t in tokens.exactly(text[:n])]


def _text_tokens(pieces: Sequence[bytes], never: frozenset[int]) -> _TextTokens:
    ids = [t for t, piece in enumerate(pieces) if piece and t not in never]
    ids.sort(key=pieces.__getitem__)
    return _TextTokens(np.array(ids, dtype=np.int32), [pieces[t] for t in ids])


def _successor(head: bytes) -> bytes | None:
    """Return the smallest byte string greater than everything that starts with ``head``."""
    stripped = head.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])
