"""Sequences through the reference in padded batches: what it makes of answers, and what its matrices see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from exporter.ladder import Array, Ladder, SlicePlan
from golden.reference.inputs import InputMoments
from golden.reference.model import forward
from golden.reference.weights import TensorLadder, Weights

__all__ = ["AnswerLoss", "answer_log_probabilities", "input_moments", "tensors_of"]

_BATCH = 32


def answer_log_probabilities(ladder: Ladder, sequences: Sequence[tuple[Sequence[int], int]]) -> list[Array]:
    """What a ladder expects of every token behind a prompt, given the right ones before it.

    Args:
        ladder: any.
        sequences: ids, and how many of them are prompt.

    Returns:
        Per sequence [answer tokens, V], natural logarithms.
    """
    weights = Weights(TensorLadder(ladder.config, tensors_of(ladder)))
    found: dict[int, Array] = {}
    for numbers, tokens, _ in _batches([ids for ids, _ in sequences]):
        with torch.inference_mode():
            logits = forward(weights, tokens).logits
            for row, number in enumerate(numbers):
                ids, prompt = sequences[number]
                found[number] = logits[row, prompt - 1 : len(ids) - 1].log_softmax(-1).numpy()
    return [found[number] for number in range(len(sequences))]


class AnswerLoss:
    """What the right answers cost slices of one ladder, whose tensors are read once."""

    def __init__(self, ladder: Ladder, sequences: Sequence[tuple[Sequence[int], int]]) -> None:
        """Read the ladder.

        Args:
            ladder: any.
            sequences: ids, and how many of them are prompt.
        """
        self._weights = Weights(TensorLadder(ladder.config, tensors_of(ladder)))
        self._sequences = sequences

    def of(self, plan: SlicePlan) -> float:
        """Mean negative log-likelihood of the answers' tokens in a slice, nats per token."""
        weights, total, count = self._weights.sliced(plan), 0.0, 0
        for numbers, tokens, _ in _batches([ids for ids, _ in self._sequences]):
            with torch.inference_mode():
                logits = forward(weights, tokens).logits
                for row, number in enumerate(numbers):
                    ids, prompt = self._sequences[number]
                    expected = logits[row, prompt - 1 : len(ids) - 1].log_softmax(-1)
                    right = torch.tensor(list(ids[prompt:]))[:, None]
                    total -= float(expected.gather(-1, right).sum())
                    count += len(right)
        return total / count


def input_moments(
    ladder: Ladder, matrices: Mapping[Any, tuple[str, int | None]], sequences: Sequence[Sequence[int]]
) -> dict[Any, Array]:
    """Means of x x^T [K, K] over the inputs x of matrices, by their keys.

    Args:
        ladder: any.
        matrices: names of tensors by key, each with a row of its leading axis or None.
        sequences: ids.
    """
    tensors = tensors_of(ladder)
    known = {
        key: tensors[name] if row is None else tensors[name][row] for key, (name, row) in matrices.items()
    }
    moments = InputMoments(known)
    weights = Weights(TensorLadder(ladder.config, tensors))
    for _, tokens, keep in _batches(sequences):
        with torch.inference_mode(), moments:
            moments.keep = keep
            forward(weights, tokens)
    count = sum(map(len, sequences))
    return {key: (total / count).numpy() for key, total in moments.sums.items()}


def tensors_of(ladder: Ladder) -> dict[str, Tensor]:
    """Every tensor of a ladder, by name."""
    return {name: torch.from_numpy(ladder.read(name)) for name in ladder.layout}


def _batches(sequences: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Sequences of like length together: their numbers, ids [B, T] padded at the end, and what is no padding.

    Padding stands behind everything that is read, and no position sees what is behind it.
    """
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    for start in range(0, len(order), _BATCH):
        numbers = order[start : start + _BATCH]
        lengths = torch.tensor([len(sequences[number]) for number in numbers])
        tokens = torch.zeros(len(numbers), int(lengths.max()), dtype=torch.int64)
        for row, number in enumerate(numbers):
            tokens[row, : len(sequences[number])] = torch.tensor(list(sequences[number]))
        yield numbers, tokens, torch.arange(tokens.shape[1]) < lengths[:, None]
