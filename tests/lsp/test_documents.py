from __future__ import annotations

import json
import logging
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.document import Snapshot
from fimlsp.errors import FimlspError, UnknownDocumentError
from fimlsp.lsp import positions
from fimlsp.lsp.documents import Change, DocumentStore
from fimlsp.lsp.positions import Encoding, Position, Range

URI = "file:///home/me/project/src/app.py"
ALL_ENCODINGS = pytest.mark.parametrize("encoding", list(Encoding))


def opened(text: str, encoding: Encoding = Encoding.UTF16, version: int = 1) -> DocumentStore:
    store = DocumentStore(encoding)
    store.open(URI, "python", version, text)
    return store


def change(text: str, *span: int) -> Change:
    """Return a change of ``start line, start character, end line, end character``, or of all."""
    if not span:
        return Change(text)
    return Change(text, Range(Position(*span[:2]), Position(*span[2:])))


def edited(text: str, *changes: Change, encoding: Encoding = Encoding.UTF16) -> str:
    return opened(text, encoding).change(URI, 2, changes).text


# The life of a document -------------------------------------------------------------------------


def test_an_open_document_has_what_the_client_sent() -> None:
    document = opened("a\r\nb", version=7).get(URI)
    assert (document.uri, document.version, document.language_id) == (URI, 7, "python")
    assert document.text == "a\r\nb"


def test_opening_again_replaces() -> None:
    store = opened("old", version=9)
    store.open(URI, "rust", 1, "new")
    document = store.get(URI)
    assert (document.version, document.language_id, document.text) == (1, "rust", "new")


def test_a_closed_document_is_gone() -> None:
    store = opened("a")
    store.close(URI)
    with pytest.raises(UnknownDocumentError):
        store.get(URI)


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get("file:///other.py"),
        lambda store: store.close("file:///other.py"),
        lambda store: store.change("file:///other.py", 2, []),
        lambda store: store.snapshot("file:///other.py", 0, 0),
    ],
    ids=["get", "close", "change", "snapshot"],
)
def test_a_document_that_is_not_open_has_a_named_outcome(use: object) -> None:
    assert callable(use)
    with pytest.raises(UnknownDocumentError, match=r"other\.py.* 1 open .*didOpen") as caught:
        use(opened("a"))
    assert isinstance(caught.value, FimlspError)
    assert not isinstance(caught.value, KeyError)


def test_a_held_document_does_not_change() -> None:
    store = opened("a")
    held = store.get(URI)
    store.change(URI, 2, [change("b", 0, 0, 0, 1)])
    assert (held.version, held.text) == (1, "a")


# Changes ----------------------------------------------------------------------------------------


def test_changes_apply_one_after_the_other() -> None:
    """Each range speaks of the text that the changes before it left."""
    assert edited("ab", change("x\n", 0, 0, 0, 0), change("y", 1, 1, 1, 2)) == "x\nay"


def test_a_change_without_a_range_is_the_whole_text() -> None:
    assert edited("ab", change("cd\n"), change("e", 1, 0, 1, 0)) == "cd\ne"


def test_a_range_that_ends_before_it_starts_is_swapped() -> None:
    assert edited("abcd\nef", change("-", 1, 1, 0, 2)) == "ab-f"


def test_a_range_past_the_end_clamps() -> None:
    """The library's own document left the last character standing here."""
    assert edited("ab", change("", 0, 0, 0, 99)) == ""
    assert edited("ab\ncd", change("x", 0, 1, 99, 0)) == "ax"


def test_the_end_of_a_line_is_before_its_crlf() -> None:
    assert edited("ab\r\ncd", change("x", 0, 99, 0, 99)) == "abx\r\ncd"
    assert edited("ab\r\ncd", change("", 0, 2, 1, 0)) == "abcd"


@pytest.mark.parametrize("separator", ["\x0c", "\x0b", "\x1c", "\x85", "\u2028", "\u2029"])
def test_an_edit_below_a_separator_goes_to_the_right_line(separator: str) -> None:
    """``str.splitlines`` counts these as line ends; the edit then corrupted the document."""
    text = f"a{separator}b\nc\nd"
    assert edited(text, change("x", 1, 0, 1, 1)) == f"a{separator}b\nx\nd"


@pytest.mark.parametrize(
    ("encoding", "column"), [(Encoding.UTF8, 6), (Encoding.UTF16, 3), (Encoding.UTF32, 2)]
)
def test_columns_are_in_the_negotiated_encoding(encoding: Encoding, column: int) -> None:
    span = (0, column, 0, column + 1)
    assert edited("é😀b", change("x", *span), encoding=encoding) == "é😀x"


