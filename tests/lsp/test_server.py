"""What the server promises an editor, message by message."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fakes import giving, hang, nothing

from fimlsp.bench.client import RpcError
from fimlsp.completion.api import Trigger
from fimlsp.document import Completion, Reason

URI = "file:///project/a.py"
INLINE = "textDocument/inlineCompletion"
REQUEST = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}


def at(line: int, start: int, end: int | None = None) -> dict[str, Any]:
    end = start if end is None else end
    return {
        "start": {"line": line, "character": start},
        "end": {"line": line, "character": end},
    }


async def test_initialize_announces_what_the_server_can(client) -> None:
    result = await client.initialize()
    capabilities = result["capabilities"]
    assert capabilities["inlineCompletionProvider"] == {}
    assert capabilities["textDocumentSync"]["change"] == 2
    assert capabilities["textDocumentSync"]["openClose"] is True
    assert capabilities["executeCommandProvider"]["commands"] == ["fimlsp.status"]
    assert "completionProvider" not in capabilities
    assert result["serverInfo"]["name"] == "fimlsp"


@pytest.mark.parametrize(
    ("offered", "chosen", "column"),
    [
        (None, "utf-16", 3),
        (["utf-16"], "utf-16", 3),
        (["utf-8", "utf-16", "utf-32"], "utf-8", 5),
        (["utf-32"], "utf-32", 2),
        (["utf-7", 8, "utf-32"], "utf-32", 2),
        (["utf-7"], "utf-16", 3),
        ("utf-8", "utf-16", 3),
    ],
)
async def test_columns_are_in_the_negotiated_encoding(client, offered, chosen, column) -> None:
    result = await client.initialize({"general": {"positionEncodings": offered}})
    assert result["capabilities"]["positionEncoding"] == chosen
    client.script = giving(Completion(text="x)", replace_after=1))
    client.open("(😀)")
    answer = await client.inline(0, column)
    assert answer["items"] == [{"insertText": "x)", "range": at(0, column, column + 1)}]


async def test_odd_values_in_initialize_cost_nobody_their_completions(client) -> None:
    await client.initialize(
        {"textDocument": {"completion": 7}, "window": [], "general": "x"},
        processId="none",
        rootUri=5,
        workspaceFolders=[{"name": 3}],
    )
    client.open("ab")
    assert (await client.inline(0, 2))["items"]


@pytest.mark.parametrize("params", [None, [], "x", {"capabilities": []}])
async def test_initialize_without_its_params_is_refused_and_can_be_repeated(client, params) -> None:
    with pytest.raises(RpcError) as refused:
        await client.request("initialize", params)
    assert refused.value.code == -32602
    await client.initialize()


@pytest.mark.parametrize(
    ("folders", "root", "path"),
    [
        ([{"uri": "file:///project", "name": "p"}], None, "a.py"),
        (None, "file:///project", "a.py"),
        ([], "file:///", "project/a.py"),
        (None, None, "a.py"),
    ],
)
async def test_paths_are_relative_to_the_workspace(client, folders, root, path) -> None:
    await client.initialize(workspaceFolders=folders, rootUri=root)
    client.open("x")
    await client.inline(0, 0)
    assert client.service.asked[0][0].path == path


async def test_workspace_folders_come_and_go(ready) -> None:
    root = {"uri": "file:///", "name": "root"}
    ready.open("x")
    for added, removed, path in [([root], [], "project/a.py"), ([], [root], "a.py")]:
        event = {"added": added, "removed": removed}
        ready.notify("workspace/didChangeWorkspaceFolders", {"event": event})
        await ready.inline(0, 0)
        assert ready.service.asked[-1][0].path == path


async def test_the_answer_has_the_documents_own_line_ends(ready) -> None:
    ready.script = giving(Completion(text="a\nb\n"))
    for eol in ("\r\n", "\r", "\n"):
        ready.open(f"one{eol}two{eol}")
        answer = await ready.inline(1, 3)
        assert answer["items"] == [{"insertText": f"a{eol}b{eol}", "range": at(1, 3)}]


async def test_the_range_never_leaves_the_line(ready) -> None:
    ready.script = giving(Completion(text="x", replace_after=99))
    ready.open("ab)\r\ncd")
    assert (await ready.inline(0, 2))["items"][0]["range"] == at(0, 2, 3)


async def test_a_cursor_outside_the_text_is_moved_into_it(ready) -> None:
    ready.open("ab\ncd")
    assert (await ready.inline(0, 99))["items"][0]["range"] == at(0, 2)
    assert (await ready.inline(2**31 - 1, 2**31 - 1))["items"][0]["range"] == at(1, 2)


async def test_every_suggestion_is_an_item(ready) -> None:
    ready.script = giving(Completion(text="one"), Completion(text="two"))
    ready.open("")
    assert [i["insertText"] for i in (await ready.inline(0, 0))["items"]] == ["one", "two"]


INVOKED, AUTOMATIC = Trigger.INVOKED, Trigger.AUTOMATIC


@pytest.mark.parametrize(
    ("kinds", "triggers"),
    [
        ([1, 2], [INVOKED, AUTOMATIC]),
        ([None, 2.0], [AUTOMATIC, AUTOMATIC]),
        ([1, 0, 1, 0], [INVOKED, INVOKED, AUTOMATIC, INVOKED]),
    ],
)
async def test_trigger_kinds_of_old_and_new_clients(ready, kinds, triggers) -> None:
    """A client that has once sent 0 counts from 0, as clients before LSP 3.18 do."""
    ready.open("x")
    for kind in kinds:
        await ready.inline(0, 1, context={"triggerKind": kind})
    assert [trigger for _, trigger in ready.service.asked] == triggers


@pytest.mark.parametrize("context", [{}, {"context": None}, {"context": {}}])
async def test_a_missing_context_is_an_automatic_request(ready, context) -> None:
    ready.open("x")
    await ready.inline(0, 1, **context)
    assert ready.service.asked[0][1] is AUTOMATIC


async def test_a_selection_serialised_as_an_array_does_no_harm(ready) -> None:
    """vscode-languageclient 9 sends the range of the menu's selection as a list."""
    ready.open("x")
    ends = [{"line": 0, "character": 0}, {"line": 0, "character": 1}]
    context = {"triggerKind": 1, "selectedCompletionInfo": {"range": ends, "text": "xy"}}
    assert (await ready.inline(0, 1, context=context))["items"]


