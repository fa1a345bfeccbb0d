"""The doctor: what it says of this machine, and that no crash of native code is its own."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from rich.console import Console

from fimlsp import doctor
from fimlsp.doctor import Check, complete_in_child, parse_cpuinfo, render, run_doctor, usable
from fimlsp.document import Timings
from fimlsp.errors import EngineError
from fimlsp.gpus import Gpu
from fimlsp.models.params import ModelsParams

CARD = Gpu(
    name="A card",
    memory_free=23 << 29,
    memory_total=12 << 30,
    cmake_option="-DGGML_CUDA=ON",
)
WORKS = {"backend": "x", "version": "1", "system_info": "AVX2 = 1 | AMX = 0 |", "gpu_devices": []}
SIGILL = {"error": "", "returncode": -4}
PYTHON_CODE = (sys.executable, "-c")

Probe = Callable[[str], Mapping[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> ModelsParams:
    """Settings that name a GGUF file with nothing but a header."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("Tiny")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelsParams(target=str(path), dir=str(tmp_path))


@pytest.fixture
def both_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version_of", lambda _package: "1.0")


def completes() -> Timings:
    return Timings(prompt_tokens=251, prefill_ms=840.4, tokens=12, decode_ms=310.0)


def examine(
    model: ModelsParams,
    probe: Probe = lambda _name: WORKS,
    complete: Callable[[], Timings] = completes,
    problems: tuple[str, ...] = (),
    gpus: tuple[Gpu, ...] = (),
) -> dict[str, Check]:
    checks = run_doctor(
        probe=probe,
        models=model,
        config_problems=problems,
        presets={"small": 6 << 30, "large": 11 << 30},
        complete=complete,
        system_gpus=lambda: gpus,
    )
    return {check.name: check for check in checks}


def rendered(checks: list[Check], width: int = 300) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        render(checks, console)
    return capture.get()


