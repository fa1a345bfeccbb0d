"""Layers over each other, from the command line to a running editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fimlsp.config import Config, Settings, Source
from fimlsp.config.schema import LEAVES, SECTIONS
from fimlsp.errors import ConfigError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
known_names = st.sampled_from([*LEAVES, *SECTIONS, *(leaf.name for leaf in LEAVES.values())])
options_near_the_real_ones = st.dictionaries(
    known_names, st.dictionaries(known_names, json_values, max_size=5) | json_values, max_size=5
)


def load(tmp_path: Path, **given: Any) -> Settings:
    """Load without the settings of the machine that the test runs on."""
    options: dict[str, Any] = {"environ": {}, "user_file": tmp_path / "absent.toml"} | given
    return Settings.from_command_line(**options)


def toml(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def value(settings: Settings, path: str) -> object:
    section, _, name = path.partition(".")
    return getattr(getattr(settings.config, section), name)


# A busy machine is not a bug: no deadline per example.
unhurried = hypothesis_settings(deadline=None)


@unhurried
@given(json_values | options_near_the_real_ones, st.booleans())
def test_any_options_at_all_leave_a_valid_configuration(options: object, trusted: bool) -> None:
    settings = Settings()
    problems = settings.update(Source.INITIALIZATION_OPTIONS, options, trusted=trusted)
    for leaf in LEAVES.values():
        assert leaf.accept(value(settings, leaf.path)) == value(settings, leaf.path)
    assert all(str(problem).encode("utf-8") for problem in problems)


@unhurried
@given(st.dictionaries(known_names, json_values))
def test_what_is_refused_leaves_the_layer_below_in_force(options: dict[str, object]) -> None:
    below, above = Settings(), Settings()
    below.update(Source.FILE, {"completion": {"max_tokens": 33}})
    above.update(Source.FILE, {"completion": {"max_tokens": 33}})
    problems = above.update(Source.CHANGE_CONFIGURATION, options)
    for path in {problem.path for problem in problems} & LEAVES.keys():
        assert value(above, path) == value(below, path)


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.config == Config()
    assert settings.problems == []


def test_a_later_layer_wins_setting_by_setting(tmp_path: Path) -> None:
    file = toml(tmp_path / "c.toml", "[engine]\nn_gpu_layers = 1\nthreads = 1\nslots = 1\n")
    settings = load(tmp_path, preset="cpu", config=file, sets=["engine.n_ctx=1024"])
    settings.update(Source.CHANGE_CONFIGURATION, {"engine": {"slots": 3}})
    settings.update(Source.INITIALIZATION_OPTIONS, {"engine": {"slots": 2, "threads": 2}})
    settings.update(Source.CHANGE_CONFIGURATION, {"engine": {"slots": 3, "nCtx": 512}})
    engine = settings.config.engine
    assert engine.n_gpu_layers == 1  # the file over the preset's 0
    assert engine.threads == 2  # initializationOptions over the file
    assert engine.slots == 3  # didChangeConfiguration over initializationOptions
    assert engine.n_ctx == 1024  # the command line over everything


def test_a_setting_that_the_editor_takes_back_falls_to_the_layer_below(tmp_path: Path) -> None:
    settings = load(tmp_path)
    settings.update(Source.INITIALIZATION_OPTIONS, {"completion": {"max_tokens": 5}})
    settings.update(Source.CHANGE_CONFIGURATION, {"completion": {"max_tokens": 6}})
    settings.update(Source.CHANGE_CONFIGURATION, {})
    assert settings.config.completion.max_tokens == 5


def test_a_change_notification_without_settings_changes_nothing(tmp_path: Path) -> None:
    settings = load(tmp_path)
    settings.update(Source.CHANGE_CONFIGURATION, {"completion": {"max_tokens": 6}})
    assert settings.update(Source.CHANGE_CONFIGURATION, None) == []
    assert settings.config.completion.max_tokens == 6


def test_a_problem_says_which_value_is_used_instead(tmp_path: Path) -> None:
    settings = load(tmp_path, config=toml(tmp_path / "c.toml", "completion.max_tokens = 33"))
    (problem,) = settings.update(
        Source.INITIALIZATION_OPTIONS, {"completion": {"maxTokens": "many"}}
    )
    assert str(problem) == (
        'completion.max_tokens: found "many" (string), expected an integer from 1 to 4096; using 33'
    )
    assert problem.source == "initializationOptions"
    assert settings.problems == [problem]


def test_a_problem_is_reported_once_until_it_was_gone(tmp_path: Path) -> None:
    settings = load(tmp_path)
    bad = {"completion": {"max_tokens": "many"}}
    assert len(settings.update(Source.INITIALIZATION_OPTIONS, bad)) == 1
    assert settings.update(Source.CHANGE_CONFIGURATION, bad) == []
    settings.update(Source.INITIALIZATION_OPTIONS, {})
    settings.update(Source.CHANGE_CONFIGURATION, {})
    assert settings.problems == []
    assert len(settings.update(Source.CHANGE_CONFIGURATION, bad)) == 1


def test_the_file_is_named_by_option_then_environment_then_the_users_own(tmp_path: Path) -> None:
    option = toml(tmp_path / "option.toml", "completion.max_tokens = 1")
    variable = toml(tmp_path / "variable.toml", "completion.max_tokens = 2")
    user = toml(tmp_path / "user.toml", "completion.max_tokens = 3")
    environ = {"FIMLSP_CONFIG": str(variable)}

    def max_tokens(**given: Any) -> int:
        return load(tmp_path, user_file=user, **given).config.completion.max_tokens

    assert max_tokens(config=option, environ=environ) == 1
    assert max_tokens(environ=environ) == 2
    assert max_tokens(environ={"FIMLSP_CONFIG": ""}) == 3


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"completion = [", "found a mistake in the TOML"),
        (b"a = " + b"[" * 10_000, "found a mistake in the TOML"),
        (b"a = " + b"9" * 10_000, "found a mistake in the TOML"),
        (b'a = "\xff"', "found a byte that isn't UTF-8 at offset 5"),
    ],
)
def test_a_broken_file_is_a_problem_and_the_rest_works(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    settings = load(tmp_path, user_file=file, sets=["completion.max_tokens=7"])
    (problem,) = settings.problems
    assert str(problem).startswith(f"{file}: {complaint}")
    assert str(problem).endswith("; none of its settings are used")
    assert settings.config.completion.max_tokens == 7


def test_a_byte_order_mark_is_not_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf[completion]\r\nmax_tokens = 7\r\n")
    assert load(tmp_path, config=file).config.completion.max_tokens == 7


def test_a_bad_value_in_a_file_is_a_problem_that_names_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path / "c.toml", "completion.max_tokens = 0")
    (problem,) = load(tmp_path, config=file).problems
    assert problem.path == "completion.max_tokens"
    assert problem.source == str(file)


def test_a_file_named_by_the_environment_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    (problem,) = load(tmp_path, environ={"FIMLSP_CONFIG": str(missing)}).problems
    assert str(problem).startswith(f"{missing}: found no such file")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config": "missing.toml"}, "--config missing.toml: found no such file"),
        ({"preset": "cpx"}, '--preset: found "cpx", which is no preset; did you mean cpu?'),
        ({"preset": "../configs/cpu"}, "which is no preset"),
        ({"sets": ["window"]}, '--set: found "window", expected KEY=VALUE'),
        ({"sets": ["=3"]}, '--set: found "=3", expected KEY=VALUE'),
        (
            {"sets": ["window.cold_ms=fast"]},
            '--set window.cold_ms: found "fast" (string), expected an integer from 0 to 60000',
        ),
        (
            {"sets": ["window.cold=3"]},
            "--set window.cold: unknown setting; did you mean window.cold_ms?",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_an_error(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, **given)
    assert message in str(error.value)


def test_all_mistakes_of_the_command_line_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, sets=["window.cold=3", "engine.threads=-1"])
    assert len(str(error.value).splitlines()) == 2


def test_a_file_that_can_not_be_read_by_option_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found an unreadable file"):
        load(tmp_path, config=tmp_path)
