"""Where settings come from outside an editor: files, presets, ``--set``.

Returns decoded tables; what is in them is checked elsewhere.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import platformdirs

import fimlsp
from fimlsp.config.schema import LEAVES
from fimlsp.errors import ConfigError

CONFIG_VARIABLE: Final = "FIMLSP_CONFIG"
"""Environment variable that names the config file where no ``--config`` does."""


def user_config_file() -> Path:
    """Return where the person's own config file lies, whether it exists or not."""
    return platformdirs.user_config_path("fimlsp", appauthor=False) / "config.toml"


def load_file(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, with or without a byte order mark.

    Raises:
        ConfigError: it can't be read or isn't TOML. The message does not repeat the path.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise ConfigError("found no such file, expected a TOML file") from error
    except OSError as error:
        raise ConfigError(f"found an unreadable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"found a byte that isn't UTF-8 at offset {error.start}") from error
    except (ValueError, RecursionError) as error:  # absurd numbers and depths raise these two
        raise ConfigError(f"found a mistake in the TOML ({error})") from error


def preset_names() -> list[str]:
    """Return the names that ``--preset`` takes, sorted."""
    return sorted(_presets())


def load_preset(name: str) -> dict[str, Any]:
    """Return the tables of a preset.

    Raises:
        ConfigError: there is no preset of this name.
    """
    presets = _presets()
    if name not in presets:
        close = difflib.get_close_matches(name, presets, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(presets)}"
        raise ConfigError(f'--preset: found "{name}", which is no preset; {hint}')
    return load_file(presets[name])


def parse_sets(sets: Iterable[str]) -> dict[str, Any]:
    """Return the table that a list of ``KEY=VALUE`` spells; a later one wins.

    A value is TOML; what isn't TOML is a string without quotes, and so is anything that is given to
    a setting of type string.

    Raises:
        ConfigError: there is no ``=`` in one of them.
    """
    table: dict[str, Any] = {}
    for item in sets:
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigError(
                f'--set: found "{item}", expected KEY=VALUE, e.g. --set window.cold_ms=300'
            )
        value = _toml_value(text)
        wants_string = key in LEAVES and LEAVES[key].type is str
        table.pop(key, None)  # the later one also goes behind other spellings of its key
        table[key] = text if wants_string and not isinstance(value, str) else value
    return table


def config_path(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    """Return the config file that was asked for by ``--config`` or the environment, else None."""
    wanted = config or environ.get(CONFIG_VARIABLE)
    return Path(os.path.expanduser(wanted)) if wanted else None


def _toml_value(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if table.keys() == {"value"} else text


def _presets() -> dict[str, Path]:
    # A wheel holds them inside the package, a checkout (editable install) beside it.
    package = Path(fimlsp.__file__).parent
    packed = package / "configs"
    folder = packed if packed.is_dir() else package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
