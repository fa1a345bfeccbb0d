import json
import math
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from fimlsp.bench.editor import Editor
from fimlsp.bench.traces import OtherFile, Trace, read_traces, write_traces
from fimlsp.bench.typing import TypingOptions, render, run_typing
from fimlsp.errors import BenchError, TraceError

Command = Callable[..., tuple[str, ...]]
SIDE_KEYS = {
    "cold_p50_ms",
    "cold_p90_ms",
    "typing_p50_ms",
    "typing_p90_ms",
    "prompt_tokens_p50",
    "exact_lines",
    "states",
}


@pytest.fixture
def two_traces(tmp_path: Path, trace: Trace) -> Path:
    """The same trace under two names."""
    path = tmp_path / "traces.jsonl.gz"
    other = OtherFile(path="pkg/other.py", text="x = 1\n")
    again = [
        Trace(
            id=name,
            lang=trace.lang,
            path=trace.path,
            before=trace.before,
            after=trace.after,
            typed=trace.typed,
            others=(other,),
        )
        for name in ("first", "second")
    ]
    write_traces(path, again)
    return path


def options(command: tuple[str, ...], traces: Path | None, **more: Any) -> TypingOptions:
    return TypingOptions(
        serve_command=command,
        model=Path("models/tiny.gguf"),
        threads=2,
        traces=traces,
        pace_ms=more.pop("pace_ms", 1),
        **more,
    )


def test_both_sides_are_measured_in_turn_and_compared(
    scripted_server: Command,
    fake_llama_server: tuple[tuple[str, ...], Path],
    two_traces: Path,
) -> None:
    lines: list[str] = []
    result = run_typing(
        options(scripted_server(), two_traces, strokes=3, peer_command=fake_llama_server[0]),
        lines.append,
    )
    turns = [line.split(":")[0] for line in lines if line[0].isdigit()]
    assert turns == ["1/2 first fimlsp", "1/2 first peer", "2/2 second peer", "2/2 second fimlsp"]
    for side in ("fimlsp", "peer"):
        assert result[side].keys() >= SIDE_KEYS
        assert (result[side]["exact_lines"], result[side]["states"]) == (8, 8)
    assert result["fimlsp"]["prompt_tokens_p50"] == 2
    assert result["fimlsp"]["cold_prompt_tokens_p50"] == 40
    assert result["peer"]["prompt_tokens_p50"] == 7
    for ratio in ("cold_p50", "typing_p50", "typing_p90"):
        ours, theirs = (result[side][f"{ratio}_ms"] for side in ("fimlsp", "peer"))
        assert result[f"ratio_{ratio}"] == pytest.approx(theirs / ours, abs=0.01)
    assert (result["model"], result["threads"]) == ("tiny.gguf", 2)
    assert (result["backend"], result["mode"]) == ("scripted", "patient")
    assert json.loads(json.dumps(result)) == result


def test_each_answer_gets_the_timings_of_its_own_status(
    scripted_server: Command, trace: Trace
) -> None:
    """The server mixes other statuses in, and sends the right one before or after the answer."""
    with Editor(scripted_server()) as editor:
        editor.start(trace)
        answers = [editor.key(trace, stroke, None) for stroke in range(5)]
        editor.finish()
    assert [answer.prompt_tokens for answer in answers] == [40, 2, 0, 2, 2]
    assert [answer.without_model for answer in answers] == [False, False, True, False, False]


def test_the_share_of_keys_answered_without_the_model_is_reported(
    scripted_server: Command, two_traces: Path
) -> None:
    result = run_typing(options(scripted_server(), two_traces, limit=1, strokes=4), len)
    assert result["fimlsp"]["answered_without_model"] == 0.25
    assert result["fimlsp"]["prompt_tokens_p50"] == 2
    assert "peer" not in result
    assert "ratio_cold_p50" not in result


def test_other_files_are_opened_only_when_asked_for(
    scripted_server: Command, two_traces: Path
) -> None:
    trace = read_traces(two_traces)[0]
    opened = []
    for others in (False, True):
        with Editor(scripted_server(), others=others) as editor:
            editor.start(trace)
            editor.key(trace, 0, None)
            opened.append(
                sum(message["params"]["state"] == "busy" for message in editor.client.notifications)
            )
            editor.finish()
            assert editor.client.close() == 0
    assert opened[1] == opened[0] + 1


