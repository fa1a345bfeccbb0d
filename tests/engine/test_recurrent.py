"""Models that keep a running state: no token can be taken back, so nothing drafts for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Oracle, Steps, open_engine, result
from tiny_mamba import write_tiny_mamba

from fimlsp.engine.api import Finish, Generation, Phase, Request
from fimlsp.engine.native.seam import LoadParams
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import DecodeError, ModelLoadError

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture
def pretended(native_module: Any, monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    """Let the tiny model pass for a recurrent one, whose slots can be emptied and not shortened."""
    name = {"ik_llama": "IkSlots", "llama_cpp": "LlamaSlots"}[native_module.NAME]
    slots = getattr(native_module, name)
    truncate, load = slots.truncate, native_module.load

    def strict(native: Any, slot: int, n_cells: int) -> None:
        assert n_cells == 0 or n_cells == native.n_cells(slot), (n_cells, native.n_cells(slot))
        truncate(native, slot, n_cells)

    def recurrent(params: LoadParams, progress: Any) -> Any:
        model = load(params, progress)
        model.recurrent = True
        return model

    def never(*_args: object) -> None:
        raise AssertionError("a state was copied")

    monkeypatch.setattr(slots, "truncate", strict)
    monkeypatch.setattr(slots, "copy", never)
    monkeypatch.setattr(native_module, "load", recurrent)


def ask(engine: InProcessEngine, prompt: list[int], slot: str = "a", n: int = 8) -> Generation:
    request = Request(
        slot=slot,
        prompt=tuple(prompt),
        max_tokens=n,
        expected=(b"self.total",),
        sources=("previous", "ngram", "model"),
    )
    return result(engine.submit(request).future)


@pytest.mark.usefixtures("pretended")
def test_it_runs_without_speculation_and_says_so(
    open_tiny: OpenEngine, tiny_model: Path, text: list[int]
) -> None:
    engine = open_tiny(sources=("previous", "ngram", "model"), draft=tiny_model)
    assert engine.info.draft.startswith("not used: the target is a recurrent or hybrid model")
    repeated = text[:20] * 3
    assert ask(engine, repeated, n=24).drafted == 0
    assert engine.rested  # no curve is measured that nobody will use


@pytest.mark.usefixtures("pretended")
def test_every_prompt_gives_the_text_that_a_cold_slot_gives(
    open_tiny: OpenEngine, oracle: Oracle, text: list[int]
) -> None:
    engine = open_tiny()
    dice = random.Random(5)
    for _ in range(30):
        length = dice.randrange(1, 120)
        prompt = text[:length] if dice.random() < 0.7 else text[200 : 200 + length]
        slot = dice.choice("abc")
        request = Request(slot=slot, prompt=tuple(prompt), max_tokens=6)
        oracle.check(request, result(engine.submit(request).future))


@pytest.mark.usefixtures("pretended")
def test_a_prompt_that_begins_with_all_that_a_slot_holds_reads_its_tail_only(
    open_tiny: OpenEngine, text: list[int]
) -> None:
    engine = open_tiny()
    ask(engine, text[:100], n=0)
    grown = ask(engine, text[:103], n=0)
    assert (grown.reused_tokens, grown.prompt_tokens) == (100, 3)
    edited = ask(engine, [*text[:50], 7], n=0)
    assert (edited.reused_tokens, edited.prompt_tokens) == (0, 51)


@pytest.mark.usefixtures("pretended")
def test_a_cancel_stops_between_two_steps_and_harms_no_later_text(
    open_tiny: OpenEngine, steps: Steps, oracle: Oracle, text: list[int]
) -> None:
    """An abort inside a decode would leave its tokens in the state."""
    engine = open_tiny()
    request = Request(slot="a", prompt=tuple(text[:100]), max_tokens=8)
    gate = steps.hold(after=2)
    ticket = engine.submit(request)
    with gate:
        ticket.cancel()
    assert result(ticket.future).finish is Finish.CANCELLED
    assert len(steps.log) == 3
    assert steps.aborts == []
    oracle.check(request, result(engine.submit(request).future))


@pytest.mark.usefixtures("pretended")
def test_a_failed_decode_empties_the_slot(
    open_tiny: OpenEngine,
    native_module: Any,
    oracle: Oracle,
    text: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = open_tiny()
    ask(engine, text[:100], n=0)
    name = {"ik_llama": "IkSlots", "llama_cpp": "LlamaSlots"}[native_module.NAME]
    decode = getattr(native_module, name).decode

    def fail(*_args: object) -> None:
        raise DecodeError("half of it was read")

    monkeypatch.setattr(getattr(native_module, name), "decode", fail)
    request = Request(slot="a", prompt=tuple(text[:120]), max_tokens=4)
    with pytest.raises(DecodeError):
        result(engine.submit(request).future)
    assert engine.reusable("a", text[:120]) == 0
    monkeypatch.setattr(getattr(native_module, name), "decode", decode)
    oracle.check(request, result(engine.submit(request).future))


def test_a_real_one_writes_the_same_warm_as_cold_or_is_refused_by_name(
    tmp_path: Path, backend: str, text: list[int]
) -> None:
    """ik_llama loads such a file and aborts the process in the first decode."""
    path = tmp_path / "mamba.gguf"
    write_tiny_mamba(path)
    engine = open_engine(path, backend, sources=("previous", "ngram"))
    if backend == "ik_llama":
        assert isinstance(engine.state.error, ModelLoadError)
        assert 'engine.backend to "llama_cpp"' in str(engine.state.error)
    else:
        assert engine.state.phase is Phase.READY
        assert "recurrent" in engine.info.draft
        warm = [ask(engine, text[:length]).tokens for length in (40, 41, 60, 30, 61)]
        assert all(ask(engine, text[:30], name).drafted == 0 for name in "bc")
        cold = []
        for length in (40, 41, 60, 30, 61):
            ask(engine, text[300:330])
            cold.append(ask(engine, text[:length]).tokens)
        assert warm == cold
    engine.close()
