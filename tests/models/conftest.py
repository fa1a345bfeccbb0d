"""A tiny valid GGUF, a catalogue of one model with its bytes, and wheels that carry them."""

import hashlib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from fimlsp.models import catalog
from fimlsp.models.catalog import CatalogModel, DataPackages
from fimlsp.models.params import ModelsParams

QWEN_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")

MakeGguf = Callable[..., Path]
MakeWheel = Callable[..., Path]


def write_gguf(
    path: Path,
    *,
    tokens: Sequence[str] = ("a", "b", *QWEN_FIM, "日本"),
    keys: dict[str, int] | None = None,
) -> Path:
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("Tiny")
    writer.add_context_length(64)
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_file_type(15)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["a b", "b a"])
    writer.add_chat_template("x" * 5000)
    for key, value in (keys or {}).items():
        writer.add_uint32(key, value)
    writer.add_tensor("token_embd.weight", np.ones((len(tokens), 32), dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(32, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    wheel = folder / f"{stem}-py3-none-any.whl"
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def make_gguf(tmp_path: Path) -> MakeGguf:
    def make(name: str = "tiny.gguf", **options: object) -> Path:
        return write_gguf(tmp_path / name, **options)  # type: ignore[arg-type]  # passed through

    return make


@pytest.fixture(scope="session")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.fixture
def params(tmp_path: Path) -> ModelsParams:
    return ModelsParams(dir=str(tmp_path / "models"))


@pytest.fixture
def model(gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """The only model of the catalogue, in three parts."""
    only = CatalogModel(
        name="tiny-1.5b",
        file="tiny-1.5b-q4.gguf",
        hub_repo="someone/tiny",
        licence="MIT",
        n_ctx_train=64,
        family="tiny",
        cell_values=4,
        size_bytes=len(gguf_bytes),
        sha256=hashlib.sha256(gguf_bytes).hexdigest(),
        packages=DataPackages(names=("tiny-part1", "tiny-part2", "tiny-part3"), version="1.0"),
    )
    monkeypatch.setattr(catalog, "CATALOG", (only,))
    return only


@pytest.fixture
def final(model: CatalogModel, params: ModelsParams) -> Path:
    """Where the model belongs."""
    return Path(params.dir) / model.file


@pytest.fixture
def slices(gguf_bytes: bytes) -> dict[str, bytes]:
    """The bytes of each part, by requirement."""
    third = len(gguf_bytes) // 3
    return {
        "tiny-part1==1.0": gguf_bytes[:third],
        "tiny-part2==1.0": gguf_bytes[third : 2 * third],
        "tiny-part3==1.0": gguf_bytes[2 * third :],
    }


@pytest.fixture
def make_wheel() -> MakeWheel:
    return write_wheel
