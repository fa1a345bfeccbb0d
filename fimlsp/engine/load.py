"""Puts an engine together: weights, slots, vocabulary, measured speed, draft sources.

Engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from fimlsp.engine import calibrate
from fimlsp.engine.api import EngineParams, ModelInfo, SpeculationParams, Speed
from fimlsp.engine.cells import Cells
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.drafters.api import Drafter
from fimlsp.engine.drafters.ngram import NgramDrafter
from fimlsp.engine.drafters.previous import PreviousDrafter
from fimlsp.engine.generate import Generator
from fimlsp.engine.native.choose import choose
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import LoadParams, NativeModel, SlotParams
from fimlsp.engine.speculation import Speculation
from fimlsp.engine.vocabulary import ModelVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What a loaded engine works with."""

    generator: Generator
    info: ModelInfo
    speed: Speed
    curve_key: str
    """Names model file, library, threads and device in the file of measured curves."""
    curve_known: bool
    """The verify curve was measured on an earlier start."""


def load(
    path: Path,
    params: EngineParams,
    speculation: SpeculationParams,
    *,
    abort: AbortFlag,
    curves: calibrate.CurveFile | None,
    progress: Callable[[float], bool],
    native: ExitStack,
) -> Plant:
    """Load and measure; whatever was allocated is freed by ``native``, also after a failure.

    Raises:
        ModelLoadError: the library refused the file, or memory does not suffice.
        BackendUnavailableError: no native library.
        AbortedError: ``abort`` was set while the speed was measured.
    """
    module = choose(params.backend)
    threads = params.threads or psutil.cpu_count(logical=False) or 1
    model: NativeModel = module.load(
        LoadParams(path=path, n_gpu_layers=params.n_gpu_layers), progress
    )
    native.callback(model.close)
    sizes = SlotParams(
        n_slots=params.slots, n_ctx=params.n_ctx, n_ubatch=params.n_ubatch, threads=threads
    )
    slots = model.open_slots(sizes, abort)
    native.callback(slots.close)
    vocabulary = ModelVocabulary(model)
    speed = calibrate.measure(slots, params.n_ubatch)
    key = _curve_key(path, params, model.backend, threads)
    stored = curves.load(key) if curves else None
    generator = Generator(
        native=slots,
        cells=Cells(slots, params.slots),
        vocabulary=vocabulary,
        speculation=Speculation(
            stored or VerifyCurve.typical(speed.decode_ms),
            max_draft=speculation.max_draft,
            free=_free_drafters(),
        ),
        sources=speculation.sources,
        n_ubatch=params.n_ubatch,
    )
    info = ModelInfo(
        path=path,
        backend=model.backend,
        description=model.description,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        size_bytes=model.size_bytes,
        threads=threads,
    )
    return Plant(
        generator=generator, info=info, speed=speed, curve_key=key, curve_known=stored is not None
    )


def _free_drafters() -> tuple[Drafter, ...]:
    return PreviousDrafter(), NgramDrafter()


def _curve_key(path: Path, params: EngineParams, backend: str, threads: int) -> str:
    size = path.stat().st_size
    return (
        f"{path.name} {size} {backend} {threads} threads, {params.n_gpu_layers} layers on GPU, "
        f"steps of {params.n_ubatch}"
    )
