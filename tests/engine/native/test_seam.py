"""What the engine relies on in each native library."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_harness import NOISE, PATIENCE_S

from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import AbortedError, LoadParams, NativeModel, NativeSlots, SlotParams
from fimlsp.errors import BackendUnavailableError, ModelLoadError

N_CTX, N_UBATCH = 256, 48
PACKAGES = {"ik_llama": "ik_llama_cpp", "llama_cpp": "llama_cpp"}
RAW = {"ik_llama": "ik_llama_cpp._ctypes_api", "llama_cpp": "llama_cpp.llama_cpp"}


@pytest.fixture(scope="module")
def model(native_module: Any, tiny_model: Path) -> Iterator[NativeModel]:
    model: NativeModel = native_module.load(LoadParams(path=tiny_model), lambda _fraction: True)
    yield model
    model.close()


@pytest.fixture
def abort() -> AbortFlag:
    return AbortFlag()


@pytest.fixture
def slots(model: NativeModel, abort: AbortFlag) -> Iterator[NativeSlots]:
    slots = model.open_slots(
        SlotParams(n_slots=3, n_ctx=N_CTX, n_ubatch=N_UBATCH, threads=1), abort
    )
    yield slots
    slots.close()


@pytest.fixture
def tokens(text: list[int]) -> Any:
    return np.array(text, dtype=np.int32)


def one_by_one(slots: NativeSlots, slot: int, tokens: Any, pos: int = 0) -> Any:
    """Return ``[n, n_vocab]``: the logits after each token."""
    rows = [slots.decode(slot, tokens[i : i + 1], pos + i, 1).copy() for i in range(len(tokens))]
    return np.concatenate(rows)


@pytest.mark.parametrize(("n", "n_logits"), [(1, 1), (5, 1), (5, 5), (40, 1), (40, 17), (48, 48)])
def test_a_decode_gives_the_rows_of_its_last_tokens_in_order(
    slots: NativeSlots, tokens: Any, n: int, n_logits: int
) -> None:
    expected = one_by_one(slots, 0, tokens[: 20 + n])[-n_logits:]
    slots.decode(1, tokens[:20], 0, 0)
    rows = slots.decode(1, tokens[20 : 20 + n], 20, n_logits)
    assert rows.shape == (n_logits, 500 + 9)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, expected, atol=NOISE)


def test_a_decode_without_logits_gives_no_rows_and_fills_the_cells(
    slots: NativeSlots, tokens: Any
) -> None:
    assert slots.decode(0, tokens[:9], 0, 0).shape[0] == 0
    assert slots.n_cells(0) == 9


def test_slots_do_not_see_each_other(slots: NativeSlots, tokens: Any) -> None:
    expected = one_by_one(slots, 0, tokens[:30])
    slots.truncate(0, 0)
    rows = []
    for i in range(30):
        for slot, offset in ((1, 50), (0, 0), (2, 100)):
            at = offset + i
            row = slots.decode(slot, tokens[at : at + 1], i, 1).copy()
            if slot == 0:
                rows.append(row)
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=NOISE)
    assert [slots.n_cells(slot) for slot in range(3)] == [30, 30, 30]


def test_truncated_cells_are_forgotten(slots: NativeSlots, tokens: Any) -> None:
    expected = one_by_one(slots, 0, np.concatenate([tokens[:25], tokens[60:70]]))[-10:]
    slots.decode(1, tokens[:40], 0, 0)
    slots.truncate(1, 25)
    assert slots.n_cells(1) == 25
    np.testing.assert_allclose(one_by_one(slots, 1, tokens[60:70], 25), expected, atol=NOISE)
    slots.truncate(1, 0)
    assert slots.n_cells(1) == 0
    slots.decode(1, tokens[:1], 0, 0)
    assert slots.n_cells(1) == 1
    slots.truncate(2, 0)  # one that was never used
    assert slots.n_cells(2) == 0


@pytest.mark.parametrize("n_cells", [1, 17, 40])
def test_a_copy_holds_exactly_the_first_cells_and_is_independent(
    slots: NativeSlots, tokens: Any, n_cells: int
) -> None:
    slots.decode(0, tokens[:40], 0, 0)
    slots.decode(1, tokens[100:130], 0, 0)  # to be replaced
    slots.copy(0, 1, n_cells)
    assert [slots.n_cells(slot) for slot in range(2)] == [40, n_cells]
    copied = one_by_one(slots, 1, tokens[60:70], n_cells)
    source = one_by_one(slots, 0, tokens[60:70], 40)
    slots.truncate(0, 0)
    again = one_by_one(slots, 1, tokens[70:75], n_cells + 10)
    heads = np.concatenate([tokens[:n_cells], tokens[60:75]])
    cold = one_by_one(slots, 2, heads)[-15:]
    np.testing.assert_allclose(np.concatenate([copied, again]), cold, atol=NOISE)
    slots.truncate(2, 0)
    cold = one_by_one(slots, 2, np.concatenate([tokens[:40], tokens[60:70]]))[-10:]
    np.testing.assert_allclose(source, cold, atol=NOISE)


def test_copying_nothing_empties_the_target(slots: NativeSlots, tokens: Any) -> None:
    slots.decode(0, tokens[:10], 0, 0)
    slots.decode(1, tokens[:20], 0, 0)
    slots.copy(0, 1, 0)
    assert [slots.n_cells(slot) for slot in range(2)] == [10, 0]


def test_all_slots_can_be_full_at_once(slots: NativeSlots, tokens: Any) -> None:
    for slot in range(3):
        for pos in range(0, N_CTX, 32):
            slots.decode(slot, tokens[slot + pos : slot + pos + 32], pos, 0)
    assert [slots.n_cells(slot) for slot in range(3)] == [N_CTX] * 3
    slots.truncate(1, N_CTX - 1)
    last = slots.decode(1, tokens[N_CTX : N_CTX + 1], N_CTX - 1, 1).copy()
    slots.truncate(0, 0)
    expected = one_by_one(slots, 0, tokens[1 : N_CTX + 1])[-1:]
    np.testing.assert_allclose(last, expected, atol=NOISE)


def test_an_aborted_decode_leaves_the_slot_as_it_was(
    slots: NativeSlots, abort: AbortFlag, tokens: Any
) -> None:
    expected = one_by_one(slots, 0, tokens[:40])[-20:]
    slots.decode(1, tokens[:20], 0, 0)
    abort.set()
    for n in (20, 1, 15):
        with pytest.raises(AbortedError):
            slots.decode(1, tokens[20 : 20 + n], 20, 1)
        assert slots.n_cells(1) == 20
    abort.clear()
    np.testing.assert_allclose(one_by_one(slots, 1, tokens[20:40], 20), expected, atol=NOISE)


def test_a_flag_set_when_the_decode_was_all_but_done_still_leaves_the_slot_as_it_was(
    slots: NativeSlots,
    abort: AbortFlag,
    tokens: Any,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = importlib.import_module(RAW[backend])
    decode = raw.llama_decode

    def decode_then_set(*arguments: Any) -> Any:
        code = decode(*arguments)
        abort.set()
        return code

    slots.decode(0, tokens[:20], 0, 0)
    monkeypatch.setattr(raw, "llama_decode", decode_then_set)
    with pytest.raises(AbortedError):
        slots.decode(0, tokens[20:30], 20, 1)
    assert slots.n_cells(0) == 20


def test_a_flag_set_by_another_thread_ends_a_running_decode(
    model: NativeModel, abort: AbortFlag, tokens: Any
) -> None:
    """The library polls the flag itself: no Python runs inside a decode."""
    slots = model.open_slots(SlotParams(n_slots=1, n_ctx=4096, n_ubatch=4096, threads=1), abort)
    long = np.resize(tokens, 4000)
    began = threading.Event()
    outcome: list[str] = []

    def decode() -> None:
        began.set()
        try:
            slots.decode(0, long, 0, 1)
            outcome.append("finished")
        except AbortedError:
            outcome.append("aborted")

    thread = threading.Thread(target=decode)
    thread.start()
    assert began.wait(PATIENCE_S)
    abort.set()  # 4000 tokens take a hundred times longer than to get here
    thread.join(PATIENCE_S)
    assert outcome == ["aborted"]
    assert slots.n_cells(0) == 0
    slots.close()


def test_an_abort_flag_reads_as_it_was_set_and_cleared() -> None:
    flag = AbortFlag()
    poll = flag.callback(ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p))
    assert (flag.is_set(), poll(flag.address)) == (False, False)
    flag.set()
    flag.set()
    assert (flag.is_set(), poll(flag.address)) == (True, True)
    flag.clear()
    assert (flag.is_set(), poll(flag.address)) == (False, False)


def test_progress_rises_to_the_end_and_false_gives_up(native_module: Any, tiny_model: Path) -> None:
    heard: list[float] = []

    def progress(fraction: float) -> bool:
        heard.append(fraction)
        return True

    native_module.load(LoadParams(path=tiny_model), progress).close()
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1.0)
    with pytest.raises(ModelLoadError):
        native_module.load(LoadParams(path=tiny_model), lambda _fraction: False)


def test_the_vocabulary_alone_can_be_loaded(native_module: Any, tiny_model: Path) -> None:
    model = native_module.load(LoadParams(path=tiny_model, vocab_only=True), lambda _f: True)
    assert model.tokenize(b"self", special=False)
    model.close()


def test_another_version_of_the_package_is_refused_with_both_versions(
    native_module: Any, backend: str, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    monkeypatch.setattr(importlib.import_module(PACKAGES[backend]), "__version__", "99.1")
    with pytest.raises(BackendUnavailableError) as caught:
        native_module.load(LoadParams(path=tiny_model), lambda _fraction: True)
    message = str(caught.value)
    assert "99.1 is installed" in message
    assert f"{native_module.PINNED} is needed" in message
    assert f"pip install {native_module.PACKAGE}=={native_module.PINNED}" in message


def test_a_library_of_another_layout_is_refused_before_anything_is_loaded(
    native_module: Any, backend: str, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    raw = importlib.import_module(RAW[backend])
    real = raw.llama_context_default_params()
    fields = {name: getattr(real, name) for name, *_type in real._fields_} | {"n_batch": 7}
    monkeypatch.setattr(raw, "llama_context_default_params", lambda: SimpleNamespace(**fields))
    with pytest.raises(BackendUnavailableError, match=r"read as \(512, 7, .*does not"):
        native_module.load(LoadParams(path=tiny_model), lambda _fraction: True)


def test_a_missing_package_is_told_with_the_command_that_installs_it(
    native_module: Any, backend: str, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[backend], None)
    with pytest.raises(BackendUnavailableError, match=f"pip install {native_module.PACKAGE}=="):
        native_module.load(LoadParams(path=tiny_model), lambda _fraction: True)


def test_the_library_tells_what_it_was_built_for(native_module: Any) -> None:
    assert native_module.system_info().strip()
    assert all(device["memory_total"] > 0 for device in native_module.gpu_devices())


def test_a_context_that_the_library_refuses_is_told_with_the_settings_to_lower(
    model: NativeModel,
    abort: AbortFlag,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = importlib.import_module(RAW[backend])
    monkeypatch.setattr(raw, "llama_init_from_model", lambda *_args: None)
    with pytest.raises(ModelLoadError, match=r"256 tokens.*lower engine.n_ctx or engine.slots"):
        model.open_slots(SlotParams(n_slots=1, n_ctx=256, n_ubatch=32, threads=1), abort)


if sys.platform == "linux":  # elsewhere a process can't be given less memory

    def test_too_little_memory_for_a_context_is_an_error_with_the_library_s_words(
        tiny_model: Path, backend: str
    ) -> None:
        """Its words were lost: the log was switched off when the context was made."""
        script = (
            "import resource, sys; from pathlib import Path\n"
            "from fimlsp.engine.native.choose import backend_module\n"
            "from fimlsp.engine.native.parts import AbortFlag\n"
            "from fimlsp.engine.native.seam import LoadParams, SlotParams\n"
            "load = backend_module(sys.argv[1]).load\n"
            "model = load(LoadParams(path=Path(sys.argv[2])), lambda _fraction: True)\n"
            "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
            "limit = pages * resource.getpagesize() + 300_000_000\n"
            "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
            "sizes = SlotParams(n_slots=1, n_ctx=1 << 20, n_ubatch=32, threads=1)\n"
            "model.open_slots(sizes, AbortFlag())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, backend, str(tiny_model)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("fimlsp.errors.ModelLoadError: ")
        assert "gives no context of 1048576 tokens" in last
        assert "failed to allocate" in last
        assert done.stdout == ""
