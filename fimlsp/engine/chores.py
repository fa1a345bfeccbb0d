"""What an engine does for itself while nobody wants anything, one short step after another.

Engine thread only.
"""

from __future__ import annotations

from collections import deque

from fimlsp.engine import calibrate
from fimlsp.engine.calibrate import CurveFile
from fimlsp.engine.cost import WIDTHS, VerifyCurve
from fimlsp.engine.load import Plant


class Chores:
    """Measures the verify curve, unless an earlier start has stored it."""

    def __init__(self, plant: Plant, curves: CurveFile | None, n_ubatch: int) -> None:
        self._plant = plant
        self._curves = curves
        # Whoever decodes token by token has no use for the curve.
        needed = plant.generator.sources and not plant.curve_known
        self._widths = deque(n for n in WIDTHS if n <= n_ubatch) if needed else deque()
        self._measured: dict[int, float] = {}

    @property
    def waiting(self) -> bool:
        """Tell whether something is left to do."""
        return bool(self._widths) and self._plant.generator.cells.free_slot() is not None

    @property
    def curve(self) -> VerifyCurve:
        """The verify curve as it is known now."""
        return self._plant.generator.speculation.curve

    def step(self) -> None:
        """Do the next piece.

        Raises:
            AbortedError: a request came; the piece is still to be done.
        """
        generator = self._plant.generator
        slot = generator.cells.free_slot()
        if slot is None:
            return
        n = self._widths[0]
        self._measured[n] = calibrate.verify_ms(generator.native, slot, n)
        self._widths.popleft()
        if not self._widths:
            generator.speculation.curve = VerifyCurve(self._measured)
            if self._curves:
                self._curves.save(self._plant.curve_key, self._measured)

    def drop(self) -> None:
        """Give up what could not be done."""
        self._widths.clear()
