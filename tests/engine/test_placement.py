"""From the settings of a model's place to what the native seam asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from engine_harness import result

from fimlsp.engine.api import (
    KV_TYPES,
    DraftParams,
    EngineParams,
    Phase,
    PlacementParams,
    Request,
)
from fimlsp.engine.native.parts import GGML_TYPES
from fimlsp.engine.native.seam import LoadParams, SlotParams
from fimlsp.engine.placement import describe, load_params, slot_params
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import ConfigError

OpenEngine = Callable[..., InProcessEngine]

MODEL = Path("model.gguf")
ELSEWHERE = PlacementParams(
    n_gpu_layers=7,
    split_mode="row",
    main_gpu=1,
    tensor_split=(3.0, 1.0),
    flash_attn="on",
    kv_type_k="q8_0",
    kv_type_v="q4_0",
)
"""Every setting other than its default."""


def test_every_setting_of_the_placement_reaches_the_seam() -> None:
    sizes = {"n_slots": 2, "n_ctx": 512, "n_ubatch": 32, "threads": 1}
    asked = {
        name: getattr(params, name)
        for params, names in (
            (load_params(MODEL, ELSEWHERE, section="engine"), LoadParams.__slots__),
            (slot_params(ELSEWHERE, **sizes), SlotParams.__slots__),
        )
        for name in names
    }
    for field in fields(PlacementParams):
        assert asked[field.name] == getattr(ELSEWHERE, field.name) != field.default
    assert asked.items() >= sizes.items()


@pytest.mark.parametrize("kind", [EngineParams, DraftParams])
def test_defaults_are_what_the_seam_takes_when_nothing_is_said(
    kind: type[EngineParams | DraftParams],
) -> None:
    assert load_params(MODEL, kind(), section="engine") == LoadParams(path=MODEL)
    sizes = {"n_slots": 2, "n_ctx": 512, "n_ubatch": 32, "threads": 1}
    assert slot_params(kind(), **sizes) == SlotParams(**sizes)


@pytest.mark.parametrize("kv_type", KV_TYPES[1:])
def test_quantised_values_without_flash_attention_are_refused_with_both_ways_out(
    kv_type: str,
) -> None:
    draft = DraftParams(flash_attn="off", kv_type_v=kv_type)
    with pytest.raises(ConfigError) as caught:
        load_params(MODEL, draft, section="draft")
    assert str(caught.value) == (
        f'draft.kv_type_v: found "{kv_type}" with draft.flash_attn = "off", and quantised values '
        'need flash attention; set draft.flash_attn to "auto" or draft.kv_type_v to "f16"'
    )


@pytest.mark.parametrize(
    "placement",
    [
        PlacementParams(flash_attn="off"),
        PlacementParams(flash_attn="off", kv_type_k="q8_0"),
        PlacementParams(flash_attn="on", kv_type_v="q8_0"),
        PlacementParams(kv_type_k="q4_0", kv_type_v="q4_0"),
    ],
)
def test_what_goes_together_is_let_through(placement: PlacementParams) -> None:
    assert load_params(MODEL, placement, section="engine").path == MODEL


def test_every_cache_type_that_can_be_set_has_a_number_in_the_library() -> None:
    assert set(KV_TYPES) == set(GGML_TYPES)


def test_an_engine_whose_cache_can_not_be_says_so_before_it_reads_the_model(
    open_tiny: OpenEngine,
) -> None:
    engine = open_tiny(model=Path("is-not-read.gguf"), flash_attn="off", kv_type_v="q8_0")
    assert engine.state.phase is Phase.FAILED
    assert isinstance(engine.state.error, ConfigError)
    assert "engine.flash_attn" in str(engine.state.error)


def test_an_engine_writes_from_a_quantised_cache(open_tiny: OpenEngine, text: list[int]) -> None:
    engine = open_tiny(kv_type_k="q8_0", kv_type_v="q8_0")
    request = Request(slot="a", prompt=tuple(text[:60]), max_tokens=8)
    assert len(result(engine.submit(request).future).tokens) == 8


def test_measured_speeds_of_two_places_are_told_apart() -> None:
    """A curve measured on the CPU was taken for one of the GPU."""
    here = describe(PlacementParams(), "CPU")
    places = {here, describe(PlacementParams(), "NVIDIA X")}
    for field in fields(PlacementParams):
        other = PlacementParams(**{field.name: getattr(ELSEWHERE, field.name)})
        places.add(describe(other, "CPU"))
    assert len(places) == 2 + len(fields(PlacementParams))
