"""The fimlsp side of a typing benchmark: a server process, driven as an editor drives it."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from fimlsp.bench.client import LspClient
from fimlsp.bench.jsonrpc import ConnectionEndedError, Json, MessageId, RpcError
from fimlsp.bench.scoring import Answer, Edit
from fimlsp.bench.traces import Trace
from fimlsp.document import LINE_END, Reason
from fimlsp.errors import BenchError

_STATUS: Final = "fimlsp/status"
_AUTOMATIC: Final = 2
"""``InlineCompletionTriggerKind.Automatic``: the person types and did not ask."""
_STATUS_TIMEOUT_S: Final = 10.0
_CUT_SHORT: Final = frozenset({Reason.SUPERSEDED, Reason.CANCELLED})


class Editor:
    """A fimlsp server with its model loaded, and one document at a time. A context manager.

    Args:
        argv: The server's command.
        others: Open each trace's other files too.
        load_timeout_s: Time to load the model.
        answer_timeout_s: Time for one answer where no key ends the wait.

    Raises:
        BenchError: the server did not become ready.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        others: bool = False,
        load_timeout_s: float = 300,
        answer_timeout_s: float = 120,
    ) -> None:
        self._others = others
        self._answer_timeout_s = answer_timeout_s
        self._root = tempfile.TemporaryDirectory(prefix="fimlsp-bench-")
        self._open: list[str] = []
        self._version = 0
        self._counted = 0
        """``requests`` of the status that was matched last."""
        self._late: MessageId | None = None
        """The request that the last key did not wait for."""
        try:
            self.client = LspClient(argv)
        except OSError as exc:
            self._root.cleanup()
            raise BenchError(f"can't start {argv[0]!r}: {exc}") from exc
        try:
            with _faults_named("starting the server"):
                self.status = self._become_ready(load_timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the editor."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self.close()

    def close(self) -> None:
        """End the server; idempotent."""
        self.client.close()
        self._root.cleanup()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.client.process.pid

    def start(self, trace: Trace) -> None:
        """Begin a trace. Its document is opened by the key of stroke 0, which is timed."""
        with _faults_named(f"{trace.id}, opening the other files"):
            for other in trace.others if self._others else ():
                self._did_open(other.path, trace.lang, other.text)

    def key(self, trace: Trace, stroke: int, deadline: float | None) -> Answer:
        """Play one stroke and wait for the answer, until ``deadline`` (``time.monotonic()``).

        Stroke 0 opens the document. The clock starts before the server hears of the change.
        """
        text = trace.text(stroke)
        place = _position(text, trace.cursor(stroke))
        notice = len(self.client.notifications)
        begin = time.monotonic()
        with _faults_named(f"{trace.id}, stroke {stroke}"):
            request = self._ask(trace, stroke, place)
            try:
                result = self.client.result(request, self._patience_s(deadline))
            except TimeoutError:
                if deadline is None:
                    raise
                self._late = request
                return Answer(ms=math.inf)
            ms = (time.monotonic() - begin) * 1000
            last = self._timings(notice)
        return Answer(
            ms=ms,
            edit=_edit(result, text),
            prompt_tokens=last["promptTokens"],
            without_model=last["promptTokens"] == 0 and last["tokens"] == 0,
        )

    def wait(self, until: float) -> None:
        """Let time pass."""
        time.sleep(max(0.0, until - time.monotonic()))

    def finish(self) -> None:
        """End the trace: close what is open, so that work for it ends too."""
        with _faults_named("closing the documents"):
            if self._late is not None:
                self.client.cancel(self._late)
            self._drop_late()
            while self._open:
                self._notify_document("didClose", {"uri": self._open.pop()})

    def _become_ready(self, timeout_s: float) -> Json:
        answer = self.client.initialize(root_uri=Path(self._root.name).as_uri())
        encoding = answer["capabilities"].get("positionEncoding", "utf-16")
        if encoding != "utf-16":
            raise BenchError(f"asked for utf-16 positions, the server chose {encoding!r}")
        status: Json = self.client.wait_notification(
            _STATUS, lambda found: found["state"] not in ("loading", "busy"), timeout_s
        )
        if status["state"] != "ready":
            raise BenchError(
                f"the server is {status['state']!r} instead of 'ready': {status['message']}"
            )
        if "requests" not in status:
            raise BenchError("the server's status has no 'requests'; it is of another version")
        self._counted = status["requests"]
        return status

    def _patience_s(self, deadline: float | None) -> float:
        if deadline is None:
            return self._answer_timeout_s
        return max(0.0, deadline - time.monotonic())

    def _ask(self, trace: Trace, stroke: int, place: Json) -> MessageId:
        """Tell the server of the stroke and ask; an older request is cancelled as editors do."""
        if self._late is not None:
            self.client.cancel(self._late)
        if stroke == 0:
            uri = self._did_open(trace.path, trace.lang, trace.text(0))
        else:
            uri = self._open[-1]
            self._did_change(uri, trace, stroke)
        request = self.client.send(
            "textDocument/inlineCompletion",
            {
                "textDocument": {"uri": uri},
                "position": place,
                "context": {"triggerKind": _AUTOMATIC},
            },
        )
        self._drop_late()
        return request

    def _timings(self, notice: int) -> Json:
        """Return the timings of the answer just taken, from the status sent with it.

        Background work sends statuses too, which count no new answer; and the answer to an earlier
        request, cut short by this one's key, may come in between.
        """
        status: Json = self.client.wait_notification(
            _STATUS,
            lambda found: found["requests"] > self._counted and found["reason"] not in _CUT_SHORT,
            _STATUS_TIMEOUT_S,
            since=notice,
        )
        self._counted = status["requests"]
        last: Json = status["last"]
        return last

    def _drop_late(self) -> None:
        """Take the answer to the cancelled request, which comes at once, and drop it."""
        if self._late is None:
            return
        request, self._late = self._late, None
        with contextlib.suppress(RpcError):  # "cancelled" is what was asked for
            self.client.result(request, self._answer_timeout_s)

    def _did_open(self, path: str, lang: str, text: str) -> str:
        uri = f"{Path(self._root.name).as_uri()}/{quote(path)}"
        self._open.append(uri)
        self._version = 1
        self._notify_document(
            "didOpen", {"uri": uri, "languageId": lang, "version": 1, "text": text}
        )
        return uri

    def _did_change(self, uri: str, trace: Trace, stroke: int) -> None:
        self._version += 1
        before = _position(trace.text(stroke - 1), trace.cursor(stroke - 1))
        change = {"range": {"start": before, "end": before}, "text": trace.typed[stroke - 1]}
        self._notify_document(
            "didChange", {"uri": uri, "version": self._version}, contentChanges=[change]
        )

    def _notify_document(self, event: str, document: Json, **more: Any) -> None:
        self.client.notify(f"textDocument/{event}", {"textDocument": document} | more)


@contextlib.contextmanager
def _faults_named(doing: str) -> Iterator[None]:
    """Turn the connection's errors into the benchmark's, saying what was going on."""
    try:
        yield
    except (ConnectionEndedError, RpcError, TimeoutError) as exc:
        raise BenchError(f"{doing}: {exc}") from exc


def _position(text: str, offset: int) -> Json:
    """Return the LSP position (utf-16) of a code-point offset."""
    line, start = 0, 0
    for end in LINE_END.finditer(text, 0, offset):
        line, start = line + 1, end.end()
    return {"line": line, "character": len(text[start:offset].encode("utf-16-le")) // 2}


def _offset(text: str, position: Json) -> int:
    """Return the code-point offset of an LSP position (utf-16) that lies in ``text``."""
    start = 0
    for number, end in enumerate(LINE_END.finditer(text), 1):
        if number > position["line"]:
            break
        start = end.end()
    units = text[start:].encode("utf-16-le")[: 2 * position["character"]]
    return start + len(units.decode("utf-16-le"))


def _edit(result: Any, text: str) -> Edit | None:
    """Return the first suggestion of an answer, the one that an editor shows."""
    items = result["items"] if isinstance(result, dict) else result or []
    if not items:
        return None
    item = items[0]
    return Edit(
        start=_offset(text, item["range"]["start"]),
        end=_offset(text, item["range"]["end"]),
        text=item["insertText"],
    )
