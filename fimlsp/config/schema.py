"""What each setting may be: checks values of one layer, and words what is wrong with them.

Everything here is derived from the annotations of the params classes; there is no second list of
settings. It knows nothing of files, editors or the order of layers.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from fimlsp.config.tree import Config
from fimlsp.fields import Between, MachineOnly, OneOf
from fimlsp.models.catalog import find

Value = bool | int | float | str | tuple[str, ...] | tuple[float, ...]
"""What a setting can hold."""

_TYPES: Final[Mapping[object, str]] = MappingProxyType(
    {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a string",
        tuple[str, ...]: "a list of strings",
        tuple[float, ...]: "a list of numbers",
    }
)
_SHOWN: Final = 60
"""Characters of a wrong value that a message repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in the settings, as a sentence.

    Two problems are equal when the same complaint is made about the same path, whatever layer it
    came from and whatever is used instead.
    """

    path: str
    """Full dotted path of the setting, or the name of a file that can't be read."""
    complaint: str
    """What was found and what was expected."""
    remedy: str = field(default="", compare=False)
    """What happens instead."""
    source: str = field(default="", compare=False)
    """The file, or the kind of source, that it was found in."""

    def __str__(self) -> str:
        return f"{self.path}: {self.complaint}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One setting: where it is declared and what it accepts."""

    path: str
    owner: type
    """The params class that declares it."""
    name: str
    """Its field there."""
    type: object
    default: Value
    between: Between | None = None
    choices: tuple[str, ...] = ()
    machine_only: MachineOnly | None = None

    @property
    def expected(self) -> str:
        """What it accepts, in words."""
        if self.choices:
            kind = "a list of any of " if self.type == tuple[str, ...] else "one of "
            return kind + ", ".join(show(choice) for choice in self.choices)
        if self.between is not None:
            return f"{_TYPES[self.type]} from {self.between.low:g} to {self.between.high:.10g}"
        return _TYPES[self.type]

    def accept(self, value: object) -> Value | None:
        """Return ``value`` as the setting holds it, None where it does not fit."""
        taken: Value | None = None
        if self.type is bool or self.type is str:
            taken = value if isinstance(value, bool | str) and type(value) is self.type else None
        elif self.type is int:
            taken = _integer(value)
        elif self.type is float:
            taken = _number(value)
        elif isinstance(value, list | tuple):
            taken = _strings(value) if self.type == tuple[str, ...] else _numbers(value)
        several = taken if isinstance(taken, tuple) else (taken,)
        return taken if all(self._allows(item) for item in several) else None

    def _allows(self, item: object) -> bool:
        """Tell whether one value, or one item of a list, is among the words or in the range."""
        if self.choices:
            return item in self.choices
        if self.between is not None and isinstance(item, int | float):
            return self.between.low <= item <= self.between.high
        return True


@dataclass(slots=True)
class Layer:
    """The settings of one source: what is good, and what is wrong."""

    values: dict[str, Value] = field(default_factory=dict)
    """Checked values by full path."""
    problems: list[Problem] = field(default_factory=list)


def read_layer(options: object, *, source: str, trusted: bool) -> Layer:
    """Check the settings of one source; never raises, whatever ``options`` holds.

    Keys may be nested or dotted, ``snake_case`` or ``camelCase``, and may lie in one table
    ``fimlsp``. ``null`` means "not set", and so does an empty list where a table belongs: editors
    send both.

    Args:
        options: Decoded TOML or JSON.
        source: For people: the file or the kind of source.
        trusted: Whether the person wrote it, not the repository they opened.
    """
    layer = Layer()
    if isinstance(options, Mapping) and "fimlsp" in options:
        _read_table(layer, options["fimlsp"], "", source=source, trusted=trusted)
        options = {key: value for key, value in options.items() if key != "fimlsp"}
    _read_table(layer, options, "", source=source, trusted=trusted)
    return layer


def build_config(values: Mapping[str, Value]) -> Config:
    """Return the tree with ``values`` (checked, by full path) in place of defaults."""
    sections = {
        section.name: SECTIONS[section.name](
            **{
                leaf.name: values[leaf.path]
                for leaf in LEAVES.values()
                if leaf.path in values and leaf.path.rpartition(".")[0] == section.name
            }
        )
        for section in fields(Config)
    }
    return Config(**sections)


