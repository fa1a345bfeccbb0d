"""Plain against speculative decoding: which cases, what speculation may know, what is reported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from desk import CONTROLS
from engine_harness import open_engine
from fakes import ScriptedEngine, WordVocabulary
from rich.console import Console
from tiny_gguf import CORPUS, write_tiny_gguf

from fimlsp.bench import decode, decode_library
from fimlsp.bench.decode import DecodeOptions, render, run_decode
from fimlsp.bench.decode_cases import MAX_TOKENS, STATES, Case, collect
from fimlsp.bench.decode_replay import Player, StepLog
from fimlsp.bench.traces import Trace, write_traces
from fimlsp.cli import cli
from fimlsp.completion.api import CompletionParams
from fimlsp.context.params import WindowParams
from fimlsp.engine.api import GREEDY, ModelInfo, Request
from fimlsp.engine.drafters.api import Draft
from fimlsp.engine.drafters.ngram import NgramDrafter
from fimlsp.engine.speculation import Lessons
from fimlsp.engine.worker import InProcessEngine
from fimlsp.errors import BenchError

BACKEND = os.environ.get("FIMLSP_TEST_BACKEND", "ik_llama")
FULL = WindowParams(prefix_tokens=96, suffix_tokens=32, cold_ms=10**9)
SOURCES = ("previous", "ngram")
KEYS = {
    "plain_tok_s",
    "speculative_tok_s",
    "ratio",
    "worst_ratio",
    "identical",
    "cases",
    "acceptance",
    "efficiency",
    "by_source",
}


def trace_of(typed: str, name: str = "a", before: str = "x = 1\n") -> Trace:
    return Trace(
        id=name, lang="python", path=f"{name}.py", before=before, after="\ny = 2\n", typed=typed
    )


def options(**more: Any) -> DecodeOptions:
    return DecodeOptions(
        **{
            "completion": CompletionParams(),
            "window": FULL,
            "sources": SOURCES,
            "max_draft": 8,
            "runs": 1,
        }
        | more
    )


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[InProcessEngine]:
    engine = open_engine(tiny_model, BACKEND, sources=SOURCES, slots=4)
    yield engine
    engine.close()


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two places in the corpus that the tiny model's text is made of."""
    path = tmp_path / "traces.jsonl.gz"
    middle = len(CORPUS) // 2
    write_traces(
        path,
        [
            trace_of("self.total += item.", name="first", before=CORPUS[:middle]),
            trace_of("return await", name="second", before=CORPUS),
        ],
    )
    return path


# ---- the cases


def scripted_cases(
    trace: Trace, texts: Sequence[bytes], window: WindowParams = FULL
) -> tuple[list[Case], ScriptedEngine]:
    """Return the cases where the model writes ``texts`` one after another, then the last."""
    left = list(texts)

    def script(request: Request) -> bytes:
        return request.must_start_with + (left.pop(0) if len(left) > 1 else left[0])

    engine = ScriptedEngine(script, WordVocabulary((), CONTROLS))
    return collect(engine, trace, CompletionParams(), window, GREEDY), engine


def test_cases_are_the_first_state_and_those_that_the_last_suggestion_did_not_foresee() -> None:
    cases, _ = scripted_cases(trace_of("xy alpha"), [b"alpha\n"])
    assert [case.stroke for case in cases] == [0, 1, 2, 3, 8]


def test_no_more_than_the_first_states_of_a_trace_are_cases() -> None:
    cases, _ = scripted_cases(trace_of("q" * 40), [b"alpha\n"])
    assert [case.stroke for case in cases] == list(range(STATES))


def test_the_model_answers_without_drafts_or_deadline_while_cases_are_collected() -> None:
    cases, engine = scripted_cases(trace_of("xy"), [b"alpha\n"])
    assert [request.sources for request in engine.requests] == [()] * len(cases)
    assert all(request.deadline is None for request in engine.requests)
    assert all(case.request.sources is None and case.request.deadline is None for case in cases)
    assert {case.request.max_tokens for case in cases} == {MAX_TOKENS}


