"""The draft model on a real native library: what it reads, keeps, drafts and never does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_harness import Oracle
from speculation_harness import Audited

from fimlsp.engine.drafters.model import MAX_LAG, N_SLOTS, ModelDrafter
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import AbortedError, LoadParams, SlotParams
from fimlsp.errors import DecodeError, FimlspError

N_CTX = 256
UBATCH = 32
MakeDrafter = Callable[..., ModelDrafter]


@pytest.fixture
def abort() -> AbortFlag:
    return AbortFlag()


@pytest.fixture
def native(native_module: Any, tiny_model: Path, abort: AbortFlag) -> Iterator[Audited]:
    model = native_module.load(LoadParams(path=tiny_model), lambda _fraction: True)
    sizes = SlotParams(n_slots=N_SLOTS, n_ctx=N_CTX, n_ubatch=UBATCH, threads=1, n_outputs=1)
    slots = Audited(model.open_slots(sizes, abort), N_SLOTS)
    yield slots
    slots.close()
    model.close()


@pytest.fixture
def failures() -> list[FimlspError]:
    return []


@pytest.fixture
def make(native: Audited, failures: list[FimlspError]) -> MakeDrafter:
    def make(**changed: Any) -> ModelDrafter:
        settings: dict[str, Any] = {
            "n_ctx": N_CTX,
            "n_ubatch": UBATCH,
            "n_shared": 480,
            "token_ms": 10.0,
            "read_ms": 2.0,
            "is_text": lambda _token: True,
            "on_failure": failures.append,
        }
        drafter = ModelDrafter(native, **settings | changed)
        native.keep_books(drafter.cells)
        return drafter

    return make


@pytest.fixture
def drafter(make: MakeDrafter) -> ModelDrafter:
    return make()


def begin(drafter: ModelDrafter, prompt: list[int], slot: str = "a") -> None:
    """Start a request whose prompt the model has read."""
    drafter.begin(slot, prompt)
    while drafter.unread:
        drafter.read()


def draft(drafter: ModelDrafter, emitted: list[int], n: int) -> list[int]:
    """Return ``n`` tokens that the model would write after ``emitted``."""
    tokens: list[int] = []
    for _ in range(n):
        found = drafter.next([*emitted, *tokens])
        assert found is not None
        tokens.append(found[0])
    return tokens


def best(oracle: Oracle, tokens: list[int], n_shared: int = 480) -> int:
    return int(oracle.rows(tokens, 1)[0][:n_shared].argmax())


def test_it_drafts_what_it_finds_likeliest(
    drafter: ModelDrafter, oracle: Oracle, text: list[int]
) -> None:
    begin(drafter, text[:70])
    emitted: list[int] = []
    for _ in range(8):
        emitted += draft(drafter, emitted, 1)
    assert emitted == [best(oracle, [*text[:70], *emitted[:at]]) for at in range(8)]


def test_the_evidence_is_the_tenths_of_the_probability(
    drafter: ModelDrafter, oracle: Oracle, text: list[int]
) -> None:
    seen = set()
    for length in range(60, 76):
        begin(drafter, text[:length])
        found = drafter.next(())
        assert found is not None
        row = oracle.rows(text[:length], 1)[0][:480].astype(np.float64)
        probability = float(np.exp(row.max() - np.logaddexp.reduce(row)))
        assert abs(found[1] + 0.5 - 10 * probability) < 0.6
        seen.add(found[1])
    assert len(seen) > 2


def test_a_long_unread_prompt_is_read_in_idle_time_only(
    drafter: ModelDrafter, native: Audited, text: list[int]
) -> None:
    drafter.begin("a", text[:100])
    assert drafter.lag(()) is None
    assert drafter.unread
    assert native.widths == []
    while drafter.unread:
        drafter.read()
    assert native.widths == [32, 32, 32, 4]
    assert drafter.lag(()) == 1  # the last one, for its logits


def test_a_short_lag_is_told_and_read_at_once(
    drafter: ModelDrafter, native: Audited, text: list[int]
) -> None:
    begin(drafter, text[:100])
    draft(drafter, [], 1)
    native.widths.clear()
    drafter.begin("a", text[: 100 + MAX_LAG])
    assert not drafter.unread
    assert drafter.lag(()) == MAX_LAG
    draft(drafter, [], 1)
    assert native.widths == [MAX_LAG]
    drafter.begin("a", text[: 100 + 2 * MAX_LAG + 1])
    assert drafter.lag(()) is None
    assert drafter.unread


def test_nothing_is_read_twice_from_step_to_step(
    drafter: ModelDrafter, native: Audited, oracle: Oracle, text: list[int]
) -> None:
    prompt = text[:100]
    begin(drafter, prompt)
    native.widths.clear()
    first = draft(drafter, [], 4)
    assert native.widths == [1, 1, 1, 1]
    # All four were right and the target added one: the fourth and that one are missing.
    emitted = [*first, best(oracle, [*prompt, *first])]
    assert drafter.lag(emitted) == 2
    native.widths.clear()
    second = draft(drafter, emitted, 3)
    assert native.widths == [2, 1, 1]
    # The second of three was wrong.
    emitted = [*emitted, second[0], (second[1] + 1) % 480]
    assert drafter.lag(emitted) == 1
    native.widths.clear()
    third = draft(drafter, emitted, 2)
    assert native.widths == [1, 1]
    assert third[0] == best(oracle, [*prompt, *emitted])
    # The target went on with another source's five tokens.
    emitted = [*emitted, *text[300:305]]
    assert drafter.lag(emitted) == 5


def test_nothing_is_read_twice_from_request_to_request(
    drafter: ModelDrafter, native: Audited, oracle: Oracle, text: list[int]
) -> None:
    begin(drafter, text[:100])
    written = draft(drafter, [], 5)
    native.widths.clear()
    typed = [*text[:100], *written[:3]]  # the person types what was suggested
    drafter.begin("a", typed)
    assert not drafter.unread
    assert draft(drafter, [], 1) == [best(oracle, typed)]
    assert native.widths == [1]


def test_two_documents_stay_warm(
    drafter: ModelDrafter, native: Audited, oracle: Oracle, text: list[int]
) -> None:
    begin(drafter, text[:100], "a")
    begin(drafter, text[200:300], "b")
    native.widths.clear()
    for name, prompt in (("a", text[:101]), ("b", text[200:301]), ("a", text[:102])):
        drafter.begin(name, prompt)
        assert not drafter.unread
        assert draft(drafter, [], 1) == [best(oracle, prompt)]
    assert sum(native.widths) <= 6


def test_the_next_epoch_of_a_document_takes_over_what_was_read(
    drafter: ModelDrafter, text: list[int]
) -> None:
    begin(drafter, text[:100], "a epoch 1")
    drafter.begin("a epoch 2", text[:105])
    assert not drafter.unread
    assert drafter.lag(()) == 5


def test_only_the_newest_request_is_read(
    drafter: ModelDrafter, native: Audited, text: list[int]
) -> None:
    drafter.begin("a", text[:100])
    drafter.read()
    drafter.begin("a", text[200:210])
    assert not drafter.unread  # short enough to be read when it is wanted
    drafter.begin("b", text[300:380])
    while drafter.unread:
        drafter.read()
    assert drafter.lag(()) == 1
    assert sum(native.widths) == 32 + 80


def test_an_aborted_read_leaves_nothing_behind_and_is_taken_up_again(
    drafter: ModelDrafter, abort: AbortFlag, native: Audited, oracle: Oracle, text: list[int]
) -> None:
    drafter.begin("a", text[:100])
    drafter.read()
    abort.set()
    with pytest.raises(AbortedError):
        drafter.read()
    native.audit()
    assert drafter.unread
    abort.clear()
    while drafter.unread:
        drafter.read()
    assert draft(drafter, [], 1) == [best(oracle, text[:100])]


def test_an_abort_inside_a_draft_leaves_the_books_right(
    drafter: ModelDrafter, abort: AbortFlag, native: Audited, oracle: Oracle, text: list[int]
) -> None:
    begin(drafter, text[:100])
    written = draft(drafter, [], 2)
    abort.set()
    with pytest.raises(AbortedError):
        drafter.next(written)
    native.audit()
    abort.clear()
    drafter.begin("a", text[:100])
    assert draft(drafter, [], 3)[:2] == written


def test_ids_that_it_does_not_know_never_reach_it(
    make: MakeDrafter, native: Audited, oracle: Oracle, text: list[int]
) -> None:
    """ik_llama reads past its embeddings for such an id."""
    prompt = [token % 300 for token in text[:60]]
    drafter = make(n_shared=300)
    begin(drafter, prompt)
    assert draft(drafter, [], 1) == [best(oracle, prompt, 300)]
    native.widths.clear()
    assert drafter.lag([5, 300]) is None
    assert drafter.next([5, 300]) is None
    drafter.begin("a", [*prompt, 300])
    assert not drafter.unread
    assert drafter.lag(()) is None
    assert drafter.next(()) is None
    assert native.widths == []


def test_it_drafts_no_id_that_the_target_does_not_know(
    make: MakeDrafter, oracle: Oracle, text: list[int]
) -> None:
    prompt = [token % 40 for token in text[:60]]
    drafter = make(n_shared=40)
    begin(drafter, prompt)
    for at in range(12):
        found = drafter.next([at])
        assert found is not None
        assert found[0] == best(oracle, [*prompt, at], 40)


def test_it_drafts_nothing_behind_the_end_of_a_text(
    make: MakeDrafter, oracle: Oracle, text: list[int]
) -> None:
    end = best(oracle, text[:60])
    drafter = make(is_text=lambda token: token != end)
    begin(drafter, text[:60])
    assert drafter.next(()) is None


def test_it_drafts_up_to_the_end_of_its_context_and_no_further(
    drafter: ModelDrafter, text: list[int]
) -> None:
    begin(drafter, text[: N_CTX - 3])
    assert len(draft(drafter, [], 4)) == 4  # the last one needs no cell
    assert drafter.next(text[300:304]) is None


def test_a_prompt_that_does_not_fit_is_left_alone(
    drafter: ModelDrafter, native: Audited, text: list[int]
) -> None:
    drafter.begin("a", text[:N_CTX])
    assert not drafter.unread
    assert drafter.lag(()) is None
    assert drafter.next(()) is None
    assert native.widths == []


def test_a_failing_library_ends_the_drafting_and_nothing_else(
    drafter: ModelDrafter,
    native: Audited,
    failures: list[FimlspError],
    text: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(drafter, text[:60])

    def fail(*_args: object) -> None:
        raise DecodeError("the GPU is gone")

    monkeypatch.setattr(native, "decode", fail)
    assert drafter.next(()) is None
    assert [str(error) for error in failures] == ["the GPU is gone"]
    assert drafter.lag(()) is None
    drafter.begin("a", text[:100])
    assert not drafter.unread
    assert drafter.next(()) is None
    assert len(failures) == 1


def test_its_prices_follow_live_decodes(
    drafter: ModelDrafter, native: Audited, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def take_time() -> None:
        now[0] += 0.015 if len(native.widths) % 2 == 0 else 0.095

    begin(drafter, text[:100])
    native.widths.clear()
    native.before_step = take_time
    draft(drafter, [], 1)
    assert drafter.token_ms == pytest.approx(10.5)
    drafter.next(text[300:310])
    assert drafter.read_ms == pytest.approx(2.0 + 0.1 * (4.0 - 2.0))  # an outlier counts double


def test_forgetting_leaves_no_cell(drafter: ModelDrafter, native: Audited, text: list[int]) -> None:
    begin(drafter, text[:100], "a")
    begin(drafter, text[200:300], "b")
    drafter.forget()
    assert [native.n_cells(slot) for slot in range(N_SLOTS)] == [0] * N_SLOTS
    assert not drafter.unread
    drafter.begin("a", text[:100])
    assert drafter.unread
