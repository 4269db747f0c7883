"""The way back: positions that a state can be set back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime_py.caches import Caches
from runtime_py.carry import Bytes

__all__ = ["Mark", "Marks"]

_STRIDE: Final = 16
"""Tokens between two marks: a rewind replays fewer."""
_MOST: Final = 8


@dataclass(frozen=True)
class Mark:
    """A position to which a state can be set back, and all of constant shape as it was there."""

    position: int
    carry: Bytes
    ids: NDArray[np.int32]
    """The tokens before it."""


class Marks:
    """A few marks of one state, further apart the longer ago they are."""

    def __init__(self, caches: Mapping[str, Caches]) -> None:
        """Start with none; a mark is of use as long as ``caches`` hold what was before it."""
        self._caches = caches
        self.kept: list[Mark] = []

    @property
    def usable(self) -> list[Mark]:
        """Marks whose rows are all held still, the earliest first."""
        return [m for m in self.kept if all(c.holds(m.position) for c in self._caches.values())]

    def before(self, position: int) -> Mark | None:
        """The last usable mark at a position or before it."""
        return next((mark for mark in reversed(self.usable) if mark.position <= position), None)

    def is_due(self, position: int, count: int) -> bool:
        """Whether to mark a position before a call of ``count`` tokens."""
        last = self.kept[-1].position if self.kept else -1
        return last != position and (position - last >= _STRIDE or count >= _STRIDE)

    def add(self, mark: Mark) -> None:
        """Keep a mark, and forget the one whose loss widens a gap the least."""
        self.kept = [*self.usable, mark]
        if len(self.kept) > _MOST:
            at = [kept.position for kept in self.kept]
            gaps = [(at[i + 1] - at[i - 1]) / (mark.position - at[i - 1]) for i in range(1, len(at) - 1)]
            del self.kept[1 + int(np.argmin(gaps))]

    def forget_after(self, position: int) -> None:
        """Forget the marks behind a position, which the state went back to."""
        self.kept = [mark for mark in self.kept if mark.position <= position]
