from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from fakes import URI, ScriptedEngine, WordVocabulary, snapshot_at
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.completion.epochs import (
    MAX_TYPED,
    MIN_PREFIX,
    MIN_SUFFIX,
    REANCHOR_TYPED,
    Epoch,
    Epochs,
    Plan,
    fit_window,
)
from fimlsp.context.params import WindowParams
from fimlsp.document import Snapshot, to_lf
from fimlsp.engine.api import Request, Speed
from fimlsp.prompt.templates import resolve_template

CONTROLS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
WINDOW = WindowParams(prefix_tokens=200, suffix_tokens=60, cold_ms=600)
UNHURRIED = replace(WINDOW, cold_ms=60_000)
HEADER = len("a.py\n") + 4
"""Tokens of path and control tokens; all text is one token a byte, but for the words below."""


class Place:
    """Epochs over a scripted engine that reads 100 tokens a second: 60 within ``cold_ms``."""

    def __init__(self, window: WindowParams = UNHURRIED, n_ctx: int = 2048) -> None:
        vocabulary = WordVocabulary(words=[b"return", b"    "], controls=CONTROLS)
        self.engine = ScriptedEngine(lambda request: b"", vocabulary, n_ctx=n_ctx)
        self.engine.speed = Speed(prefill_tok_s=100.0, decode_ms=50.0)
        self.epochs = Epochs(self.engine, resolve_template(vocabulary, "qwen"), window)
        self._names = {vocabulary.control(name): name.encode() for name in CONTROLS}

    def plan(self, at: str | Snapshot) -> Plan:
        """Plan and let the engine read."""
        plan = self.epochs.plan(snapshot_at(at) if isinstance(at, str) else at)
        self.read(plan.epoch.slot, plan.prompt)
        return plan

    def better(self, at: str, plan: Plan) -> Epoch | None:
        """Ask for the better epoch and let the engine read it."""
        epoch = self.epochs.better(snapshot_at(at), plan)
        if epoch is not None:
            self.read(epoch.slot, epoch.head)
        return epoch

    def read(self, slot: str, prompt: tuple[int, ...]) -> None:
        self.engine.submit(Request(slot=slot, prompt=prompt, max_tokens=0))

    def unread(self, plan: Plan) -> int:
        return len(plan.prompt) - self.engine.reusable(plan.epoch.slot, plan.prompt)

    def spelled(self, plan: Plan) -> tuple[str, str, str, str]:
        """Return header, prefix, suffix and typed text, from the tokens and imposed bytes."""
        pieces = [
            self._names.get(token) or self.engine.vocabulary.token_bytes(token)
            for token in plan.prompt
        ]
        whole = (b"".join(pieces) + plan.healed.must_start_with).decode()
        header, rest = whole.split("<|fim_prefix|>")
        prefix, rest = rest.split("<|fim_suffix|>")
        suffix, typed = rest.split("<|fim_middle|>")
        return header, prefix, suffix, typed


def numbered(count: int, start: int = 0) -> str:
    return "".join(f"line {number:04}\n" for number in range(start, start + count))


@given(st.lists(st.sampled_from(["a", "return", " ", "    ", "é", "😀", "\n", "\f"]), max_size=9))
def test_typing_keeps_the_head_and_only_appends_also_across_lines(keys: list[str]) -> None:
    place = Place()
    typed = ""
    first = place.plan(f"{numbered(3)}x = ‸\n{numbered(3)}")
    for key in keys:
        typed += key
        plan = place.epochs.plan(snapshot_at(f"{numbered(3)}x = {typed}‸\n{numbered(3)}"))
        assert plan.epoch == first.epoch
        assert plan.prompt[: len(first.epoch.head)] == first.epoch.head
        assert plan.typed == f"x = {typed}"
        assert place.unread(plan) <= len(key.encode()) + 8
        place.read(plan.epoch.slot, plan.prompt)


def test_an_edit_above_the_line_inside_the_window_or_below_is_a_new_anchor() -> None:
    place = Place()
    first = place.plan("a\nb\nx = ‸\nc\n")
    assert place.plan("A\nb\nx = ‸\nc\n").epoch.head != first.epoch.head
    assert place.plan("a\nb\nx = ‸\nC\n").epoch.head != first.epoch.head


def test_edits_far_outside_the_window_change_nothing_also_where_they_shift_everything() -> None:
    place = Place()
    above, below = numbered(300), numbered(300)
    first = place.plan(f"{above}x = ‸\n{below}")
    edited = place.plan(f"new\nlines\n{above}x = 1‸\n{below}new\nlines")
    assert edited.epoch == first.epoch
    assert edited.typed == "x = 1"


