"""What the rest of fimlsp may know of the engine: protocols and frozen values.

The engine speaks token ids and bytes. It knows nothing of LSP, files or positions. Every maker of
engines (in process, remote, shared host, scripted for tests) stands behind these names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Protocol

from fimlsp.fields import Between, OneOf


class Priority(IntEnum):
    """Who waits for whom: a smaller number goes first and pre-empts a larger one."""

    FOREGROUND = 0
    """A person looks at the cursor."""
    PREFETCH = 1
    """What would follow a shown suggestion."""
    WARMUP = 2
    """Prompt tokens that will be needed; no text is generated."""


KV_TYPES = ("f16", "q8_0", "q4_0")
"""What a prompt's keys and values may be kept as, the exact one first: the types that ordinary CUDA
builds have kernels for (ik_llama aborts the process on q5_0 and q5_1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementParams:
    """Where the weights and the warm prompts of one model lie; the draft model has its own."""

    n_gpu_layers: Annotated[int, Between(-1, 10_000)] = -1
    """Layers on the GPU; -1 is all. Ignored where there is no GPU."""
    split_mode: Annotated[str, OneOf("layer", "row", "none")] = "layer"
    """How several GPUs share a model: ``layer`` (whole layers each), ``row`` (a part of each
    matrix) or ``none`` (all of it on ``main_gpu``)."""
    main_gpu: Annotated[int, Between(0, 63)] = 0
    """The GPU that holds everything (``none``) or the intermediate results (``row``), as
    ``fimlsp doctor`` numbers them."""
    tensor_split: Annotated[tuple[float, ...], Between(0, 1_000_000)] = ()
    """Share of each GPU in that order, such as ``[3, 1]``; ``[]`` splits by free memory."""
    flash_attn: Annotated[str, OneOf("auto", "on", "off")] = "auto"
    """Flash attention: ``auto`` takes it where the library has it for the device."""
    kv_type_k: Annotated[str, OneOf(*KV_TYPES)] = KV_TYPES[0]
    """Type of the keys of warm prompts: ``q8_0`` takes half the memory of ``f16``. GPUs are
    quickest where keys and values have the same type."""
    kv_type_v: Annotated[str, OneOf(*KV_TYPES)] = KV_TYPES[0]
    """Type of their values; all but ``f16`` need flash attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParams(PlacementParams):
    """How the model is run. ``0`` and ``auto`` mean: found out on this machine."""

    backend: Annotated[str, OneOf("auto", "ik_llama", "llama_cpp")] = "auto"
    """Native library: ``auto``, ``ik_llama`` or ``llama_cpp``."""
    threads: Annotated[int, Between(0, 1024)] = 0
    """CPU threads; 0 takes the physical cores."""
    n_ctx: Annotated[int, Between(256, 1_048_576)] = 2048
    """Context of one slot in tokens: prompt window, typed text and answer together."""
    slots: Annotated[int, Between(1, 64)] = 4
    """Warm prompts kept at once (documents, and the next prompt of a document)."""
    n_ubatch: Annotated[int, Between(1, 8192)] = 64
    """Prompt tokens per native step; smaller cancels sooner, larger reads faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftParams(PlacementParams):
    """How the draft model is run; threads and native steps are the target's."""

    n_ctx: Annotated[int, Between(256, 1_048_576)] = 1024
    """Context in tokens: it reads a short window around the cursor only."""


SOURCES = ("previous", "ngram", "model")
"""Draft sources by name: the suggestion shown last, repeated text, and the draft model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """What guesses ahead of the target. Speculation changes how soon a text is there, not it."""

    sources: Annotated[tuple[str, ...], OneOf(*SOURCES)] = SOURCES
    """Draft sources in use: ``previous`` (the last suggestion here), ``ngram`` (text that was seen
    before), ``model`` (``models.draft``); none decodes token by token."""
    max_draft: Annotated[int, Between(1, 63)] = 24
    """Draft tokens per step at most; measured cost usually takes fewer."""
    exact: bool = False
    """Decode no token alone. Libraries compute one token by other kernels than several, so rounding
    may decide otherwise between two tokens that are as good as equally likely; with this,
    speculation can't change even that. Steps without a draft take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a token is picked. The default is greedy: the same text gives the same suggestion."""

    temperature: Annotated[float, Between(0, 2)] = 0.0
    """0 takes the likeliest token; more varies."""
    top_k: Annotated[int, Between(0, 1_000_000)] = 40
    """Tokens considered, the likeliest; 0 is all."""
    top_p: Annotated[float, Between(0, 1)] = 0.95
    """Probability mass considered; 1 is all."""
    min_p: Annotated[float, Between(0, 1)] = 0.05
    """Tokens below this share of the likeliest one's probability are left out; 0 is none."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Same seed, same prompt: same text."""


GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One piece of work for the engine."""

    slot: str
    """Name of the warm prompt this belongs to, e.g. a document's uri and epoch."""
    prompt: tuple[int, ...]
    """All prompt token ids; the engine finds out how many are warm."""
    must_start_with: bytes = b""
    """Token healing: generation is constrained to start with these bytes (they are then part of
    ``Generation.text``)."""
    max_tokens: int = 64
    """Tokens to generate at most; 0 only reads the prompt."""
    stop_tokens: frozenset[int] = frozenset()
    """Ids that end the answer; they are never part of the text."""
    deadline: float | None = None
    """``time.monotonic()`` after which generation ends with what is there."""
    priority: Priority = Priority.FOREGROUND
    watch: Callable[[bytes], bool] | None = None
    """Called on the engine thread with all text so far (healed bytes included) after each step;
    returning True stops generation. Must be quick and must not raise."""
    expected: tuple[bytes, ...] = ()
    """Texts that may come, ``must_start_with`` included, the likeliest first: free drafts."""
    related: tuple[bytes, ...] = ()
    """Texts of which parts may come: a suggestion that something else was typed over."""
    min_probability: float = 0.0
    """Generation ends as ``UNSURE`` once the text, all of it, is less probable than this."""
    omittable: tuple[int, int] = (0, 0)
    """Half-open span of ``prompt`` that a draft model need not read: text far from the cursor."""
    sources: tuple[str, ...] | None = None
    """Draft sources of this request; None takes the engine's."""
    exact: bool = False
    """Decode no token alone, whatever the engine's setting."""
    sampling: SamplingParams = GREEDY


class Finish(Enum):
    """Why generation ended."""

    STOP_TOKEN = "stop_token"
    WATCH = "watch"
    MAX_TOKENS = "max_tokens"
    DEADLINE = "deadline"
    UNSURE = "unsure"
    """The text has become less probable than ``Request.min_probability``."""
    CANCELLED = "cancelled"
    """Cancelled or pre-empted for good; what was evaluated stays warm."""


@dataclass(frozen=True, slots=True)
class DraftUse:
    """What became of one draft."""

    source: str
    offered: int
    """Its tokens that the target verified."""
    accepted: int
    """Those that were right; all before the first wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The engine's answer. Times are milliseconds, counts are tokens."""

    text: bytes
    """All generated bytes, beginning with ``Request.must_start_with``; may end inside a UTF-8
    sequence."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """Natural log of the probability the model gave to each token, among those that the typed
    bytes allow; empty where unknown."""
    finish: Finish
    prompt_tokens: int
    """Prompt tokens evaluated."""
    reused_tokens: int
    """Prompt tokens that were warm."""
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    steps: int = 0
    """Target decodes that gave tokens of the answer, the one that ended the prompt included."""
    drafts: tuple[DraftUse, ...] = ()
    """One for each draft that was verified, in order."""

    @property
    def drafted(self) -> int:
        """Draft tokens verified."""
        return sum(use.offered for use in self.drafts)

    @property
    def accepted(self) -> int:
        """Draft tokens that were right."""
        return sum(use.accepted for use in self.drafts)

    @property
    def draft_source(self) -> str:
        """The source that most accepted tokens came from; ``""`` without any."""
        accepted = Counter[str]()
        for use in self.drafts:
            accepted[use.source] += use.accepted
        return max((s for s in accepted if accepted[s]), key=accepted.__getitem__, default="")

    @property
    def probability(self) -> float:
        """Chance of the whole text, 0 to 1; 1 where nothing is known."""
        return math.exp(sum(self.logprobs))


class Ticket(Protocol):
    """A submitted request. Any thread may hold it."""

    @property
    def future(self) -> Future[Generation]:
        """Resolves exactly once, also after ``cancel`` (with ``Finish.CANCELLED``)."""

    def cancel(self, *, keep_step: bool = False) -> None:
        """Stop at once; with ``keep_step`` after the running native step, whose cells then stay.

        Never blocks; harmless when already done.
        """


class Phase(Enum):
    """The life of an engine."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What the status shows."""

    phase: Phase
    progress: float = 0.0
    """Fraction of the load that is done, 0 to 1."""
    error: Exception | None = None
    """Why ``phase`` is FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured at load and kept up to date by live work."""

    prefill_tok_s: float
    decode_ms: float
    verify_ms: tuple[tuple[int, float], ...] = ()
    """The verify curve: (n, milliseconds of one decode of n tokens) by rising n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What was loaded."""

    path: Path
    backend: str
    description: str
    n_vocab: int
    n_ctx_train: int
    size_bytes: int
    threads: int
    draft: str = "none"
    """The draft model in words: its name and price, ``none``, or why it is not used."""


class Vocabulary(Protocol):
    """The model's tokeniser. Every method may be called from any thread."""

    @property
    def n_tokens(self) -> int:
        """Number of token ids."""

    @property
    def bos(self) -> int | None:
        """The begin-of-sequence id if the model wants one in front, else None."""

    @property
    def eog(self) -> frozenset[int]:
        """Ids that the library counts as end of generation."""

    def tokenize(self, text: bytes) -> list[int]:
        """Return the ids of user text; spellings of control tokens stay plain text."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; control tokens give ``b""``."""

    def control(self, text: str) -> int | None:
        """Return the id of the control token spelled exactly ``text``, else None."""

    def can_continue(self, tail: bytes) -> bool:
        """Tell whether some token starts with ``tail`` and is longer."""


class Engine(Protocol):
    """Generates token by token for one model; owns its thread and its memory."""

    @property
    def state(self) -> EngineState:
        """The current state; any thread."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokeniser; raises the load error unless READY."""

    @property
    def info(self) -> ModelInfo:
        """What was loaded; raises the load error unless READY."""

    @property
    def speed(self) -> Speed:
        """Measured speed; raises the load error unless READY."""

    @property
    def n_ctx(self) -> int:
        """Context of one slot in tokens."""

    def on_state(self, listener: Callable[[EngineState], None]) -> None:
        """Call ``listener`` on every change, on the engine's thread, and once at once."""

    def submit(self, request: Request) -> Ticket:
        """Queue ``request``; never blocks.

        Raises:
            EngineError: not READY, or the prompt and answer do not fit ``n_ctx``.
        """

    def reusable(self, slot: str, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of ``prompt`` need not be evaluated; any thread."""

    def release(self, slot: str) -> None:
        """Let go of a warm prompt that will not be asked for again; any thread."""

    def close(self) -> None:
        """Abort, free all native memory, join the thread; idempotent."""
