"""What has been suggested, as values: valid while the person types along.

A suggestion is remembered with the text around its cursor. A later snapshot that differs only by
the beginning of the suggestion having been typed gets the rest from memory, across lines too,
without the model. Plain text comparison near the cursor; nothing is hashed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fimlsp.document import Completion, Snapshot, Timings

NEAR = 2048
"""Characters on each side of the cursor that must be unchanged."""
_TAIL = 64
"""Characters left of a cursor by which its place is found again."""
_FAR = 400
"""Characters typed or deleted beyond which a suggestion has nothing more to say."""
_HOPES = 3
KEPT = 16
"""Suggestions remembered per document."""


@dataclass(frozen=True, slots=True)
class _Shown:
    before: str
    after: str
    completion: Completion

    def rest(self, before: str, after: str, longest: int) -> str | None:
        """Return what is left after the typed part, None where the texts do not agree."""
        if after != self.after:
            return None
        text = self.completion.text
        replaced = after[: self.completion.replace_after]
        for typed in range(min(len(text), longest) + 1):
            if (
                before.endswith(text[:typed])
                and before[: len(before) - typed][-NEAR:] == self.before
            ):
                rest = text[typed:]
                return rest if rest != replaced else None  # nothing would change
        return None


@dataclass(frozen=True, slots=True)
class Hopes:
    """What earlier suggestions let one hope for at a cursor: drafts that cost nothing."""

    expected: tuple[str, ...] = ()
    """Texts that may follow the cursor, the likeliest first."""
    related: tuple[str, ...] = ()
    """Suggestions made here, over which something else was typed."""


class Suggestions:
    """The last suggestions of every open document. Event loop thread only."""

    def __init__(self) -> None:
        self._by_uri: dict[str, list[_Shown]] = {}

    def remember(self, snapshot: Snapshot, completion: Completion) -> None:
        """Keep what is shown for ``snapshot``."""
        shown = _Shown(_before(snapshot, NEAR), _after(snapshot, NEAR), completion)
        others = [
            s
            for s in self._by_uri.get(snapshot.uri, [])
            if (s.before, s.after) != (shown.before, shown.after)
        ]
        self._by_uri[snapshot.uri] = [*others[-(KEPT - 1) :], shown]

    def find(self, snapshot: Snapshot) -> Completion | None:
        """Return the rest of a remembered suggestion that is still right, the newest first."""
        remembered = self._by_uri.get(snapshot.uri)
        if not remembered:
            return None
        longest = max(len(shown.completion.text) for shown in remembered)
        before, after = _before(snapshot, NEAR + longest), _after(snapshot, NEAR)
        for shown in reversed(remembered):
            rest = shown.rest(before, after, longest)
            if rest:
                return replace(shown.completion, text=rest, timings=Timings())
        return None

    def hopes(self, snapshot: Snapshot) -> Hopes:
        """Return the newest suggestions near the cursor, as far as they may still come true.

        Also after the person typed something else, deleted a part of the line, or changed what
        follows: the model then often writes much the same again.
        """
        before = _before(snapshot, NEAR)
        expected, related = [], []
        for shown in reversed(self._by_uri.get(snapshot.uri, [])):
            text = shown.completion.text
            typed = _after_last(before, shown.before[-_TAIL:])
            deleted = _after_last(shown.before, before[-_TAIL:])
            if typed is not None and text.startswith(typed):
                expected.append(text[len(typed) :])
            elif deleted is not None:
                expected.append(deleted + text)
            elif typed is not None:
                related.append(text)
            if len(expected) + len(related) == _HOPES:
                break
        return Hopes(tuple(filter(None, expected)), tuple(related))

    def forget(self, uri: str) -> None:
        """Drop everything about a closed document."""
        self._by_uri.pop(uri, None)


def _after_last(text: str, place: str) -> str | None:
    """Return what follows the last ``place`` in ``text``, None where that is far or nowhere."""
    found = text.rfind(place, max(0, len(text) - _FAR - len(place)))
    return None if found < 0 or not place else text[found + len(place) :]


def _before(snapshot: Snapshot, limit: int) -> str:
    # ``limit`` counts line ends once, also in a document where each is two characters.
    return snapshot.before(2 * limit)[-limit:]


def _after(snapshot: Snapshot, limit: int) -> str:
    return snapshot.after(2 * limit)[:limit]
