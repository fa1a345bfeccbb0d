"""Presets, the person's own file and the values of ``--set``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fimlsp.config import Settings, preset_names, user_config_file
from fimlsp.config.sources import load_preset, parse_sets

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("item", "table"),
    [
        ("window.cold_ms=300", {"window.cold_ms": 300}),
        ("completion.multiline=never", {"completion.multiline": "never"}),
        ('completion.multiline="never"', {"completion.multiline": "never"}),
        (" completion.enabled = false ", {"completion.enabled": False}),
        (
            'completion.disabled_languages=["markdown"]',
            {"completion.disabled_languages": ["markdown"]},
        ),
        ("completion={max_ms=5}", {"completion": {"max_ms": 5}}),
        (r"models.dir=C:\new\models", {"models.dir": r"C:\new\models"}),
        ("models.target=a=b", {"models.target": "a=b"}),
        ("log.file=", {"log.file": ""}),
    ],
)
def test_a_value_is_toml_or_else_a_bare_string(item: str, table: dict[str, object]) -> None:
    assert parse_sets([item]) == table


@pytest.mark.parametrize("text", ["7", "true", "2024-01-01", "1.50"])
def test_a_name_that_looks_like_something_else_stays_a_name(text: str) -> None:
    assert parse_sets([f"models.target={text}"]) == {"models.target": text}


def test_a_value_can_not_smuggle_in_a_second_setting() -> None:
    assert parse_sets(["window.cold_ms=1\nvalue2=3"]) == {"window.cold_ms": "1\nvalue2=3"}


def test_the_last_of_several_sets_wins_in_any_spelling() -> None:
    sets = ["window.cold_ms=1", "window.coldMs=2", "window.cold_ms=3"]
    settings = Settings.from_command_line(sets=sets, environ={}, user_file=Path("absent"))
    assert settings.config.window.cold_ms == 3


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_without_a_complaint(name: str) -> None:
    settings = Settings.from_command_line(preset=name, environ={}, user_file=Path("absent"))
    assert settings.problems == []


def test_there_is_a_preset_for_machines_without_a_gpu() -> None:
    assert load_preset("cpu")["engine"]["n_gpu_layers"] == 0


def test_presets_are_packed_into_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"configs": "fimlsp/configs"}


def test_the_users_own_file_lies_in_a_folder_of_fimlsp() -> None:
    file = user_config_file()
    assert file.is_absolute()
    assert file.parts[-2:] == ("fimlsp", "config.toml")
