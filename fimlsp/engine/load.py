"""Puts an engine together: weights, slots, vocabulary, measured speed, draft sources.

Engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from fimlsp.engine.native.seam import NativeModel
from fimlsp.engine.placement import describe, load_params, slot_params
from fimlsp.engine.speculation import Speculation
from fimlsp.engine.vocabulary import ModelVocabulary

log = logging.getLogger(__name__)

NO_SPECULATION = (
    "the target is a recurrent or hybrid model and can't take back tokens, so nothing drafts for it"
)


@dataclass(frozen=True, slots=True)
class Plant:
    """What a loaded engine works with."""

    generator: Generator
    module: Any
    """The native library's module."""
    model: NativeModel
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
        ConfigError: settings of the placement that do not go together.
        AbortedError: ``abort`` was set while the speed was measured.
    """
    module = choose(params.backend)
    threads = params.threads or psutil.cpu_count(logical=False) or 1
    model: NativeModel = module.load(load_params(path, params, section="engine"), progress)
    native.callback(model.close)
    sizes = slot_params(
        params, n_slots=params.slots, n_ctx=params.n_ctx, n_ubatch=params.n_ubatch, threads=threads
    )
    # No decode of a model that can't be rolled back may be stopped in its middle.
    slots = model.open_slots(sizes, AbortFlag() if model.recurrent else abort)
    native.callback(slots.close)
    speed = calibrate.measure(slots, params.n_ubatch)
    key = _curve_key(path, params, model, threads)
    stored = curves.load(key) if curves else None
    curve = stored or VerifyCurve.typical(speed.decode_ms)
    free = () if model.recurrent else free_drafters()
    generator = Generator(
        native=slots,
        cells=Cells(slots, params.slots, rewindable=not model.recurrent),
        vocabulary=ModelVocabulary(model),
        speculation=Speculation(curve, max_draft=speculation.max_draft, free=free),
        sources=() if model.recurrent else speculation.sources,
        n_ubatch=params.n_ubatch,
        n_ctx=params.n_ctx,
        exact=speculation.exact,
    )
    info = _info(path, model, threads)
    known = stored is not None
    return Plant(generator, module, model, info, speed, curve_key=key, curve_known=known)


def free_drafters() -> tuple[Drafter, ...]:
    """Return the sources without a price, as they are before they have seen anything."""
    return PreviousDrafter(), NgramDrafter()


def _info(path: Path, model: NativeModel, threads: int) -> ModelInfo:
    if model.recurrent:
        log.info("%s: %s", path.name, NO_SPECULATION)
    return ModelInfo(
        path=path,
        backend=model.backend,
        description=model.description,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        size_bytes=model.size_bytes,
        threads=threads,
        draft=f"not used: {NO_SPECULATION}" if model.recurrent else "none",
    )


def _curve_key(path: Path, params: EngineParams, model: NativeModel, threads: int) -> str:
    size = path.stat().st_size
    return (
        f"{path.name} {size} {model.backend} {threads} threads, steps of {params.n_ubatch}, "
        f"{describe(params, model.device)}"
    )
