from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fimlsp.errors import NoFimTokensError
from fimlsp.prompt.templates import (
    TEMPLATES,
    Bos,
    FimTemplate,
    Order,
    ResolvedTemplate,
    resolve_template,
)

ROWS = pytest.mark.parametrize("row", TEMPLATES, ids=lambda row: row.name)
EVERY_SPELLING = sorted({s for row in TEMPLATES for s in row.spellings})


class FakeVocabulary:
    """One token per byte (ids 0-255), then the given control tokens."""

    def __init__(self, controls: Iterable[str], *, bos: str | None = None, eog: str | None = None):
        self.names = list(dict.fromkeys(controls))
        self.bos = None if bos is None else self.control(bos)
        eog_id = None if eog is None else self.control(eog)
        self.eog = frozenset() if eog_id is None else frozenset({eog_id})

    @property
    def n_tokens(self) -> int:
        return 256 + len(self.names)

    def tokenize(self, text: bytes) -> list[int]:
        return list(text)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def control(self, text: str) -> int | None:
        return 256 + self.names.index(text) if text in self.names else None

    def can_continue(self, tail: bytes) -> bool:
        return False

    def show(self, ids: Sequence[int]) -> str:
        return b"".join(
            bytes([i]) if i < 256 else self.names[i - 256].encode() for i in ids
        ).decode()


def vocabulary_of(row: FimTemplate) -> FakeVocabulary:
    """A vocabulary with everything a row may ask for, and BOS where a real file would have it."""
    bos = row.bos_token or "<s>"
    return FakeVocabulary((*row.spellings, bos, "<unrelated>"), bos=bos)


def resolve(row: FimTemplate, vocabulary: FakeVocabulary | None = None) -> ResolvedTemplate:
    resolved = resolve_template(vocabulary or vocabulary_of(row), row.hints[0])
    assert resolved.template is row
    return resolved


def head(
    row: FimTemplate,
    *,
    repo: str | None = "R",
    context: Sequence[tuple[str, str]] = (),
    vocabulary: FakeVocabulary | None = None,
) -> str:
    vocabulary = vocabulary or vocabulary_of(row)
    ids = resolve(row, vocabulary).render(
        repo=repo,
        path="src/a.py",
        prefix=list(b"P\n"),
        suffix=list(b"S\n"),
        tokenize=vocabulary.tokenize,
        context=[(path, list(text.encode())) for path, text in context],
    )
    return vocabulary.show(ids)


def row_named(part: str) -> FimTemplate:
    return next(row for row in TEMPLATES if row.name.startswith(part))


EXPECTED = {
    "Qwen": "<|repo_name|>R\n<|file_sep|>o.py\nO\n<|file_sep|>src/a.py\n"
    "<|fim_prefix|>P\n<|fim_suffix|>S\n<|fim_middle|>",
    "CodeGemma": "<bos>o.py\nO\n<|file_separator|>src/a.py\n"
    "<|fim_prefix|>P\n<|fim_suffix|>S\n<|fim_middle|>",
    "DeepSeek": "<｜begin▁of▁sentence｜><｜fim▁begin｜>#o.py\nO\n#src/a.py\nP\n"
    "<｜fim▁hole｜>S\n<｜fim▁end｜>",
    "CodeLlama": "<s>▁<PRE>P\n▁<SUF>S\n▁<MID>",
    "Codestral": "<s>[SUFFIX]S\n[PREFIX]+++++ o.py\nO\n+++++ src/a.py\nP\n",
    "Seed-Coder": "<s><[fim-suffix]>S\n<[fim-prefix]>P\n<[fim-middle]>",
    "CodeGeeX4": "[gMASK]<sop><|user|>\n###REFERENCE:\n###PATH:o.py\nO\n"
    "###PATH:src/a.py\n###LANGUAGE:\n###MODE:BLOCK\n"
    "<|code_suffix|>S\n<|code_prefix|>P\n<|code_middle|><|assistant|>\n",
    "StarCoder2": "<s><repo_name>R<file_sep>o.py\nO\n<file_sep>"
    "<fim_prefix>src/a.py\nP\n<fim_suffix>S\n<fim_middle>",
    "StarCoder /": "<s><reponame>R<filename>o.py\nO\n<filename>src/a.py\n"
    "<fim_prefix>P\n<fim_suffix>S\n<fim_middle>",
    "Granite Code": "<s><reponame>R<filename>o.py\nO\n<filename>src/a.py\n"
    "<fim_prefix>P\n<fim_suffix>S\n<fim_middle>",
    "Mellum": "<s><reponame>R<filename>o.py\nO\n<filename>src/a.py\n"
    "<fim_suffix>S\n<fim_prefix>P\n<fim_middle>",
    "StableCode": "<s><fim_prefix>P\n<fim_suffix>S\n<fim_middle>",
    "Granite 4": "<s><|fim_prefix|>P\n<|fim_suffix|>S\n<|fim_middle|>",
}


