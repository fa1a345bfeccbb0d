"""What a setting may be, declared beside it.

The params class of any room says so in its annotations, and the configuration reads it to check
values, to word its complaints and to write the table in the README::

    threads: Annotated[int, Between(0, 1024)] = 0
    backend: Annotated[str, OneOf("auto", "ik_llama", "llama_cpp")] = "auto"

A leaf: it imports nothing of fimlsp, so that every room may use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Between:
    """A number from ``low`` to ``high``, both allowed."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, init=False)
class OneOf:
    """One of a few words."""

    choices: tuple[str, ...]

    def __init__(self, *choices: str) -> None:
        object.__setattr__(self, "choices", choices)


class MachineOnly(Enum):
    """The setting names files of this machine, so a workspace's own files may not decide it."""

    ALWAYS = "always"
    """A source that isn't trusted can't set it."""
    PATHS = "paths"
    """A source that isn't trusted can set it to a catalogue name, not to a path."""