def show(value: object) -> str:
    """Return ``value`` as a person would write it, cut to a length that fits a sentence."""
    if isinstance(value, Mapping):
        return "{...}" if value else "{}"
    if isinstance(value, list | tuple):
        shown = ", ".join(
            "[...]" if isinstance(item, list | tuple) else show(item) for item in value[:8]
        )
        return _cut(f"[{shown}" + (", ...]" if len(value) > 8 else "]"))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 64:  # str() refuses really long ones
        return "a number of more than 64 bits"
    if isinstance(value, str):
        # Lone surrogates are legal in JSON and can't be encoded again.
        text = json.dumps(_cut(value), ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _cut(str(value))


def suggest(path: str) -> str:
    """Return what to say about a path that isn't a setting."""
    section, _, last = path.rpartition(".")
    same_name = [known for known in LEAVES if known.rpartition(".")[2] == last]
    if section not in SECTIONS:
        close = difflib.get_close_matches(path, [*LEAVES, *SECTIONS], n=1, cutoff=0.7)
        if close := same_name or close:
            return f"did you mean {close[0]}?"
        return f"expected one of the sections {', '.join(SECTIONS)}"
    names = [leaf.name for leaf in LEAVES.values() if leaf.owner is SECTIONS[section]]
    # Alike are the names, not the section that all of them share.
    close = difflib.get_close_matches(last, names, n=1, cutoff=0.6)
    if close := [f"{section}.{name}" for name in close] or same_name:
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(names)} in {section}"


def _read_table(layer: Layer, table: object, prefix: str, *, source: str, trusted: bool) -> None:
    if table is None or table == []:  # an empty Lua table is sent as a list
        return
    if not isinstance(table, Mapping):
        complaint = f"found {_found(table)}, expected a table of settings"
        path = prefix.removesuffix(".") or "settings"
        layer.problems.append(Problem(path=path, complaint=complaint, source=source))
        return
    for key, value in table.items():
        path = _canonical(prefix + str(key))
        if path in SECTIONS:
            _read_table(layer, value, path + ".", source=source, trusted=trusted)
        elif path not in LEAVES:
            written = _plain(prefix + str(key))
            complaint = f"unknown setting; {suggest(path)}"
            layer.problems.append(Problem(path=written, complaint=complaint, source=source))
        elif value is not None:
            _read_value(layer, LEAVES[path], value, source=source, trusted=trusted)


def _read_value(layer: Layer, leaf: Leaf, value: object, *, source: str, trusted: bool) -> None:
    taken = leaf.accept(value)
    complaint = ""
    if taken is None:
        complaint = f"found {_found(value)}, expected {leaf.expected}"
    elif not trusted and leaf.machine_only is MachineOnly.ALWAYS:
        complaint = f"found {_found(value)} in {source}, expected it in your own settings only"
    elif not trusted and leaf.machine_only is MachineOnly.PATHS and find(str(taken)) is None:
        # Any other word, with or without a separator, may be a file of the directory we run in.
        complaint = (
            f"found {_found(value)} in {source}, expected a catalogue name: "
            "files of this machine are named in your own settings only"
        )
    if complaint:
        layer.problems.append(Problem(path=leaf.path, complaint=complaint, source=source))
    elif taken is not None:
        layer.values[leaf.path] = taken


def _canonical(path: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])[A-Z]", lambda match: "_" + match[0].lower(), path)
    return snake.removeprefix("fimlsp.")


def _integer(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():  # JSON has one kind of number
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _strings(values: Sequence[object]) -> tuple[str, ...] | None:
    strings = tuple(value for value in values if isinstance(value, str))
    return strings if len(strings) == len(values) else None


def _numbers(values: Sequence[object]) -> tuple[float, ...] | None:
    numbers = tuple(number for value in values if (number := _number(value)) is not None)
    return numbers if len(numbers) == len(values) else None


def _found(value: object) -> str:
    kinds = (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")
    if isinstance(value, Mapping):
        return f"{show(value)} (table)"
    if isinstance(value, list | tuple):
        return f"{show(value)} (list)"
    kind = next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)
    return f"{show(value)} ({kind})"


def _plain(path: str) -> str:
    printable = _cut(path)
    return printable if re.fullmatch(r"[\w.-]+", printable, re.ASCII) else show(printable)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _sections() -> dict[str, type[Any]]:
    hints = get_type_hints(Config)
    assert all(is_dataclass(hint) for hint in hints.values())
    return hints


def _leaves() -> dict[str, Leaf]:
    leaves = {}
    for section, owner in SECTIONS.items():
        hints = get_type_hints(owner, include_extras=True)
        for item in fields(owner):
            hint: Any = hints[item.name]
            marks: list[object] = []
            if get_origin(hint) is Annotated:
                hint, *marks = get_args(hint)
            assert hint in _TYPES, f"{section}.{item.name}: no setting can be a {hint}"
            assert item.default is not MISSING, f"{section}.{item.name} has no default"
            leaf = Leaf(
                path=f"{section}.{item.name}",
                owner=owner,
                name=item.name,
                type=hint,
                default=item.default,
                between=next((mark for mark in marks if isinstance(mark, Between)), None),
                choices=next((mark.choices for mark in marks if isinstance(mark, OneOf)), ()),
                machine_only=next((mark for mark in marks if isinstance(mark, MachineOnly)), None),
            )
            leaves[leaf.path] = leaf
    return leaves


SECTIONS: Final = MappingProxyType(_sections())
"""The params class of each section, in the order of the README."""
LEAVES: Final = MappingProxyType(_leaves())
"""Every setting by its full path."""
