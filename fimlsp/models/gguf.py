"""Reads the header of a GGUF file: is it whole, what model is it, can it fill in the middle.

A parser of our own, because a damaged file must become a named error at once: every count and
length is held against the bytes that are left before anything is read or allocated. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fimlsp.errors import ModelError, NotGgufError, TruncatedGgufError
from fimlsp.models.fim import LONGEST_SPELLING, SPELLINGS, FimTokens, fim_tokens

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32

# Far above any model, far below what a flipped bit makes of a count: rejecting stays quick.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRINGS = 1 << 22
_MAX_NAME_BYTES = 1 << 16
_MAX_DIMENSIONS = 4
_MAX_KEPT_TEXT = 1 << 12

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING = 8
_ARRAY = 9
_BOOL = 7
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}

TENSOR_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Elements and bytes of one block, by ggml tensor type."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufInfo:
    """What the header says. A value that the file does not give is None."""

    path: Path
    size_bytes: int
    version: int
    architecture: str
    name: str
    """The model's own title, ``""`` if it has none."""
    n_ctx_train: int | None
    n_layer: int | None
    n_embd: int | None
    n_vocab: int | None
    file_type: int | None
    """llama.cpp's ``LLAMA_FTYPE_*`` number, e.g. 15 for Q4_K_M."""
    n_tensors: int
    fim: FimTokens | None
    """Fill-in-the-middle tokens by the header's own keys, else by their spelling."""


