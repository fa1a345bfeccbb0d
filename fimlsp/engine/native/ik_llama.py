"""ik_llama.cpp, the fork with faster CPU kernels; the only importer of its package.

Its C API is the older one. Three of its habits shape this file: tokenisation takes the *model*
pointer; after an abort ``llama_decode`` returns 0 and leaves cells of garbage behind; and several
sequences in one context abort the process when flash attention is on, so a slot is a context of its
own on the shared weights.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fimlsp.engine.native import parts, quantise
from fimlsp.engine.native.model import BaseModel, VocabularyCalls
from fimlsp.engine.native.package import not_loadable, require_layout, require_version
from fimlsp.engine.native.parts import GGML_TYPES, AbortFlag, Batch, Handle, NativeLog
from fimlsp.engine.native.seam import AbortedError, LoadParams, Logits, SlotParams, Tokens
from fimlsp.errors import DecodeError, ModelLoadError

NAME = "ik_llama"
PACKAGE = "ik-llama-cpp-python"
PINNED = "0.1.5"

_log: NativeLog | None = None  # native code keeps calling it: it lives as long as the process


def _api() -> Any:
    """Import the package, declare what it exports and does not bind, check struct layouts."""
    global _log
    try:
        from ik_llama_cpp import __version__
        from ik_llama_cpp import _ctypes_api as api
    except (ImportError, OSError, FileNotFoundError) as error:
        raise not_loadable(PACKAGE, PINNED, error) from error
    require_version(PACKAGE, PINNED, __version__)
    lib = api._lib
    pointer, i32, u32, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_size_t
    for name, argtypes, restype in (
        ("llama_kv_cache_seq_rm", [pointer, i32, i32, i32], ctypes.c_bool),
        ("llama_get_kv_cache_used_cells", [pointer], i32),
        ("llama_set_abort_callback", [pointer, api.ggml_abort_callback, pointer], None),
        ("llama_state_seq_get_size", [pointer, i32, u32], size),
        ("llama_state_seq_get_data", [pointer, pointer, size, i32, u32], size),
        ("llama_state_seq_set_data", [pointer, pointer, size, i32, u32], size),
        ("llama_n_ctx_train", [pointer], i32),
        ("llama_model_size", [pointer], ctypes.c_uint64),
        ("llama_token_bos", [pointer], i32),
        ("llama_add_bos_token", [pointer], i32),
        ("llama_token_eos", [pointer], i32),
        ("llama_add_eos_token", [pointer], i32),
        ("llama_vocab_type", [pointer], ctypes.c_int),
        ("llama_token_get_attr", [pointer, i32], ctypes.c_int),
        ("llama_token_get_text", [pointer, i32], ctypes.c_char_p),
        ("llama_model_is_recurrent", [pointer], ctypes.c_bool),
        ("llama_model_is_hybrid", [pointer], ctypes.c_bool),
        ("llama_print_system_info", [], ctypes.c_char_p),
    ):
        function = getattr(lib, name)
        function.argtypes, function.restype = argtypes, restype
    _check_layout(api)
    if _log is None:
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        lib.llama_log_set.argtypes, lib.llama_log_set.restype = [prototype, pointer], None
        _log = NativeLog(lib.llama_log_set, prototype)
        with _log.capture():
            api.llama_backend_init()
    return api


def _check_layout(api: Any) -> None:
    c = api.llama_context_default_params()
    found = (c.n_ctx, c.n_batch, c.n_ubatch, c.type_k, c.type_v, c.flash_attn)
    require_layout(PACKAGE, PINNED, found, (512, 2048, 512, 1, 1, True))


def system_info() -> str:
    """Return the library's own line about the CPU features it was built for."""
    info: bytes = _api()._lib.llama_print_system_info()
    return info.decode("utf-8", "replace")


def gpu_devices() -> list[dict[str, Any]]:
    """Return no devices: the published wheels are CPU builds."""
    return []


def gpu_backends() -> list[str]:
    """Return nothing, for the same reason."""
    return []


