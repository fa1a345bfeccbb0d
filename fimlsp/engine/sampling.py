"""Logits to token; numpy only.

Greedy takes the argmax of the raw row. Sampling a 150,000-token vocabulary through the library's
sampler chain would build a candidate array of 1.8 MB per token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def greedy(row: npt.NDArray[np.float32], allowed: npt.NDArray[np.int32] | None = None) -> int:
    """Return the most likely id of ``row`` (``[n_vocab]``), among ``allowed`` ids if given."""
    assert row.ndim == 1
    if allowed is None:
        return int(row.argmax())
    values: npt.NDArray[Any] = row[allowed]
    return int(allowed[int(values.argmax())])


def logprob(row: npt.NDArray[np.float32], token: int) -> float:
    """Return the natural log of the probability that ``row`` (``[n_vocab]``) gives ``token``."""
    top = row.max()
    return float(row[token] - top - np.log(np.exp(row - top).sum()))
