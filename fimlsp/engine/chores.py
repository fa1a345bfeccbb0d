"""What an engine does for itself while nobody wants anything, one short step after another.

Engine thread only.
"""

from __future__ import annotations

from collections import deque

from fimlsp.engine import calibrate
from fimlsp.engine.calibrate import CurveFile
from fimlsp.engine.cost import WIDTHS, VerifyCurve
from fimlsp.engine.draft import DraftSetup
from fimlsp.engine.load import Plant


class Chores:
    """Measures the verify curve, unless an earlier start has stored it; brings the draft model.

    Args:
        plant: The engine's target.
        curves: Where the curve is kept.
        n_ubatch: Tokens of one native step at most.
        draft: Brings the draft model, which is weighed by the curve; None: there is none.
    """

    def __init__(
        self,
        plant: Plant,
        curves: CurveFile | None,
        n_ubatch: int,
        draft: DraftSetup | None = None,
    ) -> None:
        self._plant = plant
        self._curves = curves
        self._draft = draft
        # Whoever decodes token by token has no use for the curve.
        needed = plant.generator.sources and not plant.curve_known
        self._widths = deque(n for n in WIDTHS if n <= n_ubatch) if needed else deque()
        self._measured: dict[int, float] = {}

    @property
    def waiting(self) -> bool:
        """Tell whether something is left to do now."""
        return self._curve_slot is not None or (self._draft is not None and self._draft.waiting)

    @property
    def settled(self) -> bool:
        """Tell whether everything is measured, loaded and decided that can be."""
        return self._curve_slot is None and (self._draft is None or self._draft.settled)

    @property
    def curve(self) -> VerifyCurve:
        """The verify curve as it is known now."""
        return self._plant.generator.speculation.curve

    def step(self) -> None:
        """Do the next piece.

        Raises:
            AbortedError: a request came; the piece is still to be done.
        """
        slot = self._curve_slot
        if slot is not None:
            self._measure(slot)
        elif self._draft is not None:
            self._draft.step()

    def drop(self) -> None:
        """Give up what could not be done."""
        if self._curve_slot is not None:
            self._widths.clear()
        elif self._draft is not None:
            self._draft.give_up("bringing it failed; the log says more")

    @property
    def _curve_slot(self) -> int | None:
        """The slot in which the next width can be measured; None where nothing is to be or can."""
        return self._plant.generator.cells.free_slot() if self._widths else None

    def _measure(self, slot: int) -> None:
        generator = self._plant.generator
        n = self._widths[0]
        self._measured[n] = calibrate.verify_ms(generator.native, slot, n)
        self._widths.popleft()
        if not self._widths:
            curve = generator.speculation.curve = VerifyCurve(self._measured)
            if self._curves and not calibrate.is_disturbed(self._measured):
                self._curves.save(self._plant.curve_key, curve.known)
