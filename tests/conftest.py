"""What every test may need: unhurried property tests, and the real models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from fimlsp.errors import ModelError
from fimlsp.models.catalog import resolve
from fimlsp.models.params import ModelsParams

# A busy machine is not a failure.
settings.register_profile("fimlsp", deadline=None)
settings.load_profile("fimlsp")


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Give the file of a catalogue model, wherever ``fimlsp models pull`` would put it."""

    def find(name: str) -> Path:
        try:
            return resolve(name, ModelsParams())
        except ModelError as error:
            pytest.fail(f"this test needs a real model: {error}")

    return find
