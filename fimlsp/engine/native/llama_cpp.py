"""llama.cpp through llama-cpp-python's raw layer; the only importer of its package.

Slots are sequences of one unified cache, so copying a prefix only tags cells. Structs change almost
every release: the version is pinned and the layout is checked before anything is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fimlsp.engine.native import parts
from fimlsp.engine.native.parts import AbortFlag, Batch, Handle, NativeLog
from fimlsp.engine.native.seam import AbortedError, LoadParams, Logits, SlotParams, Tokens
from fimlsp.errors import BackendUnavailableError, DecodeError, ModelLoadError

NAME = "llama_cpp"
PACKAGE = "llama-cpp-python"
PINNED = "0.3.36"

_MAX_OUTPUTS = 64
"""Rows of logits one decode may ask for; each row reserves 0.6 MB twice for a Qwen vocabulary."""

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU

_log: NativeLog | None = None  # native code keeps calling it: it lives as long as the process


def _api() -> Any:
    """Import the raw layer, check version and struct layout, take over the log."""
    global _log
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, FileNotFoundError, RuntimeError) as error:
        raise BackendUnavailableError(
            f"{PACKAGE} can't be loaded: {error}. Install it with: pip install {PACKAGE}=={PINNED}"
        ) from error
    if llama_cpp.__version__ != PINNED:
        raise BackendUnavailableError(
            f"{PACKAGE} {llama_cpp.__version__} is installed, {PINNED} is needed: struct layouts "
            f"change between versions. Install it with: pip install {PACKAGE}=={PINNED}"
        )
    _check_layout(api)
    if _log is None:
        _log = NativeLog(api.llama_log_set, api.llama_log_callback)
        with _log.capture():
            api.llama_backend_init()
    return api


def _check_layout(api: Any) -> None:
    c = api.llama_context_default_params()
    m = api.llama_model_default_params()
    found = (c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max, c.type_k, c.type_v, c.flash_attn_type)
    expected = (512, 2048, 512, 1, 1, 1, -1)
    if found != expected or m.n_gpu_layers != -1 or not m.use_extra_bufts:
        raise BackendUnavailableError(
            f"{PACKAGE}: default parameters read as {found}, expected {expected}: the library does "
            f"not match its Python layer. Reinstall {PACKAGE}=={PINNED}"
        )


def system_info() -> str:
    """Return the library's own line about the CPU features it was built for."""
    info: bytes = _api().llama_print_system_info()
    return info.decode("utf-8", "replace")


def gpu_devices() -> list[dict[str, Any]]:
    """Return name and memory (bytes) of each GPU; the device API is exported but not bound."""
    api = _api()
    if not api.llama_supports_gpu_offload():
        return []
    folder = Path(str(api._lib._name)).parent
    ggml = _library(folder, "ggml")
    base = _library(folder, "ggml-base")
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    for name in ("name", "description"):
        function = getattr(base, f"ggml_backend_dev_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_char_p
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    size_p = ctypes.POINTER(ctypes.c_size_t)
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_p, size_p]
    devices = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        if base.ggml_backend_dev_type(device) not in _GPU_TYPES:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            {
                "name": (base.ggml_backend_dev_description(device) or b"").decode(),
                "memory_total": total.value,
                "memory_free": free.value,
            }
        )
    return devices


