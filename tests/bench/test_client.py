"""The raw client, against servers of a few lines."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from fimlsp.bench.client import ConnectionEndedError, LspClient, RpcError

SERVER = """
import json, sys
def read():
    size = int(sys.stdin.buffer.readline().split(b":")[1])
    sys.stdin.buffer.readline()
    return json.loads(sys.stdin.buffer.read(size))
def write(**message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    sys.stdout.buffer.flush()
while True:
    message = read()
    method, number = message["method"], message.get("id")
    if method == "echo":
        write(id=number, result=message.get("params", "omitted"))
    elif method == "fail":
        write(id=number, error={"code": -32602, "message": "no"})
    elif method == "twice":
        write(id=number, result=1)
        write(id=number, result=2)
    elif method == "ask":
        write(id="q", method="workspace/configuration", params={"items": [{}, {}]})
        write(method="asked", params=read()["result"])
        write(id=number, result=None)
    elif method == "print":
        print("hello from a careless library", flush=True)
    elif method == "die":
        print("out of luck", file=sys.stderr)
        sys.exit(3)
    elif method == "shutdown":
        write(id=number, result=None)
    elif method == "exit":
        sys.exit(0)
"""


@pytest.fixture
def client(tmp_path: Path):
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    with LspClient([sys.executable, "-S", str(script)]) as client:
        yield client


def test_null_and_missing_params_are_different_messages(client: LspClient) -> None:
    assert client.request("echo", None) is None
    assert client.request("echo") == "omitted"
    assert client.request("echo", {"é": "😀"}) == {"é": "😀"}


def test_an_error_answer_is_raised_with_its_code(client: LspClient) -> None:
    with pytest.raises(RpcError, match="no") as caught:
        client.request("fail")
    assert caught.value.code == -32602


def test_a_second_answer_to_one_id_is_noticed(client: LspClient) -> None:
    assert client.request("twice") == 1
    client.request("echo", 1)
    assert [m["result"] for m in client.unexpected] == [2]


def test_the_servers_questions_are_answered(client: LspClient) -> None:
    client.configuration = {"a": 1}
    client.request("ask")
    assert client.wait_notification("asked") == [{"a": 1}, {"a": 1}]
    assert [r["method"] for r in client.requests] == ["workspace/configuration"]


def test_anything_but_the_protocol_on_stdout_ends_the_connection(client: LspClient) -> None:
    client.notify("print")
    with pytest.raises(ConnectionEndedError, match="careless"):
        client.request("echo", 1, timeout_s=10)


def test_a_dead_server_is_reported_with_its_last_words(client: LspClient) -> None:
    client.notify("die")
    assert client.wait_exit() == 3
    assert "out of luck" in client.stderr
    with pytest.raises(ConnectionEndedError, match="out of luck"):
        client.request("echo", 1)


def test_closing_shuts_the_server_down_and_gives_its_exit_code(client: LspClient) -> None:
    assert client.close() == 0
    assert client.close() == 0
