"""The draft model's life, step by step, and that its drafts change nothing but the time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny_gguf

from fimlsp.engine import calibrate
from fimlsp.engine.api import DraftParams, EngineParams, Request, SpeculationParams
from fimlsp.engine.cost import VerifyCurve
from fimlsp.engine.draft import DraftPlan, DraftSetup
from fimlsp.engine.drafters.model import N_SLOTS, ModelDrafter
from fimlsp.engine.drafters.requantise import copy_path, make_copy
from fimlsp.engine.generate import InterruptedRequestError, Progress
from fimlsp.engine.load import Plant, load
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import AbortedError
from fimlsp.errors import DecodeError, EngineClosedError, ModelError, ModelLoadError

SLOTS = 2
UBATCH = 32


class Dear(VerifyCurve):
    """A target whose steps take a second, however wide: every draft pays, and so it stays."""

    def __init__(self) -> None:
        super().__init__({1: 1000.0, 64: 1000.0})

    def observe(self, n: int, ms: float) -> None:
        """Learn nothing."""


def finish(setup: DraftSetup) -> None:
    """Do all there is to do now."""
    while setup.waiting:
        setup.step()


class Workshop:
    """A target, and the setups that bring draft models to it; the test's thread is the engine's."""

    def __init__(self, target: Path, backend: str, copies: Path | None) -> None:
        self.abort = AbortFlag()
        self.native = ExitStack()
        self.told: list[str] = []
        self.woken = 0
        self.copies = copies
        params = EngineParams(backend=backend, threads=1, n_ctx=512, slots=SLOTS, n_ubatch=UBATCH)
        self.plant: Plant = load(
            target,
            params,
            SpeculationParams(),
            abort=self.abort,
            curves=None,
            progress=lambda _fraction: True,
            native=self.native,
        )
        self.plant.generator.speculation.curve = Dear()

    def setup(self, draft: Path, **changed: Any) -> DraftSetup:
        plan = DraftPlan(
            path=draft,
            params=DraftParams(n_ctx=512),
            copies=self.copies,
            max_draft=8,
            n_ubatch=UBATCH,
        )
        return DraftSetup(
            plan,
            self.plant,
            abort=self.abort,
            tell=self.told.append,
            wake=self._wake,
            native=self.native,
            **changed,
        )

    def bring(self, draft: Path) -> DraftSetup:
        """Do all there is to do."""
        setup = self.setup(draft)
        finish(setup)
        return setup

    @property
    def drafter(self) -> ModelDrafter:
        drafter = self.plant.generator.speculation.model
        assert isinstance(drafter, ModelDrafter)
        return drafter

    def audit(self) -> None:
        """Assert that both models hold as many cells as their books say."""
        generator = self.plant.generator
        counted = [generator.native.n_cells(slot) for slot in range(SLOTS)]
        assert counted == [len(generator.cells.tokens(slot)) for slot in range(SLOTS)]
        if generator.speculation.model is not None:
            drafter = self.drafter
            counted = [drafter._native.n_cells(slot) for slot in range(N_SLOTS)]
            assert counted == [len(drafter.cells.tokens(slot)) for slot in range(N_SLOTS)]

    def ask(self, prompt: list[int], n: int = 24, **changed: Any) -> Progress:
        """Answer a request; the books of both models are compared before every step."""
        request = Request(slot="a", prompt=tuple(prompt), max_tokens=n, **changed)
        progress = Progress()
        self.plant.generator.run(request, progress, self.audit, lambda: UBATCH)
        self.audit()
        return progress

    def _wake(self) -> None:
        self.woken += 1


@pytest.fixture
def target(tmp_path: Path, tiny_model: Path) -> Path:
    """The tiny model in a file so long that its draft models look cheap."""
    path = tmp_path / "target.gguf"
    path.write_bytes(tiny_model.read_bytes() + bytes(20_000_000))
    return path


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """The same vocabulary with other weights: nearly every draft of it is wrong."""
    path = tmp_path / "stranger.gguf"
    write_tiny_gguf(path, seed=8)
    return path


@pytest.fixture
def mismatched(tmp_path: Path, tiny_model: Path) -> Path:
    path = tmp_path / "mismatched.gguf"
    path.write_bytes(tiny_model.read_bytes().replace(b"<|repo_name|>", b"<|repo_namf|>"))
    return path


@pytest.fixture
def workshop(target: Path, backend: str) -> Iterator[Workshop]:
    workshop = Workshop(target, backend, None)
    yield workshop
    workshop.native.close()


@pytest.fixture
def loads(native_module: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The files that were loaded, and whether for their vocabulary alone."""
    seen: list[tuple[str, bool]] = []
    load = native_module.load

    def noted(params: Any, progress: Any) -> Any:
        seen.append((params.path.name, params.vocab_only))
        return load(params, progress)

    monkeypatch.setattr(native_module, "load", noted)
    return seen


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make copies in this process, and say so at once."""

    class Immediate:
        ended = True

        def __init__(
            self, backend: str, source: Path, copy: Path, on_end: Callable[[], None]
        ) -> None:
            self.error = ""
            try:
                make_copy(backend, source, copy)
            except ModelError as error:
                self.error = str(error)
            on_end()

        def close(self) -> None:
            """There is no process."""

    monkeypatch.setattr("fimlsp.engine.draft.Requantisation", Immediate)


def plainly(workshop: Workshop, prompt: list[int], **changed: Any) -> list[int]:
    """Return the answer that no source has drafted for."""
    return workshop.ask(prompt, sources=(), **changed).tokens


# ---- what it drafts


@pytest.mark.parametrize("which", ["tiny_model", "stranger"])
def test_the_text_is_the_same_with_and_without_it(
    workshop: Workshop, text: list[int], which: str, request: pytest.FixtureRequest
) -> None:
    setup = workshop.bring(request.getfixturevalue(which))
    accepted = []
    for start in range(0, 300, 20):
        prompt = text[start : start + 60]
        plain = plainly(workshop, prompt)
        workshop.ask(prompt, n=1, sources=("model",))
        finish(setup)
        drafted = workshop.ask(prompt, sources=("model",))
        assert drafted.tokens == plain
        assert {use.source for use in drafted.drafts} == {"model"}
        accepted.append(sum(use.accepted for use in drafted.drafts))
    if which == "tiny_model":
        assert sum(accepted) > 15 * 15  # its own draft is wrong only where two tokens nearly tie
    else:
        assert sum(accepted) < 15 * 2


def test_typed_bytes_are_imposed_on_its_drafts_too(
    workshop: Workshop, tiny_model: Path, text: list[int]
) -> None:
    workshop.bring(tiny_model)
    for typed in (b" ret", b"self.", "é中".encode()):
        plain = plainly(workshop, text[:12], must_start_with=typed)
        drafted = workshop.ask(text[:12], must_start_with=typed, sources=("model",))
        assert drafted.tokens == plain
        assert bytes(drafted.text).startswith(typed)
        assert drafted.drafts


def test_it_works_beside_the_free_sources(
    workshop: Workshop, tiny_model: Path, text: list[int]
) -> None:
    workshop.bring(tiny_model)
    prompt = text[:12]
    plain = plainly(workshop, prompt)
    bytes_of = workshop.plant.generator.vocabulary.token_bytes
    wrong = b"".join(map(bytes_of, plain[:5])) + b"something else"
    both = workshop.ask(prompt, expected=(wrong,))
    assert both.tokens == plain
    assert {use.source for use in both.drafts} >= {"previous", "model"}


@pytest.mark.parametrize("model", ["target", "draft"])
def test_an_abort_at_any_step_leaves_both_books_right(
    workshop: Workshop,
    stranger: Path,
    text: list[int],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
) -> None:
    workshop.bring(stranger)  # wrong drafts make for many steps
    prompt = text[:12]
    plain = plainly(workshop, prompt)
    native = workshop.plant.generator.native if model == "target" else workshop.drafter._native
    decode, calls = native.decode, [0]

    def stopped(*args: Any) -> Any:
        calls[0] -= 1
        if calls[0] == 0:
            workshop.abort.set()
        return decode(*args)

    monkeypatch.setattr(native, "decode", stopped)
    for after in range(1, 8):
        calls[0] = after
        with pytest.raises(InterruptedRequestError):
            workshop.ask(prompt, sources=("model",))
        workshop.abort.clear()
        workshop.audit()
        assert workshop.ask(prompt, sources=("model",)).tokens == plain


def test_a_failing_draft_model_costs_the_request_nothing(
    workshop: Workshop,
    tiny_model: Path,
    text: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = workshop.bring(tiny_model)
    plain = plainly(workshop, text[:12])
    decode, calls = workshop.drafter._native.decode, [0]

    def failing(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] > 3:
            raise DecodeError("the memory is gone")
        return decode(*args)

    monkeypatch.setattr(workshop.drafter._native, "decode", failing)
    assert workshop.ask(text[:12], sources=("model",)).tokens == plain
    assert workshop.told[-1] == "not used: the memory is gone"
    assert caplog.text.count("the memory is gone") == 1
    assert (setup.waiting, setup.settled) == (False, True)
    assert workshop.ask(text[:12]).tokens == plain


# ---- how it is brought


def test_it_is_compared_weighed_loaded_and_timed(
    workshop: Workshop, tiny_model: Path, loads: list[tuple[str, bool]]
) -> None:
    setup = workshop.setup(tiny_model)
    assert setup.waiting
    assert not setup.settled
    finish(setup)
    assert loads == [(tiny_model.name, True), (tiny_model.name, False)]
    assert setup.settled
    assert workshop.drafter.token_ms > 0
    (told,) = workshop.told
    assert told.startswith(f"{tiny_model.name} (0.0")
    assert told.endswith("of the target's time per token)")


def test_another_vocabulary_is_refused_before_any_weights_are_read(
    workshop: Workshop,
    mismatched: Path,
    text: list[int],
    loads: list[tuple[str, bool]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = workshop.bring(mismatched)
    assert loads == [(mismatched.name, True)]
    (told,) = workshop.told
    assert "<|repo_namf|>" in told
    assert "models.draft" in told
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert setup.settled
    assert workshop.plant.generator.speculation.model is None
    assert workshop.ask(text[:60]).tokens == plainly(workshop, text[:60])


def test_a_missing_file_is_said(workshop: Workshop, tmp_path: Path) -> None:
    assert workshop.bring(tmp_path / "missing.gguf").settled
    (told,) = workshop.told
    assert told.startswith("not used:")
    assert "missing.gguf" in told


def test_a_draft_model_as_large_as_its_target_is_not_loaded(
    workshop: Workshop, target: Path, tmp_path: Path, loads: list[tuple[str, bool]]
) -> None:
    twin = tmp_path / "twin.gguf"
    shutil.copy(target, twin)
    assert workshop.bring(twin).settled
    assert loads == [("twin.gguf", True)]
    (told,) = workshop.told
    assert "1.00 of the target's size" in told
    assert "90%" in told


def test_one_that_turns_out_too_slow_is_freed_again(
    workshop: Workshop, tiny_model: Path, native_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    load = native_module.load

    def remembered(*args: Any) -> Any:
        models.append(load(*args))
        return models[-1]

    slow = calibrate.Speed(prefill_tok_s=5.0, decode_ms=2000.0)
    monkeypatch.setattr(native_module, "load", remembered)
    monkeypatch.setattr(calibrate, "measure", lambda _native, _n_ubatch: slow)
    assert workshop.bring(tiny_model).settled
    assert "takes 2.00 of the target's time per token" in workshop.told[-1]
    assert workshop.plant.generator.speculation.model is None
    with pytest.raises(EngineClosedError):
        models[-1].tokenize(b"x", special=False)


def test_one_that_can_not_take_back_tokens_is_refused(
    workshop: Workshop, tiny_model: Path, native_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = native_module.load

    def recurrent(*args: Any) -> Any:
        model = load(*args)
        model.recurrent = True
        return model

    monkeypatch.setattr(native_module, "load", recurrent)
    workshop.bring(tiny_model)
    assert "running state" in workshop.told[-1]
    assert workshop.plant.generator.speculation.model is None


def test_its_load_is_given_up_when_somebody_wants_the_engine_and_begun_again(
    workshop: Workshop, tiny_model: Path, native_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = workshop.setup(tiny_model)
    load = native_module.load
    wanted = [True]

    def interrupted(params: Any, progress: Callable[[float], bool]) -> Any:
        def seen(fraction: float) -> bool:
            if wanted[0] and fraction > 0.3:
                workshop.abort.set()
            return progress(fraction)

        return load(params, progress if params.vocab_only else seen)

    monkeypatch.setattr(native_module, "load", interrupted)
    with pytest.raises(AbortedError):
        finish(setup)
    assert workshop.told == []
    assert setup.waiting
    wanted[0] = False
    workshop.abort.clear()
    finish(setup)
    assert workshop.drafter.token_ms > 0


def test_an_abort_while_it_is_timed_costs_the_timing_only(
    workshop: Workshop, tiny_model: Path, loads: list[tuple[str, bool]]
) -> None:
    setup = workshop.setup(tiny_model)
    while (tiny_model.name, False) not in loads:
        setup.step()
    workshop.abort.set()
    with pytest.raises(AbortedError):
        setup.step()
    workshop.abort.clear()
    finish(setup)
    assert len(loads) == 2
    workshop.audit()


def test_prompts_are_read_in_idle_time_while_it_could_pay(
    workshop: Workshop, tiny_model: Path, text: list[int]
) -> None:
    setup = workshop.bring(tiny_model)
    workshop.ask(text[:100], n=1)
    assert setup.waiting
    assert setup.settled  # nothing is left to decide
    workshop.plant.generator.speculation.curve = VerifyCurve.typical(1e-3)
    assert not setup.waiting
    workshop.plant.generator.speculation.curve = Dear()
    finish(setup)
    assert workshop.drafter.lag(()) == 1


def test_everything_is_freed_at_the_end(
    workshop: Workshop, tiny_model: Path, native_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    load = native_module.load

    def remembered(*args: Any) -> Any:
        models.append(load(*args))
        return models[-1]

    monkeypatch.setattr(native_module, "load", remembered)
    workshop.bring(tiny_model)
    workshop.native.close()
    assert len(models) == 2
    for model in models:
        with pytest.raises(EngineClosedError):
            model.tokenize(b"x", special=False)


# ---- its faster copy


def timed(monkeypatch: pytest.MonkeyPatch, source_ms: float, copy_ms: float) -> None:
    monkeypatch.setattr(calibrate, "decodes_ms", lambda _one, _other: (source_ms, copy_ms))


@pytest.fixture
def copying(workshop: Workshop, tmp_path: Path) -> Workshop:
    workshop.copies = tmp_path / "copies"
    return workshop


def the_copy(workshop: Workshop, draft: Path) -> Path:
    module = workshop.plant.module
    assert workshop.copies is not None
    return copy_path(workshop.copies, draft, module.NAME, module.PINNED)


@pytest.mark.usefixtures("here")
def test_a_faster_copy_takes_over(
    copying: Workshop, tiny_model: Path, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 30.0, 20.0)
    plain = plainly(copying, text[:12])
    setup = copying.bring(tiny_model)
    assert copying.woken == 1
    assert setup.settled
    assert "as Q4_0" in copying.told[-1]
    assert the_copy(copying, tiny_model).stat().st_size < tiny_model.stat().st_size / 2
    assert copying.ask(text[:12], sources=("model",)).tokens == plain


@pytest.mark.usefixtures("here")
def test_a_copy_that_is_not_faster_goes_and_is_not_made_again(
    copying: Workshop,
    tiny_model: Path,
    loads: list[tuple[str, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed(monkeypatch, 20.0, 20.0)
    copying.bring(tiny_model)
    assert "Q4_0" not in copying.told[-1]
    assert the_copy(copying, tiny_model).stat().st_size == 0
    loads.clear()
    copying.bring(tiny_model)
    assert loads == [(tiny_model.name, True), (tiny_model.name, False)]


@pytest.mark.usefixtures("here")
def test_the_next_start_loads_the_copy_at_once(
    copying: Workshop,
    tiny_model: Path,
    loads: list[tuple[str, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed(monkeypatch, 30.0, 20.0)
    copying.bring(tiny_model)
    loads.clear()
    copying.bring(tiny_model)
    assert loads == [(tiny_model.name, True), (the_copy(copying, tiny_model).name, False)]
    assert "as Q4_0" in copying.told[-1]


def test_a_copy_that_can_not_be_loaded_is_thrown_away(
    copying: Workshop, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = the_copy(copying, tiny_model)
    broken.parent.mkdir()
    broken.write_bytes(tiny_model.read_bytes()[:5000])

    def refuse(*_args: object) -> None:
        raise ModelLoadError("no process to be had")

    monkeypatch.setattr("fimlsp.engine.draft.Requantisation", refuse)
    setup = copying.setup(tiny_model)
    while copying.plant.generator.speculation.model is None:
        setup.step()
    assert not broken.exists()
    assert "Q4_0" not in copying.told[-1]


@pytest.mark.usefixtures("here")
def test_the_model_is_used_as_it_is_where_no_copy_can_be_made(
    copying: Workshop,
    tiny_model: Path,
    native_module: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_args: object) -> None:
        raise ModelError("this architecture is too new")

    monkeypatch.setattr(native_module, "quantize_q4_0", refuse)
    caplog.set_level(logging.INFO)
    setup = copying.bring(tiny_model)
    assert "too new" in caplog.text
    assert setup.settled
    assert copying.drafter.token_ms > 0


def test_the_engine_drafts_while_the_copy_is_being_made(
    copying: Workshop, tiny_model: Path, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[Any] = []

    class Slow:
        error, ended, closed = "", False, False

        def __init__(self, *_args: object) -> None:
            running.append(self)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr("fimlsp.engine.draft.Requantisation", Slow)
    plain = plainly(copying, text[:12])
    setup = copying.bring(tiny_model)
    assert (len(running), setup.settled, setup.waiting) == (1, False, False)
    assert copying.ask(text[:12], sources=("model",)).drafts
    assert copying.ask(text[:12], sources=("model",)).tokens == plain
    copying.native.close()
    assert running[0].closed


def test_the_times_of_two_models_are_taken_in_turns_and_leave_no_cell(
    workshop: Workshop, tiny_model: Path
) -> None:
    workshop.bring(tiny_model)
    one, other = workshop.plant.generator.native, workshop.drafter._native
    assert min(calibrate.decodes_ms(one, other)) > 0
    workshop.audit()
    workshop.abort.set()
    with pytest.raises(AbortedError):
        calibrate.decodes_ms(one, other)
    workshop.audit()
    workshop.abort.clear()
