"""The ladder: which blocks a depth keeps, the slice as pure data, and slicing.

A slice of a ladder is a ladder: everything downstream takes a :class:`Ladder` and never asks whether it
was sliced, folded or quantised.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter.config import MINIMUM_DEPTH, LadderConfig
from exporter.errors import BlocksError, DepthError, NotFiniteError
from exporter.layout import Axis, TensorSpec, heads_in, layout

__all__ = [
    "Array",
    "Ladder",
    "SlicePlan",
    "SlicedLadder",
    "fingerprint",
    "keep_blocks",
    "plan_blocks",
    "plan_slice",
    "selection_order",
    "slice_ladder",
    "sliced_config",
]

Array = NDArray[np.float32]


class Ladder(ABC):
    """A source of named float32 tensors with a configuration.

    Attributes:
        config: geometry of this ladder.
        layout: the tensors it has, by name, in a fixed order.
    """

    config: LadderConfig
    layout: dict[str, TensorSpec]

    @abstractmethod
    def read(self, name: str, row: int | None = None) -> Array:
        """The tensor ``name`` as float32, or one row of its leading axis."""

    def address(self, name: str, row: int | None = None) -> str:
        """A name for a tensor's values, or a row's: slices of a ladder give the same for the same values."""
        return name if row is None else f"{name}[{row}]"

    def gather(self, name: str, row: int, indices: Sequence[int]) -> Array:
        """Chosen rows [len(indices), ...] of row ``row`` of a tensor, without reading the others.

        This is how a few tokens look into tables that are most of a ladder's bytes.
        """
        return self.read(name, row)[list(indices)]


def selection_order(num_layers: int) -> tuple[int, ...]:
    """The order in which blocks join the ladder.

    Both ends come first; then always the floor of the middle of the widest gap between neighbours that
    are chosen already, the leftmost of equals.

    Args:
        num_layers: number of blocks L, at least 1.

    Raises:
        ValueError: there are no blocks.
    """
    if num_layers < 1:
        message = f"a ladder has at least one block, not {num_layers}"
        raise ValueError(message)
    order = [0, num_layers - 1][:num_layers]
    chosen = sorted(order)
    while len(order) < num_layers:
        gaps = [(b - a, -a, (a + b) // 2) for a, b in pairwise(chosen)]
        middle = max(gaps)[2]
        order.append(middle)
        chosen = sorted(order)
    return tuple(order)


@dataclass(frozen=True)
class SlicePlan:
    """What a depth keeps of a ladder, as data that can be printed and compared.

    ``blocks``, ``sites`` and ``head_rows`` are numbers in the parent; ``lanes``, ``engram_layers``,
    ``global_layers`` and ``ladder_order`` are numbers in the slice.
    """

    depth: int
    parent_depth: int
    blocks: tuple[int, ...]
    lanes: tuple[int, ...]
    sites: tuple[int, ...]
    engram_layers: tuple[int, ...]
    global_layers: tuple[int, ...]
    head_rows: tuple[int, ...]
    ladder_order: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan, JSON-ready."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def plan_blocks(config: LadderConfig, blocks: Sequence[int]) -> SlicePlan:
    """Plan a slice that keeps the blocks named, on the ladder or not.

    Args:
        config: geometry of the parent.
        blocks: their numbers, ascending; the first and the last of the parent's must be among them.

    Raises:
        BlocksError: no slice keeps these.
    """
    total, blocks = config.num_layers, tuple(blocks)
    if list(blocks) != sorted({*blocks, 0, total - 1} & set(range(total))):
        message = (
            f"blocks {','.join(map(str, blocks))} are no set that this ladder can keep: name distinct "
            f"numbers in ascending order, from 0 to {total - 1}, both of these among them."
        )
        raise BlocksError(message)
    order = config.ladder_order or selection_order(total)
    number = {block: i for i, block in enumerate(blocks)}
    sites = tuple(i for i, block in enumerate(config.engram_layers) if block in number)
    return SlicePlan(
        depth=len(blocks),
        parent_depth=total,
        blocks=blocks,
        lanes=tuple(i % config.mhc_lanes for i in range(len(blocks))),
        sites=sites,
        engram_layers=tuple(number[config.engram_layers[i]] for i in sites),
        global_layers=tuple(sorted(number[b] for b in config.global_layers if b in number)),
        head_rows=(0, *(block + 1 for block in blocks)),
        ladder_order=tuple(number[block] for block in order if block in number),
    )


def plan_slice(config: LadderConfig, depth: int) -> SlicePlan:
    """Plan the slice of a ladder to a depth.

    Args:
        config: geometry of the parent; its stored ``ladder_order`` wins over the rule.
        depth: blocks to keep, 2 to ``config.num_layers``.

    Raises:
        DepthError: there is no such rung.
    """
    total = config.num_layers
    if not MINIMUM_DEPTH <= depth <= total:
        message = f"depth {depth} is not on this ladder: choose one from {MINIMUM_DEPTH} to {total}."
        raise DepthError(message)
    order = config.ladder_order or selection_order(total)
    return plan_blocks(config, sorted(order[:depth]))


def sliced_config(config: LadderConfig, plan: SlicePlan) -> LadderConfig:
    """The configuration of a slice."""
    return replace(
        config,
        num_layers=plan.depth,
        engram_layers=plan.engram_layers,
        global_layers=plan.global_layers,
        ladder_order=plan.ladder_order,
        ladder_depths=(),
    )


class SlicedLadder(Ladder):
    """A view of a ladder at a depth; reads only what it keeps."""

    def __init__(self, parent: Ladder, plan: SlicePlan) -> None:
        """Wrap ``parent``; nothing is read yet."""
        self.parent = parent
        self.plan = plan
        self.config = sliced_config(parent.config, plan)
        specs = layout(self.config, heads_in(parent.layout))
        self.layout = {n: s for n, s in specs.items() if self.source(n) in parent.layout}

    def source(self, name: str) -> str:
        """The parent's name of a tensor of the slice."""
        prefix, _, rest = name.partition("/")
        if prefix.startswith("engrams_"):
            return f"engrams_{self.plan.sites[int(prefix.removeprefix('engrams_'))]}/{rest}"
        return name

    def read(self, name: str, row: int | None = None) -> Array:
        """Read a tensor of the slice, or one row of its leading axis."""
        axis, source = self.layout[name].axis, self.source(name)
        if axis is Axis.BLOCKS:
            return self._rows(source, self.plan.blocks, row)
        if axis is Axis.ROWS_0:
            return self._rows(source, self.plan.head_rows, row)
        if axis is Axis.ROWS_1:
            kept = np.take(self.parent.read(source), self.plan.head_rows, axis=1)
            return kept if row is None else kept[row]
        return self.parent.read(source, row)

    def address(self, name: str, row: int | None = None) -> str:
        """Where the parent has the values."""
        axis, source = self.layout[name].axis, self.source(name)
        kept = {
            Axis.BLOCKS: self.plan.blocks,
            Axis.ROWS_0: self.plan.head_rows,
            Axis.ROWS_1: self.plan.head_rows,
        }
        if axis not in kept:
            return self.parent.address(source, row)
        if row is None or axis is Axis.ROWS_1:
            return f"{self.parent.address(source, row)}{list(kept[axis])}"
        return self.parent.address(source, kept[axis][row])

    def gather(self, name: str, row: int, indices: Sequence[int]) -> Array:
        """Read chosen rows of an engram table."""
        if self.layout[name].axis is not Axis.SITE:
            return super().gather(name, row, indices)
        return self.parent.gather(self.source(name), row, indices)

    def _rows(self, source: str, kept: Sequence[int], row: int | None) -> Array:
        if row is not None:
            return self.parent.read(source, kept[row])
        return np.stack([self.parent.read(source, number) for number in kept])


