"""What the status bar and the progress bar are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fimlsp.bench.client import RpcError
from fimlsp.completion.api import ServiceState, Status
from fimlsp.document import Timings

STATUS = "fimlsp/status"
CREATE = "window/workDoneProgress/create"
CAN_SHOW = {"window": {"workDoneProgress": True}}
LOADING = Status(state=ServiceState.LOADING, model="m.gguf", backend="ik_llama")
READY = replace(LOADING, state=ServiceState.READY, progress=1.0)


async def test_the_status_is_sent_when_the_client_is_ready_and_at_every_change(client) -> None:
    client.service.status = LOADING
    await client.request("initialize", {"capabilities": {}})
    client.service.status = replace(LOADING, progress=0.5)
    assert client.got(STATUS) == []
    client.notify("initialized", {})
    client.service.status = READY
    client.service.status = READY
    assert [(s["state"], s["progress"]) for s in client.got(STATUS)] == [
        ("loading", 0.5),
        ("ready", 1.0),
    ]


async def test_the_status_has_the_shape_that_status_bars_know(ready) -> None:
    last = Timings(prompt_tokens=3, reused_tokens=250, queue_ms=0.04, decode_ms=51.26, tokens=5)
    ready.service.status = replace(READY, message="all is well", reason="empty", last=last)
    assert ready.last(STATUS) == {
        "state": "ready",
        "kind": "Normal",
        "busy": False,
        "message": "all is well",
        "model": "m.gguf",
        "backend": "ik_llama",
        "draft": "",
        "progress": 1.0,
        "reason": "empty",
        "requests": 0,
        "last": {
            "promptTokens": 3,
            "reusedTokens": 250,
            "queueMs": 0.0,
            "prefillMs": 0.0,
            "tokens": 5,
            "decodeMs": 51.3,
            "drafted": 0,
            "accepted": 0,
            "draftSource": "",
            "drafts": [],
            "totalMs": 0.0,
        },
        "totals": {"tokens": 0, "tokS": 0.0, "sources": {}, "acceptedLengths": []},
    }


@pytest.mark.parametrize(
    ("state", "kind", "busy"),
    [
        (ServiceState.LOADING, "Normal", True),
        (ServiceState.READY, "Normal", False),
        (ServiceState.BUSY, "Normal", True),
        (ServiceState.OFF, "Inactive", False),
        (ServiceState.ERROR, "Error", False),
    ],
)
async def test_each_state_has_a_kind_and_is_busy_or_not(ready, state, kind, busy) -> None:
    ready.service.status = Status(state=state, message="why")
    status = ready.last(STATUS)
    assert (status["state"], status["kind"], status["busy"]) == (state.value, kind, busy)


async def test_a_failed_load_is_shown_once(ready) -> None:
    failed = Status(state=ServiceState.ERROR, message="m.gguf: not a GGUF; pull it again")
    ready.service.status = failed
    ready.service.status = READY
    ready.service.status = failed
    assert ready.got("window/showMessage") == [{"type": 1, "message": failed.message}]


def values(client: Any) -> list[Any]:
    return [params["value"] for params in client.got("$/progress")]


async def test_a_load_has_a_progress_bar(client) -> None:
    client.answers[CREATE] = None
    client.service.status = LOADING
    await client.initialize(CAN_SHOW)
    for progress in (0.25, 0.251, 0.5):
        client.service.status = replace(LOADING, progress=progress)
    client.service.status = READY
    begin, *reports, end = values(client)
    assert (begin["kind"], begin["percentage"]) == ("begin", 0)
    assert "m.gguf" in begin["title"]
    assert reports == [{"kind": "report", "percentage": p} for p in (25, 50)]
    assert end["kind"] == "end"
    tokens = {params["token"] for params in client.got("$/progress")}
    assert tokens == {client.last(CREATE)["token"]}


async def test_each_load_has_a_token_of_its_own(client) -> None:
    client.answers[CREATE] = None
    await client.initialize(CAN_SHOW)
    for status in (LOADING, READY, LOADING, READY):
        client.service.status = status
        await client.settle()
    tokens = [params["token"] for params in client.got(CREATE)]
    assert len(tokens) == len(set(tokens)) == 2
    assert [value["kind"] for value in values(client)] == ["begin", "end"] * 2


async def test_a_client_that_cant_show_progress_is_not_asked(client) -> None:
    client.service.status = LOADING
    await client.initialize({"window": {"workDoneProgress": False}})
    client.service.status = READY
    assert client.got(CREATE) == client.got("$/progress") == []


@pytest.mark.parametrize("answer", [RpcError(-32603, "no"), "late"])
async def test_a_bar_that_the_client_did_not_make_is_not_moved(client, answer) -> None:
    if answer != "late":
        client.answers[CREATE] = answer
    client.service.status = LOADING
    await client.initialize(CAN_SHOW)
    client.service.status = replace(LOADING, progress=0.5)
    client.service.status = READY
    if answer == "late":
        (ask,) = [m for m in client.messages if m.get("method") == CREATE]
        client.receive({"id": ask["id"], "result": None})
    assert values(client) == []


async def test_requests_during_a_load_are_answered_and_the_load_goes_on(client) -> None:
    client.service.status = LOADING
    await client.initialize(CAN_SHOW)
    client.open("x")
    assert (await client.inline(0, 1))["items"]
    assert client.last(STATUS)["state"] == "loading"


async def test_shutdown_while_the_client_owes_answers_is_quiet(client, caplog) -> None:
    """A pending progress bar or pull is cancelled then, which must raise nowhere."""
    client.service.status = LOADING
    await client.initialize(CAN_SHOW | {"workspace": {"configuration": True}})
    assert await client.request("shutdown") is None
    await client.server.finish()
    await client.settle()
    assert caplog.text == ""
