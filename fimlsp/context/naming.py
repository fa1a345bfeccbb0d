"""The file name that the model is shown: a path says the language by its extension."""

from __future__ import annotations

from pathlib import PurePosixPath

EXTENSIONS = {
    "c": "c",
    "cpp": "cpp",
    "csharp": "cs",
    "css": "css",
    "dart": "dart",
    "go": "go",
    "haskell": "hs",
    "html": "html",
    "java": "java",
    "javascript": "js",
    "javascriptreact": "jsx",
    "json": "json",
    "kotlin": "kt",
    "lua": "lua",
    "markdown": "md",
    "perl": "pl",
    "php": "php",
    "python": "py",
    "ruby": "rb",
    "rust": "rs",
    "scala": "scala",
    "shellscript": "sh",
    "sh": "sh",
    "sql": "sql",
    "swift": "swift",
    "toml": "toml",
    "typescript": "ts",
    "typescriptreact": "tsx",
    "yaml": "yaml",
}
"""By LSP language id."""


def shown_path(path: str, language_id: str) -> str:
    """Return ``path``, with the language's extension where it has none (untitled files)."""
    extension = EXTENSIONS.get(language_id)
    if extension is None or PurePosixPath(path).suffix:
        return path
    return f"{path or 'untitled'}.{extension}"
