"""Encoded examples padded to one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from golden.pocket.prompt import PAD_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Batch", "pad"]

_MULTIPLE = 8


@dataclass(frozen=True)
class Batch:
    """Sequences of one step.

    Attributes:
        tokens: [B, T] int64, padded at the end.
        answer: [B, T] bool, True where the *next* token belongs to the answer (``eos`` included).
    """

    tokens: Tensor
    answer: Tensor

    @property
    def targets(self) -> Tensor:
        """The answers' tokens, [number of True in ``answer``], row by row."""
        return self.tokens.roll(-1, 1)[self.answer]


def pad(sequences: Sequence[tuple[Sequence[int], int]], multiple: int = _MULTIPLE) -> Batch:
    """Pad encoded examples to a common length that ``multiple`` divides."""
    longest = max(len(ids) for ids, _ in sequences)
    length = -(-longest // multiple) * multiple
    tokens = torch.full((len(sequences), length), PAD_ID, dtype=torch.int64)
    answer = torch.zeros(len(sequences), length, dtype=torch.bool)
    for row, (ids, prompt) in enumerate(sequences):
        tokens[row, : len(ids)] = torch.tensor(list(ids))
        answer[row, prompt - 1 : len(ids) - 1] = True
    return Batch(tokens, answer)
