"""The real process over its real streams, with a scripted service instead of a model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.bench.client import LspClient, RpcError
from fimlsp.bench.jsonrpc import JsonRpcPeer

SERVER = [sys.executable, str(Path(__file__).parents[1] / "lsp" / "serve_scripted.py")]
INLINE = "textDocument/inlineCompletion"
AT_ONCE_S = 1.0
"""What "at once" may take on a busy machine; hanging requests never end by themselves."""


@pytest.fixture(scope="module")
def client() -> Iterator[LspClient]:
    """Return a client whose server must be alive and well after every test."""
    with LspClient(SERVER) as client:
        client.initialize()
        yield client
        assert client.unexpected == []
        assert client.close() == 0


@pytest.fixture
def fresh() -> Iterator[LspClient]:
    """Return a client before its handshake, with a server of its own."""
    with LspClient(SERVER) as client:
        yield client


def open_document(client: JsonRpcPeer, language: str, text: str = "x = 1\n") -> dict[str, Any]:
    """Open a document whose language says how the script answers; return params for a request."""
    uri = f"file:///project/{language}.py"
    document = {"uri": uri, "languageId": language, "version": 1, "text": text}
    client.notify("textDocument/didOpen", {"textDocument": document})
    return {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 5}}


def report(client: JsonRpcPeer) -> dict[str, Any]:
    answer: dict[str, Any] = client.request("test/report", timeout_s=10)
    return answer


def start_hanging(client: LspClient, language: str = "hang") -> Any:
    """Return the id of a request that the service is working on and will never finish."""
    before = len(report(client)["asked"])
    waiting = client.send(INLINE, open_document(client, language))
    for _ in range(1000):
        if len(report(client)["asked"]) > before:
            return waiting
    raise AssertionError("the service was never asked")


def test_a_suggestion_with_umlauts_and_crlf_arrives_whole(client: LspClient) -> None:
    params = open_document(client, "lines", "f(ä😀)\r\n")
    (item,) = client.request(INLINE, params)["items"]
    assert item == {
        "insertText": "é\r\nb)",
        "range": {
            "start": {"line": 0, "character": 5},
            "end": {"line": 0, "character": 6},
        },
    }


def test_nothing_but_the_protocol_reaches_stdout(client: LspClient) -> None:
    """Python, native code and child processes print; one stray byte would lose every answer."""
    params = open_document(client, "prints")
    for _ in range(2):
        assert client.request(INLINE, params)["items"]
    for words in ("Python talks", "C talks", "a child talks"):
        assert words in client.stderr


def test_the_server_answers_others_while_a_request_takes_its_time(client: LspClient) -> None:
    waiting = start_hanging(client)
    assert client.request(INLINE, open_document(client, "python"), AT_ONCE_S)["items"]
    assert not client.answered(waiting)
    client.cancel(waiting)


@pytest.mark.parametrize("language", ["hang", "stubborn"])
def test_a_cancel_is_answered_at_once_and_stops_the_work(client: LspClient, language: str) -> None:
    """Also when the work takes its time to unwind."""
    waiting = start_hanging(client, language)
    before = report(client)["cancelled"]
    client.cancel(waiting)
    with pytest.raises(RpcError) as refused:
        client.result(waiting, AT_ONCE_S)
    assert refused.value.code == -32800
    assert report(client)["cancelled"] == before + 1
    client.notify("test/open_gate")


def test_a_newer_request_supersedes_at_once(client: LspClient) -> None:
    older = start_hanging(client)
    newer = start_hanging(client)
    assert client.result(older, AT_ONCE_S) is None
    client.cancel(newer)


def test_a_broken_message_costs_only_itself(client: LspClient) -> None:
    seen = len(client.unexpected)
    client.send_raw(b"Content-Length: 4\r\n\r\n{:-)")
    client.send_raw(b"\r\nnonsense\r\ncontent-LENGTH:2\r\nContent-Type: x\r\n\r\n[]")
    assert client.request(INLINE, open_document(client, "python"))["items"]
    answers, client.unexpected[seen:] = client.unexpected[seen:], []
    assert [(m["id"], m["error"]["code"]) for m in answers] == [(None, -32700), (None, -32600)]


def test_a_length_that_is_no_number_ends_the_server_instead_of_its_answers(
    fresh: LspClient,
) -> None:
    """It once went on reading out of step: alive, and silent for good."""
    fresh.initialize()
    fresh.send_raw(b"Content-Length: abc\r\n\r\n{}")
    assert fresh.wait_exit(10) == 1


ANYTHING = st.none() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({})


@settings(max_examples=25, deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from([INLINE, "workspace/executeCommand", "test/unknown", "$/x"]), ANYTHING
        ),
        max_size=8,
    )
)
def test_every_malformed_request_is_answered_once(client: LspClient, messages: Any) -> None:
    ids = [client.send(method, params) for method, params in messages]
    assert "started" in report(client)
    for message_id in ids:
        with pytest.raises(RpcError) as refused:
            client.result(message_id, 10)
        assert refused.value.code in (-32601, -32602)
    assert client.unexpected == []


def test_a_loading_server_greets_at_once_and_shows_progress() -> None:
    with LspClient([*SERVER, "--loading"]) as client:
        client.initialize(options={"complaints": ["a.b: found 1, expected a string"]})
        shown = client.wait_notification("window/showMessage", timeout_s=10)
        assert shown == {"type": 2, "message": "a.b: found 1, expected a string"}
        assert client.wait_notification("fimlsp/status", timeout_s=10)["state"] == "loading"
        client.wait_notification("$/progress", lambda p: p["value"]["kind"] == "begin", 10)
        assert client.request(INLINE, open_document(client, "loading")) == {"items": []}
        client.notify("test/status", {"state": "ready", "last": {"prompt_tokens": 3}})
        client.wait_notification("$/progress", lambda p: p["value"]["kind"] == "end", 10)
        status = client.wait_notification("fimlsp/status", lambda p: p["state"] == "ready", 10)
        assert status["last"]["promptTokens"] == 3
        created = [r for r in client.requests if r["method"] == "window/workDoneProgress/create"]
        assert len(created) == 1
        assert report(client)["started"] == [True]


def test_requests_before_initialize_and_after_shutdown_are_refused(fresh: LspClient) -> None:
    with pytest.raises(RpcError) as early:
        fresh.request(INLINE, {}, 10)
    fresh.initialize()
    fresh.request("shutdown")
    with pytest.raises(RpcError) as late:
        fresh.request(INLINE, {}, 10)
    assert (early.value.code, late.value.code) == (-32002, -32600)
    fresh.notify("exit")
    assert fresh.wait_exit() == 0


def terminate(client: LspClient) -> None:
    client.process.send_signal(signal.SIGTERM)


def exit_now(client: LspClient) -> None:
    client.notify("exit")


POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to handle")


@pytest.mark.parametrize("end", [exit_now, LspClient.hang_up, pytest.param(terminate, marks=POSIX)])
@pytest.mark.parametrize(("shut_down", "code"), [(False, 1), (True, 0)])
def test_every_end_is_quick_and_has_the_right_code(
    fresh: LspClient, end: Any, shut_down: bool, code: int
) -> None:
    """Also while a request is worked on."""
    fresh.initialize()
    waiting = start_hanging(fresh)
    if shut_down:
        fresh.request("shutdown")
        with pytest.raises(RpcError, match="32800"):
            fresh.result(waiting, AT_ONCE_S)
    began = time.monotonic()
    end(fresh)
    assert fresh.wait_exit() == code
    assert time.monotonic() - began < 1
    assert "Traceback" not in fresh.stderr


@POSIX
def test_a_client_that_stops_reading_does_not_keep_the_server_from_ending() -> None:
    """The answers fill the pipe; a server that writes in its loop would hang there for ever."""
    process = subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, process.stdin:
        hello = {"id": 1, "method": "initialize", "params": {"capabilities": {}}}
        echo = {"id": 2, "method": "test/report", "params": "x" * 100_000}
        for message in [hello] + [echo | {"id": n} for n in range(2, 22)]:
            body = json.dumps({"jsonrpc": "2.0"} | message).encode()
            process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        process.stdin.flush()
        assert process.stdout.read(1) == b"C"
        process.send_signal(signal.SIGTERM)
        assert process.wait(2) == 1


def test_tcp_serves_one_client_on_loopback_and_ends_with_it() -> None:
    process = subprocess.Popen([*SERVER, "--tcp"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        address = json.loads(process.stdout.readline())
        assert address["host"] == "127.0.0.1"
        with socket.create_connection((address["host"], address["port"])) as connection:
            stream = connection.makefile("rwb")
            peer = JsonRpcPeer(stream, stream)
            peer.initialize()
            assert peer.request(INLINE, open_document(peer, "python"))["items"]
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((address["host"], address["port"]), timeout=5)
            peer.request("shutdown")
            peer.notify("exit")
            peer.wait_end(10)
        assert process.wait(5) == 0
