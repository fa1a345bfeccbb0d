"""Token healing: generation that must begin with given bytes.

The prompt ends at a token boundary left of the cursor; the bytes from there to the cursor are not
evaluated as tokens but imposed as a constraint, so the model may choose tokens that reach across
the cursor. At each step the allowed tokens are those that start with what remains of the
constraint, and those proper prefixes of it with which the tokeniser itself would begin a text like
this ("character prefix conditioning"). Other prefixes are left out: no text that the model has seen
goes on with ``.c`` and ``lear``, but the noise in their logits beats ``.clear`` where ``.pop`` is
what the model wanted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fimlsp.engine.native.seam import Tokens
from fimlsp.engine.vocabulary import ModelVocabulary


class Constraint:
    """What is left of the imposed bytes. One per request, engine thread only."""

    def __init__(
        self,
        vocabulary: ModelVocabulary,
        must_start_with: bytes,
        *,
        forbidden: Iterable[int] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._forbidden = [token for token in forbidden if vocabulary.is_text(token)]
        self._left = must_start_with

    @property
    def active(self) -> bool:
        """Tell whether bytes remain to be imposed."""
        return bool(self._left)

    def allowed(self) -> Tokens:
        """Return the token ids that may come next; never empty while active.

        Every byte is a token of its own in byte-level vocabularies; where one is not, or may not
        be written (``forbidden``), the caller gets an empty array and must end the request.
        """
        shorter = self._vocabulary.proper_prefixes(self._left)
        likely = self._vocabulary.first_tokens(self._left)
        longer = self._vocabulary.starting_with(self._left)
        allowed = self._permitted(longer, [token for token in shorter if token in likely])
        return allowed if len(allowed) else self._permitted(longer, shorter)

    def _permitted(self, longer: Tokens, shorter: list[int]) -> Tokens:
        both = np.concatenate([longer, np.array(shorter, dtype=np.int32)]) if shorter else longer
        return both[~np.isin(both, self._forbidden)] if self._forbidden else both

    def advance(self, token: int) -> None:
        """Take the bytes of an emitted token off the constraint."""
        piece = self._vocabulary.token_bytes(token)
        assert piece.startswith(self._left) or self._left.startswith(piece), (piece, self._left)
        self._left = self._left[len(piece) :]
