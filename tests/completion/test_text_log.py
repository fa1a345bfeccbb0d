"""The person's text stays out of the log unless they ask for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import ready_desk

from fimlsp.cli.options import start_logging
from fimlsp.config import LogParams


@pytest.mark.parametrize("wanted", [True, False])
async def test_text_is_logged_only_where_the_person_asked_for_it(
    tmp_path: Path, wanted: bool
) -> None:
    file = tmp_path / "log"
    start_logging(LogParams(file=str(file), text=wanted))
    desk = await ready_desk()
    desk.texts = ["hush(secret)"]
    await desk.ask("whisper = ‸\n")
    logged = file.read_text(encoding="utf-8")
    assert ("whisper" in logged) is wanted
    assert ("hush" in logged) is wanted


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave no handler behind."""
    yield
    start_logging(LogParams())
    root = logging.getLogger("fimlsp")
    root.setLevel(logging.NOTSET)
    for handler in [*root.handlers]:
        root.removeHandler(handler)
        handler.close()
