"""The bundled example that ``fimlsp demo`` and ``fimlsp doctor`` complete.

The file has a gap, so it is stored as text with a marker and not as a module.
"""

from __future__ import annotations

from importlib import resources

from fimlsp.document import Snapshot

CURSOR = "<cursor>"


def sample() -> Snapshot:
    """Return the example with its cursor in the gap."""
    stored = resources.files(__name__).joinpath("orders.py.txt").read_text(encoding="utf-8")
    before, after = stored.split(CURSOR)
    return Snapshot(
        uri="",
        version=0,
        language_id="python",
        path="orders.py",
        text=before + after,
        cursor=len(before),
    )
