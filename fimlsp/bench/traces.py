"""Typing traces: what a person typed where, as files of JSON lines.

A line holds ``id, lang, path, before, after, typed, others``. State ``j`` of a trace is the
document ``before + typed[:j] + after`` with the cursor after ``typed[:j]``; stroke ``j`` leads
there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final

from fimlsp.errors import TraceError

_GZIP_MAGIC: Final = b"\x1f\x8b"
_TEXT_KEYS: Final = ("id", "lang", "path", "before", "after", "typed")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFile:
    """A file that was open beside the one that was typed in."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One place in one file and what was typed there. Offsets are code points."""

    id: str
    lang: str
    """LSP language id."""
    path: str
    """Relative to the project, with ``/``."""
    before: str
    after: str
    typed: str
    """Never empty."""
    others: tuple[OtherFile, ...] = ()

    def text(self, stroke: int) -> str:
        """Return the whole document after ``stroke`` strokes."""
        return self.before + self.typed[:stroke] + self.after

    def cursor(self, stroke: int) -> int:
        """Return the cursor's offset in ``text(stroke)``."""
        return len(self.before) + stroke

    def future(self, stroke: int) -> str:
        """Return what truly follows the cursor: the rest of what is typed, then the file."""
        return self.typed[stroke:] + self.after

    def strokes(self, limit: int | None) -> int:
        """Return how many strokes to play, at most ``limit``."""
        return len(self.typed) if limit is None else min(limit, len(self.typed))


def read_traces(path: Path, limit: int | None = None) -> list[Trace]:
    """Read at most ``limit`` traces from JSON lines, gzipped or not.

    Raises:
        TraceError: the file can't be read, holds no trace, or has a line that is not one; the
            message names the line.
    """
    try:
        with path.open("rb") as file:
            return _read(file, str(path), limit)
    except OSError as exc:
        raise TraceError(f"{path}: can't read the traces: {exc}") from exc


def bundled_traces(limit: int | None = None) -> list[Trace]:
    """Read the small set that comes with fimlsp, made from its own source."""
    resource = resources.files("fimlsp.bench").joinpath("data", "typing-traces.jsonl.gz")
    with resource.open("rb") as file:
        return _read(file, "the bundled traces", limit)


def write_traces(path: Path, traces: list[Trace]) -> None:
    """Write gzipped JSON lines; the same traces always give the same bytes."""
    lines = [
        json.dumps({key: getattr(trace, key) for key in _TEXT_KEYS} | {"others": _others(trace)})
        for trace in traces
    ]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))


def _others(trace: Trace) -> list[dict[str, str]]:
    return [{"path": other.path, "text": other.text} for other in trace.others]


def _read(file: IO[bytes], name: str, limit: int | None) -> list[Trace]:
    traces: list[Trace] = []
    for number, line in _numbered_lines(file, name):
        if limit is not None and len(traces) >= limit:
            break
        traces.append(_parse(line, f"{name}, line {number}"))
    if not traces:
        raise TraceError(f"{name}: found no trace; expected one JSON object a line")
    return traces


def _numbered_lines(file: IO[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, counted from 1."""
    zipped = file.read(2) == _GZIP_MAGIC
    file.seek(0)
    number = 0
    try:
        # Lines of bytes end at \n alone: \x85 and U+2028 may stand in the strings.
        for number, line in enumerate(gzip.GzipFile(fileobj=file) if zipped else file, 1):
            if line.strip():
                yield number, line.decode("utf-8")
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as exc:
        raise TraceError(f"{name}: can't read past line {number}: {exc}") from exc


def _parse(line: str, where: str) -> Trace:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as exc:
        raise TraceError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise TraceError(f"{where}: expected an object, found {type(data).__name__}")
    texts = {key: _text(data, key, where) for key in _TEXT_KEYS}
    if not texts["typed"]:
        raise TraceError(f"{where}: 'typed' is empty; a trace needs at least one stroke")
    others = data.get("others", [])
    if not isinstance(others, list):
        raise TraceError(f"{where}: 'others' must be a list, found {type(others).__name__}")
    return Trace(**texts, others=tuple(_other(other, where) for other in others))


def _other(data: Any, where: str) -> OtherFile:
    if not isinstance(data, dict):
        raise TraceError(f"{where}: 'others' must hold objects, found {type(data).__name__}")
    return OtherFile(
        path=_text(data, "path", f"{where}, others"), text=_text(data, "text", f"{where}, others")
    )


def _text(data: dict[str, Any], key: str, where: str) -> str:
    if key not in data:
        raise TraceError(f"{where}: no {key!r}; a trace has {', '.join(_TEXT_KEYS)}")
    value = data[key]
    if not isinstance(value, str):
        raise TraceError(f"{where}: {key!r} must be a string, found {type(value).__name__}")
    return value
