"""The seam: what the engine asks of a native library, whichever it is.

Cells are counted from the start of a slot; a cell's index is its token's position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]


class AbortedError(Exception):
    """A decode was aborted by its flag; the slot is as it was before the decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotParams:
    """Sizes fixed for the life of a model's slots."""

    n_slots: int
    n_ctx: int
    """Cells per slot."""
    n_ubatch: int
    """Tokens of one decode at most."""
    threads: int
    flash_attn: str = "auto"
    """``auto``, ``on`` or ``off``."""
    kv_type_k: str = "f16"
    """Name of a ggml type; so is ``kv_type_v``, which must be f16 where flash attention is off."""
    kv_type_v: str = "f16"
    n_outputs: int = 64
    """Rows of logits of one decode at most; each takes memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParams:
    """How weights are placed."""

    path: Path
    n_gpu_layers: int = -1
    """The GPU settings mean nothing to a library or a machine without GPUs."""
    split_mode: str = "layer"
    """How several GPUs share the model: ``layer``, ``row`` or ``none``."""
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    """Share of each GPU; empty: by free memory."""
    vocab_only: bool = False


class NativeSlots(Protocol):
    """The warm prompts of one model. Owned by one thread."""

    def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
        """Evaluate ``tokens`` at positions ``pos, pos+1, ...`` of ``slot``.

        Args:
            slot: Slot index.
            tokens: ``[n]`` int32, ``1 <= n <= n_ubatch``.
            pos: Number of cells in the slot; evaluation starts there.
            n_logits: Rows wanted, counted from the end; 0 <= n_logits <= n.

        Returns:
            ``[n_logits, n_vocab]`` float32, a view that is valid until the next decode.

        Raises:
            AbortedError: the abort flag was set; no cell of this call remains.
            DecodeError: the library failed; no cell of this call remains.
        """

    def truncate(self, slot: int, n_cells: int) -> None:
        """Forget the cells of ``slot`` from index ``n_cells`` on."""

    def copy(self, source: int, target: int, n_cells: int) -> None:
        """Make ``target`` hold exactly the first ``n_cells`` cells of ``source``."""

    def n_cells(self, slot: int) -> int:
        """Return how many cells the library itself counts in ``slot``."""

    def close(self) -> None:
        """Free all native memory of the slots."""


class NativeModel(Protocol):
    """A loaded model. ``tokenize``, ``piece``, ``is_...`` may be called from any thread.

    After ``close`` they raise EngineClosedError: other threads may still hold the vocabulary.
    """

    backend: str
    device: str
    """What evaluates it: the names of the GPUs, else ``CPU``."""
    description: str
    n_vocab: int
    n_ctx_train: int
    size_bytes: int
    bos: int | None
    """Id to put first, None where the model wants none."""
    added_eos: int | None
    """Id that the tokeniser puts last, None where it puts none."""
    vocabulary_kind: int
    """The library's number of the tokeniser's algorithm (enum llama_vocab_type)."""
    recurrent: bool
    """All or a part of it keeps a running state, which can be emptied but not taken back by some
    tokens: ``truncate`` to anything but 0 does nothing, and nor does an abort undo its decode."""

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Return token ids; ``special`` lets control-token spellings become control tokens."""

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token, ``b""`` for a control token."""

    def token_text(self, token: int) -> bytes:
        """Return a token as the file spells it; never empty for a control token."""

    def is_eog(self, token: int) -> bool:
        """Tell whether the library counts ``token`` as end of generation."""

    def is_special(self, token: int) -> bool:
        """Tell whether the file gives ``token`` the type control or user-defined."""

    def open_slots(self, params: SlotParams, abort: AbortFlagLike) -> NativeSlots:
        """Allocate slots; raises ModelLoadError when memory does not suffice."""

    def close(self) -> None:
        """Free the weights; slots must be closed before."""


class AbortFlagLike(Protocol):
    """A byte that native code polls; see :class:`fimlsp.engine.native.parts.AbortFlag`."""

    address: int

    def is_set(self) -> bool:
        """Tell whether the running decode should stop."""


LoadModel = Callable[[LoadParams, Callable[[float], bool]], NativeModel]
"""``load(params, progress)``: read a model, calling ``progress`` with 0..1 on the same thread.

``progress`` returns False to give up; the load then ends with a ModelLoadError.

Raises:
    ModelLoadError: the library refused; its own words are in the message.
    BackendUnavailableError: the library is missing or not the pinned version.
"""

QuantizeModel = Callable[[Path, Path, int], None]
"""``quantize_q4_0(source, target, threads)``: write a copy of a model with every matrix as Q4_0.

Takes seconds to minutes and can't be stopped: for a process of its own.

Raises:
    ModelError: the library did not write the copy; its own words are in the message.
"""