def test_a_key_that_the_next_one_overtakes_is_never_answered(
    scripted_server: Command, trace: Trace
) -> None:
    """The overtaken request is cancelled, and its late status is not taken for the next one's."""
    with Editor(scripted_server("--stall=2,3")) as editor:
        editor.start(trace)
        answers = [editor.key(trace, 0, None)]
        answers += [editor.key(trace, stroke, 0.0) for stroke in (1, 2)]
        answers.append(editor.key(trace, 3, None))
        editor.finish()
        assert editor.client.unexpected == []
    assert [answer.ms == math.inf for answer in answers] == [False, True, True, False]
    assert answers[3].prompt_tokens == 2
    assert answers[3].edit is not None
    assert answers[3].edit.text == "ue + 1"


def test_a_trace_may_end_with_a_request_that_nobody_waits_for(
    scripted_server: Command, trace: Trace
) -> None:
    with Editor(scripted_server("--stall=1")) as editor:
        editor.start(trace)
        editor.key(trace, 0, 0.0)
        editor.finish()
        assert editor.client.close() == 0


def test_live_mode_reports_what_was_there_before_the_next_key(
    scripted_server: Command,
    fake_llama_server: tuple[tuple[str, ...], Path],
    two_traces: Path,
) -> None:
    result = run_typing(
        options(
            scripted_server("--stall=2,3"),
            two_traces,
            limit=1,
            strokes=4,
            live=True,
            pace_ms=500,
            peer_command=fake_llama_server[0],
        ),
        len,
    )
    assert result["mode"] == "live"
    assert result["fimlsp"]["shown_before_next_key"] == 0.5
    assert result["peer"]["shown_before_next_key"] == 1
    for side in ("fimlsp", "peer"):
        assert 0 < result[side]["pause_to_text_p50_ms"] < 500
        assert result[side]["pauses_without_text"] == 0
    assert result["fimlsp"]["typing_p90_ms"] is None
    assert result["ratio_typing_p90"] is None


def test_a_server_that_is_not_ready_is_an_error_with_its_message(scripted_server: Command) -> None:
    with pytest.raises(BenchError, match="'error' instead of 'ready': as the test wants it"):
        Editor(scripted_server("--state=error"))


def test_a_server_with_another_model_is_not_compared(
    scripted_server: Command, two_traces: Path
) -> None:
    command = scripted_server("--model=other.gguf")
    with pytest.raises(BenchError, match=r"runs 'other\.gguf'.*about 'tiny\.gguf'"):
        run_typing(options(command, two_traces), len)


def test_a_server_that_dies_is_an_error_that_says_where(
    scripted_server: Command, trace: Trace
) -> None:
    with Editor(scripted_server("--die=2")) as editor:
        editor.start(trace)
        editor.key(trace, 0, None)
        with pytest.raises(BenchError, match=r"smile, stroke 1: .*the server closed its output"):
            editor.key(trace, 1, None)


def test_a_server_that_cannot_start_is_an_error() -> None:
    with pytest.raises(BenchError, match=r"can't start.*no-such-server"):
        Editor(["./no-such-server"])


def test_a_terminated_benchmark_takes_the_peer_with_it(
    scripted_server: Command,
    fake_llama_server: tuple[tuple[str, ...], Path],
    two_traces: Path,
) -> None:
    """A plain SIGTERM runs no exit handlers: the peer, with the model loaded, outlived us."""
    command, log = fake_llama_server

    def terminate_in_the_middle(line: str) -> None:
        if line.startswith("1/2 first peer"):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        run_typing(
            options(scripted_server(), two_traces, strokes=1, peer_command=command),
            terminate_in_the_middle,
        )
    started = json.loads(log.read_text(encoding="utf-8").splitlines()[0])
    assert not psutil.pid_exists(started["pid"])


def test_bad_traces_are_told_before_any_server_starts(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        run_typing(options(("./no-such-server",), tmp_path / "absent"), len)


def test_without_traces_the_bundled_ones_are_read() -> None:
    with pytest.raises(BenchError, match="no-such-server"):
        run_typing(options(("./no-such-server",), None), len)


def test_the_table_tells_a_person_both_sides_and_how_many_times_faster(
    scripted_server: Command,
    fake_llama_server: tuple[tuple[str, ...], Path],
    two_traces: Path,
) -> None:
    result = run_typing(
        options(scripted_server(), two_traces, strokes=1, peer_command=fake_llama_server[0]), len
    )
    result["ratio_cold_p50"] = 12.34
    console = Console(file=StringIO(), width=120)
    console.print(render(result))
    shown = console.file.getvalue()
    assert "fimlsp" in shown
    assert "llama-server" in shown
    assert "12.3" in shown
    assert "tiny.gguf, 2 threads, scripted" in shown
    assert "--cache-reuse" in shown
