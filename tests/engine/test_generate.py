"""One request: where it ends and what its text holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_harness import Oracle, Steps, result
from tiny_gguf import CORPUS

from fimlsp.engine.api import Finish, Generation, Request
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import EngineError, PromptTooLongError

OpenEngine = Callable[..., InProcessEngine]


@pytest.fixture
def request_(engine: InProcessEngine) -> Request:
    prompt = engine.vocabulary.tokenize(CORPUS.encode())[:70]
    return Request(slot="a", prompt=tuple(prompt), max_tokens=20)


def ask(engine: InProcessEngine, request: Request) -> Generation:
    return result(engine.submit(request).future)


def test_greedy_text_is_what_a_cold_slot_finds_most_likely(
    engine: InProcessEngine, oracle: Oracle, request_: Request
) -> None:
    answer = ask(engine, request_)
    assert len(set(answer.tokens)) > 3  # random weights, yet no constant text
    oracle.check(request_, answer)


@pytest.mark.parametrize("limit", [1, 2, 20])
def test_no_more_than_max_tokens_are_written(
    engine: InProcessEngine, request_: Request, limit: int
) -> None:
    answer = ask(engine, replace(request_, max_tokens=limit))
    assert (len(answer.tokens), answer.finish) == (limit, Finish.MAX_TOKENS)


def test_no_token_is_decoded_whose_logits_nobody_reads(
    engine: InProcessEngine, steps: Steps, request_: Request
) -> None:
    ask(engine, replace(request_, max_tokens=4))
    assert steps.tokens == len(request_.prompt) + 3


def test_a_request_for_no_tokens_only_reads_the_prompt(
    engine: InProcessEngine, steps: Steps, request_: Request
) -> None:
    answer = ask(engine, replace(request_, max_tokens=0))
    assert (answer.text, answer.tokens, answer.finish) == (b"", (), Finish.MAX_TOKENS)
    assert answer.prompt_tokens == steps.tokens == len(request_.prompt)


def test_prompt_and_answer_may_fill_the_context_to_the_last_cell(
    engine: InProcessEngine, oracle: Oracle, request_: Request
) -> None:
    prompt = (request_.prompt * 8)[: engine.n_ctx - 16]
    request = replace(request_, prompt=prompt, max_tokens=16)
    answer = ask(engine, request)
    assert len(answer.tokens) == 16
    oracle.check(request, answer)


def test_a_stop_token_ends_the_answer_and_is_not_in_it(
    engine: InProcessEngine, request_: Request
) -> None:
    free = ask(engine, request_)
    stop = free.tokens[10]
    before = free.tokens.index(stop)
    answer = ask(engine, replace(request_, stop_tokens=frozenset({stop})))
    assert answer.finish is Finish.STOP_TOKEN
    assert answer.tokens == free.tokens[:before]
    assert free.text.startswith(answer.text)


def test_no_control_token_is_ever_text(
    open_tiny: OpenEngine, steps: Steps, marker_model: Path
) -> None:
    engine = open_tiny(marker_model)
    corpus = engine.vocabulary.tokenize(CORPUS.encode())
    markers = {t for t in range(engine.vocabulary.n_tokens) if t >= engine.vocabulary.n_tokens - 9}
    stopped = 0
    for start in range(0, 150, 3):
        answer = ask(
            engine, Request(slot="a", prompt=tuple(corpus[start : start + 20]), max_tokens=24)
        )
        assert markers.isdisjoint(answer.tokens)
        assert b"<|" not in answer.text
        stopped += answer.finish is Finish.STOP_TOKEN
    assert stopped > 5  # this model does want to write them


def test_the_watch_sees_all_text_after_each_step_and_can_stop(
    engine: InProcessEngine, request_: Request
) -> None:
    seen: list[bytes] = []

    def watch(text: bytes) -> bool:
        seen.append(text)
        return len(seen) == 5

    answer = ask(engine, replace(request_, watch=watch))
    assert (answer.finish, len(answer.tokens)) == (Finish.WATCH, 5)
    pieces = [engine.vocabulary.token_bytes(token) for token in answer.tokens]
    assert seen == [b"".join(pieces[: n + 1]) for n in range(5)]


def test_a_watch_that_raises_fails_its_own_request_only(
    engine: InProcessEngine, request_: Request, caplog: pytest.LogCaptureFixture
) -> None:
    def watch(_text: bytes) -> bool:
        raise RuntimeError("a mistake in the rooms above")

    with pytest.raises(EngineError, match="RuntimeError: a mistake in the rooms above"):
        ask(engine, replace(request_, watch=watch))
    assert "a mistake in the rooms above" in caplog.text  # with its traceback
    again = ask(engine, request_)
    assert (again.finish, again.prompt_tokens) == (Finish.MAX_TOKENS, 1)


def test_the_deadline_ends_the_writing_with_what_is_there(
    engine: InProcessEngine, request_: Request, clock: list[float]
) -> None:
    deadline = clock[0] + 1.0

    def watch(text: bytes) -> bool:
        if len(text) > 8:
            clock[0] = deadline
        return False

    answer = ask(engine, replace(request_, deadline=deadline, watch=watch))
    assert answer.finish is Finish.DEADLINE
    assert len(answer.text) > 8
    assert len(answer.tokens) < 20


def test_the_deadline_ends_the_reading_and_what_was_read_stays_warm(
    engine: InProcessEngine, steps: Steps, request_: Request, clock: list[float]
) -> None:
    """The deadline counted only once the whole prompt was read, however long that took."""
    deadline = clock[0] + 1.0
    gate = steps.hold(lambda step: step.pos == 32)
    ticket = engine.submit(replace(request_, deadline=deadline))
    with gate:
        clock[0] = deadline
    answer = result(ticket.future)
    assert (answer.text, answer.finish) == (b"", Finish.DEADLINE)
    assert answer.prompt_tokens == 64
    assert ask(engine, request_).reused_tokens == 64


def test_a_request_that_is_late_before_its_turn_costs_no_step(
    engine: InProcessEngine, steps: Steps, request_: Request
) -> None:
    answer = ask(engine, replace(request_, deadline=time.monotonic() - 1.0))
    assert (answer.text, answer.finish, steps.log) == (b"", Finish.DEADLINE, [])


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(
    engine: InProcessEngine, request_: Request
) -> None:
    prompt = (request_.prompt * 8)[: engine.n_ctx - 15]
    with pytest.raises(PromptTooLongError, match=r"497 .*16 .*n_ctx = 512"):
        engine.submit(replace(request_, prompt=prompt, max_tokens=16))


def test_an_empty_prompt_is_refused_as_empty(engine: InProcessEngine, request_: Request) -> None:
    """It was called too long for the context."""
    with pytest.raises(EngineError, match="empty") as caught:
        engine.submit(replace(request_, prompt=()))
    assert not isinstance(caught.value, PromptTooLongError)


@pytest.mark.parametrize("wrong", [-1, 1_000_000])
def test_an_impossible_token_is_refused(
    engine: InProcessEngine, request_: Request, wrong: int
) -> None:
    """ik_llama read past its embedding table and answered from whatever lay there."""
    with pytest.raises(EngineError, match=f"token {wrong}; this model's ids are 0 to "):
        engine.submit(replace(request_, prompt=(*request_.prompt, wrong)))


def test_times_and_counts_are_told(engine: InProcessEngine, request_: Request) -> None:
    answer = ask(engine, request_)
    assert answer.prompt_tokens == len(request_.prompt)
    assert answer.reused_tokens == 0
    assert answer.queue_ms >= 0.0
    assert answer.prefill_ms > 0.0
    assert answer.decode_ms > 0.0


def test_speed_follows_live_work(engine: InProcessEngine, request_: Request) -> None:
    before = engine.speed
    assert before.prefill_tok_s > 0.0
    assert before.decode_ms > 0.0
    ask(engine, request_)
    after = engine.speed
    assert after.prefill_tok_s != before.prefill_tok_s
    assert after.decode_ms != before.decode_ms