async def test_a_superseded_request_is_answered_with_null_at_once(ready) -> None:
    ready.script = hang
    ready.open("x")
    older = ready.send(INLINE, REQUEST)
    await ready.settle()
    ready.script = giving(Completion(text="new"))
    newer = ready.send(INLINE, REQUEST)
    assert (await older)["result"] is None
    assert (await newer)["result"]["items"][0]["insertText"] == "new"


@pytest.mark.parametrize(
    ("reason", "result"),
    [
        (Reason.EMPTY, {"items": []}),
        (Reason.LOADING, {"items": []}),
        (Reason.NO_MODEL, {"items": []}),
        (Reason.DISABLED, {"items": []}),
        (Reason.REPEATS_SUFFIX, {"items": []}),
        (Reason.OVER_BUDGET, {"items": []}),
        (Reason.STALE, None),
        (Reason.CANCELLED, None),
        (Reason.FAILED, None),
    ],
)
async def test_nothing_clears_the_screen_and_no_answer_leaves_it(ready, reason, result) -> None:
    ready.script = nothing(reason)
    ready.open("x")
    assert await ready.inline(0, 1) == result


async def test_a_bug_in_the_service_is_no_popup(ready, caplog) -> None:
    async def broken(snapshot, trigger):
        raise RuntimeError("a bug")

    ready.script = broken
    ready.open("x")
    assert await ready.inline(0, 1) is None
    assert ready.last("fimlsp/status")["reason"] == "failed"
    assert ready.got("window/showMessage") == []
    assert "a bug" in caplog.text


