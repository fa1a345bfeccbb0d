"""What the server promises a client, whatever the messages say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import hang
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fimlsp.bench.client import RpcError

URI = "file:///project/a.py"
INLINE = "textDocument/inlineCompletion"
GOOD = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}


@pytest.mark.parametrize(
    ("params", "path"),
    [
        (None, "params: found nothing"),
        ([], "params: found a list of 0"),
        ({}, "params.textDocument: found nothing"),
        (GOOD | {"textDocument": URI}, "params.textDocument: found a string of"),
        (GOOD | {"textDocument": {"uri": 7}}, "params.textDocument.uri: found 7"),
        (GOOD | {"textDocument": {"uri": URI, "version": "1"}}, "params.textDocument.version"),
        (GOOD | {"position": None}, "params.position: found nothing"),
        (GOOD | {"position": {"line": "0", "character": 0}}, "params.position.line"),
        (GOOD | {"position": {"line": True, "character": 0}}, "found true, expected a whole"),
        (GOOD | {"position": {"line": 0, "character": -1}}, "params.position.character: found -1"),
        (GOOD | {"position": {"line": 0.5, "character": 0}}, "params.position.line: found 0.5"),
        (GOOD | {"position": {"line": -(10**400), "character": 0}}, "params.position.line"),
        (GOOD | {"context": 3}, "params.context: found 3"),
        (GOOD | {"context": {"triggerKind": 3}}, "params.context.triggerKind: found 3"),
        (GOOD | {"context": {"triggerKind": "1"}}, "params.context.triggerKind: found a string"),
    ],
)
async def test_malformed_params_are_refused_with_their_path(ready, params, path) -> None:
    """Pygls gives such a request no answer at all, and the person a popup."""
    ready.open("x")
    with pytest.raises(RpcError) as refused:
        await ready.request(INLINE, params)
    assert refused.value.code == -32602
    assert path in refused.value.message
    assert ready.got("window/showMessage") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Return the params of a request with some parts replaced, removed or joined by others."""

    def damage(value: Any) -> Any:
        fate = draw(st.integers(0, 6))
        if fate == 0:
            return draw(JSON)
        if isinstance(value, dict):
            kept = {k: damage(v) for k, v in value.items() if draw(st.integers(0, 6))}
            return kept | ({"jsonrpc": "2.0", "id": 1} if fate == 1 else {})
        return value

    return damage(GOOD | {"context": {"triggerKind": 1}})


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=st.lists(damaged(), min_size=1, max_size=5))
async def test_every_request_is_answered_once_however_malformed(ready, batch) -> None:
    ready.open("x")
    ready.messages.clear()
    futures = [ready.send(INLINE, params) for params in batch]
    for answer in await asyncio.gather(*futures):
        assert answer.get("error", {"code": -32602})["code"] == -32602
    assert (await ready.inline(0, 1))["items"]
    ids = [message["id"] for message in ready.messages if "method" not in message]
    assert len(ids) == len(set(ids)) == len(batch) + 1


async def test_an_unknown_method_is_refused(ready) -> None:
    for params in ({}, None, [1]):
        with pytest.raises(RpcError, match="textDocument/hover") as refused:
            await ready.request("textDocument/hover", params)
        assert refused.value.code == -32601
    ready.notify("someone/else", {"x": 1})
    ready.notify("$/unknown")
    assert ready.got("window/showMessage") == []


async def test_custom_messages_need_no_params_and_get_them_as_they_are(ready) -> None:
    """Pygls drops a custom message without params, and renames keys such as ``class``."""
    ready.server.feature("test/echo")(lambda params: [params])
    assert await ready.request("test/echo") == [None]
    assert await ready.request("test/echo", {"class": {"id": 1}}) == [{"class": {"id": 1}}]


@pytest.mark.parametrize("message_id", [None, 1.5, True, [1], {}])
async def test_an_id_that_is_none_is_refused(ready, message_id) -> None:
    ready.receive({"id": message_id, "method": "test/echo"})
    assert ready.messages[-1]["id"] is None
    assert ready.messages[-1]["error"]["code"] == -32600