def test_nothing_is_read_ahead_of_time() -> None:
    small = WindowParams(prefix_tokens=400, suffix_tokens=60, cold_ms=600)
    lines = "".join(f"line {number:04}\n" for number in range(100))
    cases, engine = scripted_cases(trace_of("q" * 5, before=lines), [b"alpha\n"], small)
    assert len(engine.requests) == len(cases) == 6
    assert max(len(case.request.prompt) for case in cases) < 120


def test_a_case_expects_only_what_was_suggested_before_it() -> None:
    answers = [b"one\n", b"two\n", b"three\n"]
    cases, _ = scripted_cases(trace_of("qq"), answers)
    known: set[bytes] = set()
    for case, answer in zip(cases, answers, strict=True):
        hoped = {*case.request.expected, *case.request.related}
        assert {text.strip() for text in hoped} <= known
        known.add(answer.strip())
    assert cases[-1].request.related  # there was something to hope for


def test_the_stop_rule_of_a_case_can_be_used_again() -> None:
    case, *_ = scripted_cases(trace_of("q"), [b"alpha\nbeta\n"])[0]
    assert case.request.watch is not None
    start = case.request.must_start_with
    for _ in range(3):
        assert not case.request.watch(start + b"alp")
        assert case.request.watch(start + b"alpha\n\n")


# ---- what speculation may know


class Spy:
    """A free source that remembers what it was asked and told."""

    name = "ngram"
    made: ClassVar[list[Spy]] = []

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.made.append(self)

    def begin(
        self,
        prompt: Sequence[int],
        expected: Sequence[Sequence[int]],
        related: Sequence[Sequence[int]],
    ) -> None:
        self.asked.append(tuple(prompt))

    def draft(self, emitted: Sequence[int], n_max: int) -> Draft | None:
        return None

    def end(self, emitted: Sequence[int]) -> None:
        pass


