"""``fimlsp bench typing``: how long a person waits for grey text, and against what.

Both sides get the same keys at the same places, on the same model file and threads, in one run:
trace by trace, fimlsp first on even traces and the peer first on odd ones, each while the other is
idle. The documents' future is known, so the answers are judged too.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from fimlsp.bench import report
from fimlsp.bench.editor import Editor
from fimlsp.bench.live_peer import LivePeer
from fimlsp.bench.peer import InfillClient, LlamaServer, PatientPeer
from fimlsp.bench.scoring import Answer, Sample, judge
from fimlsp.bench.traces import Trace, bundled_traces, read_traces
from fimlsp.errors import BenchError

_IDLE_SHARE: Final = 0.05
"""A process that uses less of one core than this is idle."""
_IDLE_LOOK_S: Final = 0.1
_IDLE_TIMEOUT_S: Final = 30.0

render = report.render


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingOptions:
    """What to measure and against whom."""

    serve_command: tuple[str, ...]
    """Starts fimlsp's server on ``model`` with ``threads``; see :func:`serve_command`."""
    model: Path
    """The GGUF file of both sides."""
    threads: int
    """CPU threads of both sides; the number itself, not 0."""
    traces: Path | None = None
    """Trace file; None takes the bundled set."""
    limit: int | None = None
    """Traces at most."""
    strokes: int | None = None
    """Keys per trace at most."""
    pace_ms: float = 200
    live: bool = False
    """Keys come every ``pace_ms`` whatever happens, instead of ``pace_ms`` after an answer."""
    others: bool = False
    """Open each trace's other files in fimlsp."""
    peer_command: tuple[str, ...] = ()
    """A llama-server program; empty measures fimlsp alone."""


class Side(Protocol):
    """One of the two that are compared, as the person at the keyboard sees it."""

    def start(self, trace: Trace) -> None:
        """Begin a trace; not timed."""

    def key(self, trace: Trace, stroke: int, deadline: float | None) -> Answer:
        """Play one stroke (0: the file is opened) and wait for the answer or the deadline."""

    def wait(self, until: float) -> None:
        """Let time pass until ``until`` (``time.monotonic()``)."""

    def finish(self) -> None:
        """End the trace and all work for it."""


def serve_command(*arguments: str) -> tuple[str, ...]:
    """Return the command of this installation's server, with ``serve``'s own arguments."""
    return (sys.executable, "-m", "fimlsp", "serve", *arguments)


def run_typing(
    options: TypingOptions, progress: Callable[[str], object] | None = None
) -> dict[str, Any]:
    """Run the benchmark and return its numbers; the keys are documented in :mod:`.report`.

    Args:
        options: What to measure.
        progress: Gets a line per trace; stderr by default.

    Raises:
        TraceError: the traces can't be read.
        PeerError: the peer did not start, or failed.
        BenchError: fimlsp's server did not become ready, or failed.
    """
    say = progress or (lambda line: sys.stderr.write(f"{line}\n"))
    traces = (
        read_traces(options.traces, options.limit)
        if options.traces
        else bundled_traces(options.limit)
    )
    with _ends_orderly(), contextlib.ExitStack() as stack:
        say(f"starting fimlsp on {options.model.name}")
        editor = stack.enter_context(Editor(options.serve_command, others=options.others))
        _require_same_model(editor, options.model)
        sides: dict[str, Side] = {"fimlsp": editor}
        processes = [psutil.Process(editor.pid)]
        result = _header(options, editor, len(traces))
        if options.peer_command:
            say(f"starting {options.peer_command[-1]}")
            server = LlamaServer(options.peer_command, options.model, options.threads)
            stack.callback(server.close)
            sides["peer"] = _peer(options, server, stack)
            processes.append(psutil.Process(server.process.pid))
            result["peer_command"] = shlex.join(server.argv)
        samples = _measure(options, traces, sides, processes, say)
    for name, found in samples.items():
        result[name] = report.side_report(found)
        if options.live:
            result[name] |= report.live_report(found, options.pace_ms)
    if "peer" in result:
        result |= report.ratios(result["fimlsp"], result["peer"])
    return result


@contextlib.contextmanager
def _ends_orderly() -> Iterator[None]:
    """Let SIGTERM unwind the stack like Ctrl-C, so that no server is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _header(options: TypingOptions, editor: Editor, traces: int) -> dict[str, Any]:
    return {
        "mode": "live" if options.live else "patient",
        "model": options.model.name,
        "threads": options.threads,
        "backend": editor.status["backend"],
        "traces": traces,
        "strokes": options.strokes,
        "pace_ms": options.pace_ms,
    }


def _peer(options: TypingOptions, server: LlamaServer, stack: contextlib.ExitStack) -> Side:
    client = InfillClient(server.port)
    stack.callback(client.close)
    if not options.live:
        return PatientPeer(client)
    peer = LivePeer(client)
    stack.callback(peer.close)
    return peer


def _require_same_model(editor: Editor, model: Path) -> None:
    found = editor.status["model"]
    if found != model.name:
        raise BenchError(f"the server runs {found!r}, the comparison is about {model.name!r}")


def _measure(
    options: TypingOptions,
    traces: Sequence[Trace],
    sides: dict[str, Side],
    processes: Sequence[psutil.Process],
    say: Callable[[str], object],
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for number, trace in enumerate(traces):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in order:
            _wait_idle(processes)
            found = _play(options, trace, sides[name])
            samples[name] += found
            say(f"{number + 1}/{len(traces)} {trace.id} {name}: {_progress(found)}")
    return samples


def _play(options: TypingOptions, trace: Trace, side: Side) -> list[Sample]:
    """Play one trace on one side."""
    pace_s = options.pace_ms / 1000
    strokes = trace.strokes(options.strokes)
    answers = []
    side.start(trace)
    try:
        answers.append(side.key(trace, 0, None))
        due = time.monotonic() + pace_s
        for stroke in range(1, strokes + 1):
            side.wait(due)
            live_on = options.live and stroke < strokes
            answers.append(side.key(trace, stroke, due + pace_s if live_on else None))
            due = (due if options.live else time.monotonic()) + pace_s
    finally:
        side.finish()
    return [
        Sample(
            trace=trace.id, stroke=stroke, answer=answer, exact=judge(trace, stroke, answer.edit)
        )
        for stroke, answer in enumerate(answers)
    ]


def _progress(samples: Sequence[Sample]) -> str:
    numbers = report.side_report(samples)
    return (
        f"first {_number(numbers['cold_p50_ms'])} ms, key {_number(numbers['typing_p50_ms'])} ms, "
        f"{numbers['exact_lines']}/{numbers['states']} lines exact"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _wait_idle(processes: Sequence[psutil.Process]) -> None:
    """Wait until no side works in the background; give up on a server that never rests.

    Raises:
        BenchError: a process has ended, or still works after half a minute.
    """
    deadline = time.monotonic() + _IDLE_TIMEOUT_S
    try:
        while True:
            before = _cpu_s(processes)
            time.sleep(_IDLE_LOOK_S)
            if _cpu_s(processes) - before < _IDLE_SHARE * _IDLE_LOOK_S * len(processes):
                return
            if time.monotonic() > deadline:
                raise BenchError(
                    f"a server still works {_IDLE_TIMEOUT_S:g} s after its documents were closed; "
                    "its times would be mixed with the other's"
                )
    except psutil.NoSuchProcess as exc:
        raise BenchError(f"a server has ended: {exc}") from exc


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)
