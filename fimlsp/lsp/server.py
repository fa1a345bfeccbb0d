"""The language server: what each message does. Handlers decode, call, encode, and no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter

from fimlsp import __version__
from fimlsp.completion.api import CompletionService, ServiceState, Status
from fimlsp.errors import UnknownDocumentError
from fimlsp.lsp import commands
from fimlsp.lsp import status as status_report
from fimlsp.lsp.documents import DocumentStore
from fimlsp.lsp.inline import InlineCompletions, InlineJob
from fimlsp.lsp.notices import ClientLog, Notices
from fimlsp.lsp.params import Field, read_changes, read_folders
from fimlsp.lsp.positions import Encoding
from fimlsp.lsp.progress import LoadProgress
from fimlsp.lsp.protocol import FimlspProtocol
from fimlsp.lsp.settings import (
    ClientSettings,
    OnSettings,
    SettingsSource,
)
from fimlsp.lsp.transport import Writer, run_stdio, run_tcp

__all__ = ["FimlspServer", "build_server", "run_stdio", "run_tcp"]

log = logging.getLogger(__name__)


class FimlspServer(LanguageServer):
    """One client's server. It owns documents and messages; models and their threads live elsewhere.

    Make it with :func:`build_server`. Everything here runs on the event loop's thread.
    """

    protocol: FimlspProtocol

    def __init__(
        self,
        service: CompletionService,
        on_settings: OnSettings,
        on_started: Callable[[], None] | None,
    ) -> None:
        super().__init__(
            "fimlsp", __version__, protocol_cls=FimlspProtocol, converter_factory=default_converter
        )
        self.service = service
        self.documents = DocumentStore()
        self.stopped = asyncio.Event()
        self.protocol.on_exit = self.stopped.set
        self.notices = Notices(self.protocol)
        self.settings = ClientSettings(on_settings, self.notices, self.protocol)
        self.load_progress = LoadProgress(self.protocol)
        self.status = status_report.StatusReporter(self._send_status, service.status)
        self.inline = InlineCompletions(service, self.documents, self.status.explain)
        self._client_log = ClientLog(self.protocol)
        self._on_started = on_started
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def exit_code(self) -> int:
        """0 if the client has said ``shutdown``, else 1, as the protocol wants."""
        return 0 if self.protocol.was_shut_down else 1

    def started(self, writer: Writer) -> None:
        """Begin: the loop runs and the client can be written to."""
        self.protocol.set_writer(writer)
        self.service.on_status(self._status_changed)
        self._status_changed(self.service.status)
        if self._on_started is not None:
            self._on_started()

    def receive(self, body: bytes) -> None:
        """Take in one message."""
        self.protocol.receive(body)

    async def finish(self) -> None:
        """Drop all work."""
        self._client_log.stop()
        for task in self._tasks:
            task.cancel()
        await self.service.close()

    def greet(self) -> None:
        """Tell the client everything that had to wait until it was ready to listen."""
        self._client_log.start()
        self.notices.start()
        self.status.start()
        window = self.client_capabilities.window
        if window and window.work_done_progress:
            self.load_progress.start()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside the handlers; it is cancelled at the end."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, uri: str) -> None:
        """Close a document here, whoever closed it."""
        self.documents.close(uri)
        self.service.closed(uri)

    def report_server_error(self, error: Exception, source: object) -> None:
        """Log what pygls would show in a popup, at every key if it came to that."""
        if isinstance(error, JsonRpcInvalidParams):
            log.warning("a message can't be read: %s", error)
            return
        trace = getattr(error, "data", None) or {}
        details = "".join(trace.get("traceback", [])) if isinstance(trace, dict) else ""
        log.error("%s\n%s", error, details)

    def _status_changed(self, status: Status) -> None:
        self.status.update(status)
        self.load_progress.update(status)
        if status.state is ServiceState.ERROR and status.message:
            self.notices.error(status.message)

    def _send_status(self, payload: dict[str, Any]) -> None:
        self.protocol.notify(status_report.METHOD, payload)


def build_server(
    service: CompletionService,
    on_settings: OnSettings,
    on_started: Callable[[], None] | None = None,
) -> FimlspServer:
    """Make a server that :func:`run_stdio` or :func:`run_tcp` can run, once.

    Args:
        service: Makes the suggestions; closed with the server. Its engine is not.
        on_settings: Takes the client's settings; see :data:`fimlsp.lsp.settings.OnSettings`.
        on_started: Called once on the event loop's thread, in the running loop, before the first
            message is read.
    """
    # pygls logs whole messages at INFO: the person's code, in a log file.
    logging.getLogger("pygls").setLevel(logging.WARNING)
    server = FimlspServer(service, on_settings, on_started)
    parsers = server.protocol.parsers
    parsers[types.TEXT_DOCUMENT_INLINE_COMPLETION] = server.inline.receive
    for method in (types.INITIALIZED, types.SHUTDOWN):  # they need none, whatever comes
        parsers[method] = Field
    for method, handler in _NOTIFICATIONS.items():
        parsers[method] = Field
        server.feature(method)(handler)
    server.feature(types.INITIALIZE)(_initialize)
    server.feature(types.INITIALIZED)(_initialized)
    # Without the options object pygls does not announce the capability.
    server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())(_inline)
    commands.register(server, server.status)
    return server


def _initialize(ls: FimlspServer, params: types.InitializeParams) -> None:
    ls.documents.encoding = Encoding(ls.workspace.position_encoding or Encoding.UTF16)
    folders = [folder.uri for folder in params.workspace_folders or ()]
    for uri in folders or [ls.workspace.root_uri]:
        if uri:
            ls.documents.add_folder(uri)
    # Also without options: this is when the server knows which model is wanted.
    ls.settings.take(SettingsSource.INITIALIZATION, params.initialization_options or {})


def _initialized(ls: FimlspServer, params: Field) -> None:
    ls.greet()
    ls.spawn(ls.settings.subscribe())


async def _inline(ls: FimlspServer, job: InlineJob) -> types.InlineCompletionList | None:
    return await ls.inline.answer(job)


def _did_open(ls: FimlspServer, params: Field) -> None:
    document = params["textDocument"]
    uri = document["uri"].text()
    version = document["version"].integer() if document["version"] else 0
    ls.documents.open(uri, document["languageId"].text(""), version, document["text"].text())
    ls.service.opened(ls.documents.snapshot(uri, 0, 0))


def _did_change(ls: FimlspServer, params: Field) -> None:
    document = params["textDocument"]
    uri = document["uri"].text()
    try:
        counted = ls.documents.get(uri).version + 1
        version = document["version"].integer() if document["version"] else counted
        ls.documents.change(uri, version, read_changes(params))
    except UnknownDocumentError as exc:
        log.warning("didChange ignored: %s", exc)
    except JsonRpcInvalidParams as exc:
        ls.forget(uri)  # from here on its text is not what we hold
        log.error("didChange can't be read, so %s counts as closed: %s", uri, exc)


def _did_close(ls: FimlspServer, params: Field) -> None:
    try:
        ls.forget(params["textDocument"]["uri"].text())
    except UnknownDocumentError as exc:
        log.warning("didClose ignored: %s", exc)


def _did_change_configuration(ls: FimlspServer, params: Field) -> None:
    settings = params["settings"].value
    if not settings and ls.settings.can_pull:  # the client says "ask me"
        ls.spawn(ls.settings.pull())
    else:
        ls.settings.take(SettingsSource.CONFIGURATION, settings)


def _did_change_folders(ls: FimlspServer, params: Field) -> None:
    for folder in read_folders(params["event"]["removed"]):
        ls.documents.remove_folder(folder.uri)
    for folder in read_folders(params["event"]["added"]):
        ls.documents.add_folder(folder.uri)


_NOTIFICATIONS: dict[str, Callable[[FimlspServer, Field], None]] = {
    types.TEXT_DOCUMENT_DID_OPEN: _did_open,
    types.TEXT_DOCUMENT_DID_CHANGE: _did_change,
    types.TEXT_DOCUMENT_DID_CLOSE: _did_close,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: _did_change_configuration,
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: _did_change_folders,
}
