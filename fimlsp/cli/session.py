"""Building an engine, and one completion without an editor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_path

from fimlsp.completion.api import ServiceState, Status, Trigger
from fimlsp.completion.service import Completions
from fimlsp.config import Config
from fimlsp.document import Completion, NoCompletion, Snapshot
from fimlsp.engine.api import Engine
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import EngineError, ModelError
from fimlsp.models.catalog import resolve
from fimlsp.models.fim import require_fim
from fimlsp.models.gguf import read_gguf

log = logging.getLogger(__name__)

UNHURRIED_MS = 60_000
"""A single completion has no earlier one to be warm from and nobody who types meanwhile, so it may
read its whole window and write its whole block."""


def curves_file() -> Path:
    """Return where measured verify curves are kept; the file need not exist."""
    return user_cache_path("fimlsp", appauthor=False) / "verify-curves.json"


def copies_folder() -> Path:
    """Return where faster copies of draft models are kept; the folder need not exist."""
    return user_cache_path("fimlsp", appauthor=False) / "drafts"


def open_engine(config: Config, *, remember: bool = True) -> Engine:
    """Check the target's file and start loading it in the background.

    Args:
        config: All settings.
        remember: Take the costs that an earlier start measured, and keep those of this one.

    Raises:
        ModelError: no such model, or its file can't be used for infilling.
    """
    path = resolve(config.models.target, config.models)
    require_fim(read_gguf(path).fim, path)
    return InProcessEngine(
        path,
        config.engine,
        config.speculation,
        draft=_draft_file(config),
        draft_params=config.draft,
        draft_copies=copies_folder(),
        curves=curves_file() if remember else None,
    )


def _draft_file(config: Config) -> Path | None:
    """Return the draft model's file; one that can't be had is no reason to have no engine."""
    if not config.models.draft or "model" not in config.speculation.sources:
        return None
    try:
        return resolve(config.models.draft, config.models)
    except ModelError as error:
        log.warning("models.draft: %s; there is no draft model until then", error)
        return None


async def complete_once(
    config: Config, snapshot: Snapshot, on_progress: Callable[[float], None]
) -> tuple[Completion, ...] | NoCompletion:
    """Load the model, answer one request as the server would, and free everything.

    Raises:
        FimlspError: the model can't be had, loaded or run.
    """
    window = replace(config.window, cold_ms=UNHURRIED_MS)
    params = replace(config.completion, max_ms=UNHURRIED_MS, patience_ms=UNHURRIED_MS)
    service = Completions(params, window, config.sampling)
    ready: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def follow(status: Status) -> None:
        if status.state is ServiceState.LOADING:
            on_progress(status.progress)
        elif not ready.done():
            ready.set_result(status)

    service.on_status(follow)
    engine = open_engine(config)
    try:
        service.use_engine(engine)
        status = await ready
        if status.state is ServiceState.ERROR:
            raise EngineError(status.message)
        return await service.complete(snapshot, Trigger.INVOKED)
    finally:
        await service.close()
        engine.close()
