"""How each model family wants to be asked to fill in the middle: one row per family.

A row says which control tokens stand where, and nothing about windows, budgets or documents.
Control tokens enter a prompt by id only, user text enters as ids that were tokenised as plain text,
so a source file that contains ``<|fim_middle|>`` stays a source file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from fimlsp.engine.api import Vocabulary
from fimlsp.errors import NoFimTokensError

Tokenize = Callable[[bytes], list[int]]
"""Turns user text into ids; spellings of control tokens in it stay text."""
Context = Sequence[tuple[str, Sequence[int]]]
"""Other files as (path, ids of their text)."""


class Order(Enum):
    """Which side of the cursor the model reads first. The middle always comes last."""

    PSM = "prefix suffix middle"
    SPM = "suffix prefix middle"


class Bos(Enum):
    """Who decides whether the prompt begins with the begin-of-sequence token."""

    REQUIRED = "required"
    """The family was trained with it; some converted files forget to say so."""
    AS_FILE_SAYS = "as the file says"
    NEVER = "never"
    """The family was trained without it; some converted files ask for it all the same."""


class Place(Enum):
    """Where the headers (repository, other files, this file's path) stand."""

    BEFORE = "before the fill-in-the-middle block"
    INSIDE = "at the start of the prefix"
    SPLIT = "other files and the separator before the block, this file's path inside the prefix"


@dataclass(frozen=True, slots=True)
class Header:
    """What announces a repository or a file: at most one control token, then text."""

    token: str | None
    text: str
    """``{name}`` stands for the repository's name or the file's path."""
    between: bool = False
    """The token stands between files only, so the first file has none."""


class Frame(NamedTuple):
    """The control tokens in front of the three parts."""

    prefix: str
    suffix: str
    middle: str | None
    """None: generation simply goes on after the prefix (SPM only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FimTemplate:
    """One family. Control tokens are written as they are spelled in the vocabulary."""

    name: str
    hints: tuple[str, ...]
    """Parts of lower-case model names that decide where two families share spellings."""
    order: Order = Order.PSM
    frame: Frame
    bos: Bos = Bos.AS_FILE_SAYS
    bos_token: str | None = None
    """Its spelling; needed where ``bos`` is REQUIRED and the file does not name it."""
    opening: tuple[str, ...] = ()
    """Control tokens in front of everything but BOS."""
    opening_text: str = ""
    """Text right after ``opening``."""
    closing: tuple[str, ...] = ()
    """Control tokens after the middle token: a chat wrapper around the block."""
    closing_text: str = ""
    repo: Header | None = None
    file: Header | None = None
    """Header of the file with the cursor. None: the family has no notion of other files."""
    other: Header | None = None
    """Header of the other files where it differs from ``file``."""
    place: Place = Place.BEFORE
    lone_header: bool = True
    """Write ``file`` also where there are no other files."""
    stops: tuple[str, ...] = ()
    """What ends an answer beyond the library's own end tokens and the tokens of this row; spellings
    that a vocabulary lacks are passed over."""
    note: str = ""

    def __post_init__(self) -> None:
        assert self.frame.middle is not None or self.order is Order.SPM
        assert self.bos is not Bos.REQUIRED or self.bos_token is not None
        assert self.place is not Place.SPLIT or (self.file is not None and self.file.token)

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Return the spellings of every control token of this row but BOS, each once.

        They frame prompts and are never text of a source file: sampling one ends an answer, and a
        sampler that can mask tokens should mask them.
        """
        headers = [h.token for h in (self.repo, self.file, self.other) if h is not None]
        pieces = (*self.opening, *headers, *self.frame, *self.closing)
        return tuple(dict.fromkeys(p for p in pieces if p is not None))

    @property
    def spellings(self) -> tuple[str, ...]:
        """Return every spelling that must not be left over in a suggestion."""
        return tuple(dict.fromkeys((*self.control_tokens, *self.stops)))


_PIPES = Frame("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_STARCODER = FimTemplate(
    name="StarCoder / Refact",
    hints=("starcoder", "refact"),
    frame=Frame("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    repo=Header("<reponame>", "{name}"),
    file=Header("<filename>", "{name}\n"),
    stops=("<|endoftext|>", "<fim_pad>", "<file_sep>", "<filename>", "<reponame>"),
)

TEMPLATES: tuple[FimTemplate, ...] = (
    FimTemplate(
        name="Qwen2.5-Coder / Qwen3-Coder",
        hints=("qwen",),
        frame=_PIPES,
        bos=Bos.NEVER,
        repo=Header("<|repo_name|>", "{name}\n"),
        file=Header("<|file_sep|>", "{name}\n"),
        stops=("<|fim_pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        note="Format and stops as in Qwen's own example; files of the Instruct models work too.",
    ),
    FimTemplate(
        name="CodeGemma",
        hints=("codegemma", "gemma"),
        frame=_PIPES,
        bos=Bos.REQUIRED,
        bos_token="<bos>",
        file=Header("<|file_separator|>", "{name}\n", between=True),
        stops=("<eos>", "<end_of_turn>"),
        note="The library does not count <|file_separator|> as an end (llama.vim #90).",
    ),
    FimTemplate(
        name="DeepSeek-Coder / V2-Lite",
        hints=("deepseek",),
        frame=Frame("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        bos=Bos.REQUIRED,
        bos_token="<｜begin▁of▁sentence｜>",
        file=Header(None, "#{name}\n"),
        place=Place.INSIDE,
        stops=("<｜end▁of▁sentence｜>", "<|EOT|>"),
        note="Fullwidth bars and U+2581. Files of a repository follow one another in one document.",
    ),
    FimTemplate(
        name="CodeLlama 7B/13B",
        hints=("codellama", "code-llama"),
        frame=Frame("▁<PRE>", "▁<SUF>", "▁<MID>"),
        bos=Bos.REQUIRED,
        bos_token="<s>",
        stops=("▁<EOT>", "</s>"),
        note="SentencePiece puts a space before whatever it tokenises; the caller's tokenizer must "
        "not, or the suffix begins with a space that the file does not have. The Python and 34B "
        "models were not trained for infilling.",
    ),
    FimTemplate(
        name="Codestral",
        hints=("codestral", "mistral"),
        order=Order.SPM,
        frame=Frame("[PREFIX]", "[SUFFIX]", None),
        bos=Bos.REQUIRED,
        bos_token="<s>",
        file=Header(None, "+++++ {name}\n"),
        place=Place.INSIDE,
        lone_header=False,
        stops=("[MIDDLE]", "</s>"),
        note="No middle token: the answer goes on after the prefix.",
    ),
    FimTemplate(
        name="Seed-Coder",
        hints=("seed-coder", "seed_coder"),
        order=Order.SPM,
        frame=Frame("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
        stops=("<[end▁of▁sentence]>",),
        note="Not recognised by llama-server, whose /infill answers 501 (llama.cpp #17900).",
    ),
    FimTemplate(
        name="CodeGeeX4 / GLM",
        hints=("codegeex", "glm"),
        order=Order.SPM,
        frame=Frame("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        bos=Bos.NEVER,
        opening=("[gMASK]", "<sop>", "<|user|>"),
        opening_text="\n",
        closing=("<|assistant|>",),
        closing_text="\n",
        file=Header(None, "###PATH:{name}\n###LANGUAGE:\n###MODE:BLOCK\n"),
        other=Header(None, "###REFERENCE:\n###PATH:{name}\n"),
        stops=("<|endoftext|>", "<|observation|>"),
        note="The block is one turn of a chat; a blank language is what its guide asks for when "
        "the language is unknown.",
    ),
    replace(
        _STARCODER,
        name="StarCoder2",
        hints=("starcoder2", "starcoder-2"),
        repo=Header("<repo_name>", "{name}"),
        file=Header("<file_sep>", "{name}\n"),
        place=Place.SPLIT,
        note="The path follows <fim_prefix>. The library does not count <file_sep> as an end: "
        "without it in the stop set the model never stops.",
    ),
    _STARCODER,
    replace(
        _STARCODER,
        name="Granite Code / Granite 3",
        hints=("granite",),
        stops=(*_STARCODER.stops, "<|end_of_text|>"),
    ),
    replace(
        _STARCODER,
        name="Mellum",
        hints=("mellum",),
        order=Order.SPM,
        note="StarCoder's spellings in another order (arXiv 2510.05788): found by name only.",
    ),
    replace(
        _STARCODER,
        name="StableCode 3B",
        hints=("stable-code", "stablecode", "stable_code"),
        repo=None,
        file=None,
        note="Also the plain form for any other vocabulary with these three tokens.",
    ),
    FimTemplate(
        name="Granite 4",
        hints=("granite-4", "granite4"),
        frame=_PIPES,
        stops=("<|fim_pad|>", "<|end_of_text|>", "<|endoftext|>", "<|filename|>", "<|reponame|>"),
        note="Also the plain form for any other vocabulary with these three tokens.",
    ),
)
"""Where several rows fit a vocabulary and no hint decides, the first one is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTemplate:
    """A row, checked against one vocabulary."""

    template: FimTemplate
    bos: int | None
    """Goes first, or nowhere."""
    tokens: Mapping[str, int]
    """Ids by spelling: the row's control tokens, and those of its ``stops`` that exist."""
    stop_tokens: frozenset[int]
    """Ids that end an answer; holds every control token of the row."""

    @property
    def takes_context(self) -> bool:
        """Tell whether the family knows other files; where not, ``render`` leaves them out."""
        return self.template.file is not None

    def render(
        self,
        *,
        repo: str | None,
        path: str,
        prefix: Sequence[int],
        suffix: Sequence[int],
        tokenize: Tokenize,
        context: Context = (),
    ) -> tuple[int, ...]:
        """Return the head of a prompt: all that comes before the text typed since the anchor.

        In every family that text, and then the answer, is appended at the end of the head.

        Args:
            repo: The repository's name; None leaves its header out.
            path: The path of the file with the cursor, as the model shall see it.
            prefix: Ids of the text left of the anchor.
            suffix: Ids of the text right of the cursor.
            tokenize: For repository name and paths.
            context: Other files, farthest first; their text ends with a line end.
        """
        row = self.template
        start = [] if self.bos is None else [self.bos]
        start += [self.tokens[piece] for piece in row.opening]
        start += _text(row.opening_text, tokenize)
        outside, inside = self._headers(repo, path, context, tokenize)
        before = [self.tokens[row.frame.prefix], *inside, *prefix]
        after = [self.tokens[row.frame.suffix], *suffix]
        block = before + after if row.order is Order.PSM else after + before
        end = [] if row.frame.middle is None else [self.tokens[row.frame.middle]]
        end += [self.tokens[piece] for piece in row.closing]
        end += _text(row.closing_text, tokenize)
        return (*start, *outside, *block, *end)

    def _headers(
        self, repo: str | None, path: str, context: Context, tokenize: Tokenize
    ) -> tuple[list[int], list[int]]:
        """Return what stands before the block, and what stands at the start of the prefix."""
        row = self.template
        ids = self._header(row.repo, repo, tokenize, first=True) if row.repo and repo else []
        if row.file is None:
            return ids, []
        for number, (name, text) in enumerate(context):
            ids += self._header(row.other or row.file, name, tokenize, first=number == 0)
            ids += text
        named = bool(context) or row.lone_header
        here = self._header(row.file, path, tokenize, first=not context) if named else []
        match row.place:
            case Place.BEFORE:
                return ids + here, []
            case Place.INSIDE:
                return [], ids + here
            case Place.SPLIT:
                return ids + here[:1], here[1:]

    def _header(self, header: Header, name: str, tokenize: Tokenize, *, first: bool) -> list[int]:
        text = _text(header.text.replace("{name}", name), tokenize)
        if header.token is None or (header.between and first):
            return text
        return [self.tokens[header.token], *text]


def resolve_template(vocabulary: Vocabulary, model_name: str) -> ResolvedTemplate:
    """Find the family of a vocabulary by the control tokens it has, then by the model's name.

    Args:
        vocabulary: The loaded model's tokeniser.
        model_name: File name or ``general.name``; decides between families that share spellings.

    Raises:
        NoFimTokensError: No row has all its control tokens in the vocabulary.
    """
    missing = {row: _missing(row, vocabulary) for row in TEMPLATES}
    fitting = [row for row in TEMPLATES if not missing[row]]
    if not fitting:
        raise NoFimTokensError(_explain(missing, vocabulary, model_name))
    # max() keeps the first of equals, so without any hint the table's order decides.
    return _resolve(max(fitting, key=lambda row: _hint(row, model_name)), vocabulary)


def _hint(row: FimTemplate, model_name: str) -> int:
    """Return the length of the row's longest hint in the name: ``starcoder2`` says the most."""
    name = model_name.lower()
    return max((len(hint) for hint in row.hints if hint in name), default=0)


def _missing(row: FimTemplate, vocabulary: Vocabulary) -> list[str]:
    """Return the spellings that are not exactly one control token of the vocabulary."""
    wanted = list(row.control_tokens)
    if row.bos is Bos.REQUIRED and vocabulary.bos is None and row.bos_token is not None:
        wanted.append(row.bos_token)
    return [piece for piece in wanted if vocabulary.control(piece) is None]


def _resolve(row: FimTemplate, vocabulary: Vocabulary) -> ResolvedTemplate:
    ids = ((spelling, vocabulary.control(spelling)) for spelling in row.spellings)
    tokens = {spelling: token for spelling, token in ids if token is not None}
    bos = None if row.bos is Bos.NEVER else vocabulary.bos
    if bos is None and row.bos is Bos.REQUIRED and row.bos_token is not None:
        bos = vocabulary.control(row.bos_token)
    stops = {*tokens.values(), *vocabulary.eog, *([] if bos is None else [bos])}
    return ResolvedTemplate(
        template=row, bos=bos, tokens=MappingProxyType(tokens), stop_tokens=frozenset(stops)
    )


def _text(text: str, tokenize: Tokenize) -> list[int]:
    return tokenize(text.encode("utf-8", "replace")) if text else []


def _explain(
    missing: Mapping[FimTemplate, list[str]], vocabulary: Vocabulary, model_name: str
) -> str:
    wanted = dict.fromkeys(row.frame.prefix for row in missing)
    near = [
        f"{row.name} (lacks {' '.join(lacks)})"
        for row, lacks in missing.items()
        if not set(row.control_tokens) <= set(lacks)
    ]
    found = f"came close: {'; '.join(near)}" if near else "found none of them"
    return (
        f"{model_name or 'the model'} can't fill in the middle: looked among its "
        f"{vocabulary.n_tokens} tokens for the control tokens of a family, which start with "
        f"{' '.join(wanted)}, and {found}. Use a code model of one of these families: "
        f"{', '.join(row.name for row in missing)}."
    )