class _QuantizeParams(ctypes.Structure):
    """``struct llama_model_quantize_params`` of this version, which the package does not bind."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("tensor_types", ctypes.c_int * 11),  # of the output and ten other kinds of tensors
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("others", ctypes.c_bool * 5),
        ("pointers", ctypes.c_void_p * 4),
    )


def quantize_q4_0(source: Path, target: Path, threads: int) -> None:
    """Write a copy with every matrix as Q4_0; see the seam's ``QuantizeModel``."""
    lib = _api()._lib
    lib.llama_model_quantize_default_params.restype = _QuantizeParams
    lib.llama_model_quantize.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(_QuantizeParams),
    ]
    lib.llama_model_quantize.restype = ctypes.c_uint32
    params = lib.llama_model_quantize_default_params()
    found = (params.ftype, set(params.tensor_types), bytes(params)[52:61])
    require_layout(PACKAGE, PINNED, found, (9, {400}, b"\0\1" + bytes(7)))
    params.nthread, params.ftype = threads, quantise.Q4_0
    params.allow_requantize = params.pure = True
    assert _log is not None
    quantise.write_copy(lib.llama_model_quantize, _log, source, target, ctypes.byref(params))


class IkModel(BaseModel):
    """Weights and vocabulary; see :class:`fimlsp.engine.native.seam.NativeModel`."""

    backend = NAME
    device = "CPU"

    def __init__(self, api: Any, model: int) -> None:
        lib = api._lib
        calls = VocabularyCalls(
            pointer=model,
            tokenize=api.llama_tokenize,
            piece=api.llama_token_to_piece,
            text=lib.llama_token_get_text,
            is_eog=api.llama_token_is_eog,
            attributes=lib.llama_token_get_attr,
        )
        super().__init__(Handle(model, api.llama_free_model), calls)
        self._api = api
        text = ctypes.create_string_buffer(256)
        api.llama_model_desc(model, text, 256)
        self.description = text.value.decode("utf-8", "replace")
        vocabulary = api.llama_model_get_vocab(model)
        self.n_vocab = int(api.llama_vocab_n_tokens(vocabulary))
        self.vocabulary_kind = int(lib.llama_vocab_type(vocabulary))
        self.recurrent = bool(lib.llama_model_is_hybrid(model))
        self.n_ctx_train = int(lib.llama_n_ctx_train(model))
        self.size_bytes = int(lib.llama_model_size(model))
        adds_bos = lib.llama_add_bos_token(model) == 1
        self.bos = int(lib.llama_token_bos(model)) if adds_bos else None
        adds_eos = lib.llama_add_eos_token(model) == 1
        self.added_eos = int(lib.llama_token_eos(model)) if adds_eos else None

    def open_slots(self, params: SlotParams, abort: AbortFlag) -> IkSlots:
        """Allocate the batch; contexts follow as slots are first used."""
        with self._handle as model:
            return IkSlots(self._api, model, self.n_vocab, params, abort)


