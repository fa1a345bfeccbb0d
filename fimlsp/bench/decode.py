"""``fimlsp bench decode``: plain against speculative decoding, in one engine and one process.

Each case (see :mod:`.decode_cases`) is replayed on its warm prompt, plainly and with drafts, in
turns. What speculation may know is what it would know in life: what the service expected at that
moment, and what it learnt from earlier cases in the order of typing. Each run of each variant has
lessons of its own, begun empty, so that no replay meets the answer that another replay has left.
Between two cases the person looks at the text, and the engine does what it does in idle time: a
draft model reads the prompt then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fimlsp.bench import decode_library, decode_report, decode_synthetic
from fimlsp.bench.decode_cases import Case, collect
from fimlsp.bench.decode_replay import ALL, PLAIN, Measured, Player, Replay, rest
from fimlsp.bench.traces import Trace, bundled_traces, read_traces
from fimlsp.completion.api import CompletionParams
from fimlsp.context.params import WindowParams
from fimlsp.engine.api import GREEDY, SamplingParams
from fimlsp.engine.load import free_drafters
from fimlsp.engine.speculation import Lessons
from fimlsp.engine.worker import InProcessEngine

_SYNTHETIC_TRACES: Final = 8
"""Traces of the curves with synthetic drafts: enough draws, and the same for every rate."""

render = decode_report.render


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """What to measure."""

    completion: CompletionParams
    window: WindowParams
    """Of the cases' prompts."""
    sampling: SamplingParams = GREEDY
    sources: tuple[str, ...]
    """Draft sources that are switched on."""
    max_draft: int
    traces: Path | None = None
    """Trace file; None takes the bundled set."""
    limit: int | None = None
    """Traces at most."""
    runs: int = 3
    alone: bool = True
    """Measure each source alone too, in one run."""
    synthetic: tuple[float, ...] = ()
    """Acceptances to study with drafts that are right so often."""
    llama_bench: str = ""
    """A llama-bench program to compare plain decoding with; empty is none."""


def run_decode(
    engine: InProcessEngine,
    options: DecodeOptions,
    progress: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Run the benchmark and return its numbers; the keys are documented in :mod:`.decode_report`.

    Args:
        engine: A loaded engine that nobody else uses.
        options: What to measure.
        progress: Gets a line per trace; stderr by default.

    Raises:
        TraceError: the traces can't be read.
        EngineError: the engine failed.
        BenchError: the measurement could not be done.
    """
    say = progress or (lambda line: sys.stderr.write(f"{line}\n"))
    path, limit = options.traces, options.limit
    traces = read_traces(path, limit) if path else bundled_traces(limit)
    if not engine.rested:
        say("measuring the verify curve")
    player = Player(engine)
    result: dict[str, Any] = {}
    if options.llama_bench:
        say("comparing with llama-bench")
        result["plain_vs_library"] = decode_library.compare(engine, options.llama_bench)
    measured = _measure(player, traces, options, say)
    model = engine.speculation.model
    costs = decode_report.Costs(player.curve, {model.name: model.token_ms} if model else {})
    result |= _header(engine, options, len(traces)) | decode_report.figures(measured, costs)
    if options.synthetic:
        chosen = _spread(measured.cases, traces)
        result["synthetic"] = decode_synthetic.study(
            player,
            [(measured.cases[at], measured.plain[0][at].generation) for at in chosen],
            options.synthetic,
            options.max_draft,
            say,
        )
    return result


def _header(engine: InProcessEngine, options: DecodeOptions, traces: int) -> dict[str, Any]:
    return {
        "model": engine.info.path.name,
        "draft": engine.info.draft,
        "threads": engine.info.threads,
        "backend": engine.info.backend,
        "traces": traces,
        "runs": options.runs,
        "sources": list(options.sources),
    }


def _measure(
    player: Player, traces: Sequence[Trace], options: DecodeOptions, say: Callable[[str], object]
) -> Measured:
    """Collect and replay trace by trace, so that each prompt is read once."""
    usable = [name for name in player.engine.speculation.names if name in options.sources]
    alone = usable if options.alone and len(usable) > 1 else []
    passes = [(ALL, run) for run in range(options.runs)] + [(name, 0) for name in alone]
    lessons = {key: Lessons(free_drafters()) for key in passes}
    measured = Measured(plain=[[] for _ in range(options.runs)])
    for name, _ in passes:
        measured.variants.setdefault(name, []).append([])
    for number, trace in enumerate(traces, 1):
        cases = collect(player.engine, trace, options.completion, options.window, options.sampling)
        for name, run in passes:
            player.engine.speculation.relearn(lessons[name, run])
            sources = options.sources if name == ALL else (name,)
            replays = measured.variants[name][run]
            if name == ALL:
                _play_in_turns(player, cases, sources, run, (measured.plain[run], replays))
                measured.unequal += _unequal(player, cases, sources, measured, run)
            else:
                for case in cases:
                    replays.append(player.play(case, sources))
                    rest(player.engine)
            lessons[name, run] = player.engine.speculation.lessons
        for slot in {case.request.slot for case in cases}:
            player.engine.release(slot)
        measured.cases += cases
        say(f"{number}/{len(traces)} {trace.id}: {decode_report.line(measured, len(cases))}")
    return measured


def _play_in_turns(
    player: Player,
    cases: Sequence[Case],
    sources: tuple[str, ...],
    run: int,
    into: tuple[list[Replay], list[Replay]],
) -> None:
    """Replay each case plainly and with drafts; which comes first alternates."""
    both = ((PLAIN, into[0]), (sources, into[1]))
    for number, case in enumerate(cases):
        for used, replays in both if (number + run) % 2 == 0 else reversed(both):
            replays.append(player.play(case, used))
        rest(player.engine)


def _unequal(
    player: Player,
    cases: Sequence[Case],
    sources: tuple[str, ...],
    measured: Measured,
    run: int,
) -> list[int]:
    """Look again at answers that were not the same, in steps of one kind only.

    Libraries decode a single token by other kernels than several, and rounding may then decide at a
    tie. Where that is all, plain and speculative answers are the same once no token is alone.
    """
    found = []
    first = len(measured.plain[run]) - len(cases)
    for at, case in enumerate(cases, first):
        pair = measured.plain[run][at], measured.variants[ALL][run][at]
        if pair[0].generation.tokens != pair[1].generation.tokens:
            one, other = (player.play(case, used, exact=True) for used in (PLAIN, sources))
            if one.generation.tokens != other.generation.tokens:
                found.append(at)
    return found


def _spread(cases: Sequence[Case], traces: Sequence[Trace]) -> list[int]:
    """Return the indexes of the cases of a few traces, evenly spread."""
    step = max(1, len(traces) // _SYNTHETIC_TRACES)
    taken = {trace.id for trace in traces[::step][:_SYNTHETIC_TRACES]}
    return [at for at, case in enumerate(cases) if case.trace in taken]