def test_no_source_is_asked_a_case_whose_answer_it_was_told(
    engine: InProcessEngine, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays would look like a gain: the n-gram source remembers recent completions."""
    monkeypatch.setattr(Spy, "made", [])
    monkeypatch.setattr(decode, "free_drafters", lambda: (Spy(),))
    result = run_decode(engine, options(runs=3, traces=traces, sources=("ngram",)), _silent)
    assert len(Spy.made) == 3
    for spy in Spy.made:
        assert len(spy.asked) == result["cases"]
        assert spy.asked == Spy.made[0].asked


def test_lessons_that_hold_the_answer_would_cheat_and_fresh_ones_do_not(
    engine: InProcessEngine, traces: Path
) -> None:
    player = Player(engine)
    # Where width costs nothing every draft is taken.
    player.curve = engine.speculation.curve = StepLog({1: 1.0})
    case = _case(engine)
    engine.speculation.relearn(Lessons((NgramDrafter(),)))
    first, again = (player.play(case, ("ngram",)).generation for _ in range(2))
    engine.speculation.relearn(Lessons((NgramDrafter(),)))
    fresh = player.play(case, ("ngram",)).generation
    assert fresh.drafts == first.drafts
    assert again.accepted > first.accepted
    assert again.accepted > len(again.tokens) / 2


def test_plain_replays_teach_nothing(engine: InProcessEngine) -> None:
    player = Player(engine)
    case = _case(engine)
    spy = Spy()
    engine.speculation.relearn(Lessons((spy,)))
    player.play(case, ())
    assert spy.asked == []
    player.play(case, ("ngram",))
    assert spy.asked == [case.request.prompt]


def test_a_replay_times_the_answer_alone_and_sees_each_step(engine: InProcessEngine) -> None:
    replay = Player(engine).play(_case(engine), ())
    assert replay.generation.prompt_tokens == 1
    assert replay.widths == (1,) * replay.generation.steps
    assert replay.ms > 0


def _case(engine: InProcessEngine) -> Case:
    prompt = tuple(engine.vocabulary.tokenize(CORPUS.encode())[:80])
    return Case(
        trace="corpus", stroke=0, request=Request(slot="a", prompt=prompt, max_tokens=MAX_TOKENS)
    )


# ---- the whole


def _silent(_line: str) -> None:
    pass


def test_a_run_reports_every_key_and_text_that_differs_at_near_ties_at_most(
    engine: InProcessEngine, traces: Path
) -> None:
    lines: list[str] = []
    result = run_decode(engine, options(runs=2, traces=traces), lines.append)
    assert result.keys() >= KEYS
    # Rounding may decide between two tokens; which widths are taken depends on the clock.
    assert result["different"] == result["near_ties"], result["differences"]
    assert result["identical"]
    assert result["ratio"] > 0 < result["worst_ratio"] <= result["ratio"]
    assert result["cases"] >= result["traces"] == 2
    assert set(SOURCES) <= result["by_source"].keys()
    assert all(result["by_source"][name]["ratio"] > 0 for name in SOURCES)
    assert sum(line.startswith(("1/2 first", "2/2 second")) for line in lines) == 2
    assert json.loads(json.dumps(result)) == result


def test_sources_that_are_switched_off_are_not_measured(
    engine: InProcessEngine, traces: Path
) -> None:
    result = run_decode(engine, options(traces=traces, sources=()), _silent)
    assert result["identical"], result["differences"]
    assert (result["drafted"], result["acceptance"], result["by_source"]) == (0, None, {})
    assert result["predicted_ratio"] == pytest.approx(1.0)


def test_the_command_prints_one_json_object(
    tiny_model: Path, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    sets = {"models.target": tiny_model, "engine.backend": BACKEND, "engine.threads": 1}
    sets |= {"engine.n_ctx": 512, "engine.n_ubatch": 32}
    arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    command = ["bench", "decode", "--traces", str(traces), "--limit", "1", "--runs", "1"]
    done = CliRunner().invoke(cli, [*command, "--no-alone", "--json", *arguments])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["model"], result["traces"]) == ("tiny.gguf", 1)
    assert "ratio" not in result["by_source"].get("ngram", {})


def test_the_table_names_every_variant(engine: InProcessEngine, traces: Path) -> None:
    result = run_decode(engine, options(traces=traces, synthetic=(0.5,)), _silent)
    result["plain_vs_library"] = {"tok_s": 19.0, "library_tok_s": 20.0, "share": 0.95}
    console = Console(file=StringIO(), width=160)
    console.print(render(result))
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    for text in ("plain", "all", "previous alone", "ngram alone", "50%", "95.0%"):
        assert text in shown


# ---- the library's own loop


def fake_llama_bench(folder: Path, body: str) -> str:
    program = folder / "llama_bench.py"
    program.write_text(f"import json, sys\n{body}\n", encoding="utf-8")
    return f'"{Path(sys.executable).as_posix()}" "{program.as_posix()}"'


def llama_cpp_engine() -> ScriptedEngine:
    engine = ScriptedEngine(lambda _request: b"a" * 200)
    info = engine.info
    engine.info = ModelInfo(
        path=info.path,
        backend="llama_cpp",
        description=info.description,
        n_vocab=info.n_vocab,
        n_ctx_train=info.n_ctx_train,
        size_bytes=0,
        threads=3,
    )
    return engine


def test_the_library_gets_the_same_model_threads_and_tokens(tmp_path: Path) -> None:
    body = (
        "a = sys.argv\n"
        "assert a[a.index('-t') + 1] == '3' and a[a.index('-m') + 1] == 'scripted.gguf', a\n"
        "print(json.dumps([{'n_gen': int(a[a.index('-n') + 1]), 'samples_ts': [9, 30, 10]}]))"
    )
    found = decode_library.compare(llama_cpp_engine(), fake_llama_bench(tmp_path, body))
    assert (found["library_tok_s"], found["tokens"]) == (10.0, 64)
    assert found["share"] == pytest.approx(found["tok_s"] / 10, rel=1e-3)


def test_another_library_is_not_compared_with_llama_bench() -> None:
    engine = ScriptedEngine(lambda _request: b"")
    with pytest.raises(BenchError, match=r"engine\.backend=llama_cpp"):
        decode_library.compare(engine, "llama-bench")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no such model')", "code 1: no such model"),
        ("print('[]')", "printed no result"),
        ("print('nothing')", "printed no result"),
    ],
)
def test_a_llama_bench_that_fails_is_named(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        decode_library.compare(llama_cpp_engine(), fake_llama_bench(tmp_path, body))
