"""How answers are judged: one rule for every side of a benchmark.

It knows documents and edits; it must not know who gave an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fimlsp.bench.traces import Trace
from fimlsp.document import LINE_END


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A suggestion: put ``text`` in place of ``document[start:end]`` (code points)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one key brought."""

    ms: float
    """From the key to the answer; infinite if the next key came first."""
    edit: Edit | None = None
    """What is shown; None is nothing."""
    prompt_tokens: int | None = None
    """Prompt tokens evaluated for it; None where that is not known."""
    without_model: bool = False
    """The text was known already: the model did not have to run for it to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An answer at one state of a trace, judged."""

    trace: str
    stroke: int
    """0 is the state right after the document was opened."""
    answer: Answer
    exact: bool | None
    """None where there is nothing to judge: the true line ends at the cursor."""


def judge(trace: Trace, stroke: int, edit: Edit | None) -> bool | None:
    """Tell whether a suggestion gives exactly the true rest of the current line.

    The suggestion is applied to the document of the state. Exact means: nothing left of the cursor
    changed, and the text from the cursor to the first line end is character for character that of
    ``typed[stroke:] + after`` to its first line end. Only this line counts; what a suggestion says
    on further lines does not. A state whose true rest is empty is not judged (None), so silence
    at the end of a line is neither a merit nor a fault; no suggestion elsewhere is not exact.
    """
    rest = _first_line(trace.future(stroke))
    if not rest:
        return None
    if edit is None:
        return False
    text, cursor = trace.text(stroke), trace.cursor(stroke)
    applied = text[: edit.start] + edit.text + text[edit.end :]
    return applied[:cursor] == text[:cursor] and _first_line(applied[cursor:]) == rest


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Return the nearest-rank percentile: the smallest value that ``percent`` % do not exceed.

    None without values and where the answer is infinite: that many keys were never answered.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    value = ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
    return value if math.isfinite(value) else None


def _first_line(text: str) -> str:
    end = LINE_END.search(text)
    return text[: end.start()] if end else text
