"""Logits to token; numpy only.

Greedy takes the argmax of the raw row. Sampling a 150,000-token vocabulary through the library's
sampler chain would build a candidate array of 1.8 MB per token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fimlsp.engine.api import SamplingParams

Row = npt.NDArray[np.float32]
"""Logits of one position, ``[n_vocab]``."""
Ids = npt.NDArray[np.int32]


class Sampler:
    """Picks the tokens of one request. Engine thread only.

    Takes one random draw per token that is picked, whether or not it was drafted, so that a seeded
    text is the same with and without speculation.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._random = np.random.default_rng(params.seed)

    def pick(self, row: Row, allowed: Ids | None = None) -> int:
        """Return the next id of ``row``, among ``allowed`` ids if given.

        The order of the filters is llama.cpp's: top-k, top-p, min-p, temperature.
        """
        assert row.ndim == 1
        if self._params.temperature <= 0:
            return greedy(row, allowed)
        ids, logits = _likeliest(row, allowed, self._params.top_k)
        kept = self._kept(_softmax(logits))
        weights = np.cumsum(_softmax(logits[:kept] / self._params.temperature))
        at = int(np.searchsorted(weights, self._random.random() * weights[-1], side="right"))
        return int(ids[min(at, kept - 1)])

    def _kept(self, probabilities: npt.NDArray[np.float64]) -> int:
        """Return how many of the falling ``probabilities`` top-p and min-p leave; at least 1."""
        kept = len(probabilities)
        if self._params.top_p < 1:
            mass = np.cumsum(probabilities)
            kept = int(np.searchsorted(mass, self._params.top_p, side="left")) + 1
        floor = self._params.min_p * probabilities[0]
        return max(1, min(kept, int(np.count_nonzero(probabilities >= floor))))


def greedy(row: Row, allowed: Ids | None = None) -> int:
    """Return the most likely id of ``row``, among ``allowed`` ids if given."""
    if allowed is None:
        return int(row.argmax())
    return int(allowed[int(row[allowed].argmax())])


def logprob(row: Row, token: int, allowed: Ids | None = None) -> float:
    """Return the log of the probability that ``row`` gives ``token`` among the ``allowed`` ids."""
    logits = row if allowed is None else row[allowed]
    top = logits.max()
    return float(row[token] - top - np.log(np.exp(logits - top).sum()))


def _likeliest(row: Row, allowed: Ids | None, top_k: int) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Return at most ``top_k`` ids (0: all) and their logits, the likeliest first."""
    ids = np.arange(len(row), dtype=np.int32) if allowed is None else allowed
    logits = row if allowed is None else row[allowed]
    kept = len(ids)
    if 0 < top_k < kept:
        kept = top_k
        bound = np.partition(logits, len(ids) - top_k)[len(ids) - top_k]
        best = np.flatnonzero(logits >= bound)  # all that tie with the last one, too
        ids, logits = ids[best], logits[best]
    order = np.lexsort((ids, -logits))[:kept]  # ties by id: the same text on every machine
    return ids[order], logits[order].astype(np.float64)


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(logits - logits[0])
    return np.asarray(weights / weights.sum())
