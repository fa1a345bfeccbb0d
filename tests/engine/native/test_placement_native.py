"""What each native library makes of flash attention, cache types and the settings of GPUs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_harness import NOISE

from fimlsp.engine.api import KV_TYPES
from fimlsp.engine.native.parts import GGML_TYPES, AbortFlag
from fimlsp.engine.native.seam import LoadParams, NativeModel, SlotParams
from fimlsp.errors import ModelLoadError

RAW = {"ik_llama": "ik_llama_cpp._ctypes_api", "llama_cpp": "llama_cpp.llama_cpp"}
GPU = {"name": "A card", "memory_total": 8 << 30, "memory_free": 7 << 30}
ROUNDING = {"f16": NOISE, "q8_0": 3.0, "q4_0": 24.0}
"""How far a logit may move from the one of an exact cache: each a few times what was measured."""


def load(module: Any, path: Path, **params: Any) -> NativeModel:
    model: NativeModel = module.load(LoadParams(path=path, **params), lambda _fraction: True)
    return model


@pytest.fixture(scope="module")
def model(native_module: Any, tiny_model: Path) -> Iterator[NativeModel]:
    model = load(native_module, tiny_model)
    yield model
    model.close()


@pytest.fixture
def raw(backend: str) -> Any:
    return importlib.import_module(RAW[backend])


def logits(model: NativeModel, text: list[int], **types: str) -> Any:
    """Return the rows of ten tokens that were read in a copy of a slot of these types."""
    params = SlotParams(n_slots=2, n_ctx=256, n_ubatch=48, threads=1, **types)
    slots = model.open_slots(params, AbortFlag())
    tokens = np.array(text[:58], dtype=np.int32)
    slots.decode(0, tokens[:48], 0, 0)
    slots.copy(0, 1, 40)
    rows = slots.decode(1, tokens[40:58], 40, 10).copy()
    assert slots.n_cells(1) == 58
    slots.close()
    return rows


@pytest.mark.parametrize("flash_attn", ["auto", "on", "off"])
def test_attention_gives_the_same_logits_in_every_way_of_computing_it(
    model: NativeModel, text: list[int], flash_attn: str
) -> None:
    np.testing.assert_allclose(
        logits(model, text, flash_attn=flash_attn), logits(model, text), atol=NOISE
    )


@pytest.mark.parametrize(("kv_type_k", "kv_type_v"), list(product(KV_TYPES, repeat=2)))
def test_every_type_of_cache_gives_the_same_logits_up_to_its_rounding(
    model: NativeModel, text: list[int], kv_type_k: str, kv_type_v: str
) -> None:
    rows = logits(model, text, kv_type_k=kv_type_k, kv_type_v=kv_type_v)
    atol = max(ROUNDING[kv_type_k], ROUNDING[kv_type_v])
    np.testing.assert_allclose(rows, logits(model, text), atol=atol)


def test_quantised_keys_need_no_flash_attention(model: NativeModel, text: list[int]) -> None:
    rows = logits(model, text, flash_attn="off", kv_type_k="q8_0")
    np.testing.assert_allclose(rows, logits(model, text), atol=ROUNDING["q8_0"])


@pytest.mark.parametrize(
    ("given", "number"),
    [("auto", {"ik_llama": True, "llama_cpp": -1}), ("off", {"ik_llama": False, "llama_cpp": 0})],
)
def test_what_is_asked_for_reaches_the_library(
    model: NativeModel,
    raw: Any,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    number: dict[str, int],
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(raw, "llama_init_from_model", lambda _model, params: asked.append(params))
    params = SlotParams(
        n_slots=1, n_ctx=256, n_ubatch=32, threads=1, flash_attn=given, kv_type_k="q8_0"
    )
    with pytest.raises(ModelLoadError):
        model.open_slots(params, AbortFlag())
    (context,) = asked
    field = {"ik_llama": "flash_attn", "llama_cpp": "flash_attn_type"}[backend]
    assert getattr(context, field) == number[backend]
    assert (context.type_k, context.type_v) == (GGML_TYPES["q8_0"], GGML_TYPES["f16"])


def test_a_refusal_by_the_library_is_quoted(model: NativeModel) -> None:
    """Every failure was put down to too little memory."""
    params = SlotParams(
        n_slots=1, n_ctx=256, n_ubatch=32, threads=1, flash_attn="off", kv_type_v="q8_0"
    )
    with pytest.raises(ModelLoadError, match=r"(?i)V cache quantization|quantized V cache"):
        model.open_slots(params, AbortFlag())


def test_a_machine_without_a_gpu_runs_the_model_whatever_is_set_for_gpus(
    native_module: Any, tiny_model: Path
) -> None:
    model = load(
        native_module,
        tiny_model,
        n_gpu_layers=99,
        split_mode="none",
        main_gpu=7,
        tensor_split=(3.0, 1.0),
    )
    if not native_module.gpu_devices():
        assert model.device == "CPU"
    assert model.tokenize(b"self", special=False)
    model.close()


@pytest.fixture
def asked(native_module: Any, raw: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The parameters of every load, each refused, on a machine with two cards."""
    asked: list[Any] = []
    monkeypatch.setattr(native_module, "gpu_devices", lambda: [GPU, GPU])
    monkeypatch.setattr(
        raw, "llama_model_load_from_file", lambda _path, params: asked.append(params)
    )
    return asked


