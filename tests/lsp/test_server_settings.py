"""How the client's settings reach whoever reads them, and how complaints reach the person."""

from __future__ import annotations

from typing import Any

import pytest

from fimlsp.bench.client import RpcError
from fimlsp.lsp.settings import SettingsSource

INITIAL, CHANGED = SettingsSource.INITIALIZATION, SettingsSource.CONFIGURATION
PULL = "workspace/configuration"
CAN_PULL = {"workspace": {"configuration": True}}
OPTIONS = {"completion": {"max_tokens": 3}}


def changes(client: Any) -> list[Any]:
    return [options for source, options in client.settings if source is CHANGED]


@pytest.mark.parametrize(
    "sent", [OPTIONS, {"fimlsp": OPTIONS}, {"settings": {"fimlsp": OPTIONS}}, {"settings": OPTIONS}]
)
async def test_initialization_options_may_be_bare_or_under_our_name(client, sent) -> None:
    await client.initialize(initializationOptions=sent)
    assert client.settings == [(INITIAL, OPTIONS)]


async def test_the_reader_hears_from_initialize_also_without_options(client) -> None:
    """It waits for that: only then is it known which model is wanted."""
    await client.initialize(initializationOptions=None)
    assert client.settings == [(INITIAL, {})]


async def test_null_settings_change_nothing(ready) -> None:
    ready.notify("workspace/didChangeConfiguration", {"settings": {"fimlsp": None}})
    assert changes(ready) == []


@pytest.mark.parametrize("settings", [OPTIONS, {"fimlsp": OPTIONS}])
async def test_pushed_settings_may_be_bare_or_under_our_name(ready, settings) -> None:
    ready.notify("workspace/didChangeConfiguration", {"settings": settings})
    assert changes(ready) == [OPTIONS]


async def test_settings_of_a_wrong_shape_are_handed_on_for_the_complaint(ready) -> None:
    ready.notify("workspace/didChangeConfiguration", {"settings": {"fimlsp": [1]}})
    assert changes(ready) == [[1]]


async def test_settings_are_pulled_once_the_client_is_ready(client) -> None:
    client.answers[PULL] = [OPTIONS]
    await client.initialize(CAN_PULL)
    assert client.got(PULL) == [{"items": [{"section": "fimlsp"}]}]
    assert changes(client) == [OPTIONS]


@pytest.mark.parametrize("settings", [None, {}])
async def test_a_change_without_content_means_ask_me(client, settings) -> None:
    client.answers[PULL] = [None]
    await client.initialize(CAN_PULL)
    client.answers[PULL] = [OPTIONS]
    client.notify("workspace/didChangeConfiguration", {"settings": settings})
    await client.settle()
    assert changes(client) == [OPTIONS]


@pytest.mark.parametrize("answer", [RpcError(-32601, "no"), [], None, 3, {"items": []}])
async def test_a_client_that_answers_a_pull_badly_keeps_its_server(client, answer: Any) -> None:
    client.answers[PULL] = answer
    await client.initialize(CAN_PULL)
    assert changes(client) == []
    assert await client.inline(0, 0) == {"items": []}


async def test_a_client_that_cant_be_asked_is_not_asked(ready) -> None:
    assert ready.got(PULL) == []
    assert ready.got("client/registerCapability") == []


async def test_changes_are_subscribed_to_where_the_client_wants_that(client) -> None:
    """VS Code tells servers of changed settings only after they have registered for it."""
    client.answers |= {"client/registerCapability": None, PULL: [OPTIONS]}
    dynamic = {"didChangeConfiguration": {"dynamicRegistration": True}, "configuration": True}
    await client.initialize({"workspace": dynamic})
    (registration,) = client.last("client/registerCapability")["registrations"]
    assert registration["method"] == "workspace/didChangeConfiguration"
    assert registration["registerOptions"] == {"section": "fimlsp"}
    assert changes(client) == [OPTIONS]


async def test_each_complaint_is_shown_once_as_a_warning_and_in_the_log(client, caplog) -> None:
    client.complaints = ["completion.max_tokens: found -1, expected 1 or more"]
    client.receive(
        {"id": 1, "method": "initialize"}, {"capabilities": {}} | {"initializationOptions": OPTIONS}
    )
    assert client.got("window/showMessage") == []
    client.notify("initialized", {})
    client.notify("workspace/didChangeConfiguration", {"settings": OPTIONS})
    await client.settle()
    shown = [{"type": 2, "message": client.complaints[0]}]
    assert client.got("window/showMessage") == shown
    assert client.got("window/logMessage") == shown
    client.complaints = [*client.complaints, "another.path: found 1, expected a string"]
    client.notify("workspace/didChangeConfiguration", {"settings": OPTIONS})
    assert [m["message"] for m in client.got("window/showMessage")] == client.complaints


async def test_a_bug_in_reading_settings_does_not_end_the_server(ready, caplog) -> None:
    ready.complaints = None
    ready.notify("workspace/didChangeConfiguration", {"settings": OPTIONS})
    assert "TypeError" in caplog.text
    ready.open("x")
    assert (await ready.inline(0, 1))["items"]
