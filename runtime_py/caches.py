"""Key and value caches of the blocks that see equally far: rows appended in place, old ones let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime_py.bundle import StateSpec

__all__ = ["Caches"]


class Caches:
    """Buffers [1, K, capacity, w] of one window, filled alike.

    The graph appends behind the rows that are filled, in the same memory. As long as ``ordered`` holds,
    the rows are consecutive positions; :meth:`retain` gives that up.
    """

    def __init__(self, specs: Sequence[StateSpec], window: int, capacity: int, margin: int = 0) -> None:
        """Set memory aside; it is only taken from the system as rows are filled.

        Args:
            specs: growing states with ``window``.
            window: positions that a query sees, itself included; 0 is all.
            capacity: rows.
            margin: rows kept beyond the window when rows are let go, so that a rewind still finds them.
        """
        self.specs, self.window, self.capacity = tuple(specs), window, capacity
        self.kept = min(capacity, window - 1 + margin) if window else capacity
        self.arrays: dict[str, NDArray[Any]] = {}
        for spec in self.specs:
            shape = tuple(capacity if axis == spec.grows else size for axis, size in enumerate(spec.shape))
            self.arrays[spec.past] = np.empty(shape, spec.dtype)
        self.positions = np.empty(capacity, np.int64)
        """Position of each filled row."""
        self.filled, self.ordered = 0, True

    @classmethod
    def sized(cls, specs: Sequence[StateSpec], context: int, chunk: int, margin: int) -> Caches:
        """Caches that are large enough for their window, for a rewind by ``margin`` and for a call."""
        window = specs[0].window
        capacity = min(context, window - 1 + margin + chunk) if window else context
        return cls(specs, window, capacity, margin)

    @property
    def first(self) -> int:
        """Earliest position held in an unbroken sequence; 0 where nothing was let go yet."""
        return int(self.positions[0]) if self.filled else 0

    def make_room(self, count: int) -> None:
        """Let go of rows that no query sees any more, if ``count`` rows do not fit otherwise."""
        if self.filled + count > self.capacity:
            self._move(self.filled - self.kept, self.filled)

    def would_drop(self, count: int) -> bool:
        """Whether appending ``count`` rows lets go of others."""
        return self.filled + count > self.capacity

    def append(self, count: int, position: int) -> None:
        """Count ``count`` rows that the graph wrote, the first at ``position``."""
        self.positions[self.filled : self.filled + count] = np.arange(position, position + count)
        self.filled += count

    def truncate(self, position: int) -> None:
        """Forget rows at ``position`` and later."""
        self.filled = int(np.count_nonzero(self.positions[: self.filled] < position))

    def holds(self, position: int) -> bool:
        """Whether a query at ``position`` would find every row that it sees."""
        if not self.ordered:
            return False
        reach = max(0, position - self.window + 1) if self.window else 0
        return self.first <= reach and position <= self.first + self.filled

    def retain(self, position: int, window: int, pinned: int) -> None:
        """Keep just what a served query at ``position`` sees: what is pinned, and a window of its own.

        A freed row takes the last one: attention over one query does not mind the order of its rows.
        """
        held = self.positions[: self.filled]
        gone = (position - held >= window) & (held >= pinned)
        if self.window:
            gone |= position - held >= self.window
        # From the back, so that the row that moves is never one that has to go as well.
        for row in np.flatnonzero(gone)[::-1]:
            last = self.filled - 1
            if row != last:
                self.positions[row] = self.positions[last]
                for array in self.arrays.values():
                    array[:, :, row] = array[:, :, last]
            self.filled = last
            self.ordered = False

    def copy_into(self, other: Caches) -> None:
        """Copy the filled rows into caches of the same specification."""
        for name, array in self.arrays.items():
            other.arrays[name][:, :, : self.filled] = array[:, :, : self.filled]
        other.positions[: self.filled] = self.positions[: self.filled]
        other.filled, other.ordered = self.filled, self.ordered

    def clone(self) -> Caches:
        """A copy that is large enough for what is filled now."""
        other = Caches(self.specs, self.window, max(1, self.filled))
        self.copy_into(other)
        return other

    def rows(self) -> dict[str, NDArray[Any]]:
        """Views of the filled rows by state, [1, K, filled, w]."""
        return {name: array[:, :, : self.filled] for name, array in self.arrays.items()}

    def fill(self, rows: Mapping[str, NDArray[Any]], positions: NDArray[np.int64], *, ordered: bool) -> None:
        """Take over rows as :meth:`rows` gives them, the last ones where there are too many.

        Raises:
            ValueError: they have another shape.
            LookupError: there are none for one of the states.
        """
        count = len(positions) if len(positions) <= self.capacity else self.kept
        start = len(positions) - count
        for name, array in self.arrays.items():
            array[:, :, :count] = rows[name][:, :, start:]
        self.positions[:count] = positions[start:]
        self.filled, self.ordered = count, ordered

    def clear(self) -> None:
        """Forget every row."""
        self.filled, self.ordered = 0, True

    def _move(self, start: int, stop: int) -> None:
        """Move rows ``start`` to ``stop`` to the front."""
        count = stop - start
        for array in self.arrays.values():
            array[:, :, :count] = array[:, :, start:stop]
        self.positions[:count] = self.positions[start:stop]
        self.filled = count