@pytest.mark.parametrize("split_mode", ["layer", "row", "none"])
def test_weights_are_placed_as_asked_by_the_library_that_can(
    native_module: Any, asked: list[Any], split_mode: str
) -> None:
    with pytest.raises(ModelLoadError):
        load(
            native_module,
            Path("x.gguf"),
            n_gpu_layers=12,
            split_mode=split_mode,
            main_gpu=1,
            tensor_split=(3.0, 1.0),
        )
    (model,) = asked
    if native_module.NAME == "ik_llama":
        assert (model.n_gpu_layers, model.main_gpu, bool(model.tensor_split)) == (0, 0, False)
        return
    number = {"none": 0, "layer": 1, "row": 2}[split_mode]
    assert (model.n_gpu_layers, model.split_mode, model.main_gpu) == (12, number, 1)
    assert model.tensor_split[:4] == [3.0, 1.0, 0.0, 0.0]


def test_shares_for_more_cards_than_there_are_are_told_and_not_ignored(
    native_module: Any, asked: list[Any]
) -> None:
    shares = (1.0, 1.0, 1.0)
    expected = {"llama_cpp": "found 3 shares, expected at most 2", "ik_llama": "can't load"}
    with pytest.raises(ModelLoadError, match=expected[native_module.NAME]):
        load(native_module, Path("x.gguf"), tensor_split=shares)
    assert len(asked) == (native_module.NAME == "ik_llama")


def test_what_a_package_was_built_for_is_read_from_its_files_with_no_gpu_at_hand(
    native_module: Any, raw: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if native_module.NAME == "ik_llama":
        assert native_module.gpu_backends() == []
        return
    for name in ("libggml.so", "libggml-base.so.0", "libggml-cpu-haswell.so", "ggml-vulkan.dll"):
        (tmp_path / name).touch()
    (tmp_path / "libggml-cuda.so").touch()
    here = SimpleNamespace(_name=str(tmp_path / "libllama.so"))
    monkeypatch.setattr(raw, "_lib", here)
    assert native_module.gpu_backends() == ["cuda", "vulkan"]


def test_no_card_is_named_where_no_layer_lies_on_one(
    native_module: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_module, "gpu_devices", lambda: [GPU, GPU])
    names = {-1: {"llama_cpp": "A card, A card", "ik_llama": "CPU"}[native_module.NAME], 0: "CPU"}
    for n_gpu_layers, name in names.items():
        model = load(native_module, tiny_model, n_gpu_layers=n_gpu_layers)
        assert model.device == name
        model.close()
