"""What the models of both libraries share: a vocabulary behind five native functions."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from fimlsp.engine.native.parts import Handle

_SPECIAL = (1 << 3) | (1 << 4)  # LLAMA_TOKEN_ATTR_CONTROL, _USER_DEFINED

_BEYOND = re.compile(rb"(?:\xf4[\x90-\xbf]|[\xf5-\xf7][\x80-\xbf])[\x80-\xbf]{2}")
"""UTF-8 of a number beyond Unicode: both libraries throw, which ends the process."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode() * 4
"""What they make of four bytes that are wrong in any other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyCalls:
    """A library's functions of a vocabulary."""

    pointer: Any
    """What they take first: the model in the older API, its vocabulary in the newer one."""
    tokenize: Any
    piece: Any
    text: Any
    is_eog: Any
    attributes: Any


class BaseModel:
    """A loaded model that any thread may ask about tokens until one thread closes it."""

    def __init__(self, handle: Handle, calls: VocabularyCalls) -> None:
        self._handle = handle
        self._calls = calls

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Return token ids; ``special`` lets control-token spellings become control tokens."""
        calls = self._calls
        text = _BEYOND.sub(_REPLACEMENT, text)
        size = len(text)
        capacity = size + 8  # a byte is a token at worst
        with self._handle:
            if not text:
                return []
            while True:
                ids = (ctypes.c_int32 * capacity)()
                n = calls.tokenize(calls.pointer, text, size, ids, capacity, False, special)
                if n >= 0:
                    return ids[:n]
                capacity = -n

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token, ``b""`` for a control token."""
        calls = self._calls
        capacity = 64
        with self._handle:
            while True:
                buffer = ctypes.create_string_buffer(capacity)
                n = calls.piece(calls.pointer, token, buffer, capacity, 0, False)
                if n >= 0:
                    return buffer.raw[:n]
                capacity = -n

    def token_text(self, token: int) -> bytes:
        """Return a token as the file spells it; never empty for a control token."""
        with self._handle:
            text: bytes | None = self._calls.text(self._calls.pointer, token)
            return text or b""

    def is_eog(self, token: int) -> bool:
        """Tell whether the library counts ``token`` as end of generation."""
        with self._handle:
            return bool(self._calls.is_eog(self._calls.pointer, token))

    def is_special(self, token: int) -> bool:
        """Tell whether the file gives ``token`` the type control or user-defined."""
        with self._handle:
            return bool(self._calls.attributes(self._calls.pointer, token) & _SPECIAL)

    def close(self) -> None:
        """Free the weights, once; every other method raises EngineClosedError then."""
        self._handle.close()
