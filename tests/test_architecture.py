"""The layout that the design draws, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fimlsp"
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""Every module's file by the module's full name."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50

LEAVES = {"errors", "fields", "document"}
"""They import nothing of fimlsp."""
ENGINE = {"engine", "engine.api"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "fields": set(),
    "document": set(),
    "models": {"errors", "fields"},
    "engine.api": {"errors", "fields"},
    "engine": {"errors", "fields", "engine.api"},
    "prompt": LEAVES | {"engine.api"},
    "context": LEAVES,
    "completion": LEAVES | {"engine.api", "prompt", "context"},
    "lsp": LEAVES | {"completion"},
    "config": {"errors", "fields", "engine.api", "completion", "context", "models"},
    "settings_table": {"errors", "config"},
    "sample": {"document"},
    "gpus": set(),
    "doctor": LEAVES | ENGINE | {"models", "sample", "gpus"},
    "bench": LEAVES | ENGINE | {"models", "prompt", "context", "completion", "sample"},
    "__main__": {"cli"},
}
"""Which rooms a room may see. ``cli`` builds everything and is not listed: it may see all."""

ONLY_IMPORTERS = {
    "pygls": "fimlsp.lsp",
    "lsprotocol": "fimlsp.lsp",
    "llama_cpp": "fimlsp.engine.native.llama_cpp",
    "ik_llama_cpp": "fimlsp.engine.native.ik_llama",
}
"""The module or package that alone may import a foreign one."""


def imports_of(source: str, module: str, *, is_package: bool) -> set[str]:
    """Return the full names that ``source`` imports, at its top or inside functions.

    ``from a import b`` counts as ``a.b`` where that is a module of fimlsp, else as ``a``.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")
            above = node.level - 1 if is_package else node.level
            base = parents[: len(parents) - above] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                found.add(whole if whole in FILES else origin)
    return found


def room_of(module: str) -> str:
    """Return the row of the table that a module of fimlsp belongs to; ``""`` is the package."""
    if module == "fimlsp.engine.api":
        return "engine.api"
    return module.split(".")[1] if "." in module else ""


def forbidden(module: str, imports: set[str]) -> list[str]:
    """Return what ``module`` imports against the tables."""
    room = room_of(module)
    wrong = []
    for name in sorted(imports):
        owner = ONLY_IMPORTERS.get(name.split(".")[0])
        if owner is not None and module != owner and not module.startswith(owner + "."):
            wrong.append(f"{module} -> {name}: only {owner} may")
        if name.split(".")[0] != "fimlsp" or room == "cli":
            continue
        allowed = {"", room} | MAY_IMPORT.get(room, set())
        if room_of(name) not in allowed:
            wrong.append(f"{module} -> {name}: not in the table of allowed directions")
    return wrong


def imports_of_module(module: str) -> set[str]:
    path = FILES[module]
    is_package = path.name == "__init__.py"
    return imports_of(path.read_text(encoding="utf-8"), module, is_package=is_package)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_only_what_its_room_may_see(module: str) -> None:
    assert forbidden(module, imports_of_module(module)) == []


def test_every_room_has_a_row_in_the_table() -> None:
    rooms = {room_of(module) for module in FILES} - {"", "cli"}
    assert rooms <= MAY_IMPORT.keys()


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: imports_of_module(module) & FILES.keys() - {module} for module in FILES}
    assert " -> ".join(cycle_in(graph)) == ""


@pytest.mark.parametrize("module", FILES)
def test_a_module_says_what_it_is_for_and_stays_readable(module: str) -> None:
    path = FILES[module]
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}
    assert ast.get_docstring(tree)
    assert source.count("\n") <= MAX_FILE_LINES
    lengths = {
        function.name: (function.end_lineno or 0) - function.lineno + 1
        for function in functions(tree)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize(
    ("module", "source", "name"),
    [
        ("fimlsp.completion.service", "from fimlsp.engine.worker import Worker", "engine.worker"),
        ("fimlsp.completion.service", "def f():\n    import fimlsp.config", "config"),
        ("fimlsp.engine.worker", "from ..document import Snapshot", "document"),
        ("fimlsp.lsp.server", "from fimlsp import config", "config"),
        ("fimlsp.document", "from fimlsp.errors import FimlspError", "errors"),
        ("fimlsp.models.pull", "from fimlsp.engine import api", "engine.api"),
        ("fimlsp.completion.api", "from lsprotocol import types", "lsprotocol"),
        ("fimlsp.engine.native.seam", "import llama_cpp.llama_cpp", "llama_cpp"),
    ],
)
def test_the_check_sees_a_wrong_direction(module: str, source: str, name: str) -> None:
    (wrong,) = forbidden(module, imports_of(source, module, is_package=False))
    assert name in wrong


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fimlsp.completion.service", "from fimlsp.engine.api import Engine"),
        ("fimlsp.completion.service", "from fimlsp.engine import api"),
        ("fimlsp.completion.service", "from .api import Trigger"),
        ("fimlsp.lsp.server", "from pygls.lsp.server import LanguageServer"),
        ("fimlsp.engine.native.llama_cpp", "import llama_cpp.llama_cpp as native"),
        ("fimlsp.cli", "from fimlsp.config import Settings"),
        ("fimlsp.doctor", "from fimlsp import __version__"),
    ],
)
def test_the_check_lets_a_right_direction_pass(module: str, source: str) -> None:
    assert forbidden(module, imports_of(source, module, is_package=False)) == []


def test_the_check_sees_a_cycle() -> None:
    assert set(cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
    assert cycle_in({"a": {"b"}, "b": {"c"}}) == []
