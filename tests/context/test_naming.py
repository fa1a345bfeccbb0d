"""The model learns the language of a file without a name."""

from __future__ import annotations

import pytest

from fimlsp.context.naming import shown_path


@pytest.mark.parametrize(
    ("path", "language", "shown"),
    [
        ("src/app.py", "python", "src/app.py"),
        ("src/app.pyw", "python", "src/app.pyw"),
        ("Untitled-1", "go", "Untitled-1.go"),
        ("", "rust", "untitled.rs"),
        ("Makefile", "makefile", "Makefile"),
        ("bin/run", "shellscript", "bin/run.sh"),
        ("odd", "", "odd"),
    ],
)
def test_a_path_without_extension_gets_its_languages(path: str, language: str, shown: str) -> None:
    assert shown_path(path, language) == shown