async def test_a_document_that_is_not_open_gets_an_empty_list_and_a_reason(ready) -> None:
    assert await ready.inline(0, 0, uri="untitled:Untitled-1") == {"items": []}
    assert ready.last("fimlsp/status")["reason"] == "unknown_document"
    assert ready.service.asked == []


async def test_an_edit_during_the_work_makes_the_answer_null(ready) -> None:
    gate = asyncio.Event()

    async def script(snapshot, trigger):
        await gate.wait()
        return (Completion(text="old"),)

    ready.script = script
    ready.open("x")
    waiting = ready.send(INLINE, REQUEST)
    await ready.settle()
    ready.change("xy", 2)
    gate.set()
    assert (await waiting)["result"] is None


async def test_an_edit_right_behind_a_request_does_not_move_its_cursor(ready) -> None:
    """A task starts after all messages that came with the request: its text was the next one's."""
    ready.open("x")
    waiting = ready.send(INLINE, REQUEST)
    ready.change("xy", 2)
    assert (await waiting)["result"] is None
    assert ready.service.asked == []


async def test_a_request_for_another_version_than_ours_is_answered_with_null(ready) -> None:
    ready.open("x", version=7)
    document = {"uri": URI, "version": 6}
    assert await ready.inline(0, 1, textDocument=document) is None
    document["version"] = 7
    assert (await ready.inline(0, 1, textDocument=document))["items"]


async def test_documents_are_followed_and_forgotten(ready) -> None:
    ready.open("a\nb")
    change = {"range": at(1, 1), "text": "cd", "rangeLength": 0}
    ready.notify(
        "textDocument/didChange",
        {"textDocument": {"uri": URI, "version": None}, "contentChanges": [change]},
    )
    await ready.inline(1, 3)
    assert ready.service.asked[0][0].text == "a\nbcd"
    assert ready.service.open_uris == [URI]
    ready.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    assert ready.service.open_uris == []
    assert await ready.inline(0, 0) == {"items": []}


async def test_messages_about_documents_that_are_not_open_are_ignored(ready, caplog) -> None:
    ready.change("text", 2)
    ready.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    assert "didChange ignored" in caplog.text
    assert "didClose ignored" in caplog.text
    assert ready.got("window/showMessage") == []


async def test_an_edit_that_cant_be_read_closes_the_document_rather_than_guess(ready) -> None:
    """Every later edit would land in the wrong place, and every suggestion with it."""
    ready.open("abc")
    ready.notify(
        "textDocument/didChange",
        {"textDocument": {"uri": URI, "version": 2}, "contentChanges": [{"range": at(0, 1)}]},
    )
    assert await ready.inline(0, 0) == {"items": []}
    assert ready.service.open_uris == []


async def test_the_status_command_returns_the_status(ready) -> None:
    command = {"command": "fimlsp.status"}
    status = await ready.request("workspace/executeCommand", command)
    assert status == ready.last("fimlsp/status")
    with pytest.raises(RpcError) as refused:
        await ready.request("workspace/executeCommand", {"command": "fimlsp.nonsense"})
    assert refused.value.code == -32602


async def test_logs_hold_lengths_and_never_text(ready, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    ready.script = giving(Completion(text="SECRET_ANSWER"))
    ready.open("SECRET_TEXT")
    await ready.inline(0, 3)
    ready.notify("textDocument/didOpen", {"textDocument": {"uri": URI, "text": ["SECRET_TEXT"]}})
    with pytest.raises(RpcError):
        await ready.inline(0, 0, context="SECRET_TEXT")
    await ready.settle()
    lines = [params["message"] for params in ready.got("window/logMessage")]
    assert any("13 characters" in line for line in lines)
    assert all("\n" not in line for line in lines)
    assert "SECRET" not in caplog.text + "".join(lines)
