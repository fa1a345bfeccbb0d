"""The JSON-RPC side of the server: who is answered what, and exactly once.

pygls provides the feature table, the types and the sending. Its way of receiving is replaced:
there a request whose params don't validate gets no answer at all, a message without ``params`` is
dropped, a client's answer can hit the future of a client's request, and a cancelled request is
answered only when its handler has unwound. Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInternalError,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcMethodNotFound,
    JsonRpcParseError,
    JsonRpcRequestCancelled,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import LanguageServerProtocol

from fimlsp.lsp.params import describe, read_initialize

if TYPE_CHECKING:
    from cattrs import Converter
    from pygls.lsp.server import LanguageServer

log = logging.getLogger(__name__)

Json = dict[str, Any]
Parser = Callable[[Any], Any]
"""Makes a handler's argument of raw params; raises ``JsonRpcException``."""

_REPLACED: Final = (
    types.EXIT,  # this would raise SystemExit through the event loop
    # These would keep a second copy of every document, in a store that takes a form feed for a line
    # end and raises for documents it does not know.
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS,
)


class FimlspProtocol(LanguageServerProtocol):
    """Receives bodies of messages and sees to their answers.

    ``parsers`` says how a method's raw params are read; a standard method without an entry is read
    by lsprotocol, any other gets its params as they are. A parser runs as the message arrives, so
    it can also freeze what later messages would change. What the client answers to our requests
    comes as raw JSON too, whatever type pygls promises for it.
    """

    def __init__(self, server: LanguageServer, converter: Converter) -> None:
        super().__init__(server, converter)
        for method in _REPLACED:
            del self.fm.builtin_features[method]
        self.parsers: dict[str, Parser] = {types.INITIALIZE: read_initialize}
        self.on_exit: Callable[[], None] = lambda: None
        self._initialized = False
        self._unanswered: set[int | str] = set()

    @property
    def was_shut_down(self) -> bool:
        """Whether the client has said ``shutdown``."""
        return bool(self._shutdown)

    def receive(self, body: bytes) -> None:
        """Take in one message; never raises."""
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as exc:
            self._send_error(None, JsonRpcParseError(f"not JSON: {type(exc).__name__}"))
            return
        # Each message in a context of its own, where pygls keeps the id of a request.
        contextvars.copy_context().run(self._dispatch, message)

    def _dispatch(self, message: Any) -> None:
        try:
            if not isinstance(message, dict):
                found = describe(message)
                raise JsonRpcInvalidRequest(f"found {found}, expected one message, an object")
            if "method" not in message and ("result" in message or "error" in message):
                self._dispatch_response(message)
            elif "id" in message:
                self._dispatch_request(message)
            else:
                self._dispatch_notification(message)
        except JsonRpcException as exc:
            self._send_error(None, exc)
        except Exception:
            # The boundary of the message loop: one message must not end the server.
            log.exception("a message could not be handled")

    def _dispatch_request(self, message: Json) -> None:
        message_id = message["id"]
        if type(message_id) not in (int, str):
            found = describe(message_id)
            raise JsonRpcInvalidRequest(f"id: found {found}, expected a whole number or a string")
        if message_id in self._unanswered:
            taken = JsonRpcInvalidRequest(f"id: {message_id!r} is still waiting for its answer")
            self._send_error(message_id, taken)
            return
        self._unanswered.add(message_id)
        try:
            method = self._admit(message)
            params = self._parse(method, message)
        except JsonRpcException as exc:
            log.info("request %r refused: %s", message_id, exc.message)
            self._send_response(message_id, error=exc.to_response_error())
        except Exception as exc:
            log.exception("the params of request %r could not be read", message_id)
            error = JsonRpcInternalError(f"reading the params failed: {type(exc).__name__}")
            self._send_response(message_id, error=error.to_response_error())
        else:
            self._initialized = True
            self._handle_request(message_id, method, params)

    def _admit(self, message: Json) -> str:
        """Return the method of a request that may be served now.

        Raises:
            JsonRpcException: it may not; the error is the answer.
        """
        method = message.get("method")
        if message.get("jsonrpc") != self.VERSION or not isinstance(method, str):
            raise JsonRpcInvalidRequest("expected 'jsonrpc': '2.0' and a method's name")
        if self._shutdown:
            raise JsonRpcInvalidRequest(f"{method} came after shutdown; only exit may follow")
        if not self._initialized and method != types.INITIALIZE:
            raise JsonRpcServerNotInitialized(f"{method} came before initialize")
        if self._initialized and method == types.INITIALIZE:
            raise JsonRpcInvalidRequest("initialize came a second time")
        if method not in self.fm.builtin_features and method not in self.fm.features:
            raise JsonRpcMethodNotFound.of(method)
        return method

    def _dispatch_notification(self, message: Json) -> None:
        method = message.get("method")
        if method == types.EXIT:
            self.on_exit()
            return
        if not isinstance(method, str) or not self._initialized or self._shutdown:
            log.info("a notification was ignored: it had no method or came out of its time")
            return
        if method == types.CANCEL_REQUEST:
            self._cancel(message.get("params"))
        elif method in self.fm.builtin_features or method in self.fm.features:
            try:
                self._handle_notification(method, self._parse(method, message))
            except JsonRpcInvalidParams as exc:
                log.warning("%s ignored: %s", method, exc.message)

    def _dispatch_response(self, message: Json) -> None:
        message_id = message.get("id")
        if not isinstance(message_id, str) or message_id in self._unanswered:
            log.info("an answer to nothing we asked was ignored")
            return
        self._result_types.pop(message_id, None)
        future = self._request_futures.pop(message_id, None)
        if future is None or future.done():
            return
        if (error := message.get("error")) is None:
            # As it is: the converter would take an object for a list and a number for a string.
            future.set_result(message.get("result"))
        else:
            known = error if isinstance(error, dict) else {}
            future.set_exception(JsonRpcException(str(known.get("message", "no message"))))

    def _cancel(self, params: Any) -> None:
        message_id = params.get("id") if isinstance(params, dict) else None
        if type(message_id) not in (int, str) or message_id not in self._unanswered:
            return  # answered already: the usual case when a cancel and an answer cross
        future = self._request_futures.pop(message_id, None)
        if future is not None:
            future.cancel()
        # At once, however long the handler takes to unwind.
        error = JsonRpcRequestCancelled("cancelled by the client").to_response_error()
        self._send_response(message_id, error=error)

    def _parse(self, method: str, message: Json) -> Any:
        """Return the params of ``message`` as the handler of ``method`` wants them.

        Raises:
            JsonRpcInvalidParams: they are not what the method takes.
        """
        params = message.get("params")
        if (parser := self.parsers.get(method)) is not None:
            return parser(params)
        if (message_type := self.get_message_type(method)) is None:
            return params
        try:
            structured = self._converter.structure({"id": 0} | message, message_type)
        except Exception as exc:
            # cattrs and attrs raise a zoo of exceptions here, whose texts quote the params.
            raise JsonRpcInvalidParams(f"params are not those of {method}") from exc
        return structured.params

    def _send_response(
        self,
        msg_id: int | str,
        result: Any = None,
        error: types.ResponseError | None = None,
    ) -> None:
        """Answer a request, unless it has its answer; the one place where answers go out."""
        if msg_id not in self._unanswered:
            return
        self._unanswered.discard(msg_id)
        answer = {"result": result} if error is None else {"error": error}
        self._send_data({"jsonrpc": self.VERSION, "id": msg_id, **answer})

    def _send_error(self, message_id: int | str | None, exc: JsonRpcException) -> None:
        """Send an error that is not the answer to an admitted request."""
        log.info("a message was refused: %s", exc.message)
        error = exc.to_response_error()
        self._send_data({"jsonrpc": self.VERSION, "id": message_id, "error": error})