def test_an_edit_joins_a_lone_cr_with_a_following_lf() -> None:
    store = opened("a\rb\nc")
    assert store.change(URI, 2, [change("", 1, 0, 1, 1)]).text == "a\r\nc"
    assert store.snapshot(URI, 1, 0).cursor == 3


def test_half_a_character_from_json_does_no_harm_later() -> None:
    r"""JSON's ``"\ud83d"`` made a text that no encoder takes; the first tokenization raised."""
    store = opened(json.loads(r'"a\ud83d"'))
    store.change(URI, 2, [change(json.loads(r'"\ude00"'), 0, 2, 0, 2)])
    snapshot = store.snapshot(URI, 0, 3)
    assert snapshot.text == "a\ufffd\ufffd"
    assert snapshot.before(10).encode("utf-8")
    assert snapshot.cursor == 3


# Versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 4])
def test_a_version_that_does_not_rise_is_applied_and_warned_of(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages arrive in order: a change left out would misplace all that follow."""
    store = opened("a", version=5)
    document = store.change(URI, version, [change("b")])
    assert (document.version, document.text) == (version, "b")
    assert f"version {version} after 5" in caplog.text


def test_the_warning_comes_once_each_time_a_document_is_opened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that always sends 0 would else fill the log, a line for each key."""
    store = opened("a", version=0)
    store.change(URI, 0, [change("b")])
    store.change(URI, 0, [change("c")])
    assert len(caplog.records) == 1
    store.open(URI, "python", 0, "a")
    store.change(URI, 0, [change("b")])
    assert len(caplog.records) == 2


def test_a_rising_version_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        opened("a", version=5).change(URI, 9, [change("b")])
    assert not caplog.records


def test_a_snapshot_is_current_until_version_or_text_change() -> None:
    store = opened("a")
    snapshot = store.snapshot(URI, 0, 0)
    assert store.is_current(snapshot)
    store.change(URI, 2, [])
    assert not store.is_current(snapshot)


def test_a_snapshot_is_old_once_the_text_changed_under_the_same_version() -> None:
    store = opened("a", version=0)
    snapshot = store.snapshot(URI, 0, 0)
    store.change(URI, 0, [change("b", 0, 0, 0, 0)])
    assert not store.is_current(snapshot)


def test_a_snapshot_of_a_closed_document_is_not_current() -> None:
    store = opened("a")
    snapshot = store.snapshot(URI, 0, 0)
    store.close(URI)
    assert not store.is_current(snapshot)


# Snapshots --------------------------------------------------------------------------------------


def test_a_snapshot_holds_the_document_at_a_cursor() -> None:
    store = opened("é😀b\r\nc\r\n", version=3)
    store.add_folder("file:///home/me/project")
    assert store.snapshot(URI, 0, 3) == Snapshot(
        uri=URI,
        version=3,
        language_id="python",
        path="src/app.py",
        text="é😀b\r\nc\r\n",
        cursor=2,
        eol="\r\n",
    )


def test_a_cursor_past_the_end_clamps() -> None:
    store = opened("ab\r\ncd\r\n")
    assert store.snapshot(URI, 0, 99).cursor == 2
    assert store.snapshot(URI, 2, 0).cursor == 8
    assert store.snapshot(URI, 99, 99).cursor == 8


@pytest.mark.parametrize(
    ("encoding", "start", "end"),
    [(Encoding.UTF8, 4, 7), (Encoding.UTF16, 2, 4), (Encoding.UTF32, 1, 3)],
)
def test_the_range_of_an_answer_is_the_clients(encoding: Encoding, start: int, end: int) -> None:
    store = opened("x\n😀aé\n", encoding)
    snapshot = store.snapshot(URI, 1, start)
    expected = Range(Position(1, start), Position(1, end))
    assert store.range_of(snapshot, snapshot.cursor, snapshot.cursor + 2) == expected


def test_the_range_of_an_answer_belongs_to_its_snapshot() -> None:
    """Offsets of an old text, read in the new one, would point anywhere."""
    store = opened("ab\ncd")
    snapshot = store.snapshot(URI, 1, 1)
    store.change(URI, 2, [change("\n\n", 0, 0, 0, 0)])
    expected = Range(Position(1, 1), Position(1, 2))
    assert store.range_of(snapshot, 4, 5) == expected
    store.close(URI)
    assert store.range_of(snapshot, 4, 5) == expected


# Paths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "uri", "path"),
    [
        pytest.param([], "file:///home/me/a.py", "a.py", id="no folder: bare name"),
        pytest.param(["file:///w"], "file:///w/src/a.py", "src/a.py", id="below a folder"),
        pytest.param(["file:///w/"], "file:///w/src/a.py", "src/a.py", id="slash behind folder"),
        pytest.param(["file:///"], "file:///w/a.py", "w/a.py", id="the root is a folder"),
        pytest.param(["file:///w"], "file:///other/a.py", "a.py", id="outside"),
        pytest.param(["file:///w"], "file:///work/a.py", "a.py", id="a name that begins alike"),
        pytest.param(["file:///w/a.py"], "file:///w/a.py", "a.py", id="the folder itself"),
        pytest.param(
            ["file:///w", "file:///w/sub", "file:///x"],
            "file:///w/sub/src/a.py",
            "src/a.py",
            id="the nearest folder",
        ),
        pytest.param(
            ["file:///my%20work"],
            "file:///my%20work/caf%C3%A9%23%25.py",
            "café#%.py",
            id="percent-encoded",
        ),
        pytest.param(["file:///w"], "file:///w/%FF.py", "\ufffd.py", id="not UTF-8"),
        pytest.param(["file:///w"], "file:///w/\ud800.py", "\ufffd.py", id="half a character"),
        pytest.param(["file:///w"], "file:///w/a%5Cb.py", "a\\b.py", id="backslash in a name"),
        pytest.param(["file:///w"], "file://localhost/w/a.py", "a.py", id="localhost"),
        pytest.param(
            ["file:///c%3A/Work"], "file:///C:/Work/src/a.py", "src/a.py", id="drive letters"
        ),
        pytest.param(["file:///c:/"], "file:///c%3A/src/a.py", "src/a.py", id="a whole drive"),
        pytest.param(["file:///d:/w"], "file:///c:/w/src/a.py", "a.py", id="another drive"),
        pytest.param(["c:\\w"], "C:\\w\\src\\a.py", "src/a.py", id="a Windows path as it is"),
        pytest.param(["/w"], "/w/src/a.py", "src/a.py", id="a path as it is"),
        pytest.param(["file://host/w"], "file://host/w/src/a.py", "src/a.py", id="a share"),
        pytest.param(["file:///w"], "file://host/w/src/a.py", "a.py", id="another host"),
        pytest.param([], "untitled:Untitled-1", "Untitled-1", id="untitled"),
        pytest.param(["file:///w"], "untitled:/w/src/a.py", "src/a.py", id="untitled with a path"),
        pytest.param(
            ["file:///w"],
            "vscode-notebook-cell:/w/nb/a.ipynb#W0sZmlsZQ%3D%3D",
            "nb/a.ipynb",
            id="notebook cell",
        ),
        pytest.param(
            ["vscode-remote://ssh-remote%2Bbox/w"],
            "vscode-notebook-cell://ssh-remote%2Bbox/w/nb/a.ipynb#X",
            "nb/a.ipynb",
            id="notebook cell of a remote host",
        ),
        pytest.param(["file:///w"], "git:/w/a.py?%7B%22ref%22%3A%22%22%7D", "a.py", id="git"),
        pytest.param([], "file://[half/a.py", "a.py", id="a host that urlsplit refuses"),
        pytest.param([], "", "", id="no uri"),
        pytest.param([], "untitled:", "", id="no path"),
    ],
)
def test_the_path_shown_to_the_model(folders: list[str], uri: str, path: str) -> None:
    store = DocumentStore()
    for folder in folders:
        store.add_folder(folder)
    store.open(uri, "python", 1, "")
    assert store.snapshot(uri, 0, 0).path == path