def _library(folder: Path, stem: str) -> ctypes.CDLL:
    for pattern in (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll", f"lib{stem}.dll"):
        if (folder / pattern).exists():
            return ctypes.CDLL(str(folder / pattern))
    raise BackendUnavailableError(f"{PACKAGE}: no {stem} library in {folder}")


class LlamaModel:
    """Weights and vocabulary; see :class:`fimlsp.engine.native.seam.NativeModel`."""

    backend = NAME

    def __init__(self, api: Any, handle: int) -> None:
        self._api = api
        self._model = Handle(handle, api.llama_model_free)
        self._vocab = api.llama_model_get_vocab(handle)
        text = ctypes.create_string_buffer(256)
        api.llama_model_desc(handle, text, 256)
        self.description = text.value.decode("utf-8", "replace")
        self.n_vocab = int(api.llama_vocab_n_tokens(self._vocab))
        self.n_ctx_train = int(api.llama_model_n_ctx_train(handle))
        self.size_bytes = int(api.llama_model_size(handle))
        adds_bos = api.llama_vocab_get_add_bos(self._vocab)
        self.bos = int(api.llama_vocab_bos(self._vocab)) if adds_bos else None

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Return token ids."""
        with self._model:
            return parts.tokenize(self._api.llama_tokenize, self._vocab, text, special=special)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""
        with self._model:
            return parts.piece(self._api.llama_token_to_piece, self._vocab, token)

    def is_eog(self, token: int) -> bool:
        """Tell whether the library counts ``token`` as end of generation."""
        with self._model:
            return bool(self._api.llama_vocab_is_eog(self._vocab, token))

    def is_special(self, token: int) -> bool:
        """Tell whether ``token`` is control or user-defined."""
        with self._model:
            return parts.is_special(self._api.llama_vocab_get_attr(self._vocab, token))

    def open_slots(self, params: SlotParams, abort: AbortFlag) -> LlamaSlots:
        """Allocate one context whose unified cache holds all slots."""
        with self._model as model:
            return LlamaSlots(self._api, model, self.n_vocab, params, abort)

    def close(self) -> None:
        """Free the weights."""
        self._model.close()


class LlamaSlots:
    """Sequences of one context; see :class:`fimlsp.engine.native.seam.NativeSlots`."""

    def __init__(
        self, api: Any, model: int, n_vocab: int, params: SlotParams, abort: AbortFlag
    ) -> None:
        self._api = api
        self._n_vocab = n_vocab
        self._params = params
        self._abort = abort
        self._callback = abort.callback(api.ggml_abort_callback)
        cp = api.llama_context_default_params()
        cp.n_ctx = params.n_ctx * params.n_slots
        cp.n_batch = cp.n_ubatch = params.n_ubatch
        cp.n_seq_max, cp.kv_unified = params.n_slots, True
        # With 0 the compute buffer reserves a row of logits for every token of a batch.
        cp.n_outputs_max = max(params.n_slots, min(_MAX_OUTPUTS, params.n_ubatch))
        cp.n_threads = cp.n_threads_batch = params.threads
        cp.flash_attn_type, cp.no_perf = 1, True
        assert _log is not None
        with _log.capture():
            self._context = api.llama_init_from_model(model, cp)
        if not self._context:
            raise ModelLoadError(
                f"no memory for a context of {cp.n_ctx} tokens: {_log.text()}. "
                "Lower engine.n_ctx or engine.slots"
            )
        self._memory = api.llama_get_memory(self._context)
        api.llama_set_abort_callback(self._context, self._callback, abort.address)
        self._batch = Batch(api.llama_batch_init, api.llama_batch_free, params.n_ubatch)

    def decode(self, slot: int, tokens: Tokens, pos: int, n_logits: int) -> Logits:
        """Evaluate tokens; see the protocol."""
        assert pos + len(tokens) <= self._params.n_ctx, (pos, len(tokens), self._params.n_ctx)
        assert n_logits <= _MAX_OUTPUTS, n_logits  # more would abort the process
        batch = self._batch.fill(tokens, pos, slot, n_logits)
        code = self._api.llama_decode(self._context, batch)
        if code == 2 or self._abort.is_set():
            self.truncate(slot, pos)
            raise AbortedError
        if code != 0:
            self.truncate(slot, pos)
            raise DecodeError(f"{PACKAGE}: decode of {len(tokens)} tokens at {pos} gave {code}")
        if n_logits == 0:
            self._api.llama_synchronize(self._context)
        return parts.logits_rows(
            self._api.llama_get_logits_ith, self._context, len(tokens), n_logits, self._n_vocab
        )

    def truncate(self, slot: int, n_cells: int) -> None:
        """Forget the cells from ``n_cells`` on."""
        self._api.llama_memory_seq_rm(self._memory, slot, n_cells, -1)

    def copy(self, source: int, target: int, n_cells: int) -> None:
        """Tag the first ``n_cells`` cells of ``source`` as belonging to ``target`` too."""
        assert source != target
        self._api.llama_memory_seq_rm(self._memory, target, -1, -1)
        if n_cells:
            self._api.llama_memory_seq_cp(self._memory, source, target, 0, n_cells)

    def n_cells(self, slot: int) -> int:
        """Return how many cells the library counts."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, slot)) + 1

    def close(self) -> None:
        """Free context and batch."""
        if self._context:
            self._api.llama_free(self._context)
            self._context = None
            self._batch.close()


def load(params: LoadParams, progress: Callable[[float], bool]) -> LlamaModel:
    """Read a model; see :data:`fimlsp.engine.native.seam.LoadModel`."""
    api = _api()
    assert _log is not None
    mp = api.llama_model_default_params()
    mp.vocab_only = params.vocab_only
    mp.n_gpu_layers = params.n_gpu_layers

    def report(fraction: float, _data: Any) -> bool:
        return progress(float(fraction))

    callback = api.llama_progress_callback(report)
    mp.progress_callback = callback
    with _log.capture():
        handle = api.llama_model_load_from_file(str(params.path).encode(), mp)
    if not handle:
        raise ModelLoadError(f"{PACKAGE} can't load {params.path}: {_log.text()}")
    return LlamaModel(api, handle)
