"""Every preset fits the machine it is for, by the sum that stands in its comment."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fimlsp.config.footprint import (
    BUFFERS_BYTES,
    DRAFT_SLOTS,
    Footprint,
    footprint,
    gpu_presets,
)
from fimlsp.config.schema import build_config, read_layer
from fimlsp.config.sources import load_preset
from fimlsp.config.tree import Config
from fimlsp.engine.api import DraftParams, EngineParams
from fimlsp.engine.drafters.model import N_SLOTS
from fimlsp.models.catalog import find
from fimlsp.models.params import ModelsParams

CONFIGS = Path(__file__).parents[2] / "configs"
GIB = 1 << 30
ROOM = {
    "gpu-8gb": 8 * GIB,
    "gpu-12gb": 12 * GIB,
    "gpu-16gb": 16 * GIB,
    "gpu-24gb": 24 * GIB,
    "gpu-48gb": 44 * GIB,  # a card of that size with its error correction on
    "apple": 16 * GIB * 2 // 3,
}
"""What a GPU of the smallest machine has that a preset is for."""
SPARE = 0.1
"""Part of it that must stay free: drivers differ, and so do desktops."""


def preset(name: str) -> Config:
    return build_config(read_layer(load_preset(name), source=name, trusted=True).values)


def pair(target: str, draft: str = "", **engine: int) -> Config:
    return Config(models=ModelsParams(target=target, draft=draft), engine=EngineParams(**engine))


def test_there_is_a_preset_for_each_size_of_card_and_for_apple_silicon() -> None:
    assert gpu_presets().keys() == ROOM.keys()


@pytest.mark.parametrize("name", ROOM)
def test_a_preset_leaves_a_tenth_of_its_gpu_free(name: str) -> None:
    assert gpu_presets()[name].total <= ROOM[name] * (1 - SPARE)


@pytest.mark.parametrize("name", ROOM)
def test_the_sum_in_a_preset_s_comment_is_the_one_that_its_settings_make(name: str) -> None:
    text = (CONFIGS / f"{name}.toml").read_text(encoding="utf-8")
    stated = [float(figure) for figure in re.findall(r"[:+=] ([\d.]+) GB", text)][:4]
    need = gpu_presets()[name]
    computed = (need.weights, need.cache, need.buffers, need.total)
    assert stated == [round(size / 1e9, 2) for size in computed]
    assert f"that is {need.total / GIB:.1f} GiB" in text


@pytest.mark.parametrize("name", ROOM)
def test_the_readme_names_the_pair_and_the_memory_of_each_preset(name: str) -> None:
    readme = (CONFIGS.parent / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in readme.splitlines() if line.startswith(f"| `{name}` |")]
    target, draft = (
        wanted.removeprefix("qwen2.5-coder-").upper()
        for wanted in (preset(name).models.target, preset(name).models.draft)
    )
    size, _, quantisation = target.partition("-")
    assert row.split(" | ")[1].startswith(f"{size}, {quantisation or 'Q4_K_M'}")
    assert row.split(" | ")[2:4] == [draft, f"{gpu_presets()[name].total / GIB:.1f} GiB"]


@pytest.mark.parametrize("name", [*ROOM, "cpu"])
def test_every_model_of_a_preset_is_in_the_catalogue_and_free_for_any_use(name: str) -> None:
    models = preset(name).models
    for wanted in filter(None, (models.target, models.draft)):
        model = find(wanted)
        assert model is not None
        assert model.licence == "Apache-2.0"


@pytest.mark.parametrize("name", ROOM)
def test_a_preset_with_a_gpu_has_a_smaller_draft_model_of_the_target_s_family(name: str) -> None:
    models = preset(name).models
    target, draft = find(models.target), find(models.draft)
    assert target is not None
    assert draft is not None
    assert draft.family == target.family
    assert draft.size_bytes * 4 < target.size_bytes


@pytest.mark.parametrize("name", [*ROOM, "cpu"])
def test_the_window_of_a_preset_fits_its_context_beside_the_answer(name: str) -> None:
    config = preset(name)
    window = config.window.prefix_tokens + config.window.suffix_tokens
    assert window + 2 * config.completion.max_tokens <= config.engine.n_ctx


def test_weights_cache_and_buffers_are_counted_for_target_and_draft() -> None:
    config = pair("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", n_ctx=1000, slots=3)
    config = replace(config, draft=DraftParams(n_ctx=500))
    assert footprint(config) == Footprint(
        weights=1_117_320_768 + 491_400_064,
        cache=3 * 1000 * 28 * 1024 + 2 * 500 * 12 * 1024,
        buffers=BUFFERS_BYTES,
    )


@pytest.mark.parametrize(
    ("types", "bytes_per_pair"),
    [(("f16", "f16"), 4.0), (("q8_0", "q8_0"), 2.125), (("f16", "q4_0"), 2.5625)],
)
def test_a_quantised_cache_takes_what_its_blocks_take(
    types: tuple[str, str], bytes_per_pair: float
) -> None:
    engine = EngineParams(n_ctx=1024, slots=1, kv_type_k=types[0], kv_type_v=types[1])
    need = footprint(Config(engine=engine))
    assert need is not None
    assert need.cache == 1024 * 28 * 2 * 128 * bytes_per_pair


def test_the_draft_model_is_counted_with_the_slots_that_it_opens() -> None:
    assert DRAFT_SLOTS == N_SLOTS


def test_what_stays_on_the_cpu_takes_no_gpu_memory() -> None:
    config = pair("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", n_gpu_layers=0)
    on_cpu = replace(config, draft=DraftParams(n_gpu_layers=0))
    assert footprint(on_cpu) == Footprint(weights=0, cache=0, buffers=0)
    need = footprint(config)
    assert need is not None
    assert need.weights == 491_400_064


def test_nothing_is_claimed_of_a_file_that_the_catalogue_does_not_know() -> None:
    assert footprint(pair("/models/own.gguf")) is None
    assert footprint(pair("qwen2.5-coder-1.5b", "own.gguf")) is None


def test_cells_of_the_catalogue_are_those_of_the_published_models() -> None:
    kib = {"0.5b": 12, "1.5b": 28, "3b": 36, "7b": 56, "14b": 192}
    for size, expected in kib.items():
        model = find(f"qwen2.5-coder-{size}")
        assert model is not None
        assert model.cell_values * 2 == expected * 1024