def test_a_removed_folder_no_longer_counts() -> None:
    store = opened("")
    store.add_folder("file:///home/me/project")
    store.add_folder("file:///home/me")
    assert store.snapshot(URI, 0, 0).path == "src/app.py"
    store.remove_folder("file:///home/me/project")
    assert store.snapshot(URI, 0, 0).path == "project/src/app.py"
    store.remove_folder("file:///never/added")
    store.remove_folder("file:///home/me")
    assert store.snapshot(URI, 0, 0).path == "app.py"


# Against a reference ----------------------------------------------------------------------------

ALPHABET = [*"ab é中😀\r\n\r\n\x0b\x0c\x1c\x85\u2028\u2029", "e\u0301", "\r\n", "\r\n", "\ud83d"]


class Reference:
    """A document that is a text and nothing else: every answer comes from reading all of it."""

    def __init__(self, text: str, encoding: Encoding) -> None:
        self.encoding = encoding
        self.set(text)

    def set(self, text: str) -> None:
        """Take a text, and split it as the protocol's grammar of line ends says."""
        self.text = re.sub("[\ud800-\udfff]", "\ufffd", text)
        pieces = re.split("(\r\n|\n|\r)", self.text)
        self.lines = pieces[0::2]
        self.starts = [0]
        for line, line_end in zip(self.lines, pieces[1::2], strict=False):
            self.starts.append(self.starts[-1] + len(line) + len(line_end))

    def units(self, char: str) -> int:
        """Return how many units a character takes."""
        if self.encoding is Encoding.UTF8:
            return len(char.encode("utf-8"))
        return 2 if self.encoding is Encoding.UTF16 and ord(char) > 0xFFFF else 1

    def offset(self, line: int, character: int) -> int:
        """Walk along the line until the column is passed."""
        if line >= len(self.lines):
            return len(self.text)
        column = 0
        for index, char in enumerate(self.lines[line]):
            column += self.units(char)
            if column > character:
                return self.starts[line] + index
        return self.starts[line] + len(self.lines[line])

    def apply(self, edit: Change) -> None:
        if edit.range is None:
            return self.set(edit.text)
        start, end = sorted(self.offset(*place) for place in edit.range)
        return self.set(self.text[:start] + edit.text + self.text[end:])


