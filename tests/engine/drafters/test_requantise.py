"""The Q4_0 copy of a draft model: whole, sound and alone, or not there."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_harness import wait
from filelock import FileLock
from gguf import GGMLQuantizationType, GGUFReader
from tiny_gguf import write_tiny_gguf

from fimlsp.engine.drafters.requantise import Requantisation, copy_path, main, make_copy
from fimlsp.errors import ModelError

Disk = namedtuple("Disk", "total used free")


@pytest.fixture
def source(tmp_path: Path, tiny_model: Path) -> Path:
    path = tmp_path / "draft.gguf"
    shutil.copy(tiny_model, path)
    return path


@pytest.fixture
def copy(tmp_path: Path, source: Path, backend: str) -> Path:
    return copy_path(tmp_path / "copies", source, backend, "1.0")


def left(copy: Path) -> list[str]:
    """Return the files in the folder of the copy that are more than an unheld lock."""
    return [path.name for path in copy.parent.glob("*") if path.suffix != ".lock"]


def test_every_matrix_of_the_copy_is_q4_0(source: Path, copy: Path, backend: str) -> None:
    make_copy(backend, source, copy)
    types = {t.tensor_type for t in GGUFReader(copy).tensors if len(t.shape) > 1}
    assert types == {GGMLQuantizationType.Q4_0}
    assert left(copy) == [copy.name]


def test_the_command_makes_it_and_says_why_not(
    source: Path, copy: Path, backend: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("fimlsp.engine.drafters.requantise._step_aside", lambda: None)
    assert main([backend, str(source), str(copy)]) == 0
    assert copy.stat().st_size < source.stat().st_size / 2
    copy.unlink()
    source.write_bytes(b"no model")
    assert main([backend, str(source), str(copy)]) == 1
    assert "draft.gguf can't be quantised" in capfd.readouterr().err.splitlines()[-1]
    assert left(copy) == []


def test_a_copy_that_is_there_is_not_made_again(source: Path, copy: Path, backend: str) -> None:
    copy.parent.mkdir()
    copy.write_bytes(b"")  # tried, and not worth it
    make_copy(backend, source, copy)
    assert copy.read_bytes() == b""


def cut(good: bytes) -> bytes:
    return good[: len(good) * 2 // 3]


def zeros(good: bytes) -> bytes:
    return bytes(len(good))


@pytest.mark.parametrize("damage", [cut, zeros])
def test_a_damaged_copy_is_not_kept(
    source: Path,
    copy: Path,
    backend: str,
    native_module: Any,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
) -> None:
    quantize = native_module.quantize_q4_0

    def damaged(source: Path, target: Path, threads: int) -> None:
        quantize(source, target, threads)
        target.write_bytes(damage(target.read_bytes()))

    monkeypatch.setattr(native_module, "quantize_q4_0", damaged)
    with pytest.raises(ModelError):
        make_copy(backend, source, copy)
    assert left(copy) == []


def test_a_copy_that_computes_something_else_is_not_kept(
    source: Path, copy: Path, backend: str, native_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(_source: Path, target: Path, _threads: int) -> None:
        write_tiny_gguf(target, seed=8)

    monkeypatch.setattr(native_module, "quantize_q4_0", another)
    with pytest.raises(ModelError, match="computes something else"):
        make_copy(backend, source, copy)
    assert left(copy) == []


def test_no_copy_is_begun_on_a_disk_that_is_nearly_full(
    source: Path, copy: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Disk(1 << 40, 1 << 40, 1 << 29))
    with pytest.raises(ModelError, match="512 MB are free"):
        make_copy(backend, source, copy)
    assert left(copy) == []


def test_two_processes_do_not_make_the_same_copy(source: Path, copy: Path, backend: str) -> None:
    copy.parent.mkdir()
    with FileLock(copy.with_suffix(".lock")), pytest.raises(ModelError, match="another process"):
        make_copy(backend, source, copy)
    make_copy(backend, source, copy)
    assert copy.exists()


def test_a_copy_belongs_to_one_file_and_one_version_of_a_library(
    source: Path, tmp_path: Path, backend: str
) -> None:
    first = copy_path(tmp_path, source, backend, "1.0")
    assert copy_path(tmp_path, source, backend, "1.0") == first
    others = {copy_path(tmp_path, source, backend, "1.1"), copy_path(tmp_path, source, "x", "1.0")}
    source.write_bytes(source.read_bytes() + b"\0")
    others.add(copy_path(tmp_path, source, backend, "1.0"))
    assert len(others | {first}) == 4


def test_copies_of_earlier_versions_go_when_a_new_one_is_made(
    source: Path, copy: Path, backend: str
) -> None:
    earlier = copy_path(copy.parent, source, backend, "0.9")
    stranger = copy.parent / "other-q4_0-0123456789ab.gguf"
    copy.parent.mkdir()
    for path in (earlier, stranger):
        path.write_bytes(b"x")
    make_copy(backend, source, copy)
    assert sorted(left(copy)) == sorted([copy.name, stranger.name])


def test_it_runs_beside_the_engine_and_tells_when_it_has_ended(
    source: Path, copy: Path, backend: str
) -> None:
    ended = threading.Event()
    running = Requantisation(backend, source, copy, ended.set)
    wait(ended)
    assert (running.ended, running.error) == (True, "")
    assert copy.stat().st_size > 0
    running.close()


def test_its_failure_is_told_in_one_line(tmp_path: Path, copy: Path, backend: str) -> None:
    ended = threading.Event()
    running = Requantisation(backend, tmp_path / "missing.gguf", copy, ended.set)
    wait(ended)
    assert running.ended
    assert "missing.gguf" in running.error
    assert not copy.exists()


def test_it_can_be_ended_early(source: Path, copy: Path, backend: str) -> None:
    ended = threading.Event()
    running = Requantisation(backend, source, copy, ended.set)
    running.close()
    wait(ended)
    assert running.error or copy.exists()
