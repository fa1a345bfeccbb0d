"""What the system tells of its GPUs, and which preset they can hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fimlsp import gpus
from fimlsp.gpus import Gpu, best_preset, parse_nvidia_smi, room_on, system_gpus

GIB = 1 << 30


def card(free: int, total: int = 24 * GIB) -> Gpu:
    return Gpu(name="A card", memory_free=free, memory_total=total)


def amd(drm: Path, name: str, vendor: str, total: int, used: int) -> None:
    device = drm / name / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n", encoding="ascii")
    (device / "mem_info_vram_total").write_text(f"{total}\n", encoding="ascii")
    (device / "mem_info_vram_used").write_text(f"{used}\n", encoding="ascii")


def test_cards_are_read_from_nvidia_smi_in_its_order() -> None:
    text = "NVIDIA GeForce RTX 4090, 23010, 24564\nNVIDIA L40S, Rev, 2, 45000, 46068\n"
    first, second = parse_nvidia_smi(text)
    assert first == Gpu(
        name="NVIDIA GeForce RTX 4090",
        memory_free=23010 << 20,
        memory_total=24564 << 20,
        cmake_option="-DGGML_CUDA=ON",
    )
    assert second.name == "NVIDIA L40S, Rev, 2"  # a name may hold anything


@pytest.mark.parametrize(
    "text",
    ["", "\n", "No devices were found\n", "NVIDIA X, [N/A], [N/A]\n", "NVIDIA-SMI has failed, 1\n"],
)
def test_what_nvidia_smi_says_without_a_usable_card_gives_none(text: str) -> None:
    assert parse_nvidia_smi(text) == []


def test_amd_cards_are_read_from_the_linux_driver(tmp_path: Path) -> None:
    amd(tmp_path, "card1", "0x1002", 16 * GIB, GIB)
    amd(tmp_path, "card2", "0x1002", GIB, 0)  # the one inside the processor
    amd(tmp_path, "card3", "0x8086", 16 * GIB, 0)
    (tmp_path / "card1-DP-1").mkdir()  # a connector
    (tmp_path / "card4" / "device").mkdir(parents=True)
    (found,) = gpus._amd(tmp_path)
    assert found == Gpu(
        name="AMD GPU (card1)",
        memory_free=15 * GIB,
        memory_total=16 * GIB,
        cmake_option="-DGGML_VULKAN=ON",
    )
    assert gpus._amd(tmp_path / "absent") == []


@pytest.mark.parametrize(
    "outcome",
    [OSError("not for this machine"), subprocess.TimeoutExpired("nvidia-smi", 1.0)],
)
def test_a_driver_s_tool_that_fails_or_hangs_is_no_gpu(
    outcome: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_arguments: object, **_options: object) -> object:
        raise outcome

    monkeypatch.setattr(gpus.shutil, "which", lambda _name: "nvidia-smi")
    monkeypatch.setattr(gpus.subprocess, "run", run)
    assert gpus._nvidia() == []


def test_every_gpu_that_is_found_here_has_some_memory_and_a_way_to_build_for_it() -> None:
    for gpu in system_gpus():
        assert 0 <= gpu.memory_free <= gpu.memory_total
        assert gpu.cmake_option.startswith("-DGGML_")


def test_an_apple_gpu_has_the_part_of_the_memory_that_macos_gives_it() -> None:
    (gpu,) = gpus._apple()
    assert 0 < gpu.memory_free <= gpu.memory_total < gpus.psutil.virtual_memory().total


def test_each_gpu_after_the_first_costs_room_of_its_own() -> None:
    assert room_on([card(10 * GIB)]) == 10 * GIB
    assert room_on([card(10 * GIB), card(4 * GIB)]) == 14 * GIB - (GIB >> 1)
    assert room_on([]) == 0


@pytest.mark.parametrize(
    ("room", "name"), [(0, ""), (5 * GIB, ""), (6 * GIB, "small"), (99 * GIB, "large")]
)
def test_the_largest_preset_that_fits_is_named(room: int, name: str) -> None:
    assert best_preset({"large": 11 * GIB, "small": 6 * GIB}, room) == name


@pytest.mark.parametrize(("platform", "name"), [("darwin", "apple"), ("linux", "gpu-8gb")])
def test_apple_is_named_on_macs_and_nowhere_else(
    platform: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    needs = {"apple": 6 * GIB, "gpu-8gb": 6 * GIB}
    assert best_preset(needs, 7 * GIB) == name