def assert_same(store: DocumentStore, reference: Reference, lines: range, columns: range) -> None:
    """Compare the text, the line index, and some positions both ways."""
    content = store.get(URI).content
    assert content.text == reference.text
    assert content.line_count == len(reference.lines)
    for line, start in enumerate(reference.starts):
        assert content.offset_at(Position(line, 0), store.encoding) == start
    for line in lines:
        for character in columns:
            offset = reference.offset(line, character)
            assert content.offset_at(Position(line, character), store.encoding) == offset
            place = content.position_at(offset, store.encoding)
            assert place.line == min(line, len(reference.lines) - 1)
            start = reference.starts[place.line]
            assert place.character == sum(map(reference.units, reference.text[start:offset]))


def check_edits(text: str, batches: list[list[Change]], encoding: Encoding, run_size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "RUN_SIZE", run_size)
        store, reference = opened(text, encoding), Reference(text, encoding)
        for version, batch in enumerate(batches, start=2):
            store.change(URI, version, batch)
            for edit in batch:
                reference.apply(edit)
            assert_same(store, reference, range(len(reference.lines) + 1), range(12))


some_text = st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join)
some_place = st.builds(Position, st.integers(0, 6), st.integers(0, 8))
some_change = st.builds(Change, some_text, st.none() | st.builds(Range, some_place, some_place))


@ALL_ENCODINGS
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    text=some_text,
    batches=st.lists(st.lists(some_change, max_size=3), max_size=4),
    run_size=st.integers(1, 6),
)
def test_any_changes_give_what_the_reference_gives(
    encoding: Encoding, text: str, batches: list[list[Change]], run_size: int
) -> None:
    check_edits(text, batches, encoding, run_size)


def random_change(rng: random.Random, reference: Reference) -> Change:
    """Return a small edit somewhere, now and then the wrong way round or out of the text."""
    longest = 12 if len(reference.text) < 50 else 2
    text = "".join(rng.choices(ALPHABET, k=rng.randrange(longest)))
    if rng.random() < 0.002:
        return Change(text)
    line, character = rng.randrange(len(reference.lines) + 1), rng.randrange(12)
    start = Position(line, character)
    end = Position(max(0, line + rng.choice((0, 0, 0, 1, -1, 2))), rng.randrange(12))
    return Change(text, Range(start, rng.choice((start, end))))


@ALL_ENCODINGS
def test_a_hundred_thousand_edits_give_what_the_reference_gives(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of them in each encoding; runs of few characters, so that most edits meet a seam."""
    monkeypatch.setattr(positions, "RUN_SIZE", 8)
    rng = random.Random(f"edits in {encoding}")
    store, reference = opened("", encoding), Reference("", encoding)
    for version in range(2, 33_336):
        edit = random_change(rng, reference)
        store.change(URI, version, [edit])
        reference.apply(edit)
        line, character = rng.randrange(len(reference.lines) + 1), rng.randrange(12)
        assert_same(store, reference, range(line, line + 1), range(character, character + 2))
