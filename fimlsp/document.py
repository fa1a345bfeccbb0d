"""Values that cross the LSP seam: what the person sees, and what is offered to them.

Offsets are code points (Python string indices), 0-based. Nothing here knows UTF-16, JSON or tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

LINE_END = re.compile(r"\r\n|\r|\n")
"""The three line ends of LSP. Form feed, U+2028 and the like are ordinary characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A document at one moment, with a cursor.

    Taken before the first ``await`` of a request, so that later edits can't move the ground.
    """

    uri: str
    version: int
    """The client's version number; 0 for a file read from disk."""
    language_id: str
    """LSP language id, ``""`` when unknown."""
    path: str
    """Path shown to the model: relative to the workspace with ``/``, or a bare file name."""
    text: str
    """The whole document with its own line ends."""
    cursor: int
    """Offset of the cursor in ``text``; never between CR and LF."""
    eol: str = "\n"
    """The document's dominant line end; LF where it has none."""

    def before(self, limit: int) -> str:
        """Return at most ``limit`` code points left of the cursor, line ends as LF."""
        return to_lf(self.text[max(0, self.cursor - limit) : self.cursor])

    def after(self, limit: int) -> str:
        """Return at most ``limit`` code points right of the cursor, line ends as LF."""
        return to_lf(self.text[self.cursor : self.cursor + limit])

    def rest_of_line(self) -> str:
        """Return the text right of the cursor up to (not including) the line's end."""
        end = LINE_END.search(self.text, self.cursor)
        return self.text[self.cursor : end.start() if end else len(self.text)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of one answer went. Counts are tokens, times are milliseconds."""

    prompt_tokens: int = 0
    """Prompt tokens evaluated for this answer."""
    reused_tokens: int = 0
    """Prompt tokens that were still warm."""
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    tokens: int = 0
    """Tokens generated."""
    decode_ms: float = 0.0
    drafted: int = 0
    accepted: int = 0
    draft_source: str = ""
    drafts: tuple[tuple[str, int, int], ...] = ()
    """For each draft that was verified: source, tokens offered, tokens right."""
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One suggestion: put ``text`` in place of ``replace_after`` characters right of the cursor."""

    text: str
    """What to insert at the cursor, line ends as LF; never empty."""
    replace_after: int = 0
    """Code points right of the cursor, on the same line, that ``text`` contains and replaces."""
    timings: Timings = field(default_factory=Timings)


class Reason(StrEnum):
    """Why there is no suggestion. Shown in the status and the log, never as an error popup."""

    LOADING = "loading"
    NO_MODEL = "no_model"
    DISABLED = "disabled"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    STALE = "stale"
    EMPTY = "empty"
    REPEATS_SUFFIX = "repeats_suffix"
    OVER_BUDGET = "over_budget"
    UNKNOWN_DOCUMENT = "unknown_document"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCompletion:
    """The typed answer "nothing", with its reason and a sentence for the person."""

    reason: Reason
    detail: str = ""
    timings: Timings = field(default_factory=Timings)


def to_lf(text: str) -> str:
    """Return ``text`` with CR LF and lone CR as LF."""
    if "\r" not in text:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n")


def dominant_eol(text: str, sample: int = 1 << 16) -> str:
    """Return the most frequent line end in the first ``sample`` code points, else LF."""
    head = text[:sample]
    crlf = head.count("\r\n")
    lone_cr = head.count("\r") - crlf
    lone_lf = head.count("\n") - crlf
    best = max(crlf, lone_cr, lone_lf)
    if best == 0 or best == lone_lf:
        return "\n"
    return "\r\n" if best == crlf else "\r"
