"""What a place to fetch model files from must offer, and the partial file that all of them fill."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from fimlsp.models.catalog import CatalogModel

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0: not known yet) and what is going on, for a person."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The file that a source promises."""

    size_bytes: int
    sha256: str
    revision: str = ""
    """The source's own name of the exact version."""


class Source(Protocol):
    """One route to model files."""

    @property
    def name(self) -> str:
        """The route in words."""

    def has(self, model: CatalogModel) -> bool:
        """Tell whether this route may have the file at all; asks nobody."""

    def offer(self, model: CatalogModel) -> Offer:
        """Ask what the file will be.

        Raises:
            HubUnreachableError: the route is closed; the message says what it answered.
        """

    def room(self, model: CatalogModel, offer: Offer, work: Path) -> int:
        """Return how many more bytes of disk ``fetch`` needs, what is in ``work`` considered."""

    def fetch(
        self, model: CatalogModel, offer: Offer, work: Path, progress: Progress
    ) -> tuple[Path, str]:
        """Fetch the file into the folder ``work``, going on from what an earlier try left there.

        Returns:
            The file, complete and flushed to disk but not checked, and its sha256.

        Raises:
            HubUnreachableError: the route is closed and nothing has arrived.
            PullInterruptedError: it stopped in the middle; what has arrived stays in ``work``.
            HashMismatchError: what arrived is damaged; it was removed from ``work``.
            DiskFullError: no room.
        """


class PartialFile:
    """A file that grows at its end and is hashed as it grows; survives being left half done."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        """Open ``path`` and keep its first ``keep`` bytes (None: all); they are hashed anew."""
        self.path = path
        self._hash = hashlib.sha256()
        self._file = path.open("r+b" if path.exists() else "w+b")
        self.size = 0
        while chunk := self._file.read(_CHUNK if keep is None else min(_CHUNK, keep - self.size)):
            self._hash.update(chunk)
            self.size += len(chunk)
        self._file.truncate(self.size)

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def append(self, data: bytes) -> None:
        """Write ``data`` at the end."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def restart(self) -> None:
        """Drop everything."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.size = 0

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def finish(self) -> str:
        """Force everything to the disk and return the sha256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._hash.hexdigest()


def size_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def is_disk_full(exc: OSError) -> bool:
    """Tell whether ``exc`` means no room: a full disk or quota (Windows: ERROR_DISK_FULL)."""
    full = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
    return exc.errno in full or getattr(exc, "winerror", None) == 112
