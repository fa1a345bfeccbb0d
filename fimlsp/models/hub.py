"""The model hub as a source: one file by HTTP, resumed by range requests.

huggingface_hub's own downloader removes its partial file when it stops (since 1.x), so it can't
resume in a later process. It is used for what the file must be; the bytes come through its session.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, OfflineModeIsEnabled

from fimlsp.errors import HashMismatchError, HubUnreachableError, PullInterruptedError
from fimlsp.models.catalog import CatalogModel
from fimlsp.models.source import Offer, PartialFile, Progress, size_of

_T = TypeVar("_T")

# Every error of the HTTP client that this version of huggingface_hub uses (httpx, later httpx2)
# derives from the first base of its own error.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]

_ANSWER_SECONDS = 8.0
_READ_SECONDS = 20.0
_ATTEMPTS = 5
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubSource:
    """Fetches from the model hub. No token is sent: the models are public."""

    name = "model hub"

    def __init__(
        self, endpoint: str | None = None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Make a source; ``endpoint`` is the hub's address, None takes huggingface_hub's."""
        self._endpoint = endpoint
        self._pause = pause

    def has(self, model: CatalogModel) -> bool:
        """Every catalogue model is on the hub."""
        return bool(model.hub_repo)

    def offer(self, model: CatalogModel) -> Offer:
        """Ask the hub for size, checksum and commit; answers or fails within 8 seconds."""
        url = hf_hub_url(model.hub_repo, model.file, endpoint=self._endpoint)
        try:
            metadata = _within(
                _ANSWER_SECONDS,
                lambda: get_hf_file_metadata(
                    url, token=False, timeout=_ANSWER_SECONDS / 2, endpoint=self._endpoint
                ),
            )
        except OfflineModeIsEnabled as exc:
            raise HubUnreachableError(_offline_message()) from exc
        except (_HTTP_ERROR, FileMetadataError, OSError) as exc:
            raise HubUnreachableError(f"the model hub can't be reached ({_one_line(exc)})") from exc
        sha256, size = metadata.etag or "", metadata.size
        if size is None or not _SHA256.fullmatch(sha256) or not metadata.commit_hash:
            raise HubUnreachableError(
                f"the model hub announces no size and sha256 for {model.hub_repo}/{model.file} "
                f"(size {size}, etag {sha256!r}); a proxy may have answered in its place"
            )
        if model.sha256 not in (None, sha256):
            raise HashMismatchError(
                f"the model hub now has another {model.file}: sha256 {sha256}, expected "
                f"{model.sha256}; nothing was fetched, a newer fimlsp may know the new file"
            )
        return Offer(size_bytes=size, sha256=sha256, revision=metadata.commit_hash)

    def room(self, model: CatalogModel, offer: Offer, work: Path) -> int:
        """The bytes that are still missing."""
        return max(0, offer.size_bytes - size_of(_partial_path(offer, work)))

    def fetch(
        self, model: CatalogModel, offer: Offer, work: Path, progress: Progress
    ) -> tuple[Path, str]:
        """Stream the file, with range requests after a break; gives up after five in a row."""
        path = _partial_path(offer, work)
        failures = 0
        with PartialFile(path) as partial:
            if partial.size > offer.size_bytes:
                partial.restart()
            while partial.size < offer.size_bytes:
                before = partial.size
                trouble = self._stream(model, offer, partial, progress)
                if partial.size >= offer.size_bytes:
                    break
                failures = 1 if partial.size > before else failures + 1
                if failures >= _ATTEMPTS:
                    raise _given_up(partial.size, offer.size_bytes, trouble)
                progress(partial.size, offer.size_bytes, f"model hub: {trouble}; trying again")
                self._pause(float(2 ** (failures - 1)))
            return path, partial.finish()

    def _stream(
        self, model: CatalogModel, offer: Offer, partial: PartialFile, progress: Progress
    ) -> str:
        """Append what one request brings; returns why it ended early, ``""`` if it did not."""
        # The plain address each time: the signed one that it redirects to expires.
        url = hf_hub_url(
            model.hub_repo, model.file, revision=offer.revision, endpoint=self._endpoint
        )
        headers = {"Accept-Encoding": "identity"}
        if partial.size:
            headers["Range"] = f"bytes={partial.size}-"
        try:
            with get_session().stream("GET", url, headers=headers, timeout=_READ_SECONDS) as answer:
                answer.raise_for_status()
                if partial.size and answer.status_code != 206:
                    partial.restart()  # a proxy that does not know ranges sends the whole file
                for chunk in answer.iter_bytes():
                    partial.append(chunk)
                    progress(partial.size, offer.size_bytes, self.name)
                    if partial.size > offer.size_bytes:
                        break  # not the promised file, and no reason to fill the disk with it
        except OfflineModeIsEnabled as exc:
            raise HubUnreachableError(_offline_message()) from exc
        except _HTTP_ERROR as exc:
            return _one_line(exc)
        return "the connection was closed early"


def _given_up(done: int, total: int, trouble: str) -> HubUnreachableError | PullInterruptedError:
    if not done:
        return HubUnreachableError(f"the model hub sends nothing ({trouble})")
    return PullInterruptedError(f"the model hub stopped after {done} of {total} bytes ({trouble})")


def _partial_path(offer: Offer, work: Path) -> Path:
    # The checksum in the name keeps a newer version of the file from going on in an older one.
    return work / f"hub-{offer.sha256[:16]}.partial"


def _offline_message() -> str:
    switched = [name for name in _OFFLINE_VARIABLES if os.environ.get(name)]
    reason = " and ".join(switched) or "huggingface_hub's offline mode"
    return f"the model hub is switched off by {reason} in the environment; unset it to use the hub"


def _one_line(exc: Exception) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """Run ``call`` for at most ``seconds``.

    The client's timeout counts per address and not while a name is looked up, so a silent firewall
    would hold a person for a minute. The thread that is left behind ends by itself.
    """
    answers: queue.SimpleQueue[tuple[_T | None, Exception | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((call(), None))
        except Exception as exc:  # a thread boundary: raised again on the other side
            answers.put((None, exc))

    threading.Thread(target=ask, name="fimlsp-hub", daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    assert value is not None
    return value
