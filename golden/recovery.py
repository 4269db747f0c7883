"""Recovery: what is left to tune of a stored ladder, tuned by distillation at many depths at once.

Codes stay as they are. Every block of a quantised matrix is multiplied with a factor, and gains are moved,
so that at whatever depth the answers are those of the ladder before it was quantised: the Kullback-Leibler
divergence from it is minimised, each step at another rung (Hinton et al., 2015, for the loss). The forward
pass is that of training, which tests hold to the reference's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from exporter.config import MINIMUM_DEPTH
from exporter.ladder import Array, Ladder, plan_slice
from golden.pocket.fast import RowLadder, answer_logits
from golden.pocket.padding import Batch, pad
from golden.reference import Weights
from golden.reference.answers import tensors_of

__all__ = ["Recovery", "Span", "Tuned", "draw_depth", "tune"]

_WARM_UP: Final = 20
_FLOOR: Final = 0.02
"""Steps until the highest rate, and the last rate as a share of it (a cosine in between)."""

_REPORTED: Final = 25
"""Steps from one line of progress to the next."""

_POOL: Final = 8
"""Batches among which sequences are sorted by their length."""


@dataclass(frozen=True)
class Recovery:
    """What decides a recovery.

    Attributes:
        steps: optimiser steps.
        batch: sequences in a step.
        rate: highest rate of Adam, for logarithms of factors and for gains.
        shallow_share: share of the steps at a rung of fewer than ``deep`` blocks, where there are any.
        deep: blocks from which on a rung counts as deep.
        seed: decides sequences and rungs.
    """

    steps: int = 300
    batch: int = 8
    rate: float = 2e-3
    shallow_share: float = 0.2
    deep: int = 6
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The recovery, JSON-ready."""
        return asdict(self)


class Span(NamedTuple):
    """The blocks of a tensor that share a scale."""

    axis: int
    """-1, or -2 for a kernel [..., K, N]."""
    size: int


@dataclass(frozen=True)
class Tuned:
    """What was found."""

    factors: Mapping[str, Array]
    """[..., N, blocks] by tensor: what its scales are to be multiplied with."""
    gains: Mapping[str, Array]
    """By tensor, whole."""


def draw_depth(recovery: Recovery, num_layers: int, rng: random.Random) -> int:
    """Draw the rung of a step: a deep one, or now and then a shallow one."""
    deep = range(min(recovery.deep, num_layers), num_layers + 1)
    shallow = range(MINIMUM_DEPTH, deep.start)
    return rng.choice(shallow if shallow and rng.random() < recovery.shallow_share else deep)


def tune(
    truth: Ladder,
    stored: Ladder,
    spans: Mapping[str, Span],
    gains: Sequence[str],
    sequences: Sequence[tuple[Sequence[int], int]],
    recovery: Recovery,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Tune a stored ladder so that it answers as another does, at every depth.

    Args:
        truth: the ladder before it was quantised.
        stored: the same as it is stored.
        spans: of its quantised tensors that may change, by name.
        gains: names of its small tensors that may change.
        sequences: ids, and how many of them are prompt; the divergence is that of what follows it.
        recovery: how.
        progress: told how far it is.
    """
    teacher = Weights(RowLadder(truth.config, tensors_of(truth)))
    student = _Student(stored, spans, gains)
    optimiser = torch.optim.Adam(student.parameters, lr=recovery.rate, betas=(0.9, 0.98))
    rng = random.Random(f"recovery-{recovery.seed}")  # noqa: S311 - reproducible draw
    drawn, recent = _batches(sequences, recovery.batch, rng), list[float]()
    for step in range(recovery.steps):
        for group in optimiser.param_groups:
            group["lr"] = _rate(recovery, step)
        depth, batch = draw_depth(recovery, truth.config.num_layers, rng), next(drawn)
        plan = plan_slice(truth.config, depth)
        with torch.no_grad():
            wanted = log_softmax(answer_logits(teacher.sliced(plan), batch), -1)
        got = log_softmax(answer_logits(student.weights().sliced(plan), batch), -1)
        loss = kl_div(got, wanted, reduction="batchmean", log_target=True)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        recent.append(loss.item())
        if (step + 1) % _REPORTED == 0:
            mean = sum(recent) / len(recent)
            progress(f"step {step + 1} of {recovery.steps}: divergence {mean:.2e} nats per token")
            recent.clear()
    return student.tuned()


class _Student:
    """A stored ladder, with what may change of it as parameters."""

    def __init__(self, stored: Ladder, spans: Mapping[str, Span], gains: Sequence[str]) -> None:
        """Start from the ladder as it is stored."""
        self._config, self._spans, self._base = stored.config, spans, tensors_of(stored)
        self._logs = {name: self._zeros(name).requires_grad_() for name in spans}
        self._gains = {name: self._base[name].clone().requires_grad_() for name in gains}

    @property
    def parameters(self) -> list[Tensor]:
        return [*self._logs.values(), *self._gains.values()]

    def _zeros(self, name: str) -> Tensor:
        """A logarithm per block."""
        rows, span = self._base[name].movedim(self._spans[name].axis, -1), self._spans[name]
        return torch.zeros(*rows.shape[:-1], -(-rows.shape[-1] // span.size))

    def weights(self) -> Weights:
        """The ladder as it stands; gradients flow to the parameters."""
        changed = dict(self._base) | self._gains
        for name, logs in self._logs.items():
            axis, size = self._spans[name]
            wide = logs.exp().repeat_interleave(size, -1).movedim(-1, axis)
            changed[name] = self._base[name] * wide.narrow(axis, 0, self._base[name].shape[axis])
        return Weights(RowLadder(self._config, changed))

    def tuned(self) -> Tuned:
        with torch.no_grad():
            return Tuned(
                {name: logs.exp().numpy() for name, logs in self._logs.items()},
                {name: gain.detach().numpy() for name, gain in self._gains.items()},
            )


def _batches(
    sequences: Sequence[tuple[Sequence[int], int]], size: int, rng: random.Random
) -> Iterator[Batch]:
    """Endless batches of sequences of like length, every sequence once before any again."""
    while True:
        order = list(sequences)
        rng.shuffle(order)
        for start in range(0, len(order), size * _POOL):
            pool = sorted(order[start : start + size * _POOL], key=lambda sequence: len(sequence[0]))
            batches = [pool[at : at + size] for at in range(0, len(pool), size)]
            rng.shuffle(batches)
            yield from (pad(batch, 1) for batch in batches)


def _rate(recovery: Recovery, step: int) -> float:
    warm = min(1.0, (step + 1) / _WARM_UP)
    cosine = 0.5 * (1 + math.cos(math.pi * step / recovery.steps))
    return recovery.rate * warm * (_FLOOR + (1 - _FLOOR) * cosine)
