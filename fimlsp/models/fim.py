"""Which tokens make a model able to fill in the middle, as far as a file's header tells.

This only answers "can it at all" before a model is loaded. The order, the stop set and the pieces
around them belong to the prompt templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fimlsp.errors import NoFimTokensError


class FimSpelling(NamedTuple):
    """How one family of models writes its three tokens."""

    families: str
    prefix: str
    suffix: str
    middle: str


FIM_SPELLINGS: tuple[FimSpelling, ...] = (
    FimSpelling(
        "Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    ),
    FimSpelling(
        "StarCoder, StarCoder2, Granite Code, StableCode, Mellum, Refact",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
    ),
    FimSpelling("SantaCoder", "<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    FimSpelling("DeepSeek-Coder", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    FimSpelling("CodeLlama", "▁<PRE>", "▁<SUF>", "▁<MID>"),
    FimSpelling("CodeLlama", "<PRE>", "<SUF>", "<MID>"),
    FimSpelling("CodeGeeX, GLM-4.5", "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    # Codestral's prompt has no middle token, so this one is not required.
    FimSpelling("Codestral", "[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
    FimSpelling("Seed-Coder, Zeta 2", "<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    FimSpelling("other", "<|prefix|>", "<|suffix|>", "<|middle|>"),
)

SPELLINGS: Mapping[bytes, str] = {
    text.encode(): text for row in FIM_SPELLINGS for text in (row.prefix, row.suffix, row.middle)
}
"""Every spelling, by its bytes in a vocabulary."""

LONGEST_SPELLING = max(map(len, SPELLINGS))

_PREFIX_KEYS = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
_SUFFIX_KEYS = ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id")
_MIDDLE_KEYS = ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FimTokens:
    """Token ids of a model that can fill in the middle."""

    prefix: int
    suffix: int
    middle: int | None
    """None for the families whose prompt has no middle token."""


def fim_tokens(by_key: Callable[[str], int | None], by_text: Mapping[str, int]) -> FimTokens | None:
    """Return a model's FIM tokens, or None if it has none of any known family.

    Args:
        by_key: Gives the integer value of a metadata key (today's or the deprecated names), or
            None.
        by_text: Id of each vocabulary entry that is one of ``SPELLINGS``.
    """
    prefix, suffix = _first(by_key, _PREFIX_KEYS), _first(by_key, _SUFFIX_KEYS)
    if prefix is not None and suffix is not None:
        return FimTokens(prefix=prefix, suffix=suffix, middle=_first(by_key, _MIDDLE_KEYS))
    for row in FIM_SPELLINGS:
        if row.prefix in by_text and row.suffix in by_text:
            return FimTokens(
                prefix=by_text[row.prefix],
                suffix=by_text[row.suffix],
                middle=by_text.get(row.middle),
            )
    return None


def require_fim(fim: FimTokens | None, path: Path) -> FimTokens:
    """Return ``fim``, the tokens found in the header of ``path``.

    Raises:
        NoFimTokensError: there are none.
    """
    if fim is not None:
        return fim
    looked_for = ", ".join(f"{row.prefix} with {row.suffix}" for row in FIM_SPELLINGS)
    families = ", ".join(dict.fromkeys(row.families for row in FIM_SPELLINGS[:-1]))
    raise NoFimTokensError(
        f"{path} can't fill in the middle: its vocabulary has no pair of FIM tokens "
        f"(looked for {looked_for}); use a model of `fimlsp models list`, or a GGUF of one of "
        f"these families: {families}"
    )


def _first(by_key: Callable[[str], int | None], keys: tuple[str, ...]) -> int | None:
    return next((value for key in keys if (value := by_key(key)) is not None), None)
