"""Which native library is taken, and what is said when there is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from fimlsp.engine.native import choose as choosing
from fimlsp.engine.native.choose import BACKENDS, backend_module, choose
from fimlsp.engine.native.probe import probe
from fimlsp.errors import BackendUnavailableError

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Pretend that packages are installed and what llama_cpp's probe says of GPUs."""

    def pretend(*packages: str, gpus: int = 0) -> None:
        real = importlib.util.find_spec

        def find_spec(name: str, package: str | None = None) -> Any:
            if name in ("ik_llama_cpp", "llama_cpp"):
                return object() if name in packages else None
            return real(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(choosing, "probe", lambda _name: {"gpu_devices": [{}] * gpus})

    return pretend


@pytest.mark.parametrize(
    ("packages", "gpus", "chosen"),
    [
        (("ik_llama_cpp",), 0, "ik_llama"),
        (("llama_cpp",), 0, "llama_cpp"),
        (("ik_llama_cpp", "llama_cpp"), 0, "ik_llama"),
        (("ik_llama_cpp", "llama_cpp"), 1, "llama_cpp"),
    ],
)
def test_auto_takes_a_gpu_build_else_the_faster_cpu_library(
    machine: Machine, packages: tuple[str, ...], gpus: int, chosen: str
) -> None:
    machine(*packages, gpus=gpus)
    assert chosen == choose("auto").NAME


@pytest.mark.parametrize("name", ["ik_llama", "llama_cpp"])
def test_a_name_is_taken_at_its_word(machine: Machine, name: str) -> None:
    machine("ik_llama_cpp", "llama_cpp", gpus=1)
    assert name == choose(name).NAME


def test_no_library_at_all_is_told_with_both_ways_to_get_one(machine: Machine) -> None:
    machine()
    with pytest.raises(BackendUnavailableError) as caught:
        choose("auto")
    for module in map(backend_module, BACKENDS):
        assert f"{module.PACKAGE}=={module.PINNED}" in str(caught.value)


def test_a_named_library_that_is_missing_is_told_with_what_there_is(machine: Machine) -> None:
    machine("ik_llama_cpp")
    with pytest.raises(BackendUnavailableError, match=r"llama_cpp.*not installed.*: ik_llama$"):
        choose("llama_cpp")


def test_the_probe_describes_a_library_from_another_process(backend: str) -> None:
    answer = probe(backend)
    assert answer["backend"] == backend
    assert answer["system_info"]
    assert isinstance(answer["gpu_devices"], list)
    assert isinstance(answer["gpu_backends"], list)


def test_the_probe_survives_a_library_that_can_not_be_loaded() -> None:
    answer = probe("abacus")
    assert answer["returncode"] == 1
    assert "abacus" in answer["error"]
