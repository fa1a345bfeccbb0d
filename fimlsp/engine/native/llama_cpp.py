"""llama.cpp through llama-cpp-python's raw layer; the only importer of its package.

Slots are sequences of one unified cache, so copying a prefix only tags cells. Structs change almost
every release: the version is pinned and the layout is checked before anything is loaded.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fimlsp.engine.native import parts, quantise
from fimlsp.engine.native.model import BaseModel, VocabularyCalls
from fimlsp.engine.native.package import not_loadable, require_layout, require_version
from fimlsp.engine.native.parts import GGML_TYPES, AbortFlag, Batch, Handle, NativeLog
from fimlsp.engine.native.seam import AbortedError, LoadParams, Logits, SlotParams, Tokens
from fimlsp.errors import BackendUnavailableError, DecodeError, ModelLoadError

NAME = "llama_cpp"
PACKAGE = "llama-cpp-python"
PINNED = "0.3.36"

_MAX_OUTPUTS = 64
"""Rows of logits one decode may ask for; each row reserves 0.6 MB twice for a Qwen vocabulary."""

_GPU_KINDS = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_OTHER_BACKENDS = {"base", "cpu", "blas", "rpc"}  # parts of ggml that drive no GPU
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}  # enum llama_split_mode
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type

_log: NativeLog | None = None  # native code keeps calling it: it lives as long as the process


def _api() -> Any:
    """Import the raw layer, check version and struct layout, take over the log."""
    global _log
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, FileNotFoundError, RuntimeError) as error:
        raise not_loadable(PACKAGE, PINNED, error) from error
    require_version(PACKAGE, PINNED, llama_cpp.__version__)
    _check_layout(api)
    if _log is None:
        _log = NativeLog(api.llama_log_set, api.llama_log_callback)
        with _log.capture():
            api.llama_backend_init()
    return api


def _check_layout(api: Any) -> None:
    c = api.llama_context_default_params()
    m = api.llama_model_default_params()
    context = (c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max, c.type_k, c.type_v, c.flash_attn_type)
    model = (m.n_gpu_layers, m.split_mode, m.main_gpu, m.use_extra_bufts)
    expected = (512, 2048, 512, 1, 1, 1, -1, -1, 1, 0, True)
    require_layout(PACKAGE, PINNED, (*context, *model), expected)


def system_info() -> str:
    """Return the library's own line about the CPU features it was built for."""
    info: bytes = _api().llama_print_system_info()
    return info.decode("utf-8", "replace")


def gpu_devices() -> list[dict[str, Any]]:
    """Return name and memory (bytes) of each GPU that a model would be placed on, in order.

    The device API is exported but not bound.
    """
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
    found: dict[int, list[dict[str, Any]]] = {kind: [] for kind in _GPU_KINDS}
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        kind = base.ggml_backend_dev_type(device)
        if kind not in found:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        found[kind].append(
            {
                "name": (base.ggml_backend_dev_description(device) or b"").decode(),
                "memory_total": total.value,
                "memory_free": free.value,
            }
        )
    # What the library does with them: the one inside the CPU only counts where there is no other.
    return next((devices for devices in found.values() if devices), [])


def gpu_backends() -> list[str]:
    """Return what GPUs the package was built for (``cuda``, ``vulkan``...), present or not."""
    folder = Path(str(_api()._lib._name)).parent
    kinds = (re.match(r"(?:lib)?ggml-([a-z]+)", path.name) for path in folder.iterdir())
    return sorted({kind[1] for kind in kinds if kind} - _OTHER_BACKENDS)


