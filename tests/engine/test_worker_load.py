"""An engine's life: loading, ready, failed, closed; and what it says in each state."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import PATIENCE_S, open_engine, result, wait

from fimlsp.engine.api import EngineParams, EngineState, Phase, Request
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import (
    BackendUnavailableError,
    EngineClosedError,
    EngineError,
    ModelLoadError,
)

OpenEngine = Callable[..., InProcessEngine]
REQUEST = Request(slot="a", prompt=(1, 2, 3), max_tokens=2)


class HeldLoad:
    """Lets a test register listeners before the load begins, and see how it ended."""

    def __init__(self) -> None:
        self.may_begin = threading.Event()
        self.error: Exception | None = None


@pytest.fixture
def held_load(native_module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldLoad]:
    held = HeldLoad()
    load = native_module.load

    def waiting(*args: Any) -> Any:
        wait(held.may_begin)
        try:
            return load(*args)
        except Exception as error:
            held.error = error
            raise

    monkeypatch.setattr(native_module, "load", waiting)
    yield held
    held.may_begin.set()


def begin(model: Path, backend: str) -> InProcessEngine:
    return InProcessEngine(model, EngineParams(backend=backend, threads=1, n_ctx=512, slots=2))


def engine_thread() -> threading.Thread:
    return next(t for t in threading.enumerate() if t.name == "fimlsp-engine")


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the tests' helpers can be imported, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).parents[1],
        # glibc gives each new thread another arena, and an arena keeps what was freed in it.
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        check=False,
    )


def test_listeners_hear_loading_with_progress_then_ready_then_closed(
    tiny_model: Path, backend: str, held_load: HeldLoad
) -> None:
    engine = begin(tiny_model, backend)
    heard: list[EngineState] = []
    ready, closed = threading.Event(), threading.Event()

    def listen(state: EngineState) -> None:
        heard.append(state)
        {Phase.READY: ready, Phase.CLOSED: closed}.get(state.phase, threading.Event()).set()

    engine.on_state(listen)
    assert heard == [EngineState(phase=Phase.LOADING)]
    held_load.may_begin.set()
    wait(ready)
    engine.close()
    wait(closed)
    phases = [state.phase for state in heard]
    n_loading = phases.count(Phase.LOADING)
    assert phases == [Phase.LOADING] * n_loading + [Phase.READY, Phase.CLOSED]
    progress = [state.progress for state in heard[:n_loading]]
    assert progress == sorted(progress)
    assert 0.9 < progress[-1] <= 1.0


def test_a_late_listener_hears_the_present_state_at_once(engine: InProcessEngine) -> None:
    heard: list[Phase] = []
    engine.on_state(lambda state: heard.append(state.phase))
    assert heard == [Phase.READY]


def test_a_listener_that_raises_harms_neither_the_load_nor_the_others(
    tiny_model: Path, backend: str, held_load: HeldLoad, caplog: pytest.LogCaptureFixture
) -> None:
    """Raised in the progress callback it made the library give the load up."""
    engine = begin(tiny_model, backend)
    ready = threading.Event()
    told = False

    def broken(_state: EngineState) -> None:
        nonlocal told
        if told:
            raise RuntimeError("a mistake in the rooms above")
        told = True

    engine.on_state(broken)
    engine.on_state(lambda state: ready.set() if state.phase is Phase.READY else None)
    held_load.may_begin.set()
    wait(ready)
    assert result(engine.submit(REQUEST).future).tokens
    engine.close()
    assert "a mistake in the rooms above" in caplog.text


def test_nothing_may_be_asked_while_loading(
    tiny_model: Path, backend: str, held_load: HeldLoad
) -> None:
    engine = begin(tiny_model, backend)
    for ask in _questions(engine):
        with pytest.raises(EngineError, match="still loading"):
            ask()
    assert engine.reusable("a", (1, 2)) == 0
    engine.release("a")
    held_load.may_begin.set()
    engine.close()


def test_nothing_may_be_asked_after_close(engine: InProcessEngine) -> None:
    result(engine.submit(REQUEST).future)
    engine.close()
    for ask in _questions(engine):
        with pytest.raises(EngineClosedError, match="closed"):
            ask()
    assert engine.reusable("a", REQUEST.prompt) == 0
    engine.release("a")


def _questions(engine: InProcessEngine) -> list[Callable[[], object]]:
    return [
        lambda: engine.submit(REQUEST),
        lambda: engine.vocabulary,
        lambda: engine.info,
        lambda: engine.speed,
    ]


def test_info_tells_what_was_loaded(
    engine: InProcessEngine, tiny_model: Path, backend: str
) -> None:
    info = engine.info
    assert (info.path, info.backend, info.threads) == (tiny_model, backend, 1)
    assert info.n_vocab == engine.vocabulary.n_tokens
    assert info.n_ctx_train == 8192
    assert 0 < info.size_bytes <= tiny_model.stat().st_size
    assert info.description.startswith("qwen2")
    assert engine.n_ctx == 512


def missing(path: Path, _good: bytes) -> None:
    path.unlink(missing_ok=True)


def folder(path: Path, _good: bytes) -> None:
    path.mkdir()


def empty(path: Path, _good: bytes) -> None:
    path.write_bytes(b"")


def not_gguf(path: Path, _good: bytes) -> None:
    path.write_bytes(b"#!/bin/sh\necho this is no model\n" * 99)


def cut_in_the_header(path: Path, good: bytes) -> None:
    path.write_bytes(good[:3000])


def cut_in_the_tensors(path: Path, good: bytes) -> None:
    path.write_bytes(good[: len(good) * 2 // 3])


def another_architecture(path: Path, good: bytes) -> None:
    path.write_bytes(good.replace(b"qwen2", b"owen2"))


BROKEN = [
    missing,
    folder,
    empty,
    not_gguf,
    cut_in_the_header,
    cut_in_the_tensors,
    another_architecture,
]


@pytest.mark.parametrize("breakage", BROKEN)
def test_a_file_that_can_not_be_loaded_fails_by_name_with_the_library_s_words(
    tiny_model: Path, backend: str, tmp_path: Path, breakage: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "broken.gguf"
    breakage(path, tiny_model.read_bytes())
    engine = open_engine(path, backend)
    error = engine.state.error
    assert engine.state.phase is Phase.FAILED
    assert isinstance(error, ModelLoadError)
    assert str(path) in str(error)
    assert "failed to load model" in str(error) or "error loading model" in str(error)
    for ask in _questions(engine):
        with pytest.raises(ModelLoadError) as caught:
            ask()
        assert caught.value is error
    engine.close()
    assert engine.state.phase is Phase.FAILED  # why is still told


def test_a_failed_load_does_not_spoil_the_next_one(
    tiny_model: Path, backend: str, tmp_path: Path, open_tiny: OpenEngine
) -> None:
    open_engine(tmp_path / "missing.gguf", backend).close()
    assert result(open_tiny().submit(REQUEST).future).tokens


def test_the_library_writes_nothing_to_stdout(
    tiny_model: Path, backend: str, tmp_path: Path
) -> None:
    """Standard output is the protocol's. Two broken files, a load, an answer, a close."""
    (tmp_path / "broken.gguf").write_bytes(tiny_model.read_bytes()[:3000])
    script = (
        "import sys; from pathlib import Path; from engine_harness import open_engine, result;"
        "from fimlsp.engine.api import Request\n"
        "backend, *paths, good = sys.argv[1:]\n"
        "for path in paths: open_engine(Path(path), backend).close()\n"
        "engine = open_engine(Path(good), backend)\n"
        "generation = result(engine.submit(Request(slot='a', prompt=(1, 2, 3))).future)\n"
        "engine.close(); sys.stderr.write(f'wrote {len(generation.tokens)} tokens')\n"
    )
    files = [tmp_path / "missing.gguf", tmp_path / "broken.gguf", tiny_model]
    done = run_script(script, backend, *map(str, files))
    assert done.stderr.endswith("wrote 64 tokens"), done.stderr
    assert (done.returncode, done.stdout) == (0, "")