def test_every_row_has_an_expected_prompt() -> None:
    assert [row_named(part) for part in EXPECTED] == list(TEMPLATES)


@pytest.mark.parametrize("family", EXPECTED)
def test_a_prompt_with_repository_and_another_file_is_laid_out_as_trained(family: str) -> None:
    assert head(row_named(family), context=[("o.py", "O\n")]) == EXPECTED[family]


def test_qwen_is_told_the_path_even_without_other_files() -> None:
    expected = "<|file_sep|>src/a.py\n<|fim_prefix|>P\n<|fim_suffix|>S\n<|fim_middle|>"
    assert head(row_named("Qwen"), repo=None) == expected
    assert head(row_named("Qwen")) == "<|repo_name|>R\n" + expected


def test_codegemma_has_no_separator_before_the_first_file() -> None:
    assert head(row_named("CodeGemma")).startswith("<bos>src/a.py\n<|fim_prefix|>")


def test_codestral_has_no_path_header_without_other_files() -> None:
    assert head(row_named("Codestral")) == "<s>[SUFFIX]S\n[PREFIX]P\n"


@ROWS
def test_the_head_ends_where_typed_text_and_answer_are_appended(row: FimTemplate) -> None:
    text = head(row)
    closing = "".join(row.closing) + row.closing_text
    if row.frame.middle is None:
        assert text.endswith("P\n" + closing)
    else:
        assert text.endswith(row.frame.middle + closing)
    if row.order is Order.SPM:
        assert text.index("S\n") < text.index("P\n", text.index(row.frame.prefix))


@ROWS
def test_bos_is_first_or_absent_and_never_in_the_middle(row: FimTemplate) -> None:
    """llama-server puts it between the other files and the prefix."""
    vocabulary = vocabulary_of(row)
    resolved = resolve(row, vocabulary)
    ids = resolved.render(
        repo="R",
        path="a",
        prefix=[1],
        suffix=[2],
        tokenize=vocabulary.tokenize,
        context=[("o", [3]), ("p", [4])],
    )
    if row.bos is Bos.NEVER:
        assert resolved.bos is None
        assert vocabulary.bos not in ids
    else:
        assert ids[0] == resolved.bos == vocabulary.bos
        assert ids.count(ids[0]) == 1


@ROWS
def test_a_file_that_wants_no_bos_gets_one_only_where_the_family_requires_it(
    row: FimTemplate,
) -> None:
    vocabulary = vocabulary_of(row)
    vocabulary.bos = None
    bos = resolve(row, vocabulary).bos
    if row.bos is Bos.REQUIRED:
        assert row.bos_token is not None
        assert bos == vocabulary.control(row.bos_token)
    else:
        assert bos is None


@ROWS
def test_the_stop_set_holds_every_control_token_of_the_row(row: FimTemplate) -> None:
    vocabulary = vocabulary_of(row)
    resolved = resolve(row, vocabulary)
    assert {vocabulary.control(s) for s in row.spellings} <= resolved.stop_tokens
    assert vocabulary.control("<unrelated>") not in resolved.stop_tokens
    assert all(token >= 256 for token in resolved.stop_tokens)


@ROWS
def test_the_stop_set_holds_the_librarys_own_end_tokens(row: FimTemplate) -> None:
    names = (*row.control_tokens, row.bos_token or "<s>", "<end>")
    vocabulary = FakeVocabulary(names, bos=row.bos_token, eog="<end>")
    assert vocabulary.control("<end>") in resolve(row, vocabulary).stop_tokens


def test_starcoder2_stops_at_a_file_separator_that_the_library_does_not_know_as_an_end() -> None:
    row = row_named("StarCoder2")
    vocabulary = FakeVocabulary((*row.control_tokens, "<|endoftext|>"), eog="<|endoftext|>")
    assert vocabulary.control("<file_sep>") in resolve(row, vocabulary).stop_tokens


@ROWS
def test_a_prompt_holds_no_control_tokens_but_the_rows_own(row: FimTemplate) -> None:
    vocabulary = FakeVocabulary((*EVERY_SPELLING, *(r.bos_token or "<s>" for r in TEMPLATES)))
    resolved = resolve(row, vocabulary)
    ids = resolved.render(
        repo="R",
        path="a",
        prefix=[1],
        suffix=[2],
        tokenize=vocabulary.tokenize,
        context=[("o", [3])],
    )
    allowed = {vocabulary.control(s) for s in row.control_tokens} | {resolved.bos}
    assert {i for i in ids if i >= 256} <= allowed