class IkSlots:
    """One context per slot; see :class:`fimlsp.engine.native.seam.NativeSlots`."""

    def __init__(
        self, api: Any, model: int, n_vocab: int, params: SlotParams, abort: AbortFlag
    ) -> None:
        self._api = api
        self._lib = api._lib
        self._model = model
        self._n_vocab = n_vocab
        self._params = params
        self._abort = abort
        self._callback = abort.callback(api.ggml_abort_callback)
        self._contexts: list[int | None] = [None] * params.n_slots
        self._context(0)  # out of memory shows at load, not at the first key
        self._batch = Batch(api.llama_batch_init, api.llama_batch_free, params.n_ubatch)

    def _context(self, slot: int) -> int:
        existing = self._contexts[slot]
        if existing is not None:
            return existing
        p = self._params
        cp = self._api.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = p.n_ctx, p.n_ubatch, p.n_ubatch, 1
        cp.n_threads = cp.n_threads_batch = p.threads
        cp.flash_attn = p.flash_attn != "off"
        cp.type_k, cp.type_v = GGML_TYPES[p.kv_type_k], GGML_TYPES[p.kv_type_v]
        assert _log is not None
        with _log.capture():
            context = self._api.llama_init_from_model(self._model, cp)
        if not context:
            raise ModelLoadError(
                f"{PACKAGE} gives no context of {p.n_ctx} tokens (slot {slot + 1} of "
                f"{p.n_slots}): {_log.text()}. Where memory is short, lower engine.n_ctx or "
                "engine.slots"
            )
        self._lib.llama_set_abort_callback(context, self._callback, self._abort.address)
        self._contexts[slot] = int(context)
        return int(context)

    def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
        """Evaluate tokens; see the protocol."""
        context = self._context(slot)
        assert pos + len(tokens) <= self._params.n_ctx, (pos, len(tokens), self._params.n_ctx)
        code = self._api.llama_decode(context, self._batch.fill(tokens, pos, 0, n_logits))
        if self._abort.is_set():
            self.truncate(slot, pos)
            raise AbortedError
        if code != 0:
            self.truncate(slot, pos)
            raise DecodeError(f"{PACKAGE}: decode of {len(tokens)} tokens at {pos} gave {code}")
        return parts.logits_rows(
            self._api.llama_get_logits_ith, context, len(tokens), n_logits, self._n_vocab
        )

    def truncate(self, slot: int, n_cells: int) -> None:
        """Forget the cells from ``n_cells`` on."""
        context = self._contexts[slot]
        if context is not None:
            self._lib.llama_kv_cache_seq_rm(context, 0, n_cells, -1)

    def copy(self, source: int, target: int, n_cells: int) -> None:
        """Copy through a buffer of the sequence's state: a memcpy instead of a prefill."""
        assert source != target
        if n_cells == 0:
            self.truncate(target, 0)
            return
        src, dst = self._context(source), self._context(target)
        size = self._lib.llama_state_seq_get_size(src, 0, 0)
        buffer = (ctypes.c_uint8 * size)()
        self._lib.llama_state_seq_get_data(src, buffer, size, 0, 0)
        self._lib.llama_kv_cache_seq_rm(dst, 0, -1, -1)
        if self._lib.llama_state_seq_set_data(dst, buffer, size, 0, 0) == 0:
            raise DecodeError(f"{PACKAGE}: copying {n_cells} cells to another slot failed")
        self.truncate(target, n_cells)

    def n_cells(self, slot: int) -> int:
        """Return how many cells the library counts."""
        context = self._contexts[slot]
        # Not llama_kv_cache_seq_pos_max: it gives 0 for an empty sequence and for one cell.
        return 0 if context is None else int(self._lib.llama_get_kv_cache_used_cells(context))

    def close(self) -> None:
        """Free contexts and batch."""
        for slot, context in enumerate(self._contexts):
            if context is not None:
                self._api.llama_free(context)
                self._contexts[slot] = None
        self._batch.close()


def load(params: LoadParams, progress: Callable[[float], bool]) -> IkModel:
    """Read a model; see :data:`fimlsp.engine.native.seam.LoadModel`.

    The wheels are CPU builds, so nothing is placed on a GPU whatever ``params`` say.
    """
    api = _api()
    assert _log is not None
    mp = api.llama_model_default_params()
    mp.repack_tensors = not params.vocab_only
    mp.vocab_only = params.vocab_only
    mp.n_gpu_layers = 0

    def report(fraction: float, _data: Any) -> bool:
        return progress(float(fraction))

    callback = api.llama_progress_callback(report)
    mp.progress_callback = callback
    with _log.capture():
        handle = api.llama_model_load_from_file(str(params.path).encode(), mp)
    if not handle:
        raise ModelLoadError(f"{PACKAGE} can't load {params.path}: {_log.text()}")
    lib = api._lib
    if lib.llama_model_is_recurrent(handle) and not lib.llama_model_is_hybrid(handle):
        api.llama_free_model(handle)
        raise ModelLoadError(  # its first decode would abort the process
            f"{params.path} is a recurrent model, and {PACKAGE} can't run those; set "
            'engine.backend to "llama_cpp"'
        )
    return IkModel(api, handle)