def test_closing_during_the_load_gives_the_load_up(
    tiny_model: Path, backend: str, held_load: HeldLoad
) -> None:
    engine = begin(tiny_model, backend)
    thread = engine_thread()
    heard: list[Phase] = []

    def close_at_once(state: EngineState) -> None:
        heard.append(state.phase)
        if state.phase is Phase.LOADING and threading.current_thread() is thread:
            engine.close()  # the progress callback's thread: between two tensors

    engine.on_state(close_at_once)
    held_load.may_begin.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert isinstance(held_load.error, ModelLoadError)  # the library itself gave up
    assert Phase.READY not in heard
    assert heard[-1] is Phase.CLOSED
    with pytest.raises(EngineClosedError):
        engine.submit(REQUEST)


@pytest.mark.parametrize("where", ["open_slots", "measure"])
def test_what_was_loaded_is_freed_when_the_start_fails_later(
    tiny_model: Path,
    backend: str,
    native_module: Any,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """The weights stayed in memory: nobody held what had been loaded before the failure."""
    models: list[Any] = []
    load = native_module.load

    def remember(*args: Any) -> Any:
        models.append(load(*args))
        return models[-1]

    def fail(*_args: object) -> None:
        raise ModelLoadError("no memory for a context")

    monkeypatch.setattr(native_module, "load", remember)
    if where == "open_slots":
        model_class = {"ik_llama": "IkModel", "llama_cpp": "LlamaModel"}[backend]
        monkeypatch.setattr(getattr(native_module, model_class), "open_slots", fail)
    else:
        monkeypatch.setattr("fimlsp.engine.calibrate.measure", fail)
    engine = open_engine(tiny_model, backend)
    engine.close()
    assert engine.state.phase is Phase.FAILED
    with pytest.raises(EngineClosedError):
        models[0].tokenize(b"x", special=False)


def test_small_native_steps_are_possible(open_tiny: OpenEngine) -> None:
    """The calibration decoded 32 tokens at once, whatever the step size was."""
    engine = open_tiny(n_ubatch=1)
    assert engine.state.phase is Phase.READY
    assert result(engine.submit(REQUEST).future).prompt_tokens == 3


def test_an_unknown_backend_is_refused_by_name(tiny_model: Path) -> None:
    engine = open_engine(tiny_model, "abacus")
    with pytest.raises(BackendUnavailableError, match=r"abacus.*ik_llama, llama_cpp"):
        engine.submit(REQUEST)
    engine.close()


def test_an_engine_may_be_opened_and_closed_again_and_again_without_growing(
    tiny_model: Path, backend: str
) -> None:
    script = (
        "import gc, sys, psutil; from pathlib import Path\n"
        "from engine_harness import open_engine, result\n"
        "from fimlsp.engine.api import Request\n"
        "def cycles(count):\n"
        "    for _ in range(count):\n"
        "        engine = open_engine(Path(sys.argv[2]), sys.argv[1])\n"
        "        for slot in 'ab':\n"
        "            request = Request(slot=slot, prompt=(1, 2, 3), max_tokens=8)\n"
        "            result(engine.submit(request).future)\n"
        "        engine.close()\n"
        "    gc.collect()\n"
        "    return psutil.Process().memory_info().rss\n"
        "before = cycles(5)\n"
        "sys.stdout.write(str(cycles(10) - before))\n"
    )
    done = run_script(script, backend, str(tiny_model))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4_000_000