def _library(folder: Path, stem: str) -> ctypes.CDLL:
    for pattern in (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll", f"lib{stem}.dll"):
        if (folder / pattern).exists():
            return ctypes.CDLL(str(folder / pattern))
    raise BackendUnavailableError(f"{PACKAGE}: no {stem} library in {folder}")


def quantize_q4_0(source: Path, target: Path, threads: int) -> None:
    """Write a copy with every matrix as Q4_0; see the seam's ``QuantizeModel``."""
    api = _api()
    params = api.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, quantise.Q4_0
    params.allow_requantize = params.pure = True
    assert _log is not None
    quantise.write_copy(api.llama_model_quantize, _log, source, target, ctypes.byref(params))


class LlamaModel(BaseModel):
    """Weights and vocabulary; see :class:`fimlsp.engine.native.seam.NativeModel`."""

    backend = NAME

    def __init__(self, api: Any, model: int, device: str) -> None:
        vocabulary = api.llama_model_get_vocab(model)
        calls = VocabularyCalls(
            pointer=vocabulary,
            tokenize=api.llama_tokenize,
            piece=api.llama_token_to_piece,
            text=api.llama_vocab_get_text,
            is_eog=api.llama_vocab_is_eog,
            attributes=api.llama_vocab_get_attr,
        )
        super().__init__(Handle(model, api.llama_model_free), calls)
        self._api = api
        self.device = device
        text = ctypes.create_string_buffer(256)
        api.llama_model_desc(model, text, 256)
        self.description = text.value.decode("utf-8", "replace")
        self.n_vocab = int(api.llama_vocab_n_tokens(vocabulary))
        self.n_ctx_train = int(api.llama_model_n_ctx_train(model))
        self.size_bytes = int(api.llama_model_size(model))
        adds_bos = api.llama_vocab_get_add_bos(vocabulary)
        self.bos = int(api.llama_vocab_bos(vocabulary)) if adds_bos else None
        adds_eos = api.llama_vocab_get_add_eos(vocabulary)
        self.added_eos = int(api.llama_vocab_eos(vocabulary)) if adds_eos else None
        self.vocabulary_kind = int(api.llama_vocab_type(vocabulary))
        self.recurrent = bool(
            api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)
        )

    def open_slots(self, params: SlotParams, abort: AbortFlag) -> LlamaSlots:
        """Allocate one context whose unified cache holds all slots."""
        with self._handle as model:
            return LlamaSlots(self._api, model, self.n_vocab, params, abort)


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
        outputs = min(_MAX_OUTPUTS, params.n_outputs, params.n_ubatch)
        cp.n_outputs_max = max(params.n_slots, outputs)
        cp.n_threads = cp.n_threads_batch = params.threads
        cp.flash_attn_type, cp.no_perf = _FLASH_ATTN[params.flash_attn], True
        cp.type_k, cp.type_v = GGML_TYPES[params.kv_type_k], GGML_TYPES[params.kv_type_v]
        assert _log is not None
        with _log.capture():
            self._context = api.llama_init_from_model(model, cp)
        if not self._context:
            raise ModelLoadError(
                f"{PACKAGE} gives no context of {cp.n_ctx} tokens: {_log.text()}. "
                "Where memory is short, lower engine.n_ctx or engine.slots"
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
    devices = gpu_devices() if params.n_gpu_layers and not params.vocab_only else []
    mp = api.llama_model_default_params()
    mp.vocab_only = params.vocab_only
    mp.n_gpu_layers = params.n_gpu_layers
    mp.split_mode, mp.main_gpu = _SPLIT_MODES[params.split_mode], params.main_gpu
    mp.tensor_split = _shares(api, params.tensor_split, devices)

    def report(fraction: float, _data: Any) -> bool:
        return progress(float(fraction))

    callback = api.llama_progress_callback(report)
    mp.progress_callback = callback
    with _log.capture():
        handle = api.llama_model_load_from_file(str(params.path).encode(), mp)
    if not handle:
        raise ModelLoadError(f"{PACKAGE} can't load {params.path}: {_log.text()}")
    return LlamaModel(api, handle, ", ".join(device["name"] for device in devices) or "CPU")


def _shares(api: Any, tensor_split: tuple[float, ...], devices: list[dict[str, Any]]) -> Any:
    """Return the library's array of shares, which has its own length; all 0 is by free memory."""
    if devices and len(tensor_split) > len(devices):
        raise ModelLoadError(
            f"tensor_split: found {len(tensor_split)} shares, expected at most {len(devices)}: "
            f"{PACKAGE} sees {len(devices)} GPUs (fimlsp doctor lists them)"
        )
    size = int(api.llama_max_devices())
    return (ctypes.c_float * size)(*tensor_split[:size])