@pytest.mark.usefixtures("both_installed")
class TestReport:
    def test_a_healthy_machine_is_usable_and_tells_the_timings(self, model: ModelsParams) -> None:
        checks = examine(model)
        assert usable(list(checks.values()))
        found = checks["completion"].detail
        assert found == "251 prompt tokens in 840 ms, 12 tokens in 310 ms"
        assert checks["target model"].detail.startswith("Tiny, ")
        assert checks["ik_llama"].detail == "ik-llama-cpp-python 1.0, built with AVX2"

    def test_it_tells_what_was_asked_for(self, model: ModelsParams) -> None:
        names = set(examine(model))
        assert names >= {"fimlsp", "python", "system", "cpu", "memory", "gpu", "models here"}
        assert names >= {"ik_llama", "llama_cpp", "target model", "completion"}

    def test_one_library_dying_is_a_note_while_the_other_works(self, model: ModelsParams) -> None:
        checks = examine(model, lambda name: SIGILL if name == "llama_cpp" else WORKS)
        assert usable(list(checks.values()))
        dead = checks["llama_cpp"]
        assert dead.ok is None
        assert "illegal instruction (SIGILL)" in dead.detail
        assert "-DGGML_NATIVE=OFF" in dead.advice

    def test_no_library_working_fails_and_tries_no_completion(self, model: ModelsParams) -> None:
        def explode() -> Timings:
            raise AssertionError("no completion may be tried")

        checks = examine(model, lambda _name: SIGILL, explode)
        assert checks["ik_llama"].ok is False
        assert checks["llama_cpp"].ok is False
        assert checks["completion"].detail == "not tried: see ik_llama, llama_cpp"

    def test_a_library_that_raises_is_quoted(self, model: ModelsParams) -> None:
        broken = {"error": "ImportError: libgomp.so.1: no such file", "returncode": 1}
        detail = examine(model, lambda _name: broken)["ik_llama"].detail
        assert detail.endswith("does not start: ImportError: libgomp.so.1: no such file")

    def test_a_missing_target_fails_and_says_how_to_get_it(self, tmp_path: Path) -> None:
        checks = examine(ModelsParams(target="qwen2.5-coder-0.5b", dir=str(tmp_path)))
        assert checks["target model"].ok is False
        assert "fimlsp models pull qwen2.5-coder-0.5b" in checks["target model"].detail
        assert not usable(list(checks.values()))

    def test_a_missing_draft_is_only_a_note(self, model: ModelsParams) -> None:
        params = ModelsParams(target=model.target, draft="nowhere.gguf", dir=model.dir)
        checks = examine(params)
        assert checks["draft model"].ok is None
        assert usable(list(checks.values()))

    def test_gpus_are_numbered_with_their_free_memory_and_the_preset_that_fits(
        self, model: ModelsParams
    ) -> None:
        device = {"name": "A card", "memory_total": 12 << 30, "memory_free": 9 << 30}
        with_one = {**WORKS, "gpu_devices": [device]}
        gpu = examine(model, lambda name: with_one if name == "llama_cpp" else WORKS)["gpu"]
        assert gpu.ok is True
        assert gpu.detail == "0: A card, 9.0 GiB free of 12.0 GiB; --preset small fits"
        with_two = {**WORKS, "gpu_devices": [device, device]}
        gpu = examine(model, lambda name: with_two if name == "llama_cpp" else WORKS)["gpu"]
        assert gpu.detail.endswith("; 1: A card, 9.0 GiB free of 12.0 GiB; --preset large fits")

    def test_a_gpu_whose_memory_is_taken_fits_no_preset(self, model: ModelsParams) -> None:
        device = {"name": "A card", "memory_total": 12 << 30, "memory_free": 2 << 30}
        gpu = examine(model, lambda _name: {**WORKS, "gpu_devices": [device]})["gpu"]
        assert gpu.detail.endswith("; too little is free for any GPU preset")

    def test_a_machine_without_a_gpu_is_told_so_and_nothing_else(self, model: ModelsParams) -> None:
        assert examine(model)["gpu"] == Check(name="gpu", ok=None, detail="none found")

    def test_a_gpu_beside_a_cpu_build_is_told_with_the_build_that_uses_it(
        self, model: ModelsParams
    ) -> None:
        gpu = examine(model, gpus=(CARD,))["gpu"]
        assert gpu.ok is None
        assert gpu.detail == (
            "0: A card, 11.5 GiB free of 12.0 GiB; not used: the installed llama-cpp-python is a "
            "CPU build; --preset large fits"
        )
        assert 'CMAKE_ARGS="-DGGML_CUDA=ON"' in gpu.advice
        assert "--force-reinstall" in gpu.advice
        assert gpu.advice.endswith("llama-cpp-python==0.3.36")

    def test_a_gpu_build_that_finds_no_device_is_not_called_a_cpu_build(
        self, model: ModelsParams
    ) -> None:
        answer = {**WORKS, "gpu_backends": ["cuda"]}
        gpu = examine(model, lambda _name: answer, gpus=(CARD,))["gpu"]
        assert "built for cuda and finds no device" in gpu.detail
        assert gpu.advice.startswith("Look at the GPU's driver.")

    def test_a_gpu_is_not_blamed_on_a_library_that_does_not_start(
        self, model: ModelsParams
    ) -> None:
        gpu = examine(model, lambda name: SIGILL if name == "llama_cpp" else WORKS, gpus=(CARD,))[
            "gpu"
        ]
        assert "not used: llama-cpp-python does not start" in gpu.detail
        assert gpu.advice == "See what is said of llama-cpp-python above."

    def test_settings_problems_are_shown_and_do_not_fail(self, model: ModelsParams) -> None:
        checks = examine(model, problems=("engine.threads: found 'x', expected a number",))
        assert "engine.threads" in checks["settings"].detail
        assert usable(list(checks.values()))

    def test_a_failed_completion_fails_with_its_reason(self, model: ModelsParams) -> None:
        def fails() -> Timings:
            raise EngineError("the model refused [it]")

        completion = examine(model, complete=fails)["completion"]
        assert completion.ok is False
        assert completion.detail == "the model refused [it]"


