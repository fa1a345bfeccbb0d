"""How much GPU memory a configuration takes: an estimate from facts of the catalogue.

Nothing is loaded and no GPU is asked, so that a preset can be named before anything is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fimlsp.config.schema import build_config, read_layer
from fimlsp.config.sources import load_preset, preset_names
from fimlsp.config.tree import Config
from fimlsp.engine.api import PlacementParams
from fimlsp.models.catalog import find

BUFFERS_BYTES: Final = 1 << 30
"""The driver's context, the buffers of both models (64 rows of logits of 0.6 MB each, activations
of one step) and a screen. Assumed, not measured on a GPU yet."""

DRAFT_SLOTS: Final = 2
"""Prompts that the draft model keeps warm."""

_BYTES_PER_VALUE: Final[Mapping[str, float]] = MappingProxyType(
    {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
)
"""Quantised types hold 32 values in a block, behind a scale of two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What lies on the GPU, in bytes."""

    weights: int
    cache: int
    """Keys and values of all warm prompts, full to the last token."""
    buffers: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.buffers


def footprint(config: Config) -> Footprint | None:
    """Return what ``config`` takes, None where a model isn't of the catalogue.

    Both models count in full as soon as one of their layers lies on the GPU. A llama.cpp cache
    holds all slots, so it counts as often as there are slots.
    """
    weights, cache = 0, 0
    for name, placement, n_cells in (
        (config.models.target, config.engine, config.engine.n_ctx * config.engine.slots),
        (config.models.draft, config.draft, config.draft.n_ctx * DRAFT_SLOTS),
    ):
        if not name or placement.n_gpu_layers == 0:
            continue
        model = find(name)
        if model is None:
            return None
        weights += model.size_bytes
        cache += round(n_cells * model.cell_values * _bytes_per_value(placement))
    return Footprint(weights=weights, cache=cache, buffers=BUFFERS_BYTES if weights else 0)


def gpu_presets() -> dict[str, Footprint]:
    """Return what each preset takes on the GPU, without those that use none."""
    needs = {}
    for name in preset_names():
        layer = read_layer(load_preset(name), source=name, trusted=True)
        need = footprint(build_config(layer.values))
        if need is not None and need.total:
            needs[name] = need
    return needs


def _bytes_per_value(placement: PlacementParams) -> float:
    types = (placement.kv_type_k, placement.kv_type_v)
    return sum(_BYTES_PER_VALUE[name] for name in types) / len(types)
