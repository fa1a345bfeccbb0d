import math
import threading
import time
from collections.abc import Iterator

import pytest

from fimlsp.bench.live_peer import LivePeer
from fimlsp.bench.llama_vim import Context
from fimlsp.bench.peer import Infill, InfillClient
from fimlsp.bench.traces import Trace

PATIENCE_S = 10.0
"""Only to end a test that fails."""


class HeldClient(InfillClient):
    """Gives each answer when the test lets it go."""

    def __init__(self) -> None:
        super().__init__(port=1)
        self.contents: list[str] = []
        self.asked: list[str] = []
        self.free = threading.Semaphore(0)
        self.running = threading.Semaphore(0)

    def connect(self) -> None:
        """There is nobody to connect to."""

    def infill(self, place: Context) -> Infill:
        """Wait until the test allows an answer."""
        self.asked.append(place.middle.rpartition(" ")[2])
        self.running.release()
        assert self.free.acquire(timeout=PATIENCE_S)
        return Infill(content=self.contents.pop(0), prompt_tokens=9)


@pytest.fixture
def client() -> HeldClient:
    return HeldClient()


@pytest.fixture
def peer(client: HeldClient, trace: Trace) -> Iterator[LivePeer]:
    peer = LivePeer(client)
    peer.start(trace)
    yield peer
    client.contents += ["", "", ""]
    client.free.release(3)
    peer.finish()
    peer.close()


def soon() -> float:
    return time.monotonic() + 0.03


def test_an_answer_in_time_is_shown(peer: LivePeer, client: HeldClient, trace: Trace) -> None:
    client.contents = ["value + 1\n"]
    client.free.release()
    answer = peer.key(trace, 0, time.monotonic() + PATIENCE_S)
    assert answer.edit is not None
    assert answer.edit.text == "value + 1"
    assert (answer.prompt_tokens, answer.without_model) == (9, False)
    assert answer.ms < PATIENCE_S * 1000


def test_a_key_without_an_answer_by_the_next_is_infinitely_slow(
    peer: LivePeer, trace: Trace
) -> None:
    answer = peer.key(trace, 0, soon())
    assert answer.ms == math.inf
    assert answer.edit is None


def test_one_request_runs_at_a_time_and_the_newest_place_is_asked_next(
    peer: LivePeer, client: HeldClient, trace: Trace
) -> None:
    for stroke in range(3):
        peer.key(trace, stroke, soon())
    assert client.asked == [""]
    client.contents = ["no match", "lue + 1"]
    client.free.release(2)
    answer = peer.key(trace, 3, None)
    assert answer.edit is not None
    assert answer.edit.text == "lue + 1"
    assert client.asked == ["", "val"]


def test_a_late_answer_is_shown_if_what_was_typed_agrees_with_it(
    peer: LivePeer, client: HeldClient, trace: Trace
) -> None:
    peer.key(trace, 0, soon())
    client.contents = ["value + 1"]
    client.free.release()
    answer = peer.key(trace, 2, time.monotonic() + PATIENCE_S)
    assert answer.edit is not None
    assert answer.edit.text == "lue + 1"


def test_known_text_is_shown_at_once_and_asked_for_all_the_same(
    peer: LivePeer, client: HeldClient, trace: Trace
) -> None:
    client.contents = ["value + 1"]
    client.free.release()
    peer.key(trace, 0, None)
    answer = peer.key(trace, 1, time.monotonic() + PATIENCE_S)
    assert answer.without_model is True
    assert answer.edit is not None
    assert answer.edit.text == "alue + 1"
    assert client.running.acquire(timeout=PATIENCE_S)
    assert client.running.acquire(timeout=PATIENCE_S)
    assert client.asked == ["", "v"]


def test_answers_are_taken_in_between_the_keys(
    peer: LivePeer, client: HeldClient, trace: Trace
) -> None:
    peer.key(trace, 0, soon())
    client.contents = ["value + 1"]
    client.free.release()
    peer.wait(time.monotonic() + 0.5)
    assert peer.key(trace, 1, soon()).without_model is True


def test_a_pause_that_brings_nothing_ends(peer: LivePeer, client: HeldClient, trace: Trace) -> None:
    client.contents = [""]
    client.free.release()
    answer = peer.key(trace, 0, None)
    assert answer.edit is None
    assert answer.ms < math.inf
