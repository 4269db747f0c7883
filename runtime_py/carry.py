"""The states of constant shape: taps, engram histories, last ids, side by side in one block of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime_py.bundle import StateSpec

__all__ = ["Carry"]

_ALIGNMENT = 64
"""Bytes: a cache line, and what vector loads like best."""

Bytes = NDArray[np.uint8]


class Carry:
    """Two of each state: the graph reads one side and writes the other, so a failed call changes nothing."""

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        """Lay out both sides, and fill them for the start of a sequence."""
        self.specs = tuple(specs)
        offsets, end = [], 0
        for spec in self.specs:
            offsets.append(end)
            size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = end
        self._sides = [_aligned(end), _aligned(end)]
        self.views = [
            {spec.past: _view(side, offset, spec) for spec, offset in zip(self.specs, offsets, strict=True)}
            for side in self._sides
        ]
        """Per side, each state by its name."""
        self.side = 0
        """The side that holds the present values."""
        self.clear()

    def clear(self) -> None:
        """Set the values of the start of a sequence."""
        self._sides[self.side][:] = 0
        for spec in self.specs:
            if spec.fill:
                self.views[self.side][spec.past][...] = spec.fill

    def flip(self) -> None:
        """Make what the graph wrote the present values."""
        self.side = 1 - self.side

    def take(self) -> Bytes:
        """A copy of the present values."""
        return self._sides[self.side].copy()

    def put(self, values: Bytes) -> None:
        """Set the present values to what :meth:`take` gave."""
        self._sides[self.side][:] = values


def _aligned(size: int) -> Bytes:
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def _view(side: Bytes, offset: int, spec: StateSpec) -> NDArray[Any]:
    size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    return side[offset : offset + size].view(spec.dtype).reshape(spec.shape)