def slice_ladder(ladder: Ladder, depth: int) -> SlicedLadder:
    """Slice a ladder to a depth.

    Raises:
        DepthError: there is no such rung.
    """
    return SlicedLadder(ladder, plan_slice(ladder.config, depth))


def keep_blocks(ladder: Ladder, blocks: Sequence[int]) -> SlicedLadder:
    """Slice a ladder to the blocks named.

    Raises:
        BlocksError: no slice keeps these.
    """
    return SlicedLadder(ladder, plan_blocks(ladder.config, blocks))


def fingerprint(ladder: Ladder) -> str:
    """SHA-256 over names, shapes and float32 values of every tensor: the identity of a ladder.

    The storage dtype does not enter, nor does the file around it, so a saved slice has the fingerprint
    of the slice that it was saved from.

    Raises:
        NotFiniteError: a tensor holds NaN or infinity.
    """
    digest = hashlib.sha256()
    for name, spec in sorted(ladder.layout.items()):
        digest.update(f"{name}{spec.shape}".encode())
        rows = range(spec.shape[0]) if spec.axis in {Axis.BLOCKS, Axis.ROWS_0} else (None,)
        for row in rows:
            values = np.ascontiguousarray(ladder.read(name, row), dtype="<f4")
            _require_finite(name, values)
            digest.update(values.data)
    return digest.hexdigest()


def _require_finite(name: str, values: Array) -> None:
    # A sum of squares is one pass without a second array; only where it overflows are values looked at.
    flat = values.reshape(-1)
    with np.errstate(over="ignore"):
        bad = 0 if np.isfinite(np.dot(flat, flat)) else int(values.size - np.isfinite(values).sum())
    if bad:
        message = (
            f"tensor {name!r} holds {bad} values that are NaN or infinite (of {values.size}). "
            "Export a checkpoint from before the training diverged."
        )
        raise NotFiniteError(message)