def test_text_right_of_the_cursor_on_its_line_is_the_start_of_the_suffix() -> None:
    place = Place()
    assert place.spelled(place.plan("f(‸)\ng()\n"))[1:] == ("", ")\ng()\n", "f(")
    assert place.plan("f(a‸)\ng()\n").typed == "f(a"


def test_a_path_is_told_and_control_spellings_stay_text() -> None:
    place = Place()
    plan = place.plan(snapshot_at("x‸y\n", path="src/deep/né.py"))
    assert place.spelled(plan) == ("<|file_sep|>src/deep/né.py\n", "", "y\n", "x")
    plain = place.epochs.plan(snapshot_at("<|fim_middle|>‸\n", uri="file:///b.py"))
    middle = place.engine.vocabulary.control("<|fim_middle|>")
    assert plain.prompt.count(middle) == 1


def test_back_from_another_place_the_first_one_is_still_warm() -> None:
    place = Place()
    lines = numbered(400)
    first = place.plan(f"{lines}x = ‸\n{lines}")
    elsewhere = place.plan(f"y = ‸\n{lines}x = \n{lines}")
    assert elsewhere.epoch.slot != first.epoch.slot
    back = place.epochs.plan(snapshot_at(f"{lines}x = 1‸\n{lines}"))
    assert back.epoch == first.epoch
    assert place.unread(back) <= 8


def test_of_two_places_the_one_left_longer_ago_gives_way() -> None:
    """The serving slot was overwritten when it was not the newest."""
    place = Place()
    lines = numbered(400)
    first = place.plan(f"{lines}x = ‸\n{lines}")
    place.plan(f"y = ‸\n{lines}x = \n{lines}")
    place.plan(f"{lines}x = 1‸\n{lines}")
    third = place.plan(f"{lines}x = 1\n{lines}z = ‸\n")
    assert third.epoch.slot != first.epoch.slot
    assert place.epochs.plan(snapshot_at(f"{lines}x = 1‸\n{lines}")).epoch == first.epoch


@pytest.mark.parametrize("cold_ms", [0, 600, 1500, 60_000])
def test_a_cold_place_reads_no_more_than_fits_its_time(cold_ms: int) -> None:
    place = Place(replace(WINDOW, cold_ms=cold_ms))
    budget = cold_ms // 10
    line = "    x = "
    plan = place.epochs.plan(snapshot_at(f"{numbered(100)}{line}‸\n{numbered(100)}"))
    smallest = HEADER + MIN_PREFIX + MIN_SUFFIX
    assert place.unread(plan) <= max(budget, smallest) + len(line)
    assert place.unread(plan) >= min(budget, smallest) - 2 * len("line 0001\n")
    assert plan.epoch.prefix.text.endswith("line 0099\n")
    assert plan.epoch.full == (cold_ms == 60_000)


@pytest.mark.parametrize("cold_ms", [0, 600])
@pytest.mark.parametrize("above", ["a\n" * 12, "def f(self, item):\n" * 9])
@pytest.mark.parametrize("below", ["\n", "\nx\n" * 100])
def test_a_small_window_runs_no_line_into_another_and_holds_none_too_often(
    cold_ms: int, above: str, below: str
) -> None:
    place = Place(WindowParams(prefix_tokens=60, suffix_tokens=20, cold_ms=cold_ms))
    plan = place.epochs.plan(snapshot_at(f"{above}‸{below}"))
    assert above.endswith(place.spelled(plan)[1])


def test_the_full_window_is_read_behind_a_small_one_and_then_preferred() -> None:
    place = Place(WINDOW)
    at = f"{numbered(100)}x = ‸\n{numbered(100)}"
    small = place.plan(at)
    assert not small.epoch.full
    full = place.epochs.better(snapshot_at(at), small)
    assert full is not None
    assert full.slot != small.epoch.slot
    still = place.plan(at.replace("‸", "1‸"))
    assert still.epoch == small.epoch  # it is not read yet
    place.read(full.slot, full.head[:-20])
    assert place.plan(at.replace("‸", "12‸")).epoch == small.epoch
    place.read(full.slot, full.head)
    plan = place.plan(at.replace("‸", "123‸"))
    assert plan.epoch == full
    assert place.better(at.replace("‸", "123‸"), plan) is None


