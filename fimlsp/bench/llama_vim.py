"""What the llama.vim plugin sends and shows, as functions without an editor.

The peer of the benchmarks is llama-server as this plugin uses it. Its window, request body, hint
cache and clean-up are rebuilt here from its behaviour; nothing here does I/O. Three things are left
out, each to the peer's advantage: the second request that follows every shown hint (it would keep
the server busy while the next key comes), the rules that discard a hint, and the veto on lines with
text right of the cursor.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from fimlsp.document import to_lf

_PREFIX_LINES: Final = 256
_SUFFIX_LINES: Final = 64
_CACHE_KEYS: Final = 250
_LOOK_BACK: Final = 128
"""How far back a hint is looked for that the person may be typing."""
_SCROLL_LINES: Final = 3
"""An answer is also kept under the windows that start this many lines lower."""
_LEADING_BLANKS: Final = re.compile(r"[ \t]*")
_RESPONSE_FIELDS: Final = [
    "content",
    *(
        f"timings/{part}_{unit}"
        for part in ("prompt", "predicted")
        for unit in ("n", "ms", "per_token_ms", "per_second")
    ),
    "truncated",
    "tokens_cached",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The text around the cursor as the plugin cuts it, with line feeds for line ends."""

    prefix: str
    """The lines above the cursor's."""
    middle: str
    """The cursor's line left of the cursor."""
    suffix: str
    """The rest of the cursor's line and the lines below."""
    indent: int
    """Leading blanks of the cursor's line, each counted as one."""


def context(text: str, cursor: int) -> Context:
    """Cut the window around ``cursor``, a code-point offset in ``text``."""
    left = to_lf(text[:cursor]).split("\n")
    right = to_lf(text[cursor:]).split("\n")
    if len(right) > 1 and not right[-1]:
        right.pop()  # to Vim a final line end closes the last line and opens none
    line_left, line_right = left.pop(), right.pop(0)
    indent = len(_blanks(line_left))
    if not (line_left + line_right).strip(" \t"):
        line_left, line_right, indent = "", "", 0
    return Context(
        prefix="\n".join(left[-_PREFIX_LINES:]) + "\n",
        middle=line_left,
        suffix=line_right + "\n" + "\n".join(right[:_SUFFIX_LINES]) + "\n",
        indent=indent,
    )


def line_at(text: str, cursor: int) -> str:
    """Return the cursor's whole line without its line end."""
    left, right = to_lf(text[:cursor]), to_lf(text[cursor:])
    return left.rpartition("\n")[2] + right.partition("\n")[0]


def request_body(place: Context) -> dict[str, Any]:
    """Return the JSON that is posted to ``/infill``, with an empty ring of extra context."""
    return {
        "id_slot": 0,
        "input_prefix": place.prefix,
        "input_suffix": place.suffix,
        "input_extra": [],
        "prompt": place.middle,
        "n_predict": 128,
        "stop": [],
        "n_indent": place.indent,
        "top_k": 40,
        "top_p": 0.90,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": False,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 250,
        "response_fields": _RESPONSE_FIELDS,
    }


def rendered(content: str, line: str) -> str:
    """Return what is shown of an answer; ``""`` is nothing.

    Empty lines at the end go. ``line`` is the cursor's whole line: where it is blank, the answer
    starts at its first column, and the blanks that are there already are not inserted again.
    """
    lines = content.split("\n")
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        return ""
    if not line.strip(" \t"):
        lines[0] = lines[0][min(len(_blanks(lines[0])), len(line)) :]
    shown = "\n".join(lines)
    return shown if shown.strip() else ""


class HintCache:
    """The plugin's memory of answers: the least recently used key goes first."""

    def __init__(self) -> None:
        self._contents: OrderedDict[bytes, str] = OrderedDict()

    def insert(self, place: Context, content: str) -> None:
        """Keep an answer, also for windows that start a few lines lower."""
        prefix = place.prefix
        for _ in range(1 + _SCROLL_LINES):
            self._contents[_key(prefix + place.middle, place.suffix)] = content
            _, line_end, prefix = prefix.partition("\n")
            if not line_end:
                break
        while len(self._contents) > _CACHE_KEYS:
            self._contents.popitem(last=False)

    def holds(self, place: Context) -> bool:
        """Tell whether an answer for exactly this place is kept."""
        return _key(place.prefix + place.middle, place.suffix) in self._contents

    def find(self, place: Context) -> str:
        """Return the answer for this place, or the rest of one that is being typed, else ``""``."""
        left = place.prefix + place.middle
        for typed in range(min(_LOOK_BACK, len(left)) + 1):
            key = _key(left[: len(left) - typed], place.suffix)
            content = self._contents.get(key, "")
            if len(content) > typed and content.startswith(left[len(left) - typed :]):
                self._contents.move_to_end(key)
                return content[typed:]
        return ""


def _key(left: str, suffix: str) -> bytes:
    return hashlib.sha256(f"{left}\0{suffix}".encode("utf-8", "surrogatepass")).digest()


def _blanks(line: str) -> str:
    match = _LEADING_BLANKS.match(line)
    assert match is not None, "the pattern fits the empty text too"
    return match.group()
