"""Finds the place in a file that looks most like the cursor's surroundings.

A cold window of a few dozen tokens can't reach the sibling method whose line is about to be written
again. Two lines from there say more than two more lines of what stands near: code repeats its own
patterns. Text only; a file is looked at as far as :data:`REACH`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

REACH = 24_000
"""Characters looked at on each side; a few milliseconds."""
THRESHOLD = 0.9
"""Score below which nothing is similar enough; two equal lines before give 3."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    words: frozenset[str]
    indent: int


def similar_place(before: str, after: str, near_lines: int, indent: int | None) -> list[str]:
    """Return up to three lines around the most similar place, with line ends; [] without one.

    The first is the line that resembles the one above the cursor, the second is what stood there
    where the cursor stands here.

    Args:
        before: Text up to the start of the cursor's line.
        after: Text from the cursor on.
        near_lines: Lines with content next to the cursor that are in the window anyway.
        indent: Characters of indentation at the cursor, None where the line is still empty.
    """
    above = _lines(before[-REACH:])
    below = _lines(after.partition("\n")[2][:REACH])
    if not above:
        return []
    here = _Surroundings(above[-1], above[-2] if len(above) > 1 else None, below[:1], indent)
    places = [(above, n) for n in range(1, len(above) - near_lines)]
    places += [(below, n) for n in range(max(1, near_lines // 2), len(below))]
    best, best_score = None, THRESHOLD
    for lines, n in places:
        score = here.score(lines, n)
        if score >= best_score:  # the later of equals is nearer to the cursor, above it
            best, best_score = (lines, n), score
    if best is None:
        return []
    lines, n = best
    return [line.text + "\n" for line in lines[n - 1 : n + 2]]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The lines with content around the cursor."""

    last: _Line
    last_but_one: _Line | None
    following: list[_Line]
    indent: int | None

    def score(self, lines: list[_Line], n: int) -> float:
        """Rate how much the surroundings of ``lines[n]`` are like the cursor's."""
        score = 2 * _overlap(self.last, lines[n - 1])
        if score == 0:
            return 0.0
        if self.last_but_one is not None and n > 1:
            score += _overlap(self.last_but_one, lines[n - 2])
        if self.following and n + 1 < len(lines):
            score += _overlap(self.following[0], lines[n + 1])
        if self.indent is not None and self.indent == lines[n].indent:
            score += 0.3
        return score


def _overlap(a: _Line, b: _Line) -> float:
    """Return the Jaccard index of the words of two lines, 1 for equal lines without words."""
    if not a.words or not b.words:
        return 0.25 if a.text == b.text else 0.0
    shared = len(a.words & b.words)
    return shared / (len(a.words) + len(b.words) - shared)


def _lines(text: str) -> list[_Line]:
    """Return the lines that are not blank."""
    return [
        _Line(line, frozenset(_WORD.findall(line)), len(line) - len(line.lstrip()))
        for line in text.split("\n")
        if line.strip()
    ]