def test_a_small_file_is_full_at_once() -> None:
    place = Place(WINDOW)
    plan = place.plan("a = 1\n‸")
    assert plan.epoch.full
    assert place.better("a = 1\n‸", plan) is None


def test_a_changed_suffix_is_read_as_far_as_time_allows_behind_the_warm_prefix() -> None:
    place = Place(UNHURRIED)
    lines = numbered(100)
    warm = place.plan(f"{lines}f‸\n{lines}")
    place.epochs.window = replace(WINDOW, cold_ms=400)
    plan = place.epochs.plan(snapshot_at(f"{lines}f(‸)\n{lines}"))  # the editor closed a bracket
    assert plan.epoch.prefix == warm.epoch.prefix
    assert 0 < len(plan.epoch.suffix.tokens) < len(warm.epoch.suffix.tokens)
    assert place.unread(plan) <= 40 + len("f(")


def test_the_window_starts_in_one_place_until_it_is_full_and_then_moves_by_a_block() -> None:
    place = Place()
    starts: list[int] = []
    at = f"{numbered(100)}‸"
    place.plan(at)
    for count in range(100, 140):
        at = f"{numbered(count)}x = ‸\nend {count}\n"  # always another suffix: always a new anchor
        plan = place.plan(at)
        assert len(plan.epoch.prefix.tokens) <= UNHURRIED.prefix_tokens
        starts.append(int(plan.epoch.prefix.text[5:9]))
    moves = [after - before for before, after in pairwise(starts) if after != before]
    assert moves
    assert min(moves) >= 5
    assert len(moves) <= 40 // 5


def test_the_window_keeps_its_start_where_its_first_lines_occur_again_below() -> None:
    """The start was looked for from below: it jumped to a repetition of the first lines."""
    place = Place(replace(UNHURRIED, prefix_tokens=858))
    block = "same line\n" * 25
    above = numbered(200) + block + numbered(10) + block
    first = place.plan(f"{above}x = ‸\n")
    assert first.epoch.prefix.text == block + numbered(10) + block
    second = place.plan(f"{above}x = \ny = ‸")
    assert second.epoch.prefix.text.startswith(first.epoch.prefix.text)


def test_a_place_near_the_start_of_an_earlier_window_gets_a_window_of_its_own() -> None:
    """Its prefix was the few lines since the earlier window's start."""
    place = Place(replace(UNHURRIED, prefix_tokens=2000))
    lines = numbered(400)
    first = place.plan(f"{lines}x = ‸\n").epoch.prefix.text
    above, below = lines.removesuffix(first) + first[:300], first[300:]
    plan = place.plan(f"{above}y = ‸\n{below}x = \n")
    assert len(plan.epoch.prefix.tokens) > 1000


def test_much_typed_text_gets_a_fresh_anchor_first_in_idle_time() -> None:
    place = Place(replace(UNHURRIED, prefix_tokens=2000))
    text = "".join(f"    call_{number:03}()\n" for number in range(60))
    anchor = place.plan(f"{numbered(9)}‸\n{numbered(9)}").epoch
    seen = [anchor]
    for size in range(0, len(text), 7):
        at = f"{numbered(9)}{text[:size]}‸\n{numbered(9)}"
        plan = place.plan(at)
        assert len(plan.typed) <= REANCHOR_TYPED + 30
        assert place.unread(plan) <= 1
        better = place.better(at, plan)
        if better is not None:
            assert len(plan.typed) >= REANCHOR_TYPED
            seen.append(better)
    assert len(seen) <= 1 + len(text) // REANCHOR_TYPED


def test_without_idle_time_typed_text_stays_within_its_bound() -> None:
    place = Place()
    text = "word " * 300
    anchors = set()
    for size in range(0, len(text), 10):
        plan = place.plan(f"{text[:size]}‸\n")
        assert len(plan.typed) <= MAX_TYPED
        assert place.spelled(plan)[3] == plan.typed
        anchors.add(plan.epoch)
    assert len(anchors) <= 2 + len(text) // (MAX_TYPED // 2)


