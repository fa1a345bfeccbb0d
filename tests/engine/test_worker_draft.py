"""The draft model in a running engine: nobody waits for it, and its state can be read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_harness import PATIENCE_S, open_engine, result, wait

from fimlsp.engine.api import EngineParams, Phase, Request, SpeculationParams
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.worker import InProcessEngine

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody types in these tests: idle work begins at once, and the draft model pays."""
    monkeypatch.setattr("fimlsp.engine.worker._TYPING_S", 0.0)
    monkeypatch.setattr("fimlsp.engine.draft.DraftSetup._best_gain", lambda _setup, _ms: 2.0)


@pytest.fixture
def target(tmp_path: Path, tiny_model: Path) -> Path:
    """The tiny model in a file so long that its draft models look cheap."""
    path = tmp_path / "target.gguf"
    path.write_bytes(tiny_model.read_bytes() + bytes(20_000_000))
    return path


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Wait until the engine says something of its draft model."""
    said: list[str] = []
    change = threading.Condition()
    tell = InProcessEngine._tell_draft

    def heard(engine: InProcessEngine, text: str) -> None:
        tell(engine, text)
        with change:
            said.append(text)
            change.notify_all()

    def until(part: str) -> None:
        with change:
            assert change.wait_for(lambda: any(part in text for text in said), PATIENCE_S), said

    monkeypatch.setattr(InProcessEngine, "_tell_draft", heard)
    return until


class HeldDraft:
    """Holds the load of a draft model's weights until somebody wants the engine."""

    def __init__(self, load: Callable[..., Any], draft: Path) -> None:
        self.begun = threading.Event()
        self.tries = 0
        self._load = load
        self._draft = draft

    def load(self, params: Any, progress: Callable[[float], bool]) -> Any:
        if params.path != self._draft or params.vocab_only:
            return self._load(params, progress)
        self.tries += 1
        first = self.tries == 1

        def slow(fraction: float) -> bool:
            self.begun.set()
            polls = threading.Event()
            while first and progress(fraction):
                polls.wait(0.001)  # a load of gigabytes, looking up now and then
            return progress(fraction)

        return self._load(params, slow)


@pytest.fixture
def held(native_module: Any, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> HeldDraft:
    held = HeldDraft(native_module.load, tiny_model)
    monkeypatch.setattr(native_module, "load", held.load)
    return held


def request(text: list[int], **changed: Any) -> Request:
    return Request(slot="a", prompt=tuple(text[:12]), max_tokens=16, **changed)


def test_the_engine_is_ready_before_its_draft_model_and_then_uses_it(
    target: Path,
    tiny_model: Path,
    open_tiny: OpenEngine,
    text: list[int],
    told: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = open_tiny(target, sources=("model",), draft=tiny_model)
    plain = result(engine.submit(request(text, sources=())).future)
    told("of the target's time")
    assert tiny_model.name in engine.info.draft
    flat = VerifyCurve({1: 1000.0, 64: 1000.0})
    monkeypatch.setattr(flat, "observe", lambda _n, _ms: None)
    engine.speculation.curve = flat
    drafted = result(engine.submit(request(text)).future)
    assert drafted.tokens == plain.tokens
    assert (drafted.draft_source, drafted.accepted > 5) == ("model", True)


def test_a_request_does_not_wait_for_the_load_of_the_draft_model(
    target: Path,
    tiny_model: Path,
    backend: str,
    held: HeldDraft,
    text: list[int],
    told: Callable[[str], None],
) -> None:
    engine = open_engine(target, backend, sources=("model",), draft=tiny_model)
    wait(held.begun)
    assert "not loaded yet" in engine.info.draft
    assert result(engine.submit(request(text)).future).tokens
    told("of the target's time")
    assert held.tries == 2
    engine.close()


def test_closing_gives_up_the_load_of_the_draft_model(
    target: Path, tiny_model: Path, backend: str, held: HeldDraft
) -> None:
    engine = open_engine(target, backend, sources=("model",), draft=tiny_model)
    wait(held.begun)
    engine.close()
    assert engine.state.phase is Phase.CLOSED
    assert held.tries == 1


def test_a_draft_model_of_another_family_is_said_once_and_costs_nothing_else(
    target: Path,
    tiny_model: Path,
    tmp_path: Path,
    open_tiny: OpenEngine,
    text: list[int],
    told: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes().replace(b"<|repo_name|>", b"<|repo_namf|>"))
    engine = open_tiny(target, sources=("ngram", "model"), draft=other)
    told("not used: the draft model spells token")
    assert "models.draft" in engine.info.draft
    assert engine.state.phase is Phase.READY
    assert result(engine.submit(request(text)).future).tokens
    assert caplog.text.count("the draft model is not used") == 1


@pytest.mark.parametrize(("sources", "draft"), [(("ngram",), True), (("ngram", "model"), False)])
def test_no_draft_model_is_brought_where_none_is_wanted(
    tiny_model: Path, open_tiny: OpenEngine, sources: tuple[str, ...], draft: bool
) -> None:
    engine = open_tiny(sources=sources, draft=tiny_model if draft else None)
    assert engine.info.draft == "none"


def test_a_mistake_in_bringing_it_leaves_the_engine_alive(
    target: Path,
    tiny_model: Path,
    open_tiny: OpenEngine,
    text: list[int],
    told: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("fimlsp.engine.pairing.require_same_tokens", broken)
    engine = open_tiny(target, sources=("model",), draft=tiny_model)
    told("not used: bringing it failed")
    assert "a mistake of ours" in caplog.text
    assert result(engine.submit(request(text)).future).tokens


def test_a_copy_is_made_beside_the_running_engine(
    target: Path,
    tiny_model: Path,
    tmp_path: Path,
    backend: str,
    text: list[int],
    told: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fimlsp.engine.calibrate.decodes_ms", lambda _one, _other: (2.0, 1.0))
    engine = InProcessEngine(
        target,
        EngineParams(backend=backend, threads=1, n_ctx=512, slots=2, n_ubatch=32),
        SpeculationParams(sources=("model",)),
        draft=tiny_model,
        draft_copies=tmp_path / "copies",
    )
    told("of the target's time")
    assert result(engine.submit(request(text)).future).tokens
    told("as Q4_0")
    assert [path.suffix for path in (tmp_path / "copies").glob("*.gguf")] == [".gguf"]
    assert result(engine.submit(request(text)).future).tokens
    engine.close()
