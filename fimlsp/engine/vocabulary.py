"""The vocabulary as bytes: sorted once, so that constraints are two bisections.

Knows nothing of prompts; :mod:`fimlsp.engine.healing` turns its answers into masks.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from fimlsp.engine.native.seam import NativeModel, Tokens


class ModelVocabulary:
    """See :class:`fimlsp.engine.api.Vocabulary`."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self.n_tokens = model.n_vocab
        self._pieces = [model.piece(token) for token in range(model.n_vocab)]
        self.eog = frozenset(t for t in range(model.n_vocab) if model.is_eog(t))
        self.bos = model.bos
        text_ids = [t for t, piece in enumerate(self._pieces) if piece and t not in self.eog]
        text_ids.sort(key=self._pieces.__getitem__)
        self._sorted_ids = np.array(text_ids, dtype=np.int32)
        self._sorted_pieces = [self._pieces[t] for t in text_ids]
        self.control_ids = np.array(
            [t for t, piece in enumerate(self._pieces) if not piece or t in self.eog],
            dtype=np.int32,
        )
        """Ids that are never text: control tokens and every end of generation."""
        self._spelled: set[int] = set()
        """Control tokens that the file calls user-defined: the library finds those in plain text
        too, so ``tokenize`` has to break their spellings up."""
        self._ids_of: dict[bytes, list[int]] = {}
        for token in text_ids:
            self._ids_of.setdefault(self._pieces[token], []).append(token)

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
        return self._pieces[token]

    def control(self, text: str) -> int | None:
        """Return the id of the control token spelled ``text``."""
        ids = self._model.tokenize(text.encode(), special=True)
        if len(ids) != 1:
            return None
        if self._pieces[ids[0]]:
            self._spelled.add(ids[0])
        return ids[0]

    def can_continue(self, tail: bytes) -> bool:
        """Tell whether some token starts with ``tail`` and is longer."""
        first, last = self._range(tail)
        return last > first + len(self._ids_of.get(tail, ()))

    def starting_with(self, head: bytes) -> Tokens:
        """Return the ids of all text tokens that start with ``head``."""
        first, last = self._range(head)
        return self._sorted_ids[first:last]

    def proper_prefixes(self, text: bytes) -> list[int]:
        """Return the ids of all text tokens that are proper prefixes of ``text``."""
        return [t for n in range(1, len(text)) for t in self._ids_of.get(text[:n], ())]

    def _range(self, head: bytes) -> tuple[int, int]:
        first = bisect_left(self._sorted_pieces, head)
        end = _successor(head)
        last = len(self._sorted_pieces) if end is None else bisect_left(self._sorted_pieces, end)
        return first, last


def _successor(head: bytes) -> bytes | None:
    """Return the smallest byte string greater than everything that starts with ``head``."""
    stripped = head.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])
