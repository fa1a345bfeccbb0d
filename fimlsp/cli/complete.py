"""``fimlsp complete`` and ``fimlsp demo``: one real completion on the terminal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from fimlsp.cli.models import pull_with_progress
from fimlsp.cli.options import say_problems, with_settings
from fimlsp.cli.session import complete_once
from fimlsp.config import Config, Settings
from fimlsp.document import (
    LINE_END,
    Completion,
    NoCompletion,
    Reason,
    Snapshot,
    Timings,
    dominant_eol,
)
from fimlsp.errors import FimlspError
from fimlsp.models import catalog
from fimlsp.sample import sample

_SHOWN_LINES = 12
"""Lines of the file shown above the cursor."""
_WHY = {
    Reason.EMPTY: "(the model wrote nothing here)",
    Reason.REPEATS_SUFFIX: "(the model wrote what follows the cursor already)",
}


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--line", type=click.IntRange(1), required=True, help="Line of the cursor, 1-based.")
@click.option(
    "--column", type=click.IntRange(1), required=True, help="Column of the cursor, 1-based."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_settings
def complete(file: Path, line: int, column: int, as_json: bool, settings: Settings) -> None:
    """Complete FILE at a cursor and print the suggestion with its timings.

    Reads the whole window and takes the time it needs, unlike the server.
    """
    say_problems(settings)
    _run(settings.config, _snapshot_of(file, line, column), as_json=as_json)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_settings
def demo(as_json: bool, settings: Settings) -> None:
    """Fetch the model if need be, and complete the bundled sample file."""
    say_problems(settings)
    models = settings.config.models
    if catalog.find(models.target):
        pull_with_progress(models.target, models)
    _run(settings.config, sample(), as_json=as_json)


def _run(config: Config, snapshot: Snapshot, *, as_json: bool) -> None:
    console = Console(stderr=True)
    with console.status("loading the model") as status:

        def progress(fraction: float) -> None:
            status.update(f"loading the model {fraction:.0%}")

        answer = asyncio.run(complete_once(config, snapshot, progress))
    if as_json:
        click.echo(json.dumps(_as_json(answer), ensure_ascii=False))
    elif isinstance(answer, NoCompletion):
        why = answer.detail or _WHY.get(answer.reason, "")
        click.echo(f"no suggestion: {answer.reason.value} {why}".rstrip(), err=True)
        _say_times(answer.timings)
    else:
        console = Console(highlight=False)
        if console.is_terminal:
            _show(console, answer[0], snapshot)
        else:
            click.echo(answer[0].text)
        _say_times(answer[0].timings)


def _say_times(t: Timings) -> None:
    drafts = f", {t.accepted} of {t.drafted} drafted tokens were right" if t.drafted else ""
    click.echo(
        f"{t.prompt_tokens} prompt tokens read in {t.prefill_ms:.0f} ms, "
        f"{t.tokens} tokens written in {t.decode_ms:.0f} ms{drafts}",
        err=True,
    )


def _as_json(answer: tuple[Completion, ...] | NoCompletion) -> dict[str, object]:
    found = answer if isinstance(answer, NoCompletion) else answer[0]
    timings = found.timings
    return {
        "text": "" if isinstance(found, NoCompletion) else found.text,
        "replace_after": 0 if isinstance(found, NoCompletion) else found.replace_after,
        "reason": found.reason.value if isinstance(found, NoCompletion) else "",
        "prompt_tokens": timings.prompt_tokens,
        "reused_tokens": timings.reused_tokens,
        "prefill_ms": round(timings.prefill_ms, 1),
        "tokens": timings.tokens,
        "decode_ms": round(timings.decode_ms, 1),
        "drafted": timings.drafted,
        "accepted": timings.accepted,
        "draft_source": timings.draft_source,
        "total_ms": round(timings.total_ms, 1),
    }


def _show(console: Console, completion: Completion, snapshot: Snapshot) -> None:
    """Print the end of the file up to the cursor, and the suggestion in grey."""
    before = snapshot.before(1 << 16).split("\n")[-_SHOWN_LINES:]
    rest = snapshot.rest_of_line()[completion.replace_after :]
    text = Text("\n".join(before))
    text.append(completion.text, style="bright_black italic")
    text.append(rest)
    console.print(text)


def _snapshot_of(file: Path, line: int, column: int) -> Snapshot:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FimlspError(f"{file}: expected UTF-8 text, found {error.reason}") from error
    starts = [0, *(match.end() for match in LINE_END.finditer(text))]
    if line > len(starts):
        raise click.BadParameter(f"{file} has {len(starts)} lines", param_hint="--line")
    start = starts[line - 1]
    end = LINE_END.search(text, start)
    length = (end.start() if end else len(text)) - start
    if column > length + 1:
        raise click.BadParameter(
            f"line {line} has {length} characters, so {length + 1} is the last column",
            param_hint="--column",
        )
    return Snapshot(
        uri=file.absolute().as_uri(),
        version=0,
        language_id="",
        path=file.name if file.is_absolute() else file.as_posix(),
        text=text,
        cursor=start + column - 1,
        eol=dominant_eol(text),
    )
