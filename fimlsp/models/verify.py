"""Whether a file is what it should be, and a note beside it so that it is hashed only once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from fimlsp.errors import HashMismatchError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a file must be; None leaves a property open."""

    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A file as it was when its checksum was computed."""

    size_bytes: int
    mtime_ns: int
    sha256: str


def sha256_of(path: Path) -> str:
    """Return the hex digest of a whole file (about a second per GB where a CPU has SHA units)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_recorded(path: Path, check: Check) -> bool:
    """Tell whether ``path`` is unchanged since it was verified, and was what ``check`` asks for."""
    record = _read_record(path)
    if record is None or not path.is_file():
        return False
    stat = path.stat()
    unchanged = (stat.st_size, stat.st_mtime_ns) == (record.size_bytes, record.mtime_ns)
    return unchanged and check.sha256 in (None, record.sha256)


def record(path: Path, sha256: str) -> None:
    """Note beside ``path`` that its digest is ``sha256``.

    A folder that can't be written (models shared by an administrator) only costs hashing again.
    """
    stat = path.stat()
    entry = _Record(size_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=sha256)
    try:
        write_atomically(_record_path(path), json.dumps(asdict(entry)))
    except OSError as exc:
        _log.warning("could not note that %s is verified: %s", path, exc)


def check_file(path: Path, check: Check, *, remedy: str) -> None:
    """Verify a file by its bytes and record it.

    Where no checksum is known there is nothing to compare with: the file is then accepted, as any
    file is that a person names by its path, and not recorded.

    Args:
        path: The file.
        check: What it must be.
        remedy: What to do if it is not, for the message.

    Raises:
        HashMismatchError: size or checksum is another.
    """
    size = path.stat().st_size
    if check.size_bytes not in (None, size):
        raise HashMismatchError(f"{path} has {size} bytes, expected {check.size_bytes}; {remedy}")
    if check.sha256 is None:
        return
    found = sha256_of(path)
    if found != check.sha256:
        raise HashMismatchError(f"{path} has sha256 {found}, expected {check.sha256}; {remedy}")
    record(path, found)


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that readers see the old or the new one, never a half."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")


def _read_record(path: Path) -> _Record | None:
    try:
        entry = json.loads(_record_path(path).read_text(encoding="utf-8"))
        return _Record(
            size_bytes=int(entry["size_bytes"]),
            mtime_ns=int(entry["mtime_ns"]),
            sha256=str(entry["sha256"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent or damaged: the file is hashed again
