import gzip
import json
from pathlib import Path

import pytest

from fimlsp.bench.make_traces import make_traces
from fimlsp.bench.traces import Trace, bundled_traces, read_traces, write_traces
from fimlsp.errors import TraceError

LINE = {"id": "a", "lang": "go", "path": "a.go", "before": "x", "after": "y", "typed": "tt"}


def written(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def test_a_state_is_the_file_with_what_was_typed_so_far() -> None:
    trace = Trace(id="a", lang="go", path="a.go", before="ab", after="ef", typed="cd")
    assert [trace.text(j) for j in range(3)] == ["abef", "abcef", "abcdef"]
    assert [trace.cursor(j) for j in range(3)] == [2, 3, 4]
    assert [trace.future(j) for j in range(3)] == ["cdef", "def", "ef"]


def test_strokes_end_with_what_was_typed() -> None:
    trace = Trace(id="a", lang="go", path="a.go", before="", after="", typed="four")
    assert (trace.strokes(None), trace.strokes(2), trace.strokes(9)) == (4, 2, 4)


def test_traces_are_read_plain_and_gzipped_whatever_the_name(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.gz", LINE)
    zipped = tmp_path / "zipped.jsonl"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_traces(plain) == read_traces(zipped)


def test_limit_stops_before_later_lines_are_looked_at(tmp_path: Path) -> None:
    assert len(read_traces(written(tmp_path / "t", LINE, "", LINE, "broken"), limit=2)) == 2


def test_separators_inside_strings_do_not_end_a_line(tmp_path: Path) -> None:
    odd = LINE | {"before": "a\u2028b\x85c\x0cd\r\n"}
    path = tmp_path / "t"
    path.write_text(json.dumps(odd, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    assert read_traces(path)[0].before == odd["before"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object, found list"),
        ({"id": "a"}, "no 'lang'"),
        (LINE | {"before": 3}, "'before' must be a string, found int"),
        (LINE | {"typed": ""}, "'typed' is empty"),
        (LINE | {"others": {}}, "'others' must be a list, found dict"),
        (LINE | {"others": ["a"]}, "'others' must hold objects, found str"),
        (LINE | {"others": [{"path": "a"}]}, "others: no 'text'"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(
    tmp_path: Path, line: object, words: str
) -> None:
    path = written(tmp_path / "traces.jsonl", LINE, "", line)
    with pytest.raises(TraceError, match=f"line 3.*{words}"):
        read_traces(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="can't read the traces"):
        read_traces(tmp_path / "absent")
    with pytest.raises(TraceError, match="found no trace"):
        read_traces(written(tmp_path / "empty"))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(LINE).encode() * 50)[:-20])
    with pytest.raises(TraceError, match="can't read past line 0"):
        read_traces(cut)


def test_written_traces_are_the_same_when_read(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    traces = read_traces(
        written(tmp_path / "t", LINE | {"others": [{"path": "b.go", "text": "é"}]})
    )
    write_traces(path, traces)
    assert read_traces(path) == traces


def test_the_bundled_traces_can_be_played() -> None:
    traces = bundled_traces()
    assert len({trace.id for trace in traces}) == len(traces) >= 8
    for trace in traces:
        assert trace.before.rpartition("\n")[2].strip() == ""
        assert trace.after.startswith("\n")


def test_made_traces_are_lines_of_code_and_always_the_same(tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    root.mkdir()
    prose = ['"""A docstring that is', "long enough to be picked and goes on", '"""'] * 20
    code = ["first_value = compute_something()", "# a comment that is long enough"] * 10
    for name in ("a.py", "b.py"):
        written(root / name, *prose, *code)
    traces = make_traces(root, count=2)
    assert [(trace.path, trace.typed) for trace in traces] == [
        ("pkg/a.py", code[0]),
        ("pkg/b.py", code[0]),
    ]
    assert [other.path for other in traces[1].others] == ["pkg/a.py"]
    assert make_traces(root, count=2) == traces
