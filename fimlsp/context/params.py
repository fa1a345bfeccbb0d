"""How much text around the cursor the model sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fimlsp.fields import Between


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowParams:
    """The window of text around the cursor."""

    prefix_tokens: Annotated[int, Between(16, 131072)] = 768
    """Tokens left of the cursor at most."""
    suffix_tokens: Annotated[int, Between(0, 131072)] = 192
    """Tokens right of the cursor at most."""
    cold_ms: Annotated[int, Between(0, 60_000)] = 1300
    """Milliseconds that the first suggestion in a cold file may spend on reading its prompt. The
    window is cut to fit, and the full one is read behind it; 0 takes the smallest window."""
