"""The open documents, as the client has them.

Lives on the event loop's thread. A :class:`Document` is a value: who holds one across an ``await``
still has the text, lines and columns that it had before, whatever was typed since. This module must
not know tokens, prompts or LSP types; columns are the business of :mod:`fimlsp.lsp.positions`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from fimlsp.document import Snapshot, dominant_eol
from fimlsp.errors import UnknownDocumentError
from fimlsp.lsp.positions import (
    Encoding,
    IndexedText,
    Position,
    Range,
    without_lone_surrogates,
)

log = logging.getLogger(__name__)

# RFC 3986, appendix B, without query and fragment. Unlike urlsplit it takes every string. A scheme
# has two characters at least, so that a Windows path sent as it is keeps its drive.
_URI = re.compile(r"(?:[^:/?#]{2,}:)?(?://(?P<host>[^/?#]*))?(?P<path>[^?#]*)")
_DRIVE = re.compile(r"/?([A-Za-z]:)(?=[/\\]|$)")


class Change(NamedTuple):
    """One entry of ``contentChanges``. The deprecated ``rangeLength`` has no place here."""

    text: str
    range: Range | None = None
    """What ``text`` replaces, in the text that the changes before it left; None for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """One open document at one version."""

    uri: str
    version: int
    language_id: str
    content: IndexedText

    @property
    def text(self) -> str:
        """The whole text with its own line ends, free of lone surrogates."""
        return self.content.text


class DocumentStore:
    """What is open, and in which folders.

    ``encoding`` is the negotiated unit of columns; set it before the first document is opened.
    """

    def __init__(self, encoding: Encoding = Encoding.UTF16) -> None:
        self.encoding = encoding
        self._documents: dict[str, Document] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._not_newer: set[str] = set()

    def open(self, uri: str, language_id: str, version: int, text: str) -> Document:
        """Open a document; one that is already open is replaced."""
        self._not_newer.discard(uri)
        return self._put(uri, version, language_id, IndexedText(text))

    def change(self, uri: str, version: int, changes: Iterable[Change]) -> Document:
        """Apply ``changes`` one after the other.

        A range whose end lies before its start is taken the other way round.

        Raises:
            UnknownDocumentError: The document is not open.
        """
        document = self.get(uri)
        self._check_newer(document, version)
        content = document.content
        for text, span in changes:
            if span is None:
                content = IndexedText(text)
            else:
                start, end = (content.offset_at(place, self.encoding) for place in span)
                content = content.replaced(start, end, text)
        return self._put(uri, version, document.language_id, content)

    def close(self, uri: str) -> None:
        """Forget a document.

        Raises:
            UnknownDocumentError: The document is not open.
        """
        self.get(uri)
        del self._documents[uri]
        self._not_newer.discard(uri)

    def get(self, uri: str) -> Document:
        """Return an open document as it is now.

        Raises:
            UnknownDocumentError: The document is not open.
        """
        try:
            return self._documents[uri]
        except KeyError:
            raise UnknownDocumentError(
                f"{uri!r} is not among the {len(self._documents)} open documents; "
                "the client has to send textDocument/didOpen for it first"
            ) from None

    def snapshot(self, uri: str, line: int, character: int) -> Snapshot:
        """Return the document as it is now, with the cursor at a client position, clamped.

        Raises:
            UnknownDocumentError: The document is not open.
        """
        document = self.get(uri)
        text = document.text
        return Snapshot(
            uri=uri,
            version=document.version,
            language_id=document.language_id,
            path=self._path_of(uri),
            text=text,
            cursor=document.content.offset_at(Position(line, character), self.encoding),
            eol=dominant_eol(text),
        )

    def is_current(self, snapshot: Snapshot) -> bool:
        """Return whether the document is open and is still what it was at ``snapshot``.

        The text is compared too: not every client raises the version with each change.
        """
        document = self._documents.get(snapshot.uri)
        return (
            document is not None
            and document.version == snapshot.version
            and document.text == snapshot.text
        )

    def range_of(self, snapshot: Snapshot, start: int, end: int) -> Range:
        """Return the client's range between two offsets of ``snapshot``, whatever came since."""
        document = self._documents.get(snapshot.uri)
        if document is not None and document.text is snapshot.text:
            content = document.content
        else:
            content = IndexedText(snapshot.text)
        return content.range_of(start, end, self.encoding)

    def add_folder(self, uri: str) -> None:
        """Add a workspace folder."""
        self._folders[uri] = _path_parts(uri)

    def remove_folder(self, uri: str) -> None:
        """Remove a workspace folder; one that was never added is no matter."""
        self._folders.pop(uri, None)

    def _put(self, uri: str, version: int, language_id: str, content: IndexedText) -> Document:
        document = Document(uri=uri, version=version, language_id=language_id, content=content)
        self._documents[uri] = document
        return document

    def _check_newer(self, document: Document, version: int) -> None:
        """Warn, once per opening, of a version that does not rise.

        The change is applied and the client's number kept all the same. Messages arrive in the
        order in which they were sent, so the text is right; what is wrong is the numbering, of a
        client that counts anew after a reload or sends 0 always. A change left out would put every
        later one in the wrong place.
        """
        if version > document.version or document.uri in self._not_newer:
            return
        self._not_newer.add(document.uri)
        log.warning(
            "didChange of %s brought version %d after %d, expected a higher one; it was applied",
            document.uri,
            version,
            document.version,
        )

    def _path_of(self, uri: str) -> str:
        """Return the path below the nearest workspace folder, else the bare file name."""
        parts = _path_parts(uri)
        depth = max(
            (
                len(folder)
                for folder in self._folders.values()
                if len(folder) < len(parts) and parts[: len(folder)] == folder
            ),
            default=len(parts) - 1,
        )
        return "/".join(parts[max(0, depth) :])


def _path_parts(uri: str) -> tuple[str, ...]:
    """Return host and path of ``uri`` as parts to compare, whatever the scheme.

    Whatever the scheme, since a notebook's cells (``vscode-notebook-cell:``), old revisions
    (``git:``) and files not yet saved (``untitled:``) lie in the folder that their path names.
    """
    found = _URI.match(uri)
    assert found is not None, "every part of the pattern is optional"
    host = found["host"] or ""
    path = without_lone_surrogates(unquote(found["path"]))
    drive = _DRIVE.match(path)
    if drive:
        # VS Code writes c%3A, others C:. Elsewhere a backslash is a character like any other.
        path = drive[1].lower() + path[drive.end() :].replace("\\", "/")
    parts = tuple(part for part in path.split("/") if part)
    return (f"//{host}", *parts) if host not in ("", "localhost") else parts