def test_a_gpu_beside_the_default_library_alone_is_told_how_to_get_the_other(
    model: ModelsParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    ik_only = {"ik-llama-cpp-python": "0.1.5"}
    monkeypatch.setattr(doctor, "_version_of", lambda package: ik_only.get(package, ""))
    gpu = examine(model, gpus=(CARD,))["gpu"]
    assert "llama-cpp-python is not installed, and ik-llama-cpp-python is a CPU build" in gpu.detail
    assert "--force-reinstall" not in gpu.advice
    assert 'CMAKE_ARGS="-DGGML_CUDA=ON"' in gpu.advice


def test_no_library_at_all_fails_with_the_command_that_installs_one(
    model: ModelsParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version_of", lambda _package: "")
    engine = examine(model)["engine"]
    assert engine.ok is False
    assert "pip install ik-llama-cpp-python" in engine.advice


def test_the_verdict_is_the_last_line_and_names_the_reason() -> None:
    good = Check(name="cpu", ok=None, detail="something")
    bad = Check(name="engine", ok=False, detail="found [nothing]", advice="get one")
    assert rendered([good]).splitlines()[-1] == "fimlsp can be used on this machine."
    report = rendered([good, bad]).splitlines()
    assert report[-1] == "fimlsp can't be used yet. engine: found [nothing]"
    assert any(line.strip() == "get one" for line in report)


def test_a_long_path_is_folded_and_not_cut() -> None:
    path = "/home/person/.cache/fimlsp/models/" + "x" * 80 + ".gguf"
    report = rendered([Check(name="target model", ok=True, detail=path)], width=60)
    assert path in "".join(report.split())


def test_the_report_is_plain_ascii_so_that_every_console_can_print_it() -> None:
    checks = [Check(name="a", ok=ok, detail="d", advice="e") for ok in (True, False, None)]
    assert rendered(checks).isascii()


class TestChild:
    def test_timings_are_read_and_other_keys_ignored(self) -> None:
        code = """print('{"text": "x", "prompt_tokens": 3, "decode_ms": 1.5}')"""
        timings = complete_in_child([code], program=PYTHON_CODE)
        assert timings == Timings(prompt_tokens=3, decode_ms=1.5)

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
    def test_a_crash_is_an_error_that_names_the_signal(self) -> None:
        code = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
        with pytest.raises(EngineError, match=r"illegal instruction \(SIGILL\)"):
            complete_in_child([code], program=PYTHON_CODE)

    def test_an_error_of_the_program_is_passed_on_in_its_own_words(self) -> None:
        with pytest.raises(EngineError, match=r"^no such model$"):
            complete_in_child(["raise SystemExit('fimlsp: no such model')"], program=PYTHON_CODE)

    def test_no_suggestion_is_an_error_with_its_reason(self) -> None:
        code = """print('{"text": "", "reason": "over_budget", "tokens": 0}')"""
        with pytest.raises(EngineError, match=r"over_budget"):
            complete_in_child([code], program=PYTHON_CODE)

    def test_of_a_traceback_only_the_error_is_shown(self) -> None:
        with pytest.raises(EngineError, match=r"^ZeroDivisionError: division by zero$"):
            complete_in_child(["1 / 0"], program=PYTHON_CODE)

    def test_an_answer_that_is_not_json_is_quoted(self) -> None:
        with pytest.raises(EngineError, match="found 'hello"):
            complete_in_child(["print('hello')"], program=PYTHON_CODE)

    def test_a_program_that_never_ends_is_stopped(self) -> None:
        code = "import threading; threading.Event().wait()"
        with pytest.raises(EngineError, match=r"no completion within 0\.2 s"):
            complete_in_child([code], program=PYTHON_CODE, timeout_s=0.2)


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        (
            "processor\t: 0\nmodel name\t: Xeon: 2\nflags\t\t: sse2 avx2\n\nmodel name\t: other\n",
            "Xeon: 2",
            {"sse2", "avx2"},
        ),
        ("CPU implementer\t: 0x41\nFeatures\t: fp asimd\n", None, {"fp", "asimd"}),
        ("", None, set()),
    ],
)
def test_cpuinfo_of_x86_arm_and_strangers(text: str, model: str | None, flags: set[str]) -> None:
    found_model, found_flags = parse_cpuinfo(text)
    assert found_flags == flags
    assert model is None or found_model == model


def test_an_x86_cpu_without_avx2_is_told_how_to_build() -> None:
    check = doctor._check_cpu("Old", frozenset({"sse2"}))
    assert check.ok is None
    assert "-DGGML_NATIVE=ON" in check.advice


def test_a_slow_machine_is_told_to_take_a_smaller_model(model: ModelsParams) -> None:
    def crawls() -> Timings:
        return Timings(prompt_tokens=359, prefill_ms=15_000.0, tokens=7, decode_ms=4_600.0)

    completion = examine(model, complete=crawls)["completion"]
    assert completion.ok
    assert "smaller model" in completion.advice
