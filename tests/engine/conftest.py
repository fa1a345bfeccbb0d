"""One tiny model, one native library per process: ``FIMLSP_TEST_BACKEND`` names it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Oracle, Steps, open_engine
from gguf import TokenType
from tiny_gguf import write_tiny_gguf

from fimlsp.engine.native.choose import backend_module
from fimlsp.engine.worker import InProcessEngine

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture(scope="session")
def backend() -> str:
    return os.environ.get("FIMLSP_TEST_BACKEND", "ik_llama")


@pytest.fixture(scope="session")
def native_module(backend: str) -> Any:
    return backend_module(backend)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture(scope="session")
def marker_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that likes to write control tokens, and a file that calls them user-defined."""
    path = tmp_path_factory.mktemp("tiny") / "markers.gguf"
    write_tiny_gguf(path, control_type=TokenType.USER_DEFINED, control_gain=2.0)
    return path


@pytest.fixture(scope="session")
def text() -> list[int]:
    """A long prompt without repetitions: every prefix of it is a text of its own."""
    return random.Random(11).choices(range(480), k=400)


@pytest.fixture(scope="session")
def oracle(native_module: Any, tiny_model: Path) -> Iterator[Oracle]:
    oracle = Oracle(native_module, tiny_model)
    yield oracle
    oracle.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still: set ``clock[0]``. Waiting with a timeout does not use it."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def steps(native_module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Every native step of the engines that this test opens."""
    steps = Steps()
    slots = {"ik_llama": "IkSlots", "llama_cpp": "LlamaSlots"}[native_module.NAME]
    decode = getattr(native_module, slots).decode
    monkeypatch.setattr(getattr(native_module, slots), "decode", steps.wrap(decode))
    yield steps
    steps.open_all()


@pytest.fixture
def open_tiny(tiny_model: Path, backend: str, steps: Steps) -> Iterator[OpenEngine]:
    """Open engines that are closed after the test; ``model=`` and any engine parameter."""
    opened: list[InProcessEngine] = []

    def open_one(model: Path = tiny_model, **params: Any) -> InProcessEngine:
        engine = open_engine(model, backend, **params)
        opened.append(engine)
        steps.clear()
        return engine

    yield open_one
    steps.open_all()
    for engine in opened:
        engine.close()


@pytest.fixture
def engine(open_tiny: OpenEngine) -> InProcessEngine:
    return open_tiny()
