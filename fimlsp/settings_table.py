"""Writes the table of all settings into the README: ``python -m fimlsp.settings_table README.md``.

Names, defaults and allowed values come from the params classes, descriptions from the docstrings
below their fields. A tool for a checkout: it reads the source.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
from pathlib import Path
from typing import Final

from fimlsp.config.schema import LEAVES, show
from fimlsp.errors import ConfigError

BEGIN: Final = "<!-- settings -->"
END: Final = "<!-- /settings -->"


def settings_markdown() -> str:
    """Return the table, one row per setting, ending in a line end."""
    rows = ["| Setting | Default | Accepts | What it does |", "| --- | --- | --- | --- |"]
    for leaf in LEAVES.values():
        cells = (
            f"`{leaf.path}`",
            f"`{show(leaf.default)}`",
            leaf.expected,
            _field_docs(leaf.owner)[leaf.name],
        )
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """Return ``text`` with the current table between the markers.

    Raises:
        ConfigError: the markers are missing or in the wrong order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"found no {BEGIN} followed by {END}; put them where the table belongs")
    return f"{before}{BEGIN}\n{settings_markdown()}{END}{after}"


def write_table(readme: Path) -> None:
    """Bring the table in the file ``readme`` up to date; the rest of it stays byte for byte.

    Raises:
        ConfigError: the file has no markers.
    """
    readme.write_bytes(with_table(readme.read_bytes().decode("utf-8")).encode("utf-8"))


def _field_docs(owner: type) -> dict[str, str]:
    """Return the string literal below each field of a class, on one line, as Markdown."""
    docs: dict[str, str] = {}
    for ancestor in reversed(owner.__mro__[:-1]):
        docs |= _own_field_docs(ancestor)
    return docs


def _own_field_docs(owner: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for statement, below in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[statement.target.id] = " ".join(below.value.value.split()).replace("``", "`")
    return docs


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fimlsp.settings_table README.md")
    write_table(Path(sys.argv[1]))
