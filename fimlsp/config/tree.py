"""All settings as one frozen tree, composed from the params class of each room."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fimlsp.completion.api import CompletionParams
from fimlsp.context.params import WindowParams
from fimlsp.engine.api import DraftParams, EngineParams, SamplingParams, SpeculationParams
from fimlsp.fields import MachineOnly, OneOf
from fimlsp.models.params import ModelsParams


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParams:
    """What is written down, and where."""

    level: Annotated[str, OneOf("debug", "info", "warning", "error")] = "warning"
    """The least important message that is logged."""
    file: Annotated[str, MachineOnly.ALWAYS] = ""
    """File for the log; empty is stderr, which most editors show in their own log."""
    text: Annotated[bool, MachineOnly.ALWAYS] = False
    """Log prompts and completions too. Otherwise only their lengths are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of fimlsp; a section per room."""

    completion: CompletionParams = field(default_factory=CompletionParams)
    window: WindowParams = field(default_factory=WindowParams)
    models: ModelsParams = field(default_factory=ModelsParams)
    engine: EngineParams = field(default_factory=EngineParams)
    draft: DraftParams = field(default_factory=DraftParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    log: LogParams = field(default_factory=LogParams)
