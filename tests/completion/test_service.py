"""One request's life: superseding, joining, cancelling, typing through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from desk import answer_of, ready_desk, reason_of, settle, text_of
from fakes import URI, snapshot_at
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.completion import service as service_module
from fimlsp.completion.api import CompletionParams, ServiceState, Totals
from fimlsp.document import Reason, Timings
from fimlsp.engine.api import Finish, SamplingParams


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "ORPHAN_GRACE_S", 0)


@pytest.fixture
def endless_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "ORPHAN_GRACE_S", 3600)


# ---- a newer request


async def test_a_newer_request_answers_the_older_one_at_once_and_gets_its_own_text() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    older = await desk.start("x = ‸\n")
    newer = await desk.start("y‸\nx = \n")
    assert reason_of(older.result()) == "superseded"
    assert not newer.done()
    assert desk.engine.tickets[0].future.result(timeout=0).finish is Finish.CANCELLED
    desk.texts = [" = beta"]
    desk.engine.resume()
    assert text_of(await answer_of(newer)) == " = beta"


async def test_requests_of_different_documents_leave_each_other_alone() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    one = await desk.start("x = ‸\n")
    two = await desk.start(snapshot_at("x = ‸\n", uri="file:///b.py"))
    desk.engine.resume()
    assert [text_of(await answer_of(one)), text_of(await answer_of(two))] == ["alpha", "alpha"]
    assert [t.cancel_calls for t in desk.engine.tickets] == [[], []]


async def test_a_key_that_agrees_with_the_running_generation_joins_it() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    tasks = [await desk.start(f"x = {typed}‸\n") for typed in ("", "a", "al")]
    (ticket,) = desk.engine.tickets
    desk.write(ticket, "al")
    tasks.append(await desk.start("x = alp‸\n"))
    desk.engine.resume()
    answers = [await answer_of(task) for task in tasks]
    assert [reason_of(a) for a in answers[:-1]] == ["superseded"] * 3
    assert text_of(answers[-1]) == "ha"
    assert len(desk.engine.tickets) == 1
    assert desk.service.status.last.prompt_tokens == len(ticket.request.prompt)


async def test_the_same_place_asked_again_joins_the_running_generation() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = ‸\n")
    again = await desk.start("x = ‸\n")
    desk.engine.resume()
    assert text_of(await answer_of(again)) == "alpha"
    assert len(desk.engine.tickets) == 1


async def test_a_key_that_contradicts_what_is_written_cancels_it_and_asks_anew() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = ‸\n")
    desk.write(desk.engine.tickets[0], "alp")
    newer = await desk.start("x = b‸\n")
    assert desk.engine.tickets[0].cancel_calls == [False]
    desk.texts = ["eta"]
    desk.engine.resume()
    assert text_of(await answer_of(newer)) == "eta"
    assert len(desk.engine.tickets) == 2


async def test_going_back_before_anything_is_written_lets_the_prompt_step_finish() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = a‸\n")
    await desk.start("x = ‸\n")
    assert desk.engine.tickets[0].cancel_calls == [True]
    await desk.start("y‸\nx = \n")  # another place shares nothing
    assert desk.engine.tickets[1].cancel_calls == [False]


async def test_a_joined_generation_that_turns_out_otherwise_stops_and_is_asked_for_anew() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = ‸\n")
    newer = await desk.start("x = b‸\n")
    (ticket,) = desk.engine.tickets
    desk.engine.finish(ticket)
    assert ticket.future.result(timeout=0).text == b" a"  # stopped at the first wrong character
    await settle()
    assert not newer.done()
    desk.texts = ["eta"]
    desk.engine.resume()
    assert text_of(await answer_of(newer)) == "eta"
    assert len(desk.engine.tickets) == 2


@pytest.mark.parametrize("undone_at_once", [True, False])
async def test_a_generation_cut_short_by_a_key_is_never_shown(undone_at_once: bool) -> None:
    """``a``, where ``b`` was typed, is the beginning of anything, not a suggestion."""
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = ‸\n")
    await desk.start("x = b‸\n")
    desk.engine.finish(desk.engine.tickets[0])
    if not undone_at_once:
        await settle()
    undone = await desk.start("x = ‸\n")
    desk.engine.resume()
    assert text_of(await answer_of(undone)) == "alpha"


async def test_a_generation_that_was_typed_to_its_end_is_asked_for_anew() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    await desk.start("x = ‸\n")
    newer = await desk.start("x = alpha‸\n")
    desk.texts = ["alpha", " + beta"]
    desk.engine.resume()
    assert text_of(await answer_of(newer)) == " + beta"


async def test_what_a_generation_looked_ahead_is_not_shown_to_who_joined_it() -> None:
    """Text behind the point where the suggestion ends is there only to find that point."""
    desk = await ready_desk()
    desk.engine.held = True
    desk.texts = ["\n    a()\n    b()\nc = 1\n"]
    await desk.start("for x in y:‸\n")
    newer = await desk.start("for x in y:\n    a(‸\n")
    desk.engine.resume()
    assert text_of(await answer_of(newer)) == ")\n    b()"


# ---- typing along


async def test_typing_along_asks_the_engine_once() -> None:
    desk = await ready_desk()
    desk.texts = ["\n    a()\n    b()"]
    text = text_of(await desk.ask("for x in y:‸\r\n"))
    for count in range(1, len(text)):
        typed = text[:count].replace("\n", "\r\n")
        assert text_of(await desk.ask(f"for x in y:{typed}‸\r\n")) == text[count:]
    assert len(desk.engine.tickets) == 1
    assert desk.service.status.last.tokens == 0


async def test_a_known_suggestion_stops_a_generation_that_runs_for_another_place() -> None:
    desk = await ready_desk()
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"
    desk.engine.held = True
    await desk.start("x = b‸\n")
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"
    assert not desk.engine.waiting
    assert desk.state() is ServiceState.READY


async def test_healed_bytes_are_not_part_of_the_suggestion() -> None:
    desk = await ready_desk()
    desk.texts = ["urn x"]
    assert text_of(await desk.ask("    ret‸\n")) == "urn x"
    request = desk.engine.tickets[0].request
    assert request.must_start_with == b"ret"
    assert request.watch is not None
    assert not request.watch(b"re")  # the imposed bytes are not there yet


@pytest.mark.parametrize("character", ["é", "中", "😀"])
async def test_half_a_character_at_the_end_is_cut(character: str) -> None:
    desk = await ready_desk()
    desk.texts = [b"caf" + character.encode()[:-1]]
    assert text_of(await desk.ask("x = ‸\n")) == "caf"
    desk.texts = [character.encode()[:-1]]
    assert reason_of(await desk.ask("y = ‸\n")) == "empty"


async def test_a_suggestion_stops_at_its_length_and_at_the_end_of_a_line() -> None:
    desk = await ready_desk(CompletionParams(max_tokens=12))
    desk.texts = ["alpha beta gamma delta epsilon"]
    assert len(text_of(await desk.ask("x = ‸\n"))) <= 12 + 8
    desk.texts = ["alpha)\nnever"]
    assert text_of(await desk.ask("f(‸\n")) == "alpha)"
    assert desk.engine.tickets[-1].future.result(timeout=0).finish is Finish.WATCH


async def test_a_bracket_that_is_there_already_is_replaced() -> None:
    desk = await ready_desk()
    desk.texts = ["alpha)"]
    answer = await desk.ask("f(‸)\n")
    assert isinstance(answer, tuple)
    assert (answer[0].text, answer[0].replace_after) == ("alpha)", 1)


# ---- cancelling


@pytest.mark.usefixtures("no_grace")
async def test_a_cancelled_request_frees_the_engine() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    assert desk.state() is ServiceState.BUSY
    task.cancel()
    await settle()
    assert task.cancelled()
    assert desk.engine.tickets[0].cancel_calls == [False]
    assert desk.state() is ServiceState.READY
    assert desk.service.status.reason == Reason.CANCELLED


@pytest.mark.usefixtures("endless_grace")
async def test_a_request_that_follows_a_cancel_takes_over_its_generation() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    task.cancel()
    follower = await desk.start("x = a‸\n")
    desk.engine.resume()
    assert text_of(await answer_of(follower)) == "lpha"
    assert len(desk.engine.tickets) == 1


async def test_a_generation_that_was_taken_over_outlives_the_grace_of_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    later: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "call_later", lambda delay, call, *args: later.append((delay, call, args))
    )
    task.cancel()
    await settle()
    ((delay, let_go, args),) = later
    assert delay < 0.05
    follower = await desk.start("x = a‸\n")
    let_go(*args)
    assert desk.engine.tickets[0].cancel_calls == []
    follower.cancel()
    await settle()
    _, let_go, args = later[1]
    let_go(*args)
    assert desk.engine.tickets[0].cancel_calls == [False]


@pytest.mark.usefixtures("no_grace")
async def test_a_result_that_nobody_waited_for_any_more_is_kept() -> None:
    desk = await ready_desk()
    desk.engine.held = True
    task = await desk.start("x = ‸\n")
    desk.engine.finish(desk.engine.tickets[0])
    task.cancel()
    await settle()
    assert task.cancelled()
    desk.engine.resume()
    assert text_of(await desk.ask("x = al‸\n")) == "pha"
    assert len(desk.engine.tickets) == 1


async def test_closing_a_document_stops_its_work_and_forgets_it() -> None:
    """The status said "busy" for ever."""
    desk = await ready_desk()
    assert text_of(await desk.ask("x = ‸\n")) == "alpha"
    desk.engine.held = True
    task = await desk.start("y‸\nx = \n")
    desk.service.closed(URI)
    assert desk.state() is ServiceState.READY
    assert reason_of(await answer_of(task)) == "superseded"
    assert not desk.engine.waiting
    assert set(desk.engine.released) == {t.request.slot for t in desk.engine.tickets}
    desk.engine.resume()
    await desk.ask("x = ‸\n")
    assert len(desk.engine.tickets) == 3


# ---- any order of keys

FUTURE = "def f(é):\n    return self.total(é) + 1\n\n\nf('😀')\n"
keys = st.lists(
    st.tuples(st.integers(-3, 4), st.sampled_from(["wait", "go on", "cancel"])),
    min_size=1,
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(keys)
def test_whatever_is_shown_continues_the_document(steps: list[tuple[int, str]]) -> None:
    """Typing, going back, waiting and not waiting in any order gives no text of another place."""

    async def type_along() -> None:
        desk = await ready_desk()
        desk.future = FUTURE
        position = 4
        for moved, then in steps:
            position = min(max(0, position + moved), len(FUTURE) - 2)
            desk.engine.held = True
            task = await desk.start(f"{FUTURE[:position]}‸")
            if then == "cancel":
                task.cancel()
                await settle()
            elif then == "wait":
                desk.engine.resume()
                answer = await answer_of(task)
                if isinstance(answer, tuple):
                    assert FUTURE[position:].startswith(answer[0].text)
                else:
                    assert answer.reason in (Reason.EMPTY, Reason.REPEATS_SUFFIX)
        await desk.service.close()
        await settle()
        assert not desk.engine.waiting

    asyncio.run(type_along())


async def test_a_key_that_departs_hands_the_old_suggestion_on_as_a_draft() -> None:
    desk = await ready_desk()
    desk.texts = ["alpha(beta)", "gamma(beta)"]
    await desk.ask("x = ‸\n")
    await desk.ask("x = g‸\n")
    first, second = desk.engine.requests
    assert (first.expected, first.related) == ((), ())
    assert second.related == (b"alpha(beta)",)


async def test_drafts_include_the_bytes_that_the_answer_must_start_with() -> None:
    desk = await ready_desk()
    desk.texts = ["n(items)"]
    await desk.ask("    return‸\n")
    desk.texts = ["other"]
    await desk.ask("    retur‸\n")
    request = desk.engine.requests[-1]
    assert request.must_start_with
    assert request.expected == (request.must_start_with + b"n" + b"n(items)",)


async def test_a_lone_surrogate_in_a_suggestion_or_document_does_not_stop_drafting() -> None:
    desk = await ready_desk()
    await desk.ask("x\udc80 = ‸\n")
    assert text_of(await desk.ask("x\udc80 = z‸\n")) == "alpha"


async def test_sampling_settings_reach_the_engine() -> None:
    desk = await ready_desk()
    desk.service.configure_sampling(SamplingParams(temperature=0.5, seed=7))
    await desk.ask("x = ‸\n")
    assert desk.engine.requests[-1].sampling == SamplingParams(temperature=0.5, seed=7)


def test_totals_add_up_what_each_source_gave_and_how_long_its_right_parts_were() -> None:
    first = Timings(tokens=6, decode_ms=300.0, drafts=(("ngram", 4, 2), ("previous", 3, 0)))
    second = Timings(tokens=4, decode_ms=200.0, drafts=(("ngram", 2, 2),))
    totals = Totals().plus(first).plus(second).plus(Timings())
    assert totals.tok_s == 20.0
    assert totals.sources == (("ngram", 6, 4), ("previous", 3, 0))
    assert totals.accepted_lengths == (1, 0, 2)