def read_gguf(path: Path) -> GgufInfo:
    """Read and check the header of a GGUF file; a fraction of a second for 150,000 tokens.

    Raises:
        NotGgufError: another kind of file, another version, or a header that makes no sense.
        TruncatedGgufError: the file ends before what its header promises.
        ModelError: the file can't be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            if head != _MAGIC:
                raise NotGgufError(_not_gguf(path, head))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Header(path, data).read()
    except OSError as exc:
        raise ModelError(f"can't read the model file {path}: {exc.strerror or exc}") from exc


def _not_gguf(path: Path, head: bytes) -> str:
    found = f"it starts with {head!r}" if head else "it is empty"
    return (
        f"{path} is not a GGUF file: {found}, expected {_MAGIC!r}; "
        "name a model in GGUF format or pull one (`fimlsp models list`)"
    )


class _Header:
    """A cursor over the mapped file. Lives for one read."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0
        self._values: dict[str, Value] = {}
        self._n_vocab: int | None = None
        self._spelled: dict[str, int] = {}

    def read(self) -> GgufInfo:
        """Walk the header once, front to back."""
        self._at = len(_MAGIC)
        version = self._u32()
        if version not in _VERSIONS:
            self._bad(f"its version is {version}{_byte_order_hint(version)}, expected 2 or 3")
        n_tensors = self._count("tensors", _MAX_TENSORS, least_bytes=8 + 4 + 4 + 8)
        n_keys = self._count("metadata keys", _MAX_KEYS, least_bytes=8 + 4 + 1)
        for _ in range(n_keys):
            self._key_value()
        self._check_tensors(n_tensors)
        return self._info(version, n_tensors)

    def _info(self, version: int, n_tensors: int) -> GgufInfo:
        architecture = self._values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            self._bad("it does not name its architecture (general.architecture)")
        name = self._values.get("general.name")
        n_vocab = self._n_vocab
        return GgufInfo(
            path=self._path,
            size_bytes=self._size,
            version=version,
            architecture=architecture,
            name=name if isinstance(name, str) else "",
            n_ctx_train=self._int(f"{architecture}.context_length"),
            n_layer=self._int(f"{architecture}.block_count"),
            n_embd=self._int(f"{architecture}.embedding_length"),
            n_vocab=self._int(f"{architecture}.vocab_size") if n_vocab is None else n_vocab,
            file_type=self._int("general.file_type"),
            n_tensors=n_tensors,
            fim=fim_tokens(self._int, self._spelled),
        )

    def _int(self, key: str) -> int | None:
        value = self._values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    # ---- metadata

    def _key_value(self) -> None:
        key = self._text(_MAX_NAME_BYTES, "a metadata key")
        kind = self._u32()
        if kind == _ARRAY:
            self._array(key)
        elif kind == _STRING:
            length = self._length("the text of", key)
            # Chat templates and licences are long, and nobody here reads them.
            if length <= _MAX_KEPT_TEXT:
                self._values[key] = self._data[self._at : self._at + length].decode(
                    "utf-8", "replace"
                )
            self._at += length
        elif scalar := _SCALARS.get(kind):
            self._values[key] = self._unpack(scalar)
        else:
            self._bad(f"the value of {key!r} has type {kind}, expected 0 to 12")

    def _array(self, key: str) -> None:
        kind = self._u32()
        if kind == _STRING:
            count = self._count(f"strings in {key!r}", _MAX_STRINGS, least_bytes=8)
            self._strings(count, key, keep=_is_vocabulary(key))
        elif scalar := _SCALARS.get(kind):
            count = self._count(f"values in {key!r}", self._size, least_bytes=scalar.size)
            self._at += count * scalar.size
        else:
            self._bad(f"the array {key!r} has element type {kind}, expected 0 to 8 or 10 to 12")
        if _is_vocabulary(key):
            self._n_vocab = count

    def _strings(self, count: int, key: str, *, keep: bool) -> None:
        """Skip ``count`` strings; with ``keep``, note the places of FIM spellings among them.

        Two such arrays of 150,000 strings are most of the work here, hence the local names.
        """
        data, at, size, read_length = self._data, self._at, self._size, _U64.unpack_from
        longest = LONGEST_SPELLING if keep else -1
        for index in range(count):
            if at + 8 > size:
                self._cut(at + 8, f"string {index} of {count} in {key!r}")
            (length,) = read_length(data, at)
            at += 8
            if length > size - at:
                self._cut(at + length, f"string {index} of {count} in {key!r}")
            if length <= longest and (spelling := SPELLINGS.get(data[at : at + length])):
                self._spelled.setdefault(spelling, index)
            at += length
        self._at = at

    # ---- tensors

    def _check_tensors(self, n_tensors: int) -> None:
        ends = [self._tensor_end() for _ in range(n_tensors)]
        alignment = self._alignment()
        start = -(-self._at // alignment) * alignment
        end = start + max(ends, default=0)
        if end > self._size:
            self._cut(end, f"its {n_tensors} tensors")

    def _tensor_end(self) -> int:
        """Return where this tensor ends, in bytes after the start of all tensor data."""
        name = self._text(_MAX_NAME_BYTES, "a tensor name")
        n_dimensions = self._u32()
        if n_dimensions > _MAX_DIMENSIONS:
            self._bad(f"tensor {name!r} has {n_dimensions} dimensions, expected at most 4")
        dimensions = [self._u64() for _ in range(n_dimensions)]
        kind, offset = self._u32(), self._u64()
        # A fork's own quantisation: its size is not known here, so only its start is checked.
        block, block_bytes = TENSOR_TYPES.get(kind, (1, 0))
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        if dimensions and dimensions[0] % block:
            self._bad(
                f"tensor {name!r} has rows of {dimensions[0]}, expected a multiple of {block}"
            )
        return offset + elements // block * block_bytes

    def _alignment(self) -> int:
        if "general.alignment" not in self._values:
            return _DEFAULT_ALIGNMENT
        alignment = self._int("general.alignment")
        if alignment is None or alignment <= 0 or alignment & (alignment - 1):
            self._bad(f"general.alignment is {alignment}, expected a power of two")
        return alignment

    # ---- primitives: each checks against the end of the file before it reads

    def _unpack(self, layout: struct.Struct) -> int | float | bool:
        if self._at + layout.size > self._size:
            self._cut(self._at + layout.size, "its header")
        value: int | float | bool = layout.unpack_from(self._data, self._at)[0]
        self._at += layout.size
        return value

    def _u32(self) -> int:
        return int(self._unpack(_U32))

    def _u64(self) -> int:
        return int(self._unpack(_U64))

    def _count(self, what: str, most: int, *, least_bytes: int) -> int:
        count = self._u64()
        if count > most:
            self._bad(f"its header counts {count} {what}, expected at most {most}")
        if count * least_bytes > self._size - self._at:
            self._cut(self._at + count * least_bytes, f"{count} {what}")
        return count

    def _length(self, what: str, key: str) -> int:
        length = self._u64()
        if length > self._size - self._at:
            self._cut(self._at + length, f"{what} {key!r}")
        return length

    def _text(self, most: int, what: str) -> str:
        length = self._u64()
        if length > most:
            self._bad(f"{what} is {length} bytes long, expected at most {most}")
        if length > self._size - self._at:
            self._cut(self._at + length, what)
        start, self._at = self._at, self._at + length
        return self._data[start : self._at].decode("utf-8", "replace")

    def _bad(self, what: str) -> NoReturn:
        raise NotGgufError(
            f"{self._path} is not a usable GGUF file: {what}; it is damaged or made by another "
            "tool, fetch it again"
        )

    def _cut(self, needed: int, what: str) -> NoReturn:
        raise TruncatedGgufError(
            f"{self._path} is cut short: {what} would end at byte {needed}, the file has "
            f"{self._size}; fetch it again"
        )


def _is_vocabulary(key: str) -> bool:
    return key == "tokenizer.ggml.tokens"


def _byte_order_hint(version: int) -> str:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    return " (a big-endian file)" if swapped in _VERSIONS else ""
