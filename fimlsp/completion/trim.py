"""What to cut from a finished suggestion before a person sees it.

Pure rules on text. They only ever remove from what the model wrote; text right of the cursor is
either left alone or replaced by a suggestion that contains it, so nothing of it can be lost.

What is cut here does not have to agree with the tokens that the model has in its cache: the next
prompt is built from the document, and an accepted suggestion is part of it as it was shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from fimlsp.completion.stop import bracket_depth, content_lines, is_trivial, without_quotes
from fimlsp.document import Reason, to_lf

_UNMISTAKABLE = re.compile(r"[|｜▁]|fim|\[[A-Z]+\]|repo_name|file_sep")
"""Spellings that ordinary code does not hold; ``<filename>`` and ``</s>`` it does."""
_COMMENTS = ("#", "//", "/*", "*/", "--", "<!--", ";", "%")
_SENTENCE_ENDS = ".:?!#*"
_PAIRS = {")": "(", "]": "[", "}": "{"}
_QUOTE = re.compile(r"\"\"\"|'''|[\"'`]")
_QUOTES = ('"""', "'''", '"', "'", "`")
_LINE_REPEATS = 3
_MAX_LOOP_LINES = 4
_MIN_PHRASE = 3
_LONG_PHRASE = 10
_MAX_PHRASE = 120
_MAX_REST = 200
_MAX_BEFORE = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """A suggestion that is worth showing; see :class:`fimlsp.document.Completion`."""

    text: str
    replace_after: int = 0


def trim(text: str, *, before: str, after: str, spellings: Sequence[str] = ()) -> Trimmed | Reason:
    """Return what is left of ``text``, or why nothing is.

    Args:
        text: What the model wrote right of the cursor.
        before: Text left of the cursor, line ends as LF; its last line is what matters.
        after: Text right of the cursor, line ends as LF: the rest of the line and some below.
        spellings: Control tokens of the model, as text.
    """
    line = before.rpartition("\n")[2]
    rest, _, below = after.partition("\n")
    text = to_lf(text.encode("utf-8", "ignore").decode()).rstrip("\ufffd")
    text = _cut_control_text(text, before + after, spellings)
    text = _cut_loops(text, line)
    text = _cut_doubled_space(text, line)
    text = _cut_end(text, rest)
    if not text.strip():
        return Reason.EMPTY
    text = _cut_end(_cut_lines_below(text, line, rest, below), rest)
    if not text.strip():
        return Reason.REPEATS_SUFFIX
    return _join_rest(text, before, rest)


def _cut_control_text(text: str, document: str, spellings: Sequence[str]) -> str:
    """Cut at the first control token that was written out as text.

    Not where the document spells it too: then somebody works on such a program.
    """
    for spelling in spellings:
        # SentencePiece writes a space at a token's start as U+2581.
        written = " " + spelling[1:] if spelling.startswith("▁") else spelling
        if _UNMISTAKABLE.search(spelling) and written not in document:
            text = text.partition(written)[0]
    return text


def _cut_loops(text: str, line: str) -> str:
    """Keep the first round of lines, or of a phrase in the last line, that the text ends in."""
    lines = text.rstrip(" \t\n").split("\n")
    keep = _loop_of_lines([line + lines[0], *lines[1:]])
    if keep is not None:
        return "\n".join(lines[:keep])
    cut = _loop_of_phrases(lines[-1])
    if cut is not None:
        return "\n".join([*lines[:-1], lines[-1][:cut]])
    return text


def _loop_of_lines(lines: Sequence[str]) -> int | None:
    """Return how many lines to keep where the last ones are the same at least three times."""
    for period in range(1, min(_MAX_LOOP_LINES, len(lines) // _LINE_REPEATS) + 1):
        # The last line may be cut off in the middle.
        whole = lines if lines[-1] == lines[-1 - period] else lines[:-1]
        partial = len(whole) < len(lines) and lines[-1 - period].startswith(lines[-1])
        if len(whole) < len(lines) and not partial:
            continue
        equal = _periodic(whole, period)
        telling = any(not is_trivial(unit) for unit in whole[len(whole) - period :])
        if telling and equal >= (_LINE_REPEATS - 1) * period:
            return len(whole) - equal
    return None


def _loop_of_phrases(line: str) -> int | None:
    """Return where to cut a line that ends in a phrase said over and over."""
    for period in range(_MIN_PHRASE, min(_MAX_PHRASE, len(line) // 4) + 1):
        phrase = line[-period:]
        # Rulers, zeros and table frames repeat rightly.
        if len(set(phrase)) == 1 or not any(c.isalnum() for c in phrase):
            continue
        rounds = 4 if period >= _LONG_PHRASE else 6
        equal = _periodic(line, period)
        if equal + period >= rounds * period:
            return _whole_character(line, len(line) - equal)
    return None


def _periodic(items: Sequence[str], period: int) -> int:
    """Return how many of the last items equal the item ``period`` before them."""
    equal = 0
    while equal < len(items) - period and items[-1 - equal] == items[-1 - equal - period]:
        equal += 1
    return equal


def _whole_character(text: str, cut: int) -> int:
    """Move a cut behind accents, joiners and variation selectors that belong to what is kept."""
    while cut < len(text) and (
        unicodedata.combining(text[cut]) or text[cut] in "\u200d\ufe0e\ufe0f"
    ):
        cut += 1
    return cut


def _cut_doubled_space(text: str, line: str) -> str:
    """Drop the text's leading space where the line already ends in one after a word.

    Only for exactly one space on both sides. Indentation, alignment, two spaces in front of a
    trailing comment or after a sentence are what the model meant.
    """
    doubled = line.endswith(" ") and line[-2:].strip() and text.startswith(" ")
    meant = text[1:2].isspace() or text[1:].startswith(_COMMENTS) or line[-2:-1] in _SENTENCE_ENDS
    return text[1:] if doubled and not meant else text


def _cut_end(text: str, rest: str) -> str:
    """Drop blank lines at the end, and spaces unless text follows them on the line."""
    body = text.rstrip(" \t\n")
    return body if not rest.strip() or "\n" in text[len(body) :] else text


def _cut_lines_below(text: str, line: str, rest: str, below: str) -> str:
    """Drop the last lines where they are the document's next lines."""
    following = content_lines(below)
    lines = text.split("\n")
    whole = [line + lines[0], *lines[1:]]
    for start in range(1 if rest.strip() else 0, len(whole)):
        tail = content_lines("\n".join(whole[start:]))
        if whole[start].strip() and _same_lines(tail, following):
            return "\n".join(lines[:start])
    closes_older = bracket_depth(line) + sum(map(bracket_depth, lines)) < 0
    last = whole[-1]
    only_brackets = not last.strip(" \t)]};,")
    if len(whole) > 1 and only_brackets and closes_older and following[:1] == (last.rstrip(),):
        return "\n".join(lines[:-1])
    return text


def _same_lines(tail: Sequence[str], following: Sequence[str]) -> bool:
    """Tell whether all of ``tail`` is what follows; its last line may be cut off."""
    if not tail or len(tail) > len(following):
        return False
    *full, last = tail
    expected = following[len(full)]
    if list(following[: len(full)]) != full or not expected.startswith(last):
        return False
    if last == expected:
        full.append(last)
    return any(not is_trivial(line) for line in full)


def _join_rest(text: str, before: str, rest: str) -> Trimmed | Reason:
    """Settle what becomes of the rest of the line, which the model may have written again."""
    covered = _covered(text, before, rest) if rest.strip() else 0
    if not covered:
        return Trimmed(text=text)
    piece = rest[:covered]
    at_end = text.endswith(piece)
    if at_end and not text[: -len(piece)].strip():
        return Reason.REPEATS_SUFFIX
    if at_end and "\n" in text:
        # The same document, as an insertion that every editor can show.
        return Trimmed(text=text[: -len(piece)])
    return Trimmed(text=text, replace_after=covered)


def _covered(text: str, before: str, rest: str) -> int:
    """Return how many characters of ``rest`` the text contains and should replace.

    Equal characters alone prove little: in ``foo(|)`` the ``)`` of ``x)`` is the one that is there,
    the ``)`` of ``bar(x)`` is not. So the answer is the one that leaves brackets and quotes paired
    as in the document, and among equals the longest overlap with the text's end. What the text
    holds further left (``x) + 1``) counts only where that pairs them better.
    """
    above, _, line = before[-_MAX_BEFORE:].rpartition("\n")
    rest, first = rest[:_MAX_REST], text.partition("\n")[0]
    pending: list[str] = []
    for older in above.split("\n"):
        _pair(pending, without_quotes(older))
    _, usual_floor = _pair([*pending], line + rest)
    usual_quotes = _odd_quotes(line + rest)

    def unpaired(count: int) -> int:
        stack, result = [*pending], line + text + rest[count:]
        closers, floor = _pair(stack, result)
        odd = _odd_quotes(result)
        # A single odd quote may well be an apostrophe, or end a string of an older line.
        quotes = min(len(odd), len(odd ^ usual_quotes))
        return closers + len(stack) - floor + abs(floor - usual_floor) + quotes

    best = (True, unpaired(0), 1, 0)
    for count in range(1, len(rest) + 1):
        piece = rest[:count]
        all_of_it = not rest[count:].strip()
        words = any(c.isalnum() for c in piece)
        if text.endswith(piece) or (all_of_it and first.endswith(piece)):
            # Nobody means the same words twice in a row.
            weak = not (all_of_it and sum(c.isalnum() for c in piece) > 1)
            best = min(best, (weak, unpaired(count), 0, -count))
        elif (all_of_it and piece in first) or (not words and _in_order(piece, first)):
            best = min(best, (True, unpaired(count), 2, -count))
    return -best[3]


def _odd_quotes(text: str) -> set[str]:
    """Return the kinds of quotes that occur an odd number of times."""
    found = _QUOTE.findall(text)
    return {quote for quote in _QUOTES if found.count(quote) % 2}


def _pair(stack: list[str], text: str) -> tuple[int, int]:
    """Push and pop the brackets of ``text``.

    Returns:
        How many closing brackets had no partner, and how much of the stack was never popped.
    """
    alone, floor = 0, len(stack)
    for char in text:
        if char in _PAIRS.values():
            stack.append(char)
        elif char in _PAIRS:
            if stack and stack[-1] == _PAIRS[char]:
                stack.pop()
                floor = min(floor, len(stack))
            else:
                alone += 1
    return alone, floor


def _in_order(piece: str, text: str) -> bool:
    """Tell whether the characters of ``piece`` occur in ``text`` in this order."""
    characters = iter(text)
    return all(char in characters for char in piece)
