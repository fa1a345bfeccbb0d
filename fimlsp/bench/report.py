"""The numbers of a typing benchmark, and how they are shown to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fimlsp.bench.scoring import Sample, percentile

_SIDES: Final = ("fimlsp", "peer")
_RATIOS: Final = ("cold_p50", "typing_p50", "typing_p90", "model_typing_p50")
_ROWS: Final = (
    ("first suggestion in a file, median", "cold_p50_ms", "ms"),
    ("first suggestion in a file, 90 %", "cold_p90_ms", "ms"),
    ("after a key, median", "typing_p50_ms", "ms"),
    ("after a key, 90 %", "typing_p90_ms", "ms"),
    ("after a key that needs the model, median", "model_typing_p50_ms", "ms"),
    ("prompt tokens read, first, median", "cold_prompt_tokens_p50", "count"),
    ("prompt tokens read per key, median", "prompt_tokens_p50", "count"),
    ("... where the key needs the model", "model_prompt_tokens_p50", "count"),
    ("keys whose text was known already", "answered_without_model", "share"),
    ("line exactly as it was typed", "exact_lines", "count"),
    ("... of so many states", "states", "count"),
    ("text there before the next key", "shown_before_next_key", "share"),
    ("text after the last key, median", "pause_to_text_p50_ms", "ms"),
    ("pauses without any text", "pauses_without_text", "count"),
)


def side_report(samples: Sequence[Sample]) -> dict[str, Any]:
    """Sum up one side. Milliseconds and percentiles by nearest rank; None where nothing was seen.

    ``typing_*`` and ``prompt_tokens_p50`` are over all keys after the first state; the ``model_*``
    ones leave out keys whose text was known already (typed through, or in the peer's case held by
    the plugin's cache), whose share is ``answered_without_model``. A key that was overtaken by the
    next counts as infinitely slow.
    """
    cold = [sample.answer for sample in samples if sample.stroke == 0]
    keys = [sample.answer for sample in samples if sample.stroke > 0]
    model = [answer for answer in keys if not answer.without_model]
    judged = [sample.exact for sample in samples if sample.exact is not None]
    return {
        "cold_p50_ms": _ms([answer.ms for answer in cold], 50),
        "cold_p90_ms": _ms([answer.ms for answer in cold], 90),
        "typing_p50_ms": _ms([answer.ms for answer in keys], 50),
        "typing_p90_ms": _ms([answer.ms for answer in keys], 90),
        "model_typing_p50_ms": _ms([answer.ms for answer in model], 50),
        "cold_prompt_tokens_p50": _tokens([answer.prompt_tokens for answer in cold]),
        "prompt_tokens_p50": _tokens([answer.prompt_tokens for answer in keys]),
        "model_prompt_tokens_p50": _tokens([answer.prompt_tokens for answer in model]),
        "answered_without_model": _share([answer.without_model for answer in keys]),
        "exact_lines": sum(judged),
        "states": len(judged),
        "keys": len(keys),
    }


def live_report(samples: Sequence[Sample], pace_ms: float) -> dict[str, Any]:
    """Sum up what only live mode has.

    ``shown_before_next_key`` is the share of keys that had text on the screen within ``pace_ms``.
    ``pause_to_text_p50_ms`` is from the last key of a trace to text; pauses that never got any are
    counted apart.
    """
    keys = [sample for sample in samples if sample.stroke > 0]
    last = {sample.trace: sample.answer for sample in keys}
    texts = [answer.ms for answer in last.values() if answer.edit is not None]
    return {
        "shown_before_next_key": _share(
            [key.answer.edit is not None and key.answer.ms <= pace_ms for key in keys]
        ),
        "pause_to_text_p50_ms": _ms(texts, 50),
        "pauses_without_text": len(last) - len(texts),
    }


def ratios(fimlsp: dict[str, Any], peer: dict[str, Any]) -> dict[str, float | None]:
    """Return how many times as long the peer takes; None where one of the two is unknown."""
    result: dict[str, float | None] = {}
    for name in _RATIOS:
        ours, theirs = fimlsp[f"{name}_ms"], peer[f"{name}_ms"]
        known = ours and theirs is not None
        result[f"ratio_{name}"] = round(theirs / ours, 2) if known else None
    return result


def render(result: dict[str, Any]) -> RenderableType:
    """Return a result of ``run_typing`` as a table for a terminal."""
    sides = [side for side in _SIDES if side in result]
    table = Table(title=f"Typing, {result['mode']} mode", title_justify="left")
    table.add_column("")
    for side in sides:
        table.add_column("llama-server" if side == "peer" else side, justify="right")
    if len(sides) > 1:
        table.add_column("times faster", justify="right")
    for label, key, unit in _ROWS:
        if key not in result["fimlsp"]:
            continue
        row = [_shown(result[side][key], unit) for side in sides]
        if len(sides) > 1:
            ratio = result.get(f"ratio_{key.removesuffix('_ms')}")
            row.append("" if ratio is None else f"{ratio:.1f}")
        table.add_row(label, *row)
    return Group(table, Text(_footer(result), style="dim"))


def _footer(result: dict[str, Any]) -> str:
    lines = [
        f"{result['model']}, {result['threads']} threads, {result['backend']}, "
        f"traces: {result['traces']}"
    ]
    lines.append(
        f"a key every {result['pace_ms']:g} ms, whatever happens"
        if result["mode"] == "live"
        else f"each key {result['pace_ms']:g} ms after the answer to the one before"
    )
    if "peer_command" in result:
        lines.append(f"peer: {result['peer_command']}")
        if result["mode"] == "patient":
            lines.append(
                "the peer is timed by its requests, also where its editor knows the text already"
            )
    return "\n".join(lines)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "ms":
        return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
    return f"{value:.0%}" if unit == "share" else f"{value:g}"


def _ms(values: Sequence[float], percent: float) -> float | None:
    value = percentile(values, percent)
    return None if value is None else round(value, 2)


def _tokens(values: Sequence[int | None]) -> int | None:
    value = percentile([value for value in values if value is not None], 50)
    return None if value is None else int(value)


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
