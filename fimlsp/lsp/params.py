"""From the raw JSON of a message to the values that handlers take.

Our own reader instead of lsprotocol's converter, which takes ``"3"`` and ``true`` for a 3, refuses
what older clients send (trigger kind 0, no ``context``), drops ``textDocument.version``, and fails
a whole ``initialize`` for one odd capability that we never look at. Complaints name the full path
and the kind of what was found, never the text: it is somebody's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from fimlsp.completion.api import Trigger
from fimlsp.lsp.documents import Change
from fimlsp.lsp.positions import Position, Range

_NUMBER_WIDTH: Final = 24
"""Characters of a number in a complaint at most; a client can send thousands."""


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a message: what stands there and where that is.

    Readers raise ``JsonRpcInvalidParams``, which pygls answers with -32602.
    """

    value: Any
    path: str = "params"

    def __getitem__(self, key: str) -> Field:
        """Return a field of this object; ``value`` is None where it has no such field."""
        if not isinstance(self.value, dict):
            raise self._wrong("an object")
        return Field(self.value.get(key), f"{self.path}.{key}")

    def __bool__(self) -> bool:
        """Tell whether there is anything; absent and ``null`` are the same to us."""
        return self.value is not None

    def items(self) -> list[Field]:
        """Return the entries of this list."""
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        return [Field(item, f"{self.path}[{i}]") for i, item in enumerate(self.value)]

    def text(self, default: str | None = None) -> str:
        """Return this string; ``default``, if given, where there is nothing."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def integer(self, low: int = -(2**31)) -> int:
        """Return this whole number; one written with a point (``3.0``) counts."""
        value = self.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise self._wrong(f"a whole number from {low}")
        return value

    def position(self) -> Position:
        """Return this client position."""
        return Position(self["line"].integer(low=0), self["character"].integer(low=0))

    def range(self) -> Range:
        """Return this client range."""
        return Range(self["start"].position(), self["end"].position())

    def _wrong(self, expected: str) -> JsonRpcInvalidParams:
        return JsonRpcInvalidParams(
            f"{self.path}: found {describe(self.value)}, expected {expected}"
        )


def describe(value: object) -> str:
    """Return what a JSON value is, without any text that it holds."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)[:_NUMBER_WIDTH]
        case str():
            return f"a string of {len(value)} characters"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineRequest:
    """The params of ``textDocument/inlineCompletion`` that we use."""

    uri: str
    version: int | None
    """The version that the client has in mind; an extension that some clients send."""
    position: Position
    trigger_kind: int | None


def read_inline_request(raw: Any) -> InlineRequest:
    """Read the params of an inline completion request.

    Raises:
        JsonRpcInvalidParams: something has a wrong type or value.
    """
    params = Field(raw)
    document = params["textDocument"]
    kind = params["context"]["triggerKind"] if params["context"] else Field(None)
    if kind and kind.integer() not in (0, 1, 2):
        raise JsonRpcInvalidParams(
            f"{kind.path}: found {kind.value}, expected 1 (invoked) or 2 (automatic), "
            "or 0 from a client older than LSP 3.18"
        )
    return InlineRequest(
        uri=document["uri"].text(),
        version=document["version"].integer() if document["version"] else None,
        position=params["position"].position(),
        trigger_kind=kind.integer() if kind else None,
    )


class TriggerKinds:
    """Tells the trigger kinds of LSP 3.18 (1, 2) from those before it (0, 1).

    1 means "invoked" in the one and "automatic" in the other; only a 0 gives an old client away.
    """

    def __init__(self) -> None:
        self._invoked = 1

    def trigger(self, kind: int | None) -> Trigger:
        """Return what ``kind`` means from this client; absent is automatic."""
        if kind == 0:
            self._invoked = 0
        return Trigger.INVOKED if kind == self._invoked else Trigger.AUTOMATIC


def read_changes(params: Field) -> list[Change]:
    """Read ``contentChanges``."""
    return [
        Change(item["text"].text(), item["range"].range() if item["range"] else None)
        for item in params["contentChanges"].items()
    ]


def read_folders(folders: Field) -> list[types.WorkspaceFolder]:
    """Read a list of workspace folders; nothing counts as none."""
    items = folders.items() if folders else []
    return [
        types.WorkspaceFolder(uri=item["uri"].text(), name=item["name"].text("")) for item in items
    ]


def read_initialize(raw: Any) -> types.InitializeParams:
    """Read what we use of ``initialize``, forgiving about all of it.

    An odd value in there must not cost the person their completions, so it counts as absent.

    Raises:
        JsonRpcInvalidParams: the params or the capabilities are no object.
    """
    params = Field(raw)
    if params["capabilities"] and not isinstance(params["capabilities"].value, dict):
        params["capabilities"]["general"]  # raises, with the usual words
    try:
        folders = read_folders(params["workspaceFolders"])
    except JsonRpcInvalidParams:
        folders = []
    process_id = params["processId"].value
    return types.InitializeParams(
        capabilities=_read_capabilities(params["capabilities"].value or {}),
        process_id=process_id if type(process_id) is int else None,
        root_uri=_string(params["rootUri"]),
        root_path=_string(params["rootPath"]),
        workspace_folders=folders,
        initialization_options=params["initializationOptions"].value,
    )


def _read_capabilities(raw: Mapping[str, Any]) -> types.ClientCapabilities:
    encodings = _dig(raw, "general", "positionEncodings")
    known = [e for e in encodings if isinstance(e, str)] if isinstance(encodings, list) else None
    return types.ClientCapabilities(
        general=types.GeneralClientCapabilities(position_encodings=known),
        window=types.WindowClientCapabilities(
            work_done_progress=_dig(raw, "window", "workDoneProgress") is True
        ),
        workspace=types.WorkspaceClientCapabilities(
            configuration=_dig(raw, "workspace", "configuration") is True,
            did_change_configuration=types.DidChangeConfigurationClientCapabilities(
                dynamic_registration=_dig(
                    raw, "workspace", "didChangeConfiguration", "dynamicRegistration"
                )
                is True
            ),
        ),
    )


def _dig(value: Any, *keys: str) -> Any:
    """Return what lies below ``keys``, None where the way ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _string(field: Field) -> str | None:
    return field.value if isinstance(field.value, str) else None
