"""The GPUs of this machine as the system knows them, whatever library is installed.

A CPU build sees none, so ``fimlsp doctor`` asks here what a build for GPUs could use.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_MIB: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
_SMALLEST: Final = 3 << 30
"""An AMD chip with less memory of its own is the one inside the processor."""
_APPLE_SHARE: Final = 2 / 3
"""What macOS lets the GPU have of a memory that both share; a little more on large machines."""
_EVERY_FURTHER_GPU: Final = 1 << 29
"""Driver and buffers that each GPU after the first needs for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; memory in bytes."""

    name: str
    memory_free: int
    memory_total: int
    cmake_option: str = ""
    """What a build of llama.cpp for it is configured with, where that is known."""


def system_gpus() -> list[Gpu]:
    """Return the GPUs that a build of llama.cpp could use and that are large enough to matter."""
    if sys.platform == "darwin":
        return _apple() if platform.machine() == "arm64" else []
    return [*_nvidia(), *_amd(Path("/sys/class/drm"))]


def room_on(gpus: Sequence[Gpu]) -> int:
    """Return how many bytes a model that is split over all of them can have now."""
    return sum(gpu.memory_free for gpu in gpus) - _EVERY_FURTHER_GPU * max(0, len(gpus) - 1)


def best_preset(needs: Mapping[str, int], room: int) -> str:
    """Return the largest preset that fits into ``room`` bytes, ``""`` where none does.

    ``apple`` is for Macs, and what it needs a small card has too.
    """
    on_mac = sys.platform == "darwin"
    fitting = [name for name, need in needs.items() if need <= room and (on_mac or name != "apple")]
    return max(fitting, key=lambda name: (needs[name], name == "apple"), default="")


def _nvidia() -> list[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=name,memory.free,memory.total"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_nvidia_smi(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else []


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """Read lines of ``name, MiB free, MiB in all``; a card that tells no memory is left out."""
    gpus = []
    for line in text.splitlines():
        name, *sizes = (cell.strip() for cell in line.rsplit(",", 2))
        if len(sizes) == 2 and all(size.isdecimal() for size in sizes):
            free, total = (int(size) * _MIB for size in sizes)
            gpus.append(
                Gpu(
                    name=name,
                    memory_free=free,
                    memory_total=total,
                    cmake_option="-DGGML_CUDA=ON",
                )
            )
    return gpus


def _amd(drm: Path) -> list[Gpu]:
    """Read what the Linux driver tells of each card."""
    gpus = []
    for device in sorted(card / "device" for card in drm.glob("card[0-9]*")):
        try:
            if (device / "vendor").read_text(encoding="ascii").strip() != "0x1002":
                continue
            total = int((device / "mem_info_vram_total").read_text(encoding="ascii"))
            used = int((device / "mem_info_vram_used").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if total >= _SMALLEST:
            gpus.append(
                Gpu(
                    name=f"AMD GPU ({device.parent.name})",
                    memory_free=total - used,
                    memory_total=total,
                    cmake_option="-DGGML_VULKAN=ON",
                )
            )
    return gpus


def _apple() -> list[Gpu]:
    memory = psutil.virtual_memory()
    total = round(memory.total * _APPLE_SHARE)
    return [
        Gpu(
            name="Apple GPU",
            memory_free=min(total, memory.available),
            memory_total=total,
            cmake_option="-DGGML_METAL=ON",
        )
    ]
