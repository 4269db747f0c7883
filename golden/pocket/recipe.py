"""What decides a training run, as data that is saved with its result."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Recipe", "learning_rate"]


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        seed: decides initial values, data and drawn depths.
        steps: optimiser steps; 0 means until ``minutes`` have passed.
        minutes: wall-clock length where ``steps`` is 0.
        batch: examples in a batch.
        longest: longest sequence trained on, in tokens; longer examples are passed over.
        peak: highest learning rate of AdamW.
        warm_up: steps until the peak.
        floor: last learning rate, as a share of the peak (cosine in between).
        beta1: AdamW's first decay rate.
        beta2: AdamW's second decay rate.
        decay: weight decay of matrices and tables.
        clip: largest norm of a gradient.
        ladder_share: share of steps that run a shallower rung after the full depth.
        ladder_weight: weight of that rung's loss beside the full depth's.
        teacher_weight: weight of the divergence from the full depth in the rung's loss.
        favoured: depths that are drawn more often than the others.
        favoured_share: share of the drawn depths that are one of these.
        rare_from: first step whose data has more double calls and refusals than the test has.
        start: checksum (SHA-256) of the checkpoint that the run started from; empty for initial values.
    """

    seed: int = 0
    steps: int = 0
    minutes: float = 60.0
    batch: int = 16
    longest: int = 160
    peak: float = 2e-3
    warm_up: int = 100
    floor: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.98
    decay: float = 0.02
    clip: float = 1.0
    ladder_share: float = 1.0
    ladder_weight: float = 0.5
    teacher_weight: float = 1.0
    favoured: tuple[int, ...] = (4, 8)
    favoured_share: float = 0.4
    rare_from: int = 0
    start: str = ""

    def __post_init__(self) -> None:
        """Take the list that JSON gives."""
        object.__setattr__(self, "favoured", tuple(self.favoured))

    def to_json(self) -> dict[str, Any]:
        """The recipe, JSON-ready."""
        return asdict(self) | {"favoured": list(self.favoured)}

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is done, 0 to 1, after ``step`` steps and ``seconds`` seconds."""
        done = step / self.steps if self.steps else seconds / (60.0 * self.minutes)
        return min(1.0, done)


def learning_rate(recipe: Recipe, step: int, progress: float) -> float:
    """Rate of step ``step``: linear warm-up, then a cosine over the share of the run that is done."""
    warm = min(1.0, (step + 1) / recipe.warm_up)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return recipe.peak * warm * (recipe.floor + (1.0 - recipe.floor) * cosine)
