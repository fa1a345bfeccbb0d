"""Cuts the text around the cursor to a number of tokens, in whole lines.

Text in, text and token ids out. Nothing here knows prompts, documents or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Tokenize = Callable[[bytes], list[int]]

CHARS_PER_TOKEN = 8
"""Characters looked at per token of budget; code has about three to four per token."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One side of the window."""

    text: str
    tokens: tuple[int, ...]
    whole: bool
    """Nothing was left out: the text reaches the file's start or end."""


def cut_prefix(before: str, budget: int, tokenize: Tokenize, *, from_start: bool) -> Cut:
    """Keep the last lines of ``before`` that fit ``budget`` tokens.

    Args:
        before: Text left of the anchor.
        budget: Tokens at most. Where no line with content fits, the nearest is cut inside.
        tokenize: The model's tokeniser.
        from_start: ``before`` begins at the file's start, not somewhere inside a line.
    """
    near = before[-budget * CHARS_PER_TOKEN :] if budget > 0 else ""
    lines = _lines(near)
    if len(near) < len(before) or not from_start:
        del lines[:1]
    text = near[len(near) - _fitting(reversed(lines), budget, tokenize) :]
    if not text.strip() and near.strip():
        text = near[-budget:]
    tokens = _encode(text, tokenize)
    while text and len(tokens) > budget:
        text = _without_first(text)
        tokens = _encode(text, tokenize)
    return Cut(text, tokens, from_start and len(text) == len(before))


def cut_suffix(after: str, budget: int, tokenize: Tokenize, *, to_end: bool) -> Cut:
    """Keep the first lines of ``after`` that fit ``budget`` tokens; see :func:`cut_prefix`."""
    near = after[: budget * CHARS_PER_TOKEN] if budget > 0 else ""
    lines = _lines(near)
    if len(near) < len(after) or not to_end:
        del lines[-1:]
    text = near[: _fitting(lines, budget, tokenize)]
    if not text.strip() and near.strip():
        text = near[:budget]
    tokens = _encode(text, tokenize)
    while text and len(tokens) > budget:
        text = _without_last(text)
        tokens = _encode(text, tokenize)
    return Cut(text, tokens, to_end and len(text) == len(after))


def _fitting(lines: Iterable[str], budget: int, tokenize: Tokenize) -> int:
    """Return the characters of the leading ``lines`` that fit ``budget`` tokens."""
    used = characters = 0
    for line in lines:
        used += len(_encode(line, tokenize))
        if used > budget:
            break
        characters += len(line)
    return characters


def _without_first(text: str) -> str:
    """Drop the first line, or a part of it where nothing else has content."""
    others = text[text.find("\n") + 1 :]
    return others if others.strip() and others != text else text[max(1, len(text) // 8) :]


def _without_last(text: str) -> str:
    """Drop the last line, or a part of it where nothing else has content."""
    others = text[: text.rfind("\n", 0, -1) + 1]
    return others if others.strip() else text[: -max(1, len(text) // 8)]


def _encode(text: str, tokenize: Tokenize) -> tuple[int, ...]:
    return tuple(tokenize(text.encode("utf-8", "replace")))


def _lines(text: str) -> list[str]:
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
