"""What happens with a guess that the model makes from a few lines only."""

from __future__ import annotations

import pytest
from desk import Desk, answer_of, ready_desk, settle, text_of

from fimlsp.completion.api import CompletionParams
from fimlsp.completion.flight import Flight
from fimlsp.context.params import WindowParams
from fimlsp.engine.api import Priority

COLD = WindowParams(prefix_tokens=200, suffix_tokens=60, cold_ms=600)
LINES = "".join(f"line {number:04}\n" for number in range(100))
AT = f"{LINES}x = ‸\n{LINES}"
UNSURE = -1.0


async def unsure_desk(params: CompletionParams | None = None) -> Desk:
    desk = await ready_desk(params or CompletionParams(max_tokens=16), COLD)
    desk.engine.logprob = UNSURE
    desk.texts = ["guess", "known"]
    return desk


async def test_an_unsure_guess_from_a_small_window_gives_way_to_the_full_window() -> None:
    desk = await unsure_desk()
    assert text_of(await desk.ask(AT)) == "known"
    small, full = desk.engine.requests
    assert small.priority is Priority.FOREGROUND
    assert full.priority is Priority.PREFETCH
    assert len(full.prompt) > 2 * len(small.prompt)
    assert full.slot != small.slot


async def test_a_sure_guess_is_shown_at_once_and_the_full_window_is_read_behind_it() -> None:
    desk = await unsure_desk()
    desk.engine.logprob = 0.0
    assert text_of(await desk.ask(AT)) == "guess"
    assert [request.priority for request in desk.engine.requests] == [
        Priority.FOREGROUND,
        Priority.WARMUP,
    ]


async def test_what_the_full_window_says_is_shown_however_unsure() -> None:
    desk = await unsure_desk()
    await desk.ask(AT)
    assert text_of(await desk.ask(AT)) == "known"  # from memory: it was remembered
    desk.texts = ["other"]
    assert text_of(await desk.ask(AT.replace("‸", "z‸"))) == "other"


async def test_an_unsure_guess_is_not_remembered() -> None:
    desk = await unsure_desk()
    desk.engine.holds_background = True
    task = await desk.start(AT)
    assert not task.done()
    desk.engine.logprob = 0.0
    desk.texts = ["fresh"]
    assert text_of(await desk.ask(AT.replace("‸", "g‸"))) == "fresh"


async def test_a_key_does_not_wait_for_the_full_window() -> None:
    desk = await unsure_desk()
    desk.engine.holds_background = True
    task = await desk.start(AT)
    thorough = desk.engine.tickets[-1]
    assert thorough.request.priority is Priority.PREFETCH
    desk.engine.logprob = 0.0
    desk.texts = ["quick"]
    assert text_of(await desk.ask(AT.replace("‸", "q‸"))) == "quick"
    assert thorough.cancel_calls == [False]
    await answer_of(task)


async def test_every_guess_is_shown_where_the_person_wants_that() -> None:
    desk = await unsure_desk(CompletionParams(max_tokens=16, cold_confidence=0.0))
    assert text_of(await desk.ask(AT)) == "guess"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that stands still unless a test moves it."""
    now = [100.0]
    monkeypatch.setattr("fimlsp.completion.flight.time.monotonic", lambda: now[0])
    return now


async def test_a_slow_machine_shows_the_first_line_and_a_fast_one_the_block(
    clock: list[float],
) -> None:
    desk = await ready_desk(CompletionParams(patience_ms=300))
    desk.texts = ["first(x)\n    second(x)\n    third(x)\n"]
    block = "def f(x):\n    ‸\n"
    assert text_of(await desk.ask(block)).count("\n") == 2
    desk = await ready_desk(CompletionParams(patience_ms=300))
    desk.texts = ["first(x)\n    second(x)\n    third(x)\n"]
    watch = Flight.watch

    def slow(flight: Flight, generated: bytes) -> bool:
        clock[0] += 0.05
        return watch(flight, generated)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flight, "watch", slow)
        assert text_of(await desk.ask(block)) == "first(x)"
    await settle()


async def test_a_small_window_gives_one_line_and_the_full_one_the_block() -> None:
    desk = await unsure_desk()
    desk.engine.logprob = 0.0
    desk.texts = ["first(x)\n    second(x)\n"]
    block = f"{LINES}def f(x):\n    ‸\n{LINES}"
    assert text_of(await desk.ask(block)) == "first(x)"
    desk = await ready_desk()
    desk.texts = ["first(x)\n    second(x)\n"]
    assert text_of(await desk.ask(block)) == "first(x)\n    second(x)"


async def test_the_window_that_holds_the_whole_file_is_never_unsure() -> None:
    desk = await unsure_desk()
    assert text_of(await desk.ask("x = ‸\n")) == "guess"
    (request,) = desk.engine.requests
    assert request.min_probability == 0.0


async def test_an_unsure_guess_that_ended_before_a_key_is_not_shown_for_it() -> None:
    desk = await unsure_desk()
    desk.engine.held = True
    task = await desk.start(AT)
    desk.engine.resume()
    desk.texts = ["known"]
    assert text_of(await desk.ask(AT.replace("‸", "g‸"))) != "uess"
    await answer_of(task)
