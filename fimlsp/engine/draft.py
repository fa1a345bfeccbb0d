"""The life of the draft model: compared, weighed, loaded, timed, made faster, kept up to date.

All of it is idle work in short steps. Whatever goes wrong is said once, and the engine runs on with
its free sources. Engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fimlsp.engine import calibrate, cost, pairing
from fimlsp.engine.api import DraftParams, Speed
from fimlsp.engine.drafters.model import N_SLOTS, ModelDrafter
from fimlsp.engine.drafters.requantise import Requantisation, copy_path
from fimlsp.engine.load import Plant
from fimlsp.engine.native.parts import AbortFlag
from fimlsp.engine.native.seam import AbortedError, LoadParams, NativeModel, NativeSlots
from fimlsp.engine.placement import load_params, slot_params
from fimlsp.errors import FimlspError, ModelLoadError

log = logging.getLogger(__name__)

BEST_RATE = 0.9
"""Acceptance that no draft model exceeds for long: who does not pay with it never will."""
_COPY_SHARE = 0.6
"""Share of the time per token that a Q4_0 copy may take at best."""
_NOISE = 0.85
"""A gain below this, measured, is no mismeasured gain."""
_TOKENS_PER_STEP = 8192
"""Pieces compared in one step: some 20 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """Which draft model, and how it is run."""

    path: Path
    params: DraftParams
    copies: Path | None
    """Folder of Q4_0 copies; None makes none."""
    max_draft: int
    n_ubatch: int


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model in memory."""

    path: Path
    model: NativeModel
    slots: NativeSlots
    native: ExitStack


class DraftSetup:
    """Brings the draft model to a running engine, one step after another.

    Args:
        plan: What to bring.
        plant: The engine's target.
        abort: Set when somebody wants the engine.
        tell: Told in words what has become of the draft model, at every change.
        wake: Called on any thread when there is something to do again.
        native: Frees what was loaded, at the engine's end.
    """

    def __init__(
        self,
        plan: DraftPlan,
        plant: Plant,
        *,
        abort: AbortFlag,
        tell: Callable[[str], None],
        wake: Callable[[], None],
        native: ExitStack,
    ) -> None:
        self._plan = plan
        self._plant = plant
        self._abort = abort
        self._tell = tell
        self._wake = wake
        self._native = native
        self._next: Callable[[], None] | None = self._open_vocabulary
        self._vocabulary: NativeModel | None = None
        self._compared = 0
        self._loaded: _Loaded | None = None
        self._rival: _Loaded | None = None
        self._drafter: ModelDrafter | None = None
        self._process: Requantisation | None = None
        native.callback(self._end_process)

    @property
    def settled(self) -> bool:
        """Tell whether it is decided how the draft model is run, or that it is not."""
        return self._next is None

    @property
    def waiting(self) -> bool:
        """Tell whether something is left to do now."""
        return self._due() is not None

    def step(self) -> None:
        """Do the next piece.

        Raises:
            AbortedError: a request came; the piece is still to be done.
        """
        due = self._due()
        if due is not None:
            try:
                due()
            except FimlspError as error:
                self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Free the draft model and say why."""
        log.warning("the draft model is not used: %s", reason)
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        self._tell(f"not used: {reason}")
        self._next = self._drafter = self._plant.generator.speculation.model = None
        for loaded in (self._loaded, self._rival):
            if loaded is not None:
                loaded.native.close()
        self._loaded = self._rival = None
        self._close_vocabulary()
        self._end_process()

    def _due(self) -> Callable[[], None] | None:
        if self._next is not None and (self._process is None or self._process.ended):
            return self._next
        drafter = self._drafter
        if drafter and drafter.unread and self._plant.generator.speculation.model_could_pay:
            return drafter.read
        return None

    # The pieces, in their order.

    def _open_vocabulary(self) -> None:
        vocabulary = self._read_file(LoadParams(path=self._plan.path, vocab_only=True))
        self._vocabulary = vocabulary
        self._native.callback(vocabulary.close)
        pairing.require_same_rules(self._plant.model, vocabulary)
        self._next = self._compare

    def _compare(self) -> None:
        assert self._vocabulary is not None
        target, start = self._plant.model, self._compared
        self._compared += _TOKENS_PER_STEP
        pairing.require_same_tokens(target, self._vocabulary, start, self._compared)
        if self._compared >= pairing.n_shared(target, self._vocabulary):
            self._close_vocabulary()
            self._next = self._weigh

    def _weigh(self) -> None:
        """Read no weights where the size of the file says that they can't pay."""
        ratio = self._plan.path.stat().st_size / self._plant.info.path.stat().st_size
        if self._best_gain(ratio * self._curve(1)) > 1.0:
            self._next = self._load
        else:
            self._useless(f"has {ratio:.2f} of the target's size")

    def _useless(self, because: str) -> None:
        reason = (
            f"{self._plan.path.name} {because}, so it would gain nothing on this machine even if "
            f"{BEST_RATE:.0%} of its tokens were right"
        )
        log.info("the draft model is not used: %s", reason)
        self._drop(reason)

    def _load(self) -> None:
        copy = self._copy
        if copy is not None and copy.exists() and copy.stat().st_size:
            try:
                self._loaded = self._read_weights(copy)
            except ModelLoadError as error:
                log.warning("%s; it is thrown away", error)
                copy.unlink(missing_ok=True)
        if self._loaded is None:
            self._loaded = self._read_weights(self._plan.path)
        self._next = self._measure

    def _measure(self) -> None:
        assert self._loaded is not None
        speed = calibrate.measure(self._loaded.slots, self._plan.n_ubatch)
        self._employ(self._loaded, speed)
        if self._wants_copy(self._loaded, speed):
            self._next = self._begin_copy
        else:
            self._conclude()

    def _begin_copy(self) -> None:
        assert self._copy is not None
        backend = self._plant.module.NAME
        self._process = Requantisation(backend, self._plan.path, self._copy, self._wake)
        self._next = self._take_copy

    def _take_copy(self) -> None:
        assert self._process is not None
        assert self._copy is not None
        reason = self._process.error
        if not reason:
            try:
                self._rival = self._read_weights(self._copy)
            except ModelLoadError as error:
                reason = str(error)
        if reason:
            log.info("the draft model stays as it is: %s", reason)
            self._conclude()
        else:
            self._next = self._contest

    def _contest(self) -> None:
        """Keep the faster one of source and copy."""
        assert self._drafter is not None
        assert self._loaded is not None
        assert self._rival is not None
        assert self._copy is not None
        self._drafter.forget()
        now_ms, copy_ms = calibrate.decodes_ms(self._loaded.slots, self._rival.slots)
        log.info("the draft model takes %.1f ms a token, its Q4_0 copy %.1f", now_ms, copy_ms)
        if copy_ms < now_ms:
            speed = calibrate.measure(self._rival.slots, self._plan.n_ubatch)
            self._loaded.native.close()
            self._loaded = self._rival
            self._employ(self._loaded, speed)
        else:
            self._rival.native.close()
            self._copy.write_bytes(b"")  # says that it was tried
        self._rival = None
        self._conclude()

    def _conclude(self) -> None:
        """Keep no weights that have shown that they can't pay."""
        assert self._drafter is not None
        self._next = None
        token_ms = self._drafter.token_ms
        if self._best_gain(token_ms) < _NOISE:
            share = f"takes {token_ms / self._curve(1):.2f} of the target's time per token"
            self._useless(share)

    # What they are made of.

    @property
    def _copy(self) -> Path | None:
        """Where the copy for this library is or would be; an empty file was not worth it."""
        module, folder = self._plant.module, self._plan.copies
        if folder is None:
            return None
        return copy_path(folder, self._plan.path, module.NAME, module.PINNED)

    def _wants_copy(self, loaded: _Loaded, speed: Speed) -> bool:
        copy = self._copy
        return (
            copy is not None
            and not copy.exists()
            and loaded.model.device == "CPU"  # two models at once may be too much for a GPU
            and "Q4_0" not in loaded.model.description
            and self._best_gain(_COPY_SHARE * speed.decode_ms) > 1.0
        )

    def _curve(self, n: int) -> float:
        return self._plant.generator.speculation.curve(n)

    def _best_gain(self, token_ms: float) -> float:
        curve = self._plant.generator.speculation.curve
        return cost.modelled_gain(BEST_RATE, token_ms, curve, self._plan.max_draft)

    def _read_file(self, params: LoadParams) -> NativeModel:
        """Load a file, but not while somebody waits."""
        try:
            model: NativeModel = self._plant.module.load(
                params, lambda _fraction: not self._abort.is_set()
            )
        except ModelLoadError:
            if self._abort.is_set():
                raise AbortedError from None
            raise
        return model

    def _read_weights(self, path: Path) -> _Loaded:
        plan, native = self._plan, ExitStack()
        self._native.callback(native.close)
        try:
            model = self._read_file(load_params(path, plan.params, section="draft"))
            native.callback(model.close)
            if model.recurrent:
                raise ModelLoadError(
                    f"{path.name} keeps a running state and can't take back tokens that were "
                    "wrong; a draft model must"
                )
            sizes = slot_params(
                plan.params,
                n_slots=N_SLOTS,
                n_ctx=plan.params.n_ctx,
                n_ubatch=plan.n_ubatch,
                threads=self._plant.info.threads,
                n_outputs=1,
            )
            slots = model.open_slots(sizes, self._abort)
            native.callback(slots.close)
        except BaseException:
            native.close()
            raise
        return _Loaded(path, model, slots, native)

    def _employ(self, loaded: _Loaded, speed: Speed) -> None:
        generator = self._plant.generator
        self._drafter = ModelDrafter(
            loaded.slots,
            n_ctx=self._plan.params.n_ctx,
            n_ubatch=self._plan.n_ubatch,
            n_shared=pairing.n_shared(self._plant.model, loaded.model),
            token_ms=speed.decode_ms,
            read_ms=1e3 / speed.prefill_tok_s,
            is_text=generator.vocabulary.is_text,
            on_failure=lambda error: self.give_up(str(error)),
        )
        generator.speculation.model = self._drafter
        name = self._plan.path.name + (" as Q4_0" if loaded.path != self._plan.path else "")
        self._tell(
            f"{name} ({speed.decode_ms / self._curve(1):.2f} of the target's time per token)"
        )

    def _close_vocabulary(self) -> None:
        if self._vocabulary is not None:
            self._vocabulary.close()
            self._vocabulary = None

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
