"""The real server process with a real model, spoken to as an editor speaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fimlsp.bench.client import LspClient, RpcError

pytestmark = pytest.mark.model

READY_S = 180.0
AREA = "import math\n\n\ndef area(radius):\n    return math.pi * radius\n"
STACK = (
    "class Stack:\n"
    "    def __init__(self):\n"
    "        self.items = []\n\n"
    "    def push(self, item):\n"
    "        self.items.append(item)\n\n"
    "    def pop(self):\n"
    "        return self.items.\n"
)


@dataclass
class Buffer:
    """A file in the editor."""

    client: LspClient
    uri: str
    text: str
    line: int
    character: int
    version: int = 1
    answers: list[dict[str, Any]] = field(default_factory=list)

    def open(self) -> Buffer:
        document = {
            "uri": self.uri, "languageId": "python", "version": self.version, "text": self.text
        }  # fmt: skip
        self.client.notify("textDocument/didOpen", {"textDocument": document})
        return self

    def type(self, text: str) -> None:
        at = {"line": self.line, "character": self.character}
        self.version += 1
        self.client.notify(
            "textDocument/didChange",
            {
                "textDocument": {"uri": self.uri, "version": self.version},
                "contentChanges": [{"range": {"start": at, "end": at}, "text": text}],
            },
        )
        self.character += len(text)

    def params(self) -> dict[str, Any]:
        return {
            "textDocument": {"uri": self.uri},
            "position": {"line": self.line, "character": self.character},
            "context": {"triggerKind": 2},
        }

    def ask(self) -> str:
        """Return the suggestion, ``""`` for none."""
        answer = self.client.request(
            "textDocument/inlineCompletion", self.params(), timeout_s=READY_S
        )
        assert answer is not None
        for item in answer["items"]:
            assert item["range"]["start"] == {"line": self.line, "character": self.character}
            assert item["range"]["end"]["line"] == self.line
        return answer["items"][0]["insertText"] if answer["items"] else ""

    def last(self) -> dict[str, Any]:
        """Return the timings of the last answer."""
        status = self.client.request("workspace/executeCommand", {"command": "fimlsp.status"})
        last: dict[str, Any] = status["last"]
        return last


def serve(model: Path, *sets: str) -> LspClient:
    arguments = [part for pair in (f"models.target={model}", *sets) for part in ("--set", pair)]
    client = LspClient([sys.executable, "-m", "fimlsp", "serve", *arguments])
    client.initialize()
    return client


def wait_ready(client: LspClient) -> None:
    client.wait_notification(
        "fimlsp/status", predicate=lambda status: status["state"] == "ready", timeout_s=READY_S
    )


@pytest.fixture(scope="module")
def client(real_model: Callable[[str], Path]) -> Iterator[LspClient]:
    """A ready server that reads whole windows and has time, so that load changes no answer."""
    with serve(
        real_model("qwen2.5-coder-0.5b"), "window.cold_ms=60000", "completion.max_ms=60000"
    ) as client:
        wait_ready(client)
        yield client


def test_a_person_gets_the_obvious_line(client: LspClient) -> None:
    buffer = Buffer(client, "file:///w/stack.py", STACK, 8, 26).open()
    assert buffer.ask() == "pop()"


def test_typing_the_suggestion_needs_no_model(client: LspClient) -> None:
    buffer = Buffer(client, "file:///w/typed.py", STACK, 8, 26).open()
    assert buffer.ask() == "pop()"
    for typed, rest in (("p", "op()"), ("op", "()"), ("(", ")")):
        buffer.type(typed)
        assert buffer.ask() == rest
        assert buffer.last()["tokens"] == 0


def test_typing_something_else_reads_only_what_was_typed(client: LspClient) -> None:
    buffer = Buffer(client, "file:///w/other.py", STACK, 8, 26).open()
    buffer.ask()
    buffer.type("cle")  # not what was suggested
    assert buffer.ask().startswith("ar(")
    assert buffer.last()["promptTokens"] <= 3
    assert buffer.last()["reusedTokens"] > 20


def test_two_files_in_turn_keep_both_prompts_warm(client: LspClient) -> None:
    stack = Buffer(client, "file:///w/one.py", STACK, 8, 26).open()
    area = Buffer(client, "file:///w/two.py", AREA, 4, 27).open()
    stack.ask()
    area.ask()
    for key in "xyz":  # nothing that a suggestion could begin with
        for buffer in (stack, area):
            buffer.type(key)
            buffer.ask()
            assert buffer.last()["promptTokens"] <= 3


def test_the_answer_has_the_line_ends_of_the_file(client: LspClient) -> None:
    text = "def first(items):\n    return items[0]\n\n\ndef last(items):\n\n"
    crlf = text.replace("\n", "\r\n")
    buffer = Buffer(client, "file:///w/dos.py", crlf, 4, 16).open()
    suggestion = buffer.ask()
    assert suggestion == "\r\n    return items[-1]"


def test_a_cursor_inside_a_line_gets_one_line_that_doubles_nothing(client: LspClient) -> None:
    text = "def greet(name):\n    print(f'hello {})'\n\n\ngreet('world')\n"
    buffer = Buffer(client, "file:///w/inside.py", text, 1, 19).open()
    suggestion = buffer.ask()
    assert suggestion.startswith("name")
    assert "\n" not in suggestion
    assert not suggestion.endswith("})'")


def test_characters_outside_the_basic_plane_keep_positions_right(client: LspClient) -> None:
    text = "names = ['Zoë', '木村', '😀']\n\n\ndef count_names():\n    return len(na\n"
    buffer = Buffer(client, "file:///w/émoji.py", text, 4, 17).open()
    assert buffer.ask().startswith("mes")


def test_a_cancelled_request_is_answered_once_and_the_next_one_works(client: LspClient) -> None:
    buffer = Buffer(client, "file:///w/cancel.py", STACK.replace("items", "things"), 8, 27).open()
    request = client.send("textDocument/inlineCompletion", buffer.params())
    client.cancel(request)
    with pytest.raises(RpcError) as error:
        client.result(request, timeout_s=READY_S)
    assert error.value.code == -32800
    assert buffer.ask() == "pop()"
    assert not client.unexpected


def test_a_newer_request_is_answered_and_the_older_one_gives_way(client: LspClient) -> None:
    buffer = Buffer(client, "file:///w/newer.py", STACK.replace("items", "cells"), 8, 26).open()
    older = client.send("textDocument/inlineCompletion", buffer.params())
    buffer.type("po")
    assert buffer.ask() == "p()"
    assert client.result(older, timeout_s=READY_S) is None


def test_requests_during_the_load_are_answered_at_once_and_a_cancel_does_not_stop_it(
    real_model: Callable[[str], Path],
) -> None:
    with serve(real_model("qwen2.5-coder-0.5b")) as client:
        buffer = Buffer(client, "file:///w/early.py", STACK, 8, 26).open()
        assert buffer.ask() == ""
        request = client.send("textDocument/inlineCompletion", buffer.params())
        client.cancel(request)
        wait_ready(client)
        assert buffer.ask().startswith("pop")


def test_a_model_that_is_not_there_is_said_and_the_server_lives(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    with serve(missing) as client:
        told = client.wait_notification("window/showMessage", timeout_s=READY_S)
        assert str(missing) in told["message"]
        buffer = Buffer(client, "file:///w/none.py", STACK, 8, 26).open()
        assert buffer.ask() == ""
        assert client.close() == 0


def test_the_bigger_model_answers_too(real_model: Callable[[str], Path]) -> None:
    model = real_model("qwen2.5-coder-1.5b")
    with serve(model, "window.cold_ms=60000", "completion.max_ms=60000") as client:
        wait_ready(client)
        buffer = Buffer(client, "file:///w/stack.py", STACK, 8, 26).open()
        assert buffer.ask() == "pop()"
        buffer.type("po")
        assert buffer.ask() == "p()"
