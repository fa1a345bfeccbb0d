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
        budget: Tokens at most; a single line that is longer is cut inside.
        tokenize: The model's tokeniser.
        from_start: ``before`` begins at the file's start.
    """
    near = before[-budget * CHARS_PER_TOKEN :] if budget > 0 else ""
    lines = _lines(near)
    kept = _fitting(reversed(lines), budget, tokenize)
    text = near[len(near) - kept :]
    if not text and near:
        text = near[-budget:]
    tokens = tokenize(text.encode("utf-8", "replace"))
    while len(tokens) > budget:
        text = text[max(1, len(text) // 8) :]
        tokens = tokenize(text.encode("utf-8", "replace"))
    return Cut(text, tuple(tokens), from_start and len(text) == len(before))


def cut_suffix(after: str, budget: int, tokenize: Tokenize, *, to_end: bool) -> Cut:
    """Keep the first lines of ``after`` that fit ``budget`` tokens; see :func:`cut_prefix`."""
    near = after[: budget * CHARS_PER_TOKEN] if budget > 0 else ""
    lines = _lines(near)
    text = near[: _fitting(lines, budget, tokenize)]
    if not text and near:
        text = near[:budget]
    tokens = tokenize(text.encode("utf-8", "replace"))
    while len(tokens) > budget:
        text = text[: -max(1, len(text) // 8)]
        tokens = tokenize(text.encode("utf-8", "replace"))
    return Cut(text, tuple(tokens), to_end and len(text) == len(after))


def _fitting(lines: Iterable[str], budget: int, tokenize: Tokenize) -> int:
    """Return the characters of the leading ``lines`` that fit ``budget`` tokens."""
    used = characters = 0
    for line in lines:
        used += len(tokenize(line.encode("utf-8", "replace")))
        if used > budget:
            break
        characters += len(line)
    return characters


def _lines(text: str) -> list[str]:
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
