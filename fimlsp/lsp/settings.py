"""Settings on their way from the client to whoever reads them; what they mean is not known here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import LanguageServerProtocol

from fimlsp.lsp.notices import Notices

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
    """Gets settings from the client, hands them over, and shows each complaint once."""

    def __init__(
        self, on_settings: OnSettings, notices: Notices, protocol: LanguageServerProtocol
    ) -> None:
        self._on_settings = on_settings
        self._notices = notices
        self._protocol = protocol

    @property
    def can_pull(self) -> bool:
        """Whether the client answers ``workspace/configuration``; known after ``initialize``."""
        workspace = self._protocol.client_capabilities.workspace
        return bool(workspace and workspace.configuration)

    def take(self, source: SettingsSource, options: Any) -> None:
        """Use ``options``, bare or below ``settings`` and ``fimlsp``; None changes nothing."""
        options = unwrapped(options)
        if options is None:
            return
        for complaint in self._on_settings(source, options):
            self._notices.warn(complaint)

    async def subscribe(self) -> None:
        """Ask to be told of changes, and for the settings now; as far as the client can."""
        workspace = self._protocol.client_capabilities.workspace
        change = workspace.did_change_configuration if workspace else None
        if change and change.dynamic_registration:
            registration = types.Registration(
                id="fimlsp-settings",
                method=types.WORKSPACE_DID_CHANGE_CONFIGURATION,
                register_options={"section": SECTION},
            )
            params = types.RegistrationParams(registrations=[registration])
            await self._ask(types.CLIENT_REGISTER_CAPABILITY, params)
        await self.pull()

    async def pull(self) -> None:
        """Ask the client for its settings and use them, if it can be asked."""
        if not self.can_pull:
            return
        params = types.ConfigurationParams(items=[types.ConfigurationItem(section=SECTION)])
        answer = await self._ask(types.WORKSPACE_CONFIGURATION, params)
        if isinstance(answer, list) and answer:
            self.take(SettingsSource.CONFIGURATION, answer[0])

    async def _ask(self, method: str, params: Any) -> Any:
        """Return the client's answer, None if it is an error: then we go on without."""
        try:
            return await self._protocol.send_request_async(method, params)
        except JsonRpcException as exc:
            log.warning("the client did not answer %s: %s", method, exc)
            return None


def unwrapped(options: Any) -> Any:
    """Return what lies below ``settings`` and ``fimlsp``, where clients put them."""
    for key in ("settings", SECTION):
        if isinstance(options, dict) and key in options:
            options = options[key]
    return options
