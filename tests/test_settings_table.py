"""The README's table of settings is the code's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fimlsp.config.schema import LEAVES
from fimlsp.errors import ConfigError
from fimlsp.settings_table import BEGIN, END, settings_markdown, with_table, write_table

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_holds_the_current_table() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_table(text) == text, "run: python -m fimlsp.settings_table README.md"


def test_every_setting_has_a_row_with_a_description() -> None:
    rows = settings_markdown().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(LEAVES)
    assert all(row.rstrip("| ").endswith((".", ")")) for row in rows)


def test_a_row_has_name_default_values_and_description() -> None:
    row = "| `completion.max_lines` | `12` | an integer from 1 to 1000 | "
    assert row + "Lines per suggestion at most. |" in settings_markdown().splitlines()


def test_only_the_text_between_the_markers_changes(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_bytes(f"# a\r\n{BEGIN}\nold\n{END}\r\n\u00e9 {BEGIN} b\n".encode())
    write_table(readme)
    before, _, rest = readme.read_bytes().decode().partition(f"{BEGIN}\n")
    table, _, after = rest.partition(END)
    assert (before, table, after) == ("# a\r\n", settings_markdown(), f"\r\n\u00e9 {BEGIN} b\n")


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}"])
def test_a_readme_without_markers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="put them where the table belongs"):
        with_table(text)
