"""Finds out whether fimlsp can work on this machine, and says what to do where it can't.

Native code that was built for another CPU kills its process, so nothing native runs here: each
library is asked in a process of its own, and so should the trial completion be
(:func:`complete_in_child`). Reads no settings; the command line passes in what it found in them.
"""

from __future__ import annotations

import ctypes
import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fimlsp import __version__
from fimlsp.document import Timings
from fimlsp.errors import EngineError, FimlspError, ModelError
from fimlsp.gpus import Gpu, best_preset, room_on, system_gpus
from fimlsp.models.catalog import listing, resolve
from fimlsp.models.gguf import read_gguf
from fimlsp.models.params import ModelsParams, models_dir

PACKAGES = {"ik_llama": "ik-llama-cpp-python", "llama_cpp": "llama-cpp-python"}
"""Distribution of each native library, the default first."""

_CPU_FLAGS = (
    *("avx2", "fma", "f16c", "bmi2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "asimd", "neon", "asimddp", "i8mm", "sve"),
)
"""The features that decide which native code runs, as Linux spells them."""

_ILLEGAL_INSTRUCTION = {-int(signal.SIGILL), 0xC000001D}
_MIB = 1 << 20
_RUNTIME_BYTES = 700 * _MIB
"""What the program and its warm prompts take beside the weights, with some air."""

Probe = Callable[[str], Mapping[str, Any]]
"""Answers for one native library: see :mod:`fimlsp.engine.native.probe`."""

SLOW_TOK_S = 40.0
"""Prompt tokens a second below which first suggestions take too long to be of use."""
SLOW_ADVICE = (
    "slow: if the machine is not busy with other work, set models.target to a smaller model"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str
    ok: bool | None
    """False: fimlsp can't be used because of this. None: good to know."""
    detail: str
    """What was found."""
    advice: str = ""
    """What to do about it."""


def run_doctor(
    *,
    probe: Probe,
    models: ModelsParams,
    config_problems: Sequence[str],
    presets: Mapping[str, int],
    complete: Callable[[], Timings],
    system_gpus: Callable[[], Sequence[Gpu]] = system_gpus,
) -> list[Check]:
    """Look at everything, the trial completion last.

    Args:
        probe: Called once for each installed native library.
        models: The configured models.
        config_problems: What is wrong with the settings, one sentence each.
        presets: GPU memory that each preset takes, in bytes.
        complete: Makes one real completion; raises FimlspError. Not called where a needed part
            is already known to be missing.
        system_gpus: Tells of GPUs that no installed library uses.
    """
    answers = {name: probe(name) for name, package in PACKAGES.items() if _version_of(package)}
    checks = [
        Check(name="fimlsp", ok=None, detail=f"{__version__} in {Path(__file__).parent}"),
        _check_python(),
        Check(name="system", ok=None, detail=f"{platform.system()} {platform.release()}"),
        _check_cpu(*_cpu()),
        *_check_libraries(answers),
        _check_gpu(answers, presets, system_gpus),
        *_check_models(models),
        *(_check_config(problem) for problem in config_problems),
    ]
    broken = ", ".join(check.name for check in checks if check.ok is False)
    if broken:
        return [*checks, Check(name="completion", ok=False, detail=f"not tried: see {broken}")]
    return [*checks, _check_completion(complete)]


def usable(checks: Sequence[Check]) -> bool:
    """Tell whether nothing stands in the way of a completion."""
    return all(check.ok is not False for check in checks)


def render(checks: Sequence[Check], console: Console) -> None:
    """Print the report; its last line is the verdict."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")  # a path that is cut short is of no use
    for check in checks:
        mark = {True: "[green]ok[/]", False: "[bold red]FAIL[/]", None: ""}[check.ok]
        if check.ok is None and check.advice:
            mark = "[yellow]note[/]"
        table.add_row(mark, escape(check.name), escape(check.detail))
        if check.advice:
            table.add_row("", "", f"[yellow]{escape(check.advice)}[/]")
    console.print(table)
    failed = next((check for check in checks if check.ok is False), None)
    if failed is None:
        console.print("\n[green]fimlsp can be used on this machine.[/]")
    else:
        reason = escape(f"{failed.name}: {failed.detail.splitlines()[0]}")
        console.print(f"\n[bold red]fimlsp can't be used yet.[/] {reason}")


def complete_in_child(
    arguments: Sequence[str],
    *,
    program: Sequence[str] = (sys.executable, "-m", "fimlsp"),
    timeout_s: float = 300.0,
) -> Timings:
    """Run ``fimlsp ARGUMENTS``, which must print a completion as JSON, in a process of its own.

    Raises:
        EngineError: it failed, crashed or gave no answer in time; the message says how and why.
    """
    try:
        done = subprocess.run(
            [*program, *arguments],
            capture_output=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"no completion within {timeout_s:g} s") from None
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().removeprefix("fimlsp: ")
        if words.startswith("Traceback"):
            words = words.splitlines()[-1]
        raise EngineError(words if done.returncode == 1 and words else _death(done.returncode))
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        found = done.stdout[:200].decode("utf-8", "replace")
        raise EngineError(f"expected a completion as JSON, found {found!r}") from None
    if answer.get("reason"):
        raise EngineError(f"no suggestion came ({answer['reason']})")
    known = {field.name for field in fields(Timings)}
    return Timings(**{key: value for key, value in answer.items() if key in known})


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _check_python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check(name="python", ok=True, detail=found)
    advice = "Expected Python 3.11, 3.12 or 3.13. Install fimlsp again with one of them."
    return Check(name="python", ok=None, detail=found, advice=advice)


def _check_cpu(model: str, flags: frozenset[str]) -> Check:
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    shown = " ".join(flag for flag in _CPU_FLAGS if flag in flags) or "features unknown"
    detail = f"{model}, {cores} cores, {psutil.cpu_count() or cores} threads; {shown}"
    if "sse2" in flags and "avx2" not in flags:
        return Check(
            name="cpu",
            ok=None,
            detail=detail,
            advice="The prebuilt library needs AVX2, which this CPU doesn't have. "
            + _rebuild("-DGGML_NATIVE=ON"),
        )
    return Check(name="cpu", ok=None, detail=detail)


def _cpu() -> tuple[str, frozenset[str]]:
    """Return the CPU's name and its features; empty where the system doesn't tell."""
    if sys.platform == "win32":
        # Numbers of winnt.h: PF_XMMI64, PF_AVX2, PF_AVX512F.
        numbers = {"sse2": 10, "avx2": 40, "avx512f": 41}
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return platform.processor(), frozenset(f for f, n in numbers.items() if present(n))
    if sys.platform == "darwin":
        names = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features")
        brand, *features = (_sysctl(name) for name in names)
        flags = set(" ".join(features).lower().split())
        return brand, frozenset(flags | ({"neon"} if platform.machine() == "arm64" else set()))
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return platform.processor() or platform.machine(), frozenset()


def _sysctl(name: str) -> str:
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Return name and features of the first CPU in a Linux ``/proc/cpuinfo``."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip().lower(), value.strip())
    model = values.get("model name") or platform.machine()
    return model, frozenset((values.get("flags") or values.get("features") or "").split())


def _check_memory(weights: int) -> Check:
    memory = psutil.virtual_memory()
    detail = f"{_gib(memory.available)} available of {_gib(memory.total)}"
    if memory.available >= weights + _RUNTIME_BYTES:
        return Check(name="memory", ok=True, detail=detail)
    advice = (
        f"The configured models want about {_gib(weights + _RUNTIME_BYTES)}. "
        "Close something, or configure a smaller model (fimlsp models list)."
    )
    return Check(name="memory", ok=None, detail=detail, advice=advice)


def _check_libraries(answers: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    if not answers:
        advice = f"{_pip('ik_llama')} (prebuilt), or {_pip('llama_cpp')} (compiled here)"
        return [Check(name="engine", ok=False, detail="no native library installed", advice=advice)]
    one_works = any("error" not in answer for answer in answers.values())
    return [_check_library(name, answer, one_works) for name, answer in answers.items()]


def _check_library(name: str, answer: Mapping[str, Any], one_works: bool) -> Check:
    found = f"{PACKAGES[name]} {_version_of(PACKAGES[name])}"
    if "error" not in answer:
        features = " ".join(re.findall(r"(\w+) = 1\b", str(answer.get("system_info", ""))))
        return Check(name=name, ok=True, detail=f"{found}, built with {features or 'no options'}")
    code = answer.get("returncode")
    crashed = isinstance(code, int) and not 0 <= code <= 255
    reason = _death(int(code or 0)) if crashed else str(answer["error"])
    again = "Install it again: " + _pip(name, "--force-reinstall --no-deps ")
    advice = _rebuild_advice(name) if code in _ILLEGAL_INSTRUCTION else again
    return Check(
        name=name,
        ok=None if one_works else False,
        detail=f"{found} does not start: {reason}",
        advice=advice,
    )


def _check_gpu(
    answers: Mapping[str, Mapping[str, Any]],
    presets: Mapping[str, int],
    system_gpus: Callable[[], Sequence[Gpu]],
) -> Check:
    """Show the GPUs that a library uses, else those that none uses, and what would fit there."""
    used = [
        Gpu(**device) for answer in answers.values() for device in answer.get("gpu_devices", ())
    ]
    gpus = used or system_gpus()
    if not gpus:
        return Check(name="gpu", ok=None, detail="none found")
    shown = "; ".join(
        f"{index}: {gpu.name}, {_gib(gpu.memory_free)} free of {_gib(gpu.memory_total)}"
        for index, gpu in enumerate(gpus)
    )
    preset = best_preset(presets, room_on(gpus))
    fits = f"--preset {preset} fits" if preset else "too little is free for any GPU preset"
    if used:
        return Check(name="gpu", ok=True, detail=f"{shown}; {fits}")
    reason, advice = _why_unused(answers.get("llama_cpp"), gpus[0].cmake_option)
    return Check(name="gpu", ok=None, detail=f"{shown}; not used: {reason}; {fits}", advice=advice)


def _why_unused(answer: Mapping[str, Any] | None, cmake_option: str) -> tuple[str, str]:
    """Say why the library that has GPU builds uses none, and what to do."""
    package = PACKAGES["llama_cpp"]
    if answer is None:
        command = _pip("llama_cpp", f"--no-binary {package} ")
        advice = f'Build the one for GPUs: CMAKE_ARGS="{cmake_option}" {command}'
        return f"{package} is not installed, and {PACKAGES['ik_llama']} is a CPU build", advice
    if "error" in answer:
        return f"{package} does not start", f"See what is said of {package} above."
    if built_for := ", ".join(answer.get("gpu_backends", ())):
        advice = f"Look at the GPU's driver. {_rebuild(cmake_option)}"
        return f"{package} is built for {built_for} and finds no device", advice
    return f"the installed {package} is a CPU build", _rebuild(cmake_option)


def _check_models(params: ModelsParams) -> list[Check]:
    """Check the files of the configured models, and whether the memory is enough for them."""
    checks, weights = [], 0
    for name, wanted in (("target model", params.target), ("draft model", params.draft)):
        if not wanted:
            continue
        try:
            gguf = read_gguf(resolve(wanted, params))
        except ModelError as exc:
            # Without its draft model the target still writes, only slower.
            bad = False if name == "target model" else None
            checks.append(Check(name=name, ok=bad, detail=str(exc)))
            continue
        weights += gguf.size_bytes
        detail = f"{gguf.name or gguf.architecture}, {_gib(gguf.size_bytes)}, {gguf.path}"
        checks.append(Check(name=name, ok=True, detail=detail))
    here = ", ".join(model.name for model in listing(params) if model.installed) or "none"
    folder = f"{here} in {models_dir(params)}"
    return [_check_memory(weights), *checks, Check(name="models here", ok=None, detail=folder)]


def _check_config(problem: str) -> Check:
    advice = "Correct it where it stands; all other settings are in force."
    return Check(name="settings", ok=None, detail=problem, advice=advice)


def _check_completion(complete: Callable[[], Timings]) -> Check:
    make = partial(Check, name="completion")
    try:
        timings = complete()
    except FimlspError as exc:
        advice = _rebuild_advice("") if "illegal instruction" in str(exc) else ""
        return make(ok=False, detail=str(exc), advice=advice)
    read_tok_s = timings.prompt_tokens / max(1.0, timings.prefill_ms) * 1e3
    advice = SLOW_ADVICE if timings.prompt_tokens and read_tok_s < SLOW_TOK_S else ""
    return make(
        ok=True,
        advice=advice,
        detail=f"{timings.prompt_tokens} prompt tokens in {timings.prefill_ms:.0f} ms, "
        f"{timings.tokens} tokens in {timings.decode_ms:.0f} ms",
    )


def _death(code: int) -> str:
    """Say how a process ended, from its return code (negative: a POSIX signal)."""
    if code in _ILLEGAL_INSTRUCTION:
        return "killed by an illegal instruction (SIGILL): it was built for another CPU"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"ended with exit code {code:#x}" if code > 255 else f"ended with exit code {code}"


def _rebuild_advice(name: str) -> str:
    if name == "ik_llama":
        return "The prebuilt library needs AVX2. Use the other one: " + _pip("llama_cpp")
    note = "Some virtual machines advertise AMX and don't have it; a native build dies there. "
    return note + _rebuild("-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON")


def _rebuild(cmake_args: str) -> str:
    options = f"--force-reinstall --no-deps --no-cache-dir --no-binary {PACKAGES['llama_cpp']} "
    return f'Build it anew: CMAKE_ARGS="{cmake_args}" ' + _pip("llama_cpp", options)


def _pip(name: str, options: str = "") -> str:
    """Return the command that installs the release that fimlsp was written for."""
    needed = (entry.partition(";")[0].strip() for entry in requires("fimlsp") or ())
    pinned = next((entry for entry in needed if entry.startswith(f"{PACKAGES[name]}==")), None)
    return f"{sys.executable} -m pip install {options}{pinned or PACKAGES[name]}"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"
