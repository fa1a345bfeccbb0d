"""When a suggestion is long enough, decided on its text while it grows.

Pure rules on text: no tokens, no positions, no clock. What is *wrong* with a finished suggestion is
the business of :mod:`fimlsp.completion.trim`.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from fimlsp.document import to_lf

_OPENERS = "([{"
_CLOSERS = ")]}"
_OPENING_ENDS = (":", "{", "(", "[", "=>", "->", "\\")
_OPENING_WORD = re.compile(
    r"(?:^|\s)(?:do|then|else|begin|of|where|repeat|loop|try)(?:\s*\|[^|]*\|)?$"
)
"""A word at the line's end that opens a block; ``do |x|`` is Ruby's."""
_CLOSING_WORDS = frozenset({"end", "done", "fi", "esac", "endif"})
_CHAIN_WORDS = frozenset(
    {"else", "elif", "elsif", "elseif", "except", "finally", "catch", "rescue", "ensure"}
)
"""First words of a line that goes on with the construct whose block has just ended."""
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_COMMENT = re.compile(r"\s(?:#|//).*$")
_WORD = re.compile(r"\w+")
_EMPTY_WORDS = frozenset(
    {
        "else",
        "pass",
        "break",
        "continue",
        "return",
        "done",
        "endif",
        "true",
        "false",
        "None",
        "null",
    }
)
_MAX_BLANK_LINES = 2
_NEXT_LINES = 3


class Shape(Enum):
    """How far a suggestion may reach."""

    LINE = "one line"
    BLOCK = "the rest of the line, and the block that it opens, if it opens one"
    FREE = "lines up to a sensible point"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Says when the text right of the cursor has reached its end.

    Called with a growing text it answers False, ..., False, True; what it keeps of the text at
    True does not change however much more was generated.
    """

    line: str
    """The cursor's line left of the cursor."""
    shape: Shape
    may_break: bool
    """Whether the text may begin with a line end, as after ``for x in y:`` or on a blank line."""
    max_lines: int
    next_lines: tuple[str, ...]
    """The first lines with content below the cursor's line, without trailing whitespace."""

    def __call__(self, data: bytes) -> bool:
        """Tell whether generation can stop.

        Args:
            data: Everything generated right of the cursor; may end inside a UTF-8 sequence.
        """
        text, valid = decode(data)
        return not valid or _end(self, text) is not None

    def keep(self, data: bytes, *, ended: bool = True) -> str:
        """Return the part of a finished generation that belongs to the suggestion.

        Args:
            data: As for the call.
            ended: The model or this rule ended the text. False: tokens or time ran out inside the
                last line, which is then dropped where an earlier line has content.
        """
        text, _ = decode(data)
        end = _end(self, text)
        if end is None:
            whole, line_end, _ = text.rpartition("\n")
            if not ended and line_end and whole.strip():
                text = whole
            end = _end(self, text + "\n")
        return text[:end]


def stop_rule(*, before: str, after: str, multiline: str, max_lines: int) -> StopRule:
    """Make the rule for one cursor.

    Args:
        before: Text left of the cursor, line ends as LF.
        after: Text right of the cursor, line ends as LF.
        multiline: ``auto``, ``never`` or ``always``, as in ``CompletionParams``.
        max_lines: Lines at most; blank ones at the start are not counted.
    """
    line = before.rpartition("\n")[2]
    rest, _, below = after.partition("\n")
    inside = bool(rest.strip())
    if multiline == "always":
        shape = Shape.FREE
    elif multiline == "never" or inside:
        shape = Shape.LINE
    else:
        shape = Shape.BLOCK if line.strip() else Shape.FREE
    return StopRule(
        line=line,
        shape=shape,
        may_break=shape is Shape.FREE or (not inside and (not line.strip() or opens_block(line))),
        max_lines=max(1, max_lines),
        next_lines=content_lines(below)[:_NEXT_LINES],
    )