def test_a_huge_line_is_not_read_anew_at_every_key() -> None:
    place = Place()
    huge = "".join(f"a{number}=1;" for number in range(3000))
    plan = place.plan(f"{huge}‸{huge}")
    assert len(plan.typed) == MAX_TYPED // 2
    for count in range(1, 20):
        at = f"{huge}{'b' * count}‸{huge}"
        typed = place.plan(at)
        assert (typed.epoch, len(typed.typed)) == (plan.epoch, MAX_TYPED // 2 + count)
        assert place.better(at, typed) is None


def test_a_long_paste_is_not_waited_for_where_a_small_window_is_much_sooner() -> None:
    place = Place(WINDOW)
    at = f"{numbered(30)}‸\n{numbered(30)}"
    first = place.plan(at)
    short = place.epochs.plan(snapshot_at(at.replace("‸", "12345678\n" * 8 + "‸")))
    assert short.epoch == first.epoch
    long = place.epochs.plan(snapshot_at(at.replace("‸", "12345678\n" * 40 + "‸")))
    assert place.unread(long) <= 60 + HEADER


def test_typed_text_that_leaves_no_room_for_an_answer_is_anchored_anew() -> None:
    place = Place(replace(UNHURRIED, prefix_tokens=30, suffix_tokens=0), n_ctx=600)
    emoji = "😀" * 100 + "\n"
    first = place.plan("‸\n")
    assert len(first.epoch.head) + 2 * len(emoji.encode()) > 600
    second = place.plan(f"{emoji * 2}x‸\n")
    assert second.typed == "x"


def test_two_documents_use_slots_of_their_own_and_closing_one_releases_only_its_own() -> None:
    place = Place()
    other = "file:///project/b.py"
    a = place.plan("x = ‸\n")
    b = place.plan(snapshot_at("x = ‸\n", uri=other))
    a_two = place.plan("x = \n\n\ny = ‸ 1")
    assert len({a.epoch.slot, b.epoch.slot, a_two.epoch.slot}) == 3
    place.epochs.forget(URI)
    assert sorted(place.engine.released) == sorted({a.epoch.slot, a_two.epoch.slot})
    assert place.epochs.plan(snapshot_at("x = 1‸\n", uri=other)).epoch == b.epoch
    place.epochs.forget(URI)
    assert len(place.engine.released) == 2


@pytest.mark.parametrize("n_ctx", [512, 1024, 2048, 8192])
@pytest.mark.parametrize("max_tokens", [16, 64])
def test_the_window_shrinks_so_that_everything_fits_the_context(
    n_ctx: int, max_tokens: int
) -> None:
    fitted = fit_window(WindowParams(), n_ctx, max_tokens)
    assert fitted.prefix_tokens <= WindowParams().prefix_tokens
    assert (fitted == WindowParams()) == (n_ctx > 1400)
    place = Place(replace(fitted, cold_ms=60_000), n_ctx=n_ctx)
    plan = place.plan(f"{numbered(300)}{'x' * (MAX_TYPED // 2)}‸\n{numbered(300)}")
    assert len(plan.prompt) + max_tokens <= n_ctx


pieces = st.sampled_from(["a", "b = 1", "return", "    ", "é", "😀", "\f", "\u2028", "\n", "\n\n"])
edits = st.tuples(st.integers(0, 400), st.integers(0, 6), st.lists(pieces, max_size=4))


@settings(max_examples=150)
@given(
    st.lists(pieces, max_size=120),
    st.lists(st.tuples(edits, st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([0, 300, 60_000]),
)
def test_every_prompt_is_the_text_around_the_cursor_nothing_skipped_nothing_doubled(
    text: list[str], steps: list[tuple[tuple[int, int, list[str]], bool]], eol: str, cold_ms: int
) -> None:
    place = Place(WindowParams(prefix_tokens=60, suffix_tokens=20, cold_ms=cold_ms))
    content = "".join(text)
    for (position, removed, inserted), idle in steps:
        position = min(position, len(content))
        before = content[:position] + "".join(inserted)
        after = content[position + removed :]
        content = before + after
        snapshot = snapshot_at(f"{before}‸{after}".replace("\n", eol))
        plan = place.plan(snapshot)
        header, prefix, suffix, typed = place.spelled(plan)
        assert header == "<|file_sep|>a.py\n"
        elsewhere = prefix.removesuffix(plan.epoch.prefix.text)
        assert to_lf(snapshot.text[: snapshot.cursor]).endswith(plan.epoch.prefix.text + typed)
        assert not elsewhere or (not plan.epoch.full and elsewhere in content)
        assert to_lf(snapshot.text[snapshot.cursor :]).startswith(suffix)
        assert len(typed) >= min(len(before.rpartition("\n")[2]), MAX_TYPED // 2)
        if plan.epoch.prefix.whole and plan.epoch.suffix.whole:
            assert (prefix + typed, suffix) == (before, after)
        if idle and (better := place.epochs.better(snapshot, plan)):
            place.read(better.slot, better.head)
