"""The hub route against a hub on the loopback interface."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from fimlsp.errors import (
    HashMismatchError,
    HubUnreachableError,
    PullInterruptedError,
)
from fimlsp.models import hub
from fimlsp.models.catalog import CatalogModel
from fimlsp.models.hub import HubSource
from fimlsp.models.params import ModelsParams
from fimlsp.models.pull import pull

COMMIT = "c" * 40


class FakeHub:
    """Serves one file as the hub does; each answer can be cut or refused."""

    def __init__(self, data: bytes, sha256: str) -> None:
        self.data = data
        self.sha256 = sha256
        self.head_status = 200
        self.statuses: list[int] = []
        """Status of the next GETs; 0 is the right one."""
        self.cuts: list[int] = []
        """Bytes after which the next GETs break off."""
        self.knows_ranges = True
        self.silent = threading.Event()
        """While cleared, nothing is answered."""
        self.silent.set()
        self.ranges: list[str | None] = []
        self.paths: list[str] = []
        self.authorizations: list[str | None] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.silent.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:  # http.server's name
                fake.silent.wait(30)
                fake.authorizations.append(self.headers["Authorization"])
                self.send_response(fake.head_status)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("X-Linked-ETag", f'"{fake.sha256}"')
                self.send_header("X-Linked-Size", str(len(fake.data)))
                self.send_header("Content-Length", str(len(fake.data)))
                self.end_headers()

            def do_GET(self) -> None:  # http.server's name
                fake.paths.append(self.path)
                fake.ranges.append(self.headers["Range"])
                fake.authorizations.append(self.headers["Authorization"])
                status = fake.statuses.pop(0) if fake.statuses else 0
                start = 0
                if fake.knows_ranges and (asked := self.headers["Range"]):
                    start = int(asked.removeprefix("bytes=").removesuffix("-"))
                body = fake.data[start:]
                self.send_response(status or (206 if start else 200))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: fake.cuts.pop(0)] if fake.cuts else body)
                self.close_connection = True

        return Handler


@pytest.fixture
def fake(
    model: CatalogModel, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    assert model.sha256 is not None
    # Whatever the machine that runs the tests has set.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()
    served = FakeHub(gguf_bytes, model.sha256)
    yield served
    huggingface_hub.close_session()
    served.close()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def source(fake: FakeHub, pauses: list[float]) -> HubSource:
    return HubSource(fake.endpoint, pauses.append)


def silent(done: int, total: int, what: str) -> None:
    assert what


def test_the_file_comes_whole_from_the_announced_commit(
    source: HubSource, fake: FakeHub, model: CatalogModel, params: ModelsParams, gguf_bytes: bytes
) -> None:
    heard: list[tuple[int, int]] = []
    path = pull(model.name, params, lambda done, total, what: heard.append((done, total)), [source])
    assert path.read_bytes() == gguf_bytes
    assert fake.paths == [f"/someone/tiny/resolve/{COMMIT}/{model.file}"]
    assert heard[-1] == (len(gguf_bytes), len(gguf_bytes))


def test_no_token_of_the_person_is_sent(
    source: HubSource,
    fake: FakeHub,
    model: CatalogModel,
    params: ModelsParams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(model.name, params, silent, [source])
    assert fake.authorizations == [None, None]


def test_a_model_without_a_pinned_checksum_is_held_against_the_announced_one(
    fake: FakeHub, source: HubSource, model: CatalogModel, params: ModelsParams, tmp_path: Path
) -> None:
    unpinned = replace(model, sha256=None, size_bytes=1_000_000_000)
    offer = source.offer(unpinned)
    assert (offer.size_bytes, offer.sha256) == (len(fake.data), model.sha256)


def test_broken_connections_are_resumed_by_range(
    source: HubSource,
    fake: FakeHub,
    model: CatalogModel,
    params: ModelsParams,
    gguf_bytes: bytes,
    pauses: list[float],
) -> None:
    fake.cuts = [300, 200]
    assert pull(model.name, params, silent, [source]).read_bytes() == gguf_bytes
    assert fake.ranges == [None, "bytes=300-", "bytes=500-"]
    assert pauses == [1.0, 1.0]


def test_the_next_pull_resumes_what_the_last_one_left(
    source: HubSource, fake: FakeHub, model: CatalogModel, params: ModelsParams, gguf_bytes: bytes
) -> None:
    fake.cuts = [300, 0, 0, 0, 0]
    with pytest.raises(PullInterruptedError, match=f"300 of {len(gguf_bytes)} bytes"):
        pull(model.name, params, silent, [source])
    fake.ranges.clear()
    assert pull(model.name, params, silent, [source]).read_bytes() == gguf_bytes
    assert fake.ranges == ["bytes=300-"]


def test_a_server_without_ranges_sends_it_all_again(
    source: HubSource, fake: FakeHub, model: CatalogModel, params: ModelsParams, gguf_bytes: bytes
) -> None:
    fake.cuts = [300]
    fake.knows_ranges = False
    assert pull(model.name, params, silent, [source]).read_bytes() == gguf_bytes


def test_longer_pauses_follow_failures_in_a_row(
    source: HubSource,
    fake: FakeHub,
    model: CatalogModel,
    params: ModelsParams,
    pauses: list[float],
) -> None:
    fake.statuses = [503] * 5
    with pytest.raises(HubUnreachableError, match="503"):
        pull(model.name, params, silent, [source])
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_an_endless_answer_is_not_written_to_its_end(
    source: HubSource, fake: FakeHub, model: CatalogModel, tmp_path: Path
) -> None:
    offer = source.offer(model)
    fake.data += bytes(8 << 20)
    path, sha256 = source.fetch(model, offer, tmp_path, silent)
    assert path.stat().st_size < 1 << 20
    assert sha256 != offer.sha256


def test_another_file_on_the_hub_is_noticed_before_it_is_fetched(
    source: HubSource, fake: FakeHub, model: CatalogModel, params: ModelsParams
) -> None:
    fake.sha256 = "a" * 64
    with pytest.raises(HashMismatchError, match=f"expected {model.sha256}"):
        pull(model.name, params, silent, [source])
    assert fake.paths == []


@pytest.mark.parametrize("status", [404, 401, 500, 503])
def test_a_hub_that_refuses_is_a_closed_route(
    source: HubSource, fake: FakeHub, model: CatalogModel, status: int
) -> None:
    fake.head_status = status
    with pytest.raises(HubUnreachableError, match=str(status)):
        source.offer(model)


def test_a_proxy_page_is_not_taken_for_the_hub(
    source: HubSource, fake: FakeHub, model: CatalogModel
) -> None:
    fake.sha256 = "W/some-page"
    with pytest.raises(HubUnreachableError, match="no size and sha256"):
        source.offer(model)


def test_a_refused_connection_is_a_closed_route(fake: FakeHub, model: CatalogModel) -> None:
    fake.close()
    with pytest.raises(HubUnreachableError, match="can't be reached"):
        HubSource(fake.endpoint).offer(model)


def test_a_hub_that_never_answers_is_given_up_in_time(
    source: HubSource, fake: FakeHub, model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_ANSWER_SECONDS", 0.2)
    fake.silent.clear()
    with pytest.raises(HubUnreachableError, match="can't be reached"):
        source.offer(model)


def test_time_spent_before_the_connection_counts_too(
    source: HubSource, fake: FakeHub, model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own timeout does not cover the look-up of a name."""
    released = threading.Event()
    monkeypatch.setattr(hub, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *args, **kw: released.wait(30))
    with pytest.raises(HubUnreachableError, match=r"no answer within 0\.1 s"):
        source.offer(model)
    released.set()


def test_the_offline_switch_is_named(
    source: HubSource, fake: FakeHub, model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="switched off by HF_HUB_OFFLINE"):
        source.offer(model)
