"""Traces and stand-in servers that the benchmark's tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fimlsp.bench.traces import Trace

HERE = Path(__file__).parent


@pytest.fixture
def trace() -> Trace:
    """Three lines; the second is typed. An emoji left of the cursor tells utf-16 from others."""
    return Trace(
        id="smile",
        lang="python",
        path="pkg/smile.py",
        before="def smile():\n    return '😀', ",
        after="\n\n\nsmile()\n",
        typed="value + 1",
    )


@pytest.fixture
def scripted_server() -> Callable[..., tuple[str, ...]]:
    """Return the command of a language server that knows the future of ``smile``."""

    def command(*arguments: str) -> tuple[str, ...]:
        return (sys.executable, str(HERE / "scripted_server.py"), *arguments)

    return command


@pytest.fixture
def fake_llama_server(tmp_path: Path) -> tuple[tuple[str, ...], Path]:
    """Return the command of a stand-in for llama-server, and the file it writes requests to."""
    log = tmp_path / "requests.jsonl"
    return (sys.executable, str(HERE / "fake_llama_server.py"), str(log)), log