@ROWS
@settings(max_examples=40)
@given(data=st.data())
def test_control_spellings_in_user_text_never_become_control_tokens(
    row: FimTemplate, data: st.DataObject
) -> None:
    pieces = st.one_of(st.sampled_from(EVERY_SPELLING), st.text(max_size=8))
    user_text = st.lists(pieces, max_size=6).map("".join)
    repo, path, before, after, other_path, other = (data.draw(user_text) for _ in range(6))
    vocabulary = vocabulary_of(row)
    resolved = resolve(row, vocabulary)

    def render(*texts: str) -> tuple[int, ...]:
        as_ids = [vocabulary.tokenize(t.encode("utf-8", "replace")) for t in texts[2:]]
        return resolved.render(
            repo=texts[0] or None,
            path=texts[1],
            prefix=as_ids[0],
            suffix=as_ids[1],
            tokenize=vocabulary.tokenize,
            context=[(other_path, as_ids[2])],
        )

    plain = render("r" if repo else "", "p", "b", "a", "o")
    spiked = render(repo, path, before, after, other)
    assert [i for i in spiked if i >= 256] == [i for i in plain if i >= 256]


@ROWS
def test_a_row_is_found_by_its_tokens_and_any_of_its_names(row: FimTemplate) -> None:
    for hint in row.hints:
        found = resolve_template(vocabulary_of(row), f"{hint.title()}-Base.Q4_K_M.gguf")
        assert found.template is row


STARCODER_VOCABULARY = (
    *("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<|endoftext|>"),
    *("<filename>", "<reponame>", "<file_sep>", "<repo_name>"),
)


@pytest.mark.parametrize(
    ("model_name", "family"),
    [
        ("Mellum-4b-base.Q8_0.gguf", "Mellum"),
        ("starcoder2-3b-Q4_K_M.gguf", "StarCoder2"),
        ("granite-3b-code-base.gguf", "Granite Code"),
        ("stable-code-3b.gguf", "StableCode"),
        ("refact-1_6b-fim.gguf", "StarCoder /"),
        ("my-own-finetune.gguf", "StarCoder2"),
        ("", "StarCoder2"),
    ],
)
def test_the_model_name_decides_where_families_share_spellings(
    model_name: str, family: str
) -> None:
    """Mellum reads the suffix first, yet has StarCoder's tokens: llama-server asks it wrongly."""
    vocabulary = FakeVocabulary(STARCODER_VOCABULARY)
    assert resolve_template(vocabulary, model_name).template is row_named(family)


def test_a_name_never_outweighs_the_tokens_of_the_vocabulary() -> None:
    vocabulary = vocabulary_of(row_named("DeepSeek"))
    resolved = resolve_template(vocabulary, "qwen-distilled-into-deepseek.gguf")
    assert resolved.template is row_named("DeepSeek")


@pytest.mark.parametrize("bars", [True, False])
def test_a_vocabulary_with_just_the_three_tokens_gets_the_plain_form(bars: bool) -> None:
    row = row_named("Granite 4" if bars else "StableCode")
    vocabulary = FakeVocabulary(row.control_tokens)
    assert resolve_template(vocabulary, "unknown.gguf").template is row


def test_codestral_works_without_a_middle_token_and_stops_at_one() -> None:
    row = row_named("Codestral")
    vocabulary = FakeVocabulary(("<s>", "</s>", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"), bos="<s>")
    assert head(row, repo=None, vocabulary=vocabulary) == "<s>[SUFFIX]S\n[PREFIX]P\n"
    assert vocabulary.control("[MIDDLE]") in resolve(row, vocabulary).stop_tokens


def test_a_family_without_file_headers_says_so_and_leaves_other_files_out() -> None:
    row = row_named("CodeLlama")
    assert not resolve(row).takes_context
    assert head(row, context=[("o.py", "O\n")]) == head(row)


def test_a_model_without_fim_tokens_is_refused_with_what_was_looked_for() -> None:
    vocabulary = FakeVocabulary(("<|begin_of_text|>", "<|eot_id|>"))
    with pytest.raises(NoFimTokensError) as caught:
        resolve_template(vocabulary, "Llama-3-8B.gguf")
    message = str(caught.value)
    assert "Llama-3-8B.gguf" in message
    assert "258 tokens" in message
    assert all(row.frame.prefix in message and row.name in message for row in TEMPLATES)
    assert "found none" in message


def test_an_incomplete_set_of_tokens_is_refused_with_what_is_missing() -> None:
    vocabulary = FakeVocabulary(("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜begin▁of▁sentence｜>"))
    with pytest.raises(NoFimTokensError, match=r"DeepSeek.*lacks <｜fim▁end｜>"):
        resolve_template(vocabulary, "deepseek.gguf")


def test_a_required_bos_that_the_vocabulary_lacks_is_refused() -> None:
    row = row_named("DeepSeek")
    with pytest.raises(NoFimTokensError, match="begin▁of▁sentence"):
        resolve_template(FakeVocabulary(row.control_tokens), "deepseek.gguf")


def test_plain_text_that_spells_a_piece_does_not_make_a_family() -> None:
    """A vocabulary whose tokeniser splits `<|fim_prefix|>` into text has no FIM tokens."""
    with pytest.raises(NoFimTokensError):
        resolve_template(FakeVocabulary(()), "qwen2.5-coder.gguf")