def decode(data: bytes) -> tuple[str, bool]:
    """Return the text of ``data`` up to a cut or invalid sequence, line ends as LF.

    The flag is False where the bytes can't become valid UTF-8 whatever follows. U+FFFD is never
    made up.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return to_lf(decoder.decode(data)), True
    except UnicodeDecodeError as exc:
        return to_lf(data[: exc.start].decode()), False


def content_lines(text: str) -> tuple[str, ...]:
    """Return the lines that are not blank, without trailing whitespace."""
    return tuple(line.rstrip() for line in text.split("\n") if line.strip())


def is_trivial(line: str) -> bool:
    """Tell whether a line says so little (``}``, ``else:``) that equality proves no repetition."""
    words = _WORD.findall(line)
    return not words or (len(words) == 1 and (len(words[0]) <= 3 or words[0] in _EMPTY_WORDS))


def bracket_depth(line: str) -> int:
    """Return opening minus closing brackets, outside of quotes and comments of one line."""
    code = without_quotes(line)
    return sum(code.count(c) for c in _OPENERS) - sum(code.count(c) for c in _CLOSERS)


def opens_block(line: str) -> bool:
    """Tell whether a line asks for more lines: ``if x:``, ``foo(a,``, ``while true do``."""
    bare = without_quotes(line)
    # Python's floor division looks like a comment: the raw line may end in a colon too.
    ends = bare.endswith(_OPENING_ENDS) or line.rstrip().endswith(":")
    return ends or _OPENING_WORD.search(bare) is not None or bracket_depth(line) > 0


@lru_cache(maxsize=256)  # a growing text brings the same lines after every token
def without_quotes(line: str) -> str:
    """Return a line with empty quotes and without the comment at its end."""
    return _COMMENT.sub("", _QUOTED.sub('""', line)).rstrip()


def _indent(line: str) -> int:
    """Return the indentation in columns; a tab goes to the next multiple of four."""
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))


def _end(rule: StopRule, text: str) -> int | None:
    """Return the offset in ``text`` where the suggestion ends, None while it may go on."""
    first, *others = text.split("\n")
    if not others:
        return None
    walk = _Walk(rule, end=len(first))
    end = walk.first(first)
    offset = len(first) + 1
    for number, line in enumerate(others, 1):
        if end is not None:
            break
        end = walk.following(line, offset, complete=number < len(others))
        offset += len(line) + 1
    return end


@dataclass(slots=True)
class _Walk:
    """One pass over the lines of a suggestion. Each step returns the end, once it is known."""

    rule: StopRule
    end: int
    """Offset of the end of the last line that is kept."""
    base: int = 0
    """Indentation of the line with the cursor."""
    block: bool = False
    """That line opened a block, and only the block is wanted."""
    floor: int = 0
    """Lines indented less than this leave the suggestion, closing lines of a block excepted."""
    depth: int = 0
    """Brackets opened since the start of the cursor's line and not closed."""
    opened: bool = False
    """The last line with content opens a block."""
    rows: int = 0
    blanks: int = 0
    matched: list[str] = field(default_factory=list)
    """The last lines, as far as they are the lines below the cursor."""
    match_start: int | None = None
    """Offset of the end of the kept line before them, None where there is none."""

    def first(self, text: str) -> int | None:
        """Take the rest of the cursor's line, which a line end has completed."""
        rule = self.rule
        line = rule.line + text
        self.rows = 1 if text.strip() else 0
        self.opened = opens_block(line)
        self.depth = bracket_depth(line)
        self.base = _indent(line if line.strip() else rule.line)
        self.block = self.opened and rule.shape is not Shape.FREE
        self.floor = self.base + 1 if self.block else self.base
        over = {
            Shape.LINE: self.rows > 0 or not rule.may_break,
            Shape.BLOCK: not self.opened,
            Shape.FREE: False,
        }[rule.shape]
        repeats = self.rows > 0 and self._repeats(line, None)
        return self.end if over or repeats or self.rows >= rule.max_lines else None

    def following(self, line: str, offset: int, *, complete: bool) -> int | None:
        """Take a line below the cursor's; ``offset`` is where it starts in the text."""
        if not line.strip():
            return self._blank() if complete else None
        stays = self._stays(line, complete=complete)
        if stays is False:
            return self.end
        if stays is None or not complete:
            return None
        return self._take(line, offset)

    def _blank(self) -> int | None:
        self.blanks += 1
        leading = self.rows == 0 or self.opened
        if not leading or self.blanks > _MAX_BLANK_LINES:
            return self.end
        return None

    def _stays(self, line: str, *, complete: bool) -> bool | None:
        """Tell whether a line belongs to the suggestion; None while too little of it is there."""
        width, code = _indent(line), line.strip()
        if width >= self.floor:
            closes_older = code[0] in _CLOSERS and self.depth <= 0 and self.rows > 0
            return not (closes_older and not self.block and width == self.floor)
        if not self.block or width < self.base:
            return False
        word = _first_word(code)
        if not complete and code == "-":
            return None
        if not complete and word == code:
            words = _CLOSING_WORDS | _CHAIN_WORDS
            known = bool(word) and not any(w.startswith(word) for w in words)
            return False if known else None
        if code[0] in _CLOSERS:
            return self.depth > 0
        # YAML and Markdown put the items of a list at the indentation of the line above it.
        return word in _CLOSING_WORDS or word in _CHAIN_WORDS or code.startswith("- ")

    def _take(self, line: str, offset: int) -> int | None:
        width, code = _indent(line), line.strip()
        previous = self.end if self.rows else None
        if not self.block and self.rows == 0:
            self.floor = max(self.floor, width)
        self.end = offset + len(line)
        self.rows += 1 + (self.blanks if self.rows else 0)
        self.blanks = 0
        self.depth += bracket_depth(line)
        self.opened = opens_block(line)
        if self._repeats(line, previous):
            return self.end if self.match_start is None else self.match_start
        closes = code[0] in _CLOSERS or _first_word(code) in _CLOSING_WORDS
        block_over = width < self.floor and closes and not self.opened and self.depth <= 0
        full = self.rule.shape is Shape.LINE or self.rows >= self.rule.max_lines
        return self.end if block_over or full else None

    def _repeats(self, line: str, previous: int | None) -> bool:
        """Tell whether the last lines are the lines below the cursor, one of them telling."""
        expected, line = self.rule.next_lines, line.rstrip()
        if not (len(self.matched) < len(expected) and line == expected[len(self.matched)]):
            self.matched = []
        if not self.matched:
            self.match_start = previous
        if len(self.matched) < len(expected) and line == expected[len(self.matched)]:
            self.matched.append(line)
        return any(not is_trivial(matched) for matched in self.matched)


def _first_word(code: str) -> str:
    found = _WORD.match(code)
    return found.group() if found else ""
