from pathlib import Path

import pytest

from fimlsp.models.params import ModelsParams, models_dir


def test_the_setting_wins_over_the_environment(tmp_path: Path) -> None:
    environ = {"FIMLSP_MODELS_DIR": str(tmp_path / "environment")}
    params = ModelsParams(dir=str(tmp_path / "setting"))
    assert models_dir(params, environ) == tmp_path / "setting"


def test_the_environment_wins_over_the_user_cache(tmp_path: Path) -> None:
    environ = {"FIMLSP_MODELS_DIR": str(tmp_path)}
    assert models_dir(ModelsParams(), environ) == tmp_path


def test_the_default_is_an_absolute_folder_of_our_own() -> None:
    folder = models_dir(ModelsParams(), {})
    assert folder.is_absolute()
    assert "fimlsp" in folder.parts


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert models_dir(ModelsParams(dir="~/m"), {}) == tmp_path / "m"
    assert models_dir(ModelsParams(), {"FIMLSP_MODELS_DIR": "~/e"}) == tmp_path / "e"


def test_an_empty_environment_variable_counts_as_unset() -> None:
    unset = models_dir(ModelsParams(), {})
    assert models_dir(ModelsParams(), {"FIMLSP_MODELS_DIR": ""}) == unset
