"""The numbers of ``fimlsp bench decode``, and how they are shown to a person."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fimlsp.bench.decode_cases import Case
from fimlsp.bench.decode_replay import ALL, Measured, Runs
from fimlsp.engine.api import DraftUse, Generation
from fimlsp.engine.cost import VerifyCurve

NEAR_TIE: Final = 0.1
"""Difference of two tokens' log probabilities below which rounding may decide between them."""
_DIFFERENCES: Final = 20
"""Differences that are listed; all are counted."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the cost formula reckons with."""

    verify: VerifyCurve
    """T(n) of the target in milliseconds."""
    draft: Mapping[str, float]
    """Milliseconds of one draft token, of the sources that cost anything."""


def figures(measured: Measured, costs: Costs) -> dict[str, Any]:
    """Sum up a benchmark.

    Returns:
        ``plain_tok_s`` and ``speculative_tok_s``; ``ratio``, the plain milliseconds of all cases
        over the speculative ones, each case by the median of its runs; ``worst_ratio``, the least
        of the same over single traces, and ``worst_trace``; ``identical``, whether plain and
        speculative tokens were the same in steps of the same kind (see ``SpeculationParams.exact``)
        in all cases; ``different``, in how many cases the mix of single and wider steps changed
        them, ``near_ties``, how many of these are ties, and the first ``differences``;
        ``cases`` and ``tokens``; ``drafted``, ``accepted``, ``acceptance`` (their quotient),
        ``accepted_lengths`` (drafts by the number of their tokens that were right) and
        ``tokens_per_step``; ``predicted_ratio``, what the measured T(n) says that these steps gain,
        and ``efficiency``, ``ratio`` over that.
        ``by_source`` has for each source what it did among all (``in_all``) and, where it was
        measured alone, the same figures of its own. ``verify_ms`` is T(n) at the end.
    """
    everything = measured.variants[ALL]
    result = _variant(measured, ALL, costs)
    result["identical"] = not measured.unequal
    result["cases"] = len(measured.cases)
    result["prompt_tokens_p50"] = statistics.median(len(c.request.prompt) for c in measured.cases)
    result["by_source"] = {
        source: {"in_all": _usage(uses)} for source, uses in _by_source(everything).items()
    }
    for source in measured.variants:
        if source != ALL:
            shown = result["by_source"].setdefault(source, {"in_all": _usage([])})
            shown |= _variant(measured, source, costs)
    result["verify_ms"] = {str(n): round(ms, 2) for n, ms in costs.verify.known.items()}
    return result


def line(measured: Measured, last: int) -> str:
    """Return the progress after a trace: its own figures, of its ``last`` cases."""
    if not last:
        return "no cases"
    plain = [run[-last:] for run in measured.plain]
    drafted = [run[-last:] for run in measured.variants[ALL]]
    ratio = sum(_medians(plain)) / sum(_medians(drafted))
    return f"{last} cases, plain {_tok_s(plain):.1f} tok/s, all sources x{ratio:.2f}"


def _variant(measured: Measured, name: str, costs: Costs) -> dict[str, Any]:
    """Compare one variant with plain decoding."""
    runs = measured.variants[name]
    plain_ms, ms = _medians(measured.plain), _medians(runs)
    ratio = sum(plain_ms) / sum(ms)
    by_trace = _ratios_by_trace(measured.cases, plain_ms, ms)
    worst = min(by_trace, key=by_trace.__getitem__)
    predicted = _predicted(measured.plain, runs, costs)
    different = _differences(measured.cases, measured.plain, runs)
    uses = list(chain.from_iterable(_by_source(runs).values()))
    answers = [replay.generation for replay in chain.from_iterable(runs)]
    return {
        "plain_tok_s": round(_tok_s(measured.plain), 2),
        "speculative_tok_s": round(_tok_s(runs), 2),
        "ratio": round(ratio, 3),
        "worst_ratio": round(by_trace[worst], 3),
        "worst_trace": worst,
        "differences": different[:_DIFFERENCES],
        "near_ties": sum(d["near_tie"] is True for d in different),
        "different": len(different),
        "tokens": sum(len(answer.tokens) for answer in answers) // len(runs),
        "tokens_per_step": _rounded(
            sum(len(answer.tokens) for answer in answers), sum(answer.steps for answer in answers)
        ),
        "predicted_ratio": round(predicted, 3),
        "efficiency": round(ratio / predicted, 3),
        **_usage(uses),
    }


def _usage(uses: Sequence[DraftUse]) -> dict[str, Any]:
    drafted, accepted = sum(u.offered for u in uses), sum(u.accepted for u in uses)
    lengths = Counter(use.accepted for use in uses)
    return {
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": _rounded(accepted, drafted),
        "accepted_lengths": {str(n): lengths[n] for n in sorted(lengths)},
    }


def _by_source(runs: Runs) -> dict[str, list[DraftUse]]:
    found: dict[str, list[DraftUse]] = {}
    for replay in chain.from_iterable(runs):
        for use in replay.generation.drafts:
            found.setdefault(use.source, []).append(use)
    return found


def _medians(runs: Runs) -> list[float]:
    """Return each case's median over the runs."""
    return [
        statistics.median(replay.ms for replay in replays) for replays in zip(*runs, strict=True)
    ]


def _tok_s(runs: Runs) -> float:
    tokens = sum(len(replay.generation.tokens) for replay in runs[0])
    return tokens / sum(_medians(runs)) * 1e3


