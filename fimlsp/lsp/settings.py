"""Settings on their way from the client to whoever reads them; what they mean is not known here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lsprotocol import types

from fimlsp.lsp.notices import Notices

if TYPE_CHECKING:
    from fimlsp.lsp.server import FimlspServer

log = logging.getLogger(__name__)

SECTION: Final = "fimlsp"


class SettingsSource(StrEnum):
    """Which of the client's two sets of settings; each replaces only its own earlier one."""

    INITIALIZATION = "initializationOptions"
    CONFIGURATION = "didChangeConfiguration"


OnSettings = Callable[[SettingsSource, Any], list[str]]
"""Takes decoded JSON, normally a dict, and returns a sentence with the full path for each thing
that is wrong with it. Runs on the event loop's thread, so it must be quick."""


class ClientSettings:
    """Hands over settings and shows each complaint once."""

    def __init__(self, on_settings: OnSettings, notices: Notices) -> None:
        self._on_settings = on_settings
        self._notices = notices

    def take(self, source: SettingsSource, options: Any) -> None:
        """Use ``options``, bare or below ``settings`` and ``fimlsp``; None changes nothing."""
        options = unwrapped(options)
        if options is None:
            return
        for complaint in self._on_settings(source, options):
            self._notices.warn(complaint)


def unwrapped(options: Any) -> Any:
    """Return what lies below ``settings`` and ``fimlsp``, where clients put them."""
    for key in ("settings", SECTION):
        if isinstance(options, dict) and key in options:
            options = options[key]
    return options


async def subscribe(server: FimlspServer) -> None:
    """Ask to be told of changed settings, and for the settings now; as far as the client can."""
    workspace = server.client_capabilities.workspace
    change = workspace.did_change_configuration if workspace else None
    if change and change.dynamic_registration:
        registration = types.Registration(
            id="fimlsp-settings",
            method=types.WORKSPACE_DID_CHANGE_CONFIGURATION,
            register_options={"section": SECTION},
        )
        params = types.RegistrationParams(registrations=[registration])
        await _ask(server, types.CLIENT_REGISTER_CAPABILITY, params)
    await pull(server)


async def pull(server: FimlspServer) -> None:
    """Ask the client for its settings and use them, if it can be asked."""
    if not can_pull(server):
        return
    item = types.ConfigurationItem(section=SECTION)
    params = types.ConfigurationParams(items=[item])
    answer = await _ask(server, types.WORKSPACE_CONFIGURATION, params)
    if isinstance(answer, (list, tuple)) and answer:
        server.settings.take(SettingsSource.CONFIGURATION, answer[0])


def can_pull(server: FimlspServer) -> bool:
    """Tell whether the client answers ``workspace/configuration``."""
    workspace = server.client_capabilities.workspace
    return bool(workspace and workspace.configuration)


async def _ask(server: FimlspServer, method: str, params: Any) -> Any:
    """Return the client's answer, None if it answers with an error or with nonsense."""
    try:
        return await server.protocol.send_request_async(method, params)
    except Exception as exc:
        # Whatever the client answered, and however the converter choked on it, we go on without.
        log.warning("the client did not answer %s: %s", method, type(exc).__name__)
        return None
