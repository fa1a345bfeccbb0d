"""Makes the bundled traces from a source tree: ``python -m fimlsp.bench.make_traces ROOT``.

A development tool; nothing else imports it. The same tree always gives the same traces.
"""

from __future__ import annotations

import io
import random
import sys
import tokenize
from pathlib import Path
from typing import Final

from fimlsp.bench.traces import OtherFile, Trace, write_traces

_SEED: Final = 20
_MIN_FILE_LINES: Final = 40
_MIN_LINE_CHARS: Final = 16
_OTHERS: Final = 1


def make_traces(root: Path, count: int = 10) -> list[Trace]:
    """Pick ``count`` lines of Python below ``root`` as if each were being typed.

    The files are spread evenly over the tree, one line each; the file before a file in the
    tree's order is its ``others``. Comments, lines of a few characters and lines of strings are not
    picked.
    """
    texts = {
        path.relative_to(root.parent).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*.py"))
    }
    paths = [path for path, text in texts.items() if text.count("\n") >= _MIN_FILE_LINES]
    chosen = paths[:: max(1, len(paths) // count)][:count]
    rng = random.Random(_SEED)
    traces = []
    for number, path in enumerate(chosen):
        nearest = paths[max(0, paths.index(path) - _OTHERS) : paths.index(path)]
        others = tuple(OtherFile(path=other, text=texts[other]) for other in nearest)
        traces.append(_trace(f"fimlsp-{number}", path, texts[path], others, rng))
    return traces


def _trace(
    name: str, path: str, text: str, others: tuple[OtherFile, ...], rng: random.Random
) -> Trace:
    lines = text.splitlines(keepends=True)
    index = rng.choice(_code_lines(text, lines))
    typed = lines[index].strip()
    indent, _, line_end = lines[index].partition(typed)
    return Trace(
        id=name,
        lang="python",
        path=path,
        before="".join(lines[:index]) + indent,
        after=line_end + "".join(lines[index + 1 :]),
        typed=typed,
        others=others,
    )


def _code_lines(text: str, lines: list[str]) -> list[int]:
    """Return the indices of lines that a person would type rather than write or import."""
    prose: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and token.line.lstrip().startswith(token.string[:3]):
            prose.update(range(token.start[0] - 1, token.end[0]))
    # The first lines are a docstring and imports: little to go by.
    return [
        index
        for index in range(len(lines) // 4, len(lines))
        if len(lines[index].strip()) >= _MIN_LINE_CHARS
        and not lines[index].lstrip().startswith("#")
        and index not in prose
    ]


if __name__ == "__main__":
    source = Path(sys.argv[1])
    write_traces(Path(__file__).parent / "data" / "typing-traces.jsonl.gz", make_traces(source))