async def test_an_id_that_is_in_use_is_refused_and_the_first_request_lives(ready) -> None:
    gate = asyncio.Event()

    async def wait(params: Any) -> str:
        await gate.wait()
        return "first"

    ready.server.feature("test/wait")(wait)
    first = ready.send("test/wait", None, "same")
    ready.receive({"id": "same", "method": "test/wait"})
    assert (await first)["error"]["code"] == -32600
    gate.set()
    await ready.settle()
    assert ready.messages[-1]["result"] == "first"


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", -32700), (b"\xff\xfe\x00", -32700), (b"[" * 100_000, -32700), (b"[]", -32600)],
)
async def test_what_is_no_message_is_answered_without_an_id(ready, body, code) -> None:
    ready.server.receive(body)
    assert ready.messages[-1]["id"] is None
    assert ready.messages[-1]["error"]["code"] == code


async def test_answers_to_nothing_and_malformed_answers_do_no_harm(ready) -> None:
    """To pygls a client's own request and one of the server's with the same id are the same."""
    gate = asyncio.Event()

    async def wait(params: Any) -> str:
        await gate.wait()
        return "here"

    ready.server.feature("test/wait")(wait)
    waiting = ready.send("test/wait", None, "mine")
    for answer in ({"id": "mine", "result": 1}, {"id": [], "result": 1}, {"error": 3}, {"id": 7}):
        ready.receive(answer)
    gate.set()
    assert (await waiting)["result"] == "here"


async def test_requests_out_of_their_time_are_refused(client) -> None:
    async def code_of(method: str, params: Any = None) -> int:
        with pytest.raises(RpcError) as refused:
            await client.request(method, params)
        return refused.value.code

    assert await code_of(INLINE, GOOD) == -32002
    assert await code_of("test/unknown") == -32002
    await client.initialize()
    assert await code_of("initialize", {"capabilities": {}}) == -32600
    assert await client.request("shutdown") is None
    assert await code_of(INLINE, GOOD) == -32600
    assert await code_of("shutdown") == -32600


async def test_shutdown_answers_what_still_waits(ready) -> None:
    ready.script = hang
    ready.open("x")
    waiting = ready.send(INLINE, GOOD)
    await ready.settle()
    await ready.request("shutdown", None)
    assert (await waiting)["error"]["code"] == -32800


async def test_exit_stops_the_server_with_the_code_that_the_protocol_wants(client) -> None:
    client.notify("exit")
    assert client.server.stopped.is_set()
    assert client.server.exit_code == 1
    await client.initialize()
    await client.request("shutdown")
    assert client.server.exit_code == 0


async def test_a_cancelled_request_is_answered_at_once_and_its_work_stopped(ready) -> None:
    ready.script = hang
    ready.open("x")
    waiting = ready.send(INLINE, GOOD, "c")
    await ready.settle()
    ready.notify("$/cancelRequest", {"id": "c"})
    assert ready.messages[-1]["error"]["code"] == -32800  # before the task has had a turn
    assert (await waiting)["id"] == "c"
    await ready.settle()
    assert len(ready.service.cancelled) == 1
    assert "nothing (cancelled)" in ready.last("window/logMessage")["message"]
    assert [m.get("id") for m in ready.messages].count("c") == 1


async def test_a_cancel_that_comes_with_its_request_leaves_the_service_alone(ready) -> None:
    ready.open("x")
    waiting = ready.send(INLINE, GOOD, "c")
    ready.notify("$/cancelRequest", {"id": "c"})
    assert (await waiting)["error"]["code"] == -32800
    await ready.settle()
    assert ready.service.asked == []


@pytest.mark.parametrize("params", [None, [], {}, {"id": None}, {"id": [1]}, {"id": 99}])
async def test_a_cancel_of_nothing_does_no_harm(ready, params) -> None:
    ready.notify("$/cancelRequest", params)
    ready.open("x")
    assert (await ready.inline(0, 1))["items"]
