"""What a layer may hold, and what is said about what it may not."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from fimlsp.config.schema import LEAVES, Layer, build_config, read_layer, suggest
from fimlsp.config.tree import Config


def read(options: object, *, trusted: bool = True) -> Layer:
    return read_layer(options, source="test", trusted=trusted)


def complaints(options: object, *, trusted: bool = True) -> list[str]:
    return [str(problem) for problem in read(options, trusted=trusted).problems]


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=list(LEAVES))
def test_every_default_is_a_value_that_its_setting_accepts(leaf: Any) -> None:
    assert leaf.accept(leaf.default) == leaf.default


def test_no_values_make_the_default_configuration() -> None:
    assert build_config({}) == Config()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"completion": {"max_tokens": "many"}},
            'completion.max_tokens: found "many" (string), expected an integer from 1 to 4096',
        ),
        (
            {"completion": {"max_tokens": 0}},
            "completion.max_tokens: found 0 (integer), expected an integer from 1 to 4096",
        ),
        (
            {"completion": {"max_tokens": True}},
            "completion.max_tokens: found true (boolean), expected an integer from 1 to 4096",
        ),
        (
            {"completion": {"max_tokens": 1.5}},
            "completion.max_tokens: found 1.5 (number), expected an integer from 1 to 4096",
        ),
        (
            {"completion": {"enabled": 1}},
            "completion.enabled: found 1 (integer), expected true or false",
        ),
        (
            {"completion": {"multiline": "sometimes"}},
            'completion.multiline: found "sometimes" (string), '
            'expected one of "auto", "never", "always"',
        ),
        (
            {"completion": {"disabled_languages": ["markdown", 7]}},
            'completion.disabled_languages: found ["markdown", 7] (list), '
            "expected a list of strings",
        ),
        (
            {"completion": {"disabled_languages": "markdown"}},
            'completion.disabled_languages: found "markdown" (string), expected a list of strings',
        ),
        (
            {"models": {"target": {"name": "x"}}},
            "models.target: found {...} (table), expected a string",
        ),
        (
            {"engine": {"tensor_split": [3, "1"]}},
            'engine.tensor_split: found [3, "1"] (list), '
            "expected a list of numbers from 0 to 1000000",
        ),
        (
            {"draft": {"tensor_split": [1, -1]}},
            "draft.tensor_split: found [1, -1] (list), "
            "expected a list of numbers from 0 to 1000000",
        ),
        (
            {"engine": {"tensor_split": 3}},
            "engine.tensor_split: found 3 (integer), expected a list of numbers from 0 to 1000000",
        ),
        (
            {"draft": {"kv_type_v": "q9"}},
            'draft.kv_type_v: found "q9" (string), expected one of "f16", "q8_0", "q4_0"',
        ),
        ({"completion": 3}, "completion: found 3 (integer), expected a table of settings"),
        (["completion"], 'settings: found ["completion"] (list), expected a table of settings'),
        (
            {"log": {"file": datetime.date(2024, 1, 1)}},
            "log.file: found 2024-01-01 (date), expected a string",
        ),
        (
            {"engine": {"threads": 10**5000}},
            "engine.threads: found a number of more than 64 bits (integer), "
            "expected an integer from 0 to 1024",
        ),
    ],
)
def test_a_bad_value_is_named_by_its_full_path_with_what_was_expected(
    options: object, sentence: str
) -> None:
    layer = read(options)
    assert [str(problem) for problem in layer.problems] == [sentence]
    assert layer.values == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"completion": {"max_token": 1}},
            "completion.max_token: unknown setting; did you mean completion.max_tokens?",
        ),
        ({"max_tokens": 1}, "max_tokens: unknown setting; did you mean completion.max_tokens?"),
        ({"completions": {}}, "completions: unknown setting; did you mean completion?"),
        (
            {"log": {"zzz": 1}},
            "log.zzz: unknown setting; expected one of level, file, text in log",
        ),
        (
            {"zzz": 1},
            "zzz: unknown setting; expected one of the sections "
            "completion, window, models, engine, draft, speculation, sampling, log",
        ),
        (
            {"completion.max_tokens.most": 1},
            "completion.max_tokens.most: unknown setting; did you mean completion.max_tokens?",
        ),
    ],
)
def test_an_unknown_name_comes_with_the_name_that_was_meant(options: object, sentence: str) -> None:
    assert complaints(options) == [sentence]


def test_a_name_that_can_not_be_printed_is_quoted_and_cut() -> None:
    lone_surrogate_and_line_end = "a\ud800\n" + "b" * 500
    (complaint,) = complaints({lone_surrogate_and_line_end: 1})
    assert complaint.startswith('"a\\ud800\\nbbb')
    assert complaint.encode("utf-8")
    assert len(complaint) < 200


@pytest.mark.parametrize(
    "options",
    [
        {"completion": {"max_tokens": 9}},
        {"completion": {"maxTokens": 9}},
        {"completion.max_tokens": 9},
        {"completion.maxTokens": 9},
        {"fimlsp": {"completion": {"maxTokens": 9}}},
        {"fimlsp.completion.maxTokens": 9},
        {"completion": {"max_tokens": 9.0}},
    ],
)
def test_every_spelling_that_editors_use_reaches_the_setting(options: object) -> None:
    layer = read(options)
    assert layer.problems == []
    assert layer.values == {"completion.max_tokens": 9}


def test_every_setting_can_be_spelled_in_camel_case() -> None:
    for leaf in LEAVES.values():
        section = leaf.path.partition(".")[0]
        head, *tail = leaf.name.split("_")
        camel = head + "".join(word.capitalize() for word in tail)
        assert read({section: {camel: leaf.default}}).values == {leaf.path: leaf.default}


@pytest.mark.parametrize(
    "options",
    [
        None,
        [],
        {},
        {"completion": None},
        {"completion": []},
        {"completion": {"max_tokens": None}},
        {"fimlsp": None},
        {"fimlsp": []},
    ],
)
def test_null_and_empty_lua_tables_say_nothing(options: object) -> None:
    assert read(options) == Layer()


@pytest.mark.parametrize("given", [[3, 1], [3.0, 1.0], (3, 1)])
def test_a_list_of_numbers_holds_numbers_however_they_were_written(given: object) -> None:
    (value,) = read({"engine": {"tensor_split": given}}).values.values()
    assert value == (3.0, 1.0)
    assert [type(share) for share in value] == [float, float]


def test_target_and_draft_are_placed_each_by_its_own_section() -> None:
    layer = read({"engine": {"main_gpu": 1}, "draft": {"main_gpu": 2, "n_gpu_layers": 0}})
    config = build_config(layer.values)
    assert (config.engine.main_gpu, config.engine.n_gpu_layers) == (1, -1)
    assert (config.draft.main_gpu, config.draft.n_gpu_layers) == (2, 0)


def test_one_bad_value_leaves_the_others_in_force() -> None:
    layer = read({"completion": {"max_tokens": "many", "max_ms": 100}, "nope": 1})
    assert layer.values == {"completion.max_ms": 100}
    assert len(layer.problems) == 2


@pytest.mark.parametrize(
    "name",
    ["/m/x.gguf", "x.gguf", "../x", "a\\b", "C:x", "~/x", ".", "x", "qwen2.5-coder-1.5b/../x"],
)
def test_a_workspace_can_not_name_a_model_file(name: str) -> None:
    layer = read({"models": {"target": name, "draft": name, "dir": name}}, trusted=False)
    assert layer.values == {}
    assert [problem.path for problem in layer.problems] == [
        "models.target",
        "models.draft",
        "models.dir",
    ]
    assert "catalogue name" in str(layer.problems[0])


def test_a_workspace_can_pick_a_model_by_its_catalogue_name() -> None:
    layer = read({"models": {"target": "qwen2.5-coder-1.5b"}}, trusted=False)
    assert layer.values == {"models.target": "qwen2.5-coder-1.5b"}


def test_a_workspace_can_not_have_the_persons_text_written_to_a_file() -> None:
    layer = read({"log": {"file": "out.log", "text": True, "level": "debug"}}, trusted=False)
    assert layer.values == {"log.level": "debug"}
    assert [problem.path for problem in layer.problems] == ["log.file", "log.text"]


def test_a_trusted_source_can_name_a_model_file() -> None:
    options = {"models": {"target": "/m/x.gguf", "dir": "/m"}}
    assert read(options).values == {"models.target": "/m/x.gguf", "models.dir": "/m"}


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("completion.max_token", "completion.max_tokens"),
        ("completion.confidence", "completion.cold_confidence"),
        ("engine.top_k", "sampling.top_k"),
        ("engine.kv_type_q", "engine.kv_type_v"),
    ],
)
def test_a_misspelt_name_is_looked_for_in_its_own_section_first(path: str, meant: str) -> None:
    """``completion.confidence`` was answered with "did you mean completion?"."""
    assert suggest(path) == f"did you mean {meant}?"
