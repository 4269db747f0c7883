"""Where the reference reads its parameters: any ladder, as float32 tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from exporter.config import LadderConfig
from exporter.ladder import Array, Ladder, SlicedLadder, SlicePlan
from exporter.layout import BLOCK, STACK, head_of, heads_in, layout

__all__ = ["TensorLadder", "Weights"]


class TensorLadder(Ladder):
    """A ladder of PyTorch tensors in memory, such as parameters under training."""

    def __init__(self, config: LadderConfig, tensors: Mapping[str, Tensor]) -> None:
        """Wrap tensors under their checkpoint names; stacked tensors have blocks on axis 0."""
        self.config = config
        self.tensors = tensors
        heads = {head for name in tensors if (head := head_of(name))}
        self.layout = {n: s for n, s in layout(config, heads).items() if n in tensors}

    def read(self, name: str, row: int | None = None) -> Array:
        """The tensor itself; typed as the array that a :class:`~exporter.ladder.Ladder` promises."""
        tensor = self.tensors[name]
        return cast("Array", tensor if row is None else tensor[row])

    def gather(self, name: str, row: int, indices: Sequence[int]) -> Array:
        """Chosen rows of an engram table; gradients flow through."""
        return cast("Array", self.tensors[name][row][torch.as_tensor(indices)])


class Weights:
    """Parameters of a ladder, read on demand as tensors."""

    def __init__(self, ladder: Ladder) -> None:
        """Wrap a ladder; nothing is read yet."""
        self.ladder = ladder
        self.config = ladder.config

    @property
    def heads(self) -> tuple[str, ...]:
        """Probe heads that the ladder carries."""
        return tuple(heads_in(self.ladder.layout))

    def sliced(self, plan: SlicePlan) -> Weights:
        """A view of the same parameters at a depth; gradients flow through."""
        return Weights(SlicedLadder(self.ladder, plan))

    def whole(self, name: str) -> Tensor:
        """The tensor ``name``."""
        return torch.as_tensor(self.ladder.read(name))

    def gather(self, name: str, row: int, indices: Tensor) -> Tensor:
        """Rows [..., w] of row ``row`` of a tensor, at ``indices`` [...]."""
        flat = self.ladder.gather(name, row, indices.reshape(-1).tolist())
        return torch.as_tensor(flat).reshape(*indices.shape, -1)

    def lane(self, name: str, block: int) -> Tensor:
        """Row ``block`` of ``stack/mhc_<name>``."""
        return torch.as_tensor(self.ladder.read(f"{STACK}/mhc_{name}", block))

    def block(self, name: str, block: int) -> Tensor:
        """Row ``block`` of ``stack/layers/block/<name>``."""
        return torch.as_tensor(self.ladder.read(f"{BLOCK}/{name}", block))
