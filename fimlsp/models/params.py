"""Which models to use and where their files lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from platformdirs import user_cache_path

from fimlsp.fields import MachineOnly

MODELS_DIR_VARIABLE = "FIMLSP_MODELS_DIR"
"""Environment variable that moves the model files for every fimlsp of this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsParams:
    """Which models to run, and where their files are kept."""

    target: Annotated[str, MachineOnly.PATHS] = "qwen2.5-coder-1.5b"
    """The model that writes: a name of ``fimlsp models list``, or the path of any GGUF file."""
    draft: Annotated[str, MachineOnly.PATHS] = ""
    """A smaller model of the same vocabulary that guesses ahead: name or path; ``""`` is none."""
    dir: Annotated[str, MachineOnly.ALWAYS] = ""
    """Folder of the model files; ``""`` takes ``FIMLSP_MODELS_DIR``, else the user's cache."""


def models_dir(params: ModelsParams, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute folder of model files: setting, else environment, else user cache.

    It need not exist.
    """
    chosen = params.dir or environ.get(MODELS_DIR_VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return user_cache_path("fimlsp", appauthor=False) / "models"
