import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.errors import (
    GgufError,
    ModelError,
    NoFimTokensError,
    NotGgufError,
    TruncatedGgufError,
)
from fimlsp.models.fim import FIM_SPELLINGS, FimTokens, require_fim
from fimlsp.models.gguf import TENSOR_TYPES, GgufInfo, read_gguf

MakeGguf = Callable[..., Path]


def test_the_header_of_a_valid_file_is_read(make_gguf: MakeGguf) -> None:
    path = make_gguf()
    assert read_gguf(path) == GgufInfo(
        path=path,
        size_bytes=path.stat().st_size,
        version=3,
        architecture="qwen2",
        name="Tiny",
        n_ctx_train=64,
        n_layer=2,
        n_embd=32,
        n_vocab=6,
        file_type=15,
        n_tensors=2,
        fim=FimTokens(prefix=2, middle=3, suffix=4),
    )


def test_every_cut_through_the_file_is_noticed(tmp_path: Path, gguf_bytes: bytes) -> None:
    path = tmp_path / "cut.gguf"
    # The writer pads behind the last tensor; a cut inside the padding loses nothing.
    last_tensor_end = len(gguf_bytes.rstrip(b"\0"))
    for length in range(4, last_tensor_end, 29):
        path.write_bytes(gguf_bytes[:length])
        with pytest.raises(TruncatedGgufError, match=f"the file has {length}"):
            read_gguf(path)


@pytest.mark.parametrize("data", [b"", b"GG", b"PK\x03\x04rest of a zip file", b"ggml" * 8])
def test_another_kind_of_file_is_not_a_gguf(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(data)
    with pytest.raises(NotGgufError, match=r"other\.gguf.*expected b'GGUF'"):
        read_gguf(path)


def test_unknown_versions_and_byte_orders_are_named(tmp_path: Path, gguf_bytes: bytes) -> None:
    path = tmp_path / "v.gguf"
    for version, found in ((struct.pack("<I", 1), "is 1,"), (struct.pack(">I", 3), "big-endian")):
        path.write_bytes(gguf_bytes[:4] + version + gguf_bytes[8:])
        with pytest.raises(NotGgufError, match=found):
            read_gguf(path)


def test_a_file_that_can_not_be_opened_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.gguf"):
        read_gguf(tmp_path / "gone.gguf")


def test_absurd_counts_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "absurd.gguf"
    string_array = struct.pack("<Q1sII", 1, b"k", 9, 8)
    cases = (
        struct.pack("<QQ", 1 << 60, 0),
        struct.pack("<QQ", 0, 1 << 60),
        struct.pack("<QQ", 0, 1) + string_array + struct.pack("<Q", 1 << 40),
        struct.pack("<QQ", 0, 1) + string_array + struct.pack("<Q", 1 << 26),  # fits: all zeros
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 63),
    )
    for case in cases:
        with path.open("wb") as file:
            file.write(b"GGUF" + struct.pack("<I", 3) + case)
            file.truncate(1 << 30)  # zeros; sparse, so it costs no disk
        started = time.monotonic()
        with pytest.raises(GgufError):
            read_gguf(path)
        assert time.monotonic() - started < 5.0


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage") / "damaged.gguf"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_never_raises_anything_but_our_errors(
    scratch: Path, gguf_bytes: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(gguf_bytes)
    header = len(gguf_bytes) - 6 * 32 * 4
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, header))] ^= 1 << data.draw(st.integers(0, 7))
    for _ in range(data.draw(st.integers(0, 1))):
        at = data.draw(st.integers(0, header))
        damaged[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    scratch.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        outcome = str(read_gguf(scratch).path)
    except GgufError as exc:
        outcome = str(exc)
    assert str(scratch) in outcome


def test_block_sizes_are_those_of_the_format() -> None:
    published = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {kind: published[kind] for kind in TENSOR_TYPES} == TENSOR_TYPES


@pytest.mark.parametrize("row", FIM_SPELLINGS, ids=lambda row: row.prefix)
def test_every_known_spelling_is_found_in_the_vocabulary(
    make_gguf: MakeGguf, row: tuple[str, str, str, str]
) -> None:
    _, prefix, suffix, middle = row
    info = read_gguf(make_gguf(tokens=("x", prefix, "y", suffix, middle)))
    assert info.fim == FimTokens(prefix=1, suffix=3, middle=4)


def test_a_family_without_a_middle_token_can_fill_in(make_gguf: MakeGguf) -> None:
    info = read_gguf(make_gguf(tokens=("[SUFFIX]", "[PREFIX]")))
    assert info.fim == FimTokens(prefix=1, suffix=0, middle=None)


@pytest.mark.parametrize("name", ["fim_{}_token_id", "{}_token_id"])
def test_the_headers_own_keys_win_over_spellings(make_gguf: MakeGguf, name: str) -> None:
    short = name.startswith("fim")
    words = ("pre", "suf", "mid") if short else ("prefix", "suffix", "middle")
    keys = {f"tokenizer.ggml.{name.format(word)}": 10 + i for i, word in enumerate(words)}
    info = read_gguf(make_gguf(keys=keys))
    assert info.fim == FimTokens(prefix=10, suffix=11, middle=12)


def test_a_model_without_fim_tokens_is_told_apart(make_gguf: MakeGguf) -> None:
    path = make_gguf(tokens=("a", "<|fim_prefix|>", "<fim_suffix>", "b"))
    info = read_gguf(path)
    assert info.fim is None
    with pytest.raises(NoFimTokensError) as caught:
        require_fim(info.fim, info.path)
    for part in (str(path), "<｜fim▁begin｜>", "[PREFIX]", "fimlsp models list", "Qwen2.5-Coder"):
        assert part in str(caught.value)


def test_a_model_with_fim_tokens_passes(make_gguf: MakeGguf) -> None:
    info = read_gguf(make_gguf())
    assert require_fim(info.fim, info.path) == info.fim
