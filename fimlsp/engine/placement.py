"""Turns the settings of one model into what the native seam asks for.

Target and draft model are placed by the same rules, each by its own section of the settings.
"""

from __future__ import annotations

from pathlib import Path

from fimlsp.engine.api import PlacementParams
from fimlsp.engine.native.seam import LoadParams, SlotParams
from fimlsp.errors import ConfigError


def load_params(path: Path, placement: PlacementParams, *, section: str) -> LoadParams:
    """Return how the weights are placed, once the settings of the cache are known to go together.

    Checked here, before gigabytes of weights are read.

    Args:
        path: The model file.
        placement: Where it shall lie.
        section: Section of the settings that ``placement`` is, for the message.

    Raises:
        ConfigError: quantised values without flash attention.
    """
    if placement.flash_attn == "off" and placement.kv_type_v != "f16":
        raise ConfigError(
            f'{section}.kv_type_v: found "{placement.kv_type_v}" with {section}.flash_attn = '
            f'"off", and quantised values need flash attention; set {section}.flash_attn to '
            f'"auto" or {section}.kv_type_v to "f16"'
        )
    return LoadParams(
        path=path,
        n_gpu_layers=placement.n_gpu_layers,
        split_mode=placement.split_mode,
        main_gpu=placement.main_gpu,
        tensor_split=placement.tensor_split,
    )


def slot_params(
    placement: PlacementParams,
    *,
    n_slots: int,
    n_ctx: int,
    n_ubatch: int,
    threads: int,
    n_outputs: int = 64,
) -> SlotParams:
    """Return sizes and types of the slots."""
    return SlotParams(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        threads=threads,
        n_outputs=n_outputs,
        flash_attn=placement.flash_attn,
        kv_type_k=placement.kv_type_k,
        kv_type_v=placement.kv_type_v,
    )


def describe(placement: PlacementParams, device: str) -> str:
    """Return in one line all that decides how fast a model is at this place."""
    split = ":".join(f"{share:g}" for share in placement.tensor_split) or "free memory"
    return (
        f"{placement.n_gpu_layers} layers on {device}, {placement.split_mode} split by {split}, "
        f"main {placement.main_gpu}, flash attention {placement.flash_attn}, "
        f"KV {placement.kv_type_k}/{placement.kv_type_v}"
    )