def _ratios_by_trace(
    cases: Sequence[Case], plain_ms: Sequence[float], ms: Sequence[float]
) -> dict[str, float]:
    both: dict[str, list[float]] = {}
    for case, one, other in zip(cases, plain_ms, ms, strict=True):
        sums = both.setdefault(case.trace, [0.0, 0.0])
        sums[0] += one
        sums[1] += other
    return {trace: one / other for trace, (one, other) in both.items()}


def _predicted(plain: Runs, drafted: Runs, costs: Costs) -> float:
    """Return the gain that the measured costs give the steps that were taken."""
    return _reckoned(plain, costs) / _reckoned(drafted, costs)


def _reckoned(runs: Runs, costs: Costs) -> float:
    """Return the milliseconds that one run should have taken by its steps."""
    replays = list(chain.from_iterable(runs))
    verified = sum(costs.verify(n) for replay in replays for n in replay.widths)
    drafted = sum(
        costs.draft.get(use.source, 0.0) * use.offered
        for replay in replays
        for use in replay.generation.drafts
    )
    return (verified + drafted) / len(runs)


def _differences(cases: Sequence[Case], plain: Runs, drafted: Runs) -> list[dict[str, Any]]:
    """Return the cases whose answer was not that of plain decoding, by their first such run."""
    found: dict[int, dict[str, Any]] = {}
    for one, other in zip(plain, drafted, strict=False):
        for at, (expected, replay) in enumerate(zip(one, other, strict=True)):
            different = _difference(expected.generation, replay.generation)
            if different is not None:
                case = cases[at]
                found.setdefault(at, {"trace": case.trace, "stroke": case.stroke} | different)
    return [found[at] for at in sorted(found)]


def _difference(plain: Generation, drafted: Generation) -> dict[str, Any] | None:
    """Return the first difference of two answers, None where all tokens are the same.

    ``gap`` is how much the log probabilities of the two tokens there differ, each in the run that
    chose it: at a tie both are nearly the same. It is None where one answer ended.
    """
    pairs = list(zip_longest(plain.tokens, drafted.tokens))
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return None
    gap = None
    if at < min(len(plain.logprobs), len(drafted.logprobs)):
        gap = abs(plain.logprobs[at] - drafted.logprobs[at])
    return {
        "at": at,
        "plain": pairs[at][0],
        "speculative": pairs[at][1],
        "gap": None if gap is None else round(gap, 4),
        "near_tie": None if gap is None else gap < NEAR_TIE,
    }


def _rounded(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


def render(result: dict[str, Any]) -> RenderableType:
    """Return a result of ``run_decode`` as tables for a terminal."""
    table = Table(title="Decoding on warm prompts", title_justify="left")
    table.add_column("")
    for column in ("tok/s", "ratio", "worst", "drafted", "right", "a step", "of pred.", "same"):
        table.add_column(column, justify="right")
    table.add_row("plain", f"{result['plain_tok_s']:.1f}", "1.00")
    alone = {name: found for name, found in result["by_source"].items() if "ratio" in found}
    for name, found in ({"all": result} | {f"{name} alone": alone[name] for name in alone}).items():
        table.add_row(
            name,
            f"{found['speculative_tok_s']:.1f}",
            f"{found['ratio']:.2f}",
            f"{found['worst_ratio']:.2f}",
            str(found["drafted"]),
            _percent(found["acceptance"]),
            _shown(found["tokens_per_step"]),
            _percent(found["efficiency"]),
            "all" if not found["different"] else f"{result['cases'] - found['different']}",
        )
    parts: list[RenderableType] = [table, Text(_footer(result), style="dim")]
    if "synthetic" in result:
        parts.append(_synthetic_table(result["synthetic"]))
    if "plain_vs_library" in result:
        parts.append(Text(_library_line(result["plain_vs_library"])))
    return Group(*parts)


def _footer(result: dict[str, Any]) -> str:
    lengths = ", ".join(f"{n}: {count}" for n, count in result["accepted_lengths"].items())
    lines = [
        f"{result['model']}, {result['threads']} threads, {result['backend']}, traces: "
        f"{result['traces']}, cases: {result['cases']}, runs: {result['runs']}, worst trace: "
        f"{result['worst_trace']}",
        f"drafts by right tokens: {lengths or 'none'}",
        "ratio: times plain; worst: in one trace; right: of the drafted; a step: tokens; of pred.: "
        "of the gain that the measured T(n) predicts; same: cases with the same tokens",
        "in steps of the same kind plain and speculative tokens are "
        + ("the same in all cases" if result["identical"] else "NOT THE SAME"),
    ]
    lines += [
        f"{found['trace']}, stroke {found['stroke']}, token {found['at']} differs: {_tie(found)}"
        for found in result["differences"]
    ]
    return "\n".join(lines)


def _tie(found: Mapping[str, Any]) -> str:
    if found["gap"] is None:
        return "one answer ended"
    return f"{'a near tie' if found['near_tie'] else 'no near tie'}, {found['gap']:.2f} apart"


def _synthetic_table(found: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(title="Drafts that are right so often", title_justify="left")
    for column in ("right", "mean length", "tok/s", "best fixed length", "tok/s", "share"):
        table.add_column(column, justify="right")
    for curve in found:
        table.add_row(
            _percent(curve["rate"]),
            _shown(curve["mean_length"]),
            f"{curve['tok_s']:.1f}",
            str(curve["best_length"]),
            f"{curve['best_tok_s']:.1f}",
            _percent(curve["share"]),
        )
    return table


def _library_line(found: Mapping[str, Any]) -> str:
    return (
        f"plain decoding {found['tok_s']:.1f} tok/s, the library's own loop "
        f"{found['library_tok_s']:.1f}: {found['share']:.1%}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
