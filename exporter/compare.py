"""Comparing logits, and the bounds that an export has to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter.ladder import Array

__all__ = ["ACTIVATIONS", "ARITHMETIC", "FIDELITY", "HEADS", "Bound", "Comparison", "compare"]


@dataclass(frozen=True)
class Bound:
    """What a comparison may show at most.

    ``difference`` is in units of the logits' spread (their standard deviation); ``kl`` is in nats.
    """

    difference: float
    kl: float


ARITHMETIC = Bound(1e-4, 1e-7)
"""A graph that multiplies in float32, against the reference on the same stored weights."""

ACTIVATIONS = Bound(0.2, 2e-3)
"""A graph with int8 activations, against the reference on the same stored weights. Measured on x86: at
most 0.09 and 5e-4 over random ladders of 2 to 20 blocks."""

FIDELITY: Mapping[str, Bound] = {
    "fp32": Bound(1e-4, 1e-7),
    "fp16": Bound(0.01, 1e-4),
    "int8": Bound(0.4, 5e-3),
    "int4": Bound(2.0, 0.3),
    "mixed": Bound(2.0, 0.3),
}
"""A graph against the reference on the checkpoint's own weights, per precision: what rounding may cost.
Measured on random ids, which round worse than text, over random ladders and the shipped one at depths 2 to
20: at most 0.004, 0.21 and 1.56 of the spread, and 3e-6, 9e-4 and 0.14 nats. Garbage is spreads and nats
apart. Mixed widths have to keep what 4 bits keep."""

HEADS: Mapping[str, float] = {"fp32": 1e-4, "fp16": 1e-2, "int8": 0.25, "int4": 1.0, "mixed": 1.0}
"""Greatest difference of a probe head's outputs, per precision, as a share of the greatest of them or of 1,
whichever is more; a graph that multiplies in float32 keeps the first on the stored weights. Measured on the
shipped ladder: 0.16 and 0.38."""


@dataclass(frozen=True)
class Comparison:
    """How far logits are from the reference's."""

    positions: int
    """Number of positions compared."""
    spread: float
    """Standard deviation of the reference's logits."""
    difference: float
    """Greatest difference, in units of the spread."""
    kl: float
    """Mean Kullback-Leibler divergence from the reference, nats."""
    top1: float
    """Share of positions with the same most likely token."""
    near_ties: int
    """Positions where it differs and the reference's two best are closer than the bound."""
    overturned: int
    """Positions where it differs although they are not."""

    def within(self, bound: Bound) -> bool:
        """Whether the bound is kept."""
        # Written so that NaN fails.
        return self.difference <= bound.difference and self.kl <= bound.kl and self.overturned == 0

    def to_json(self) -> dict[str, Any]:
        """The comparison, JSON-ready, rounded to what is not noise."""
        return {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in asdict(self).items()}


def compare(logits: Array, reference: Array, bound: Bound) -> Comparison:
    """Compare logits with the reference's.

    Args:
        logits: [positions, V] float32.
        reference: [positions, V] float32.
        bound: whose difference, doubled since two logits may move, is the near-tie margin.
    """
    spread = float(reference.std())
    top = np.sort(reference, axis=-1)
    margin = top[:, -1] - top[:, -2]
    differs = logits.argmax(-1) != reference.argmax(-1)
    near = margin <= 2 * bound.difference * spread
    expected, got = _log_softmax(reference), _log_softmax(logits)
    kl = divergences(expected, got)
    return Comparison(
        positions=len(reference),
        spread=spread,
        difference=float(np.abs(logits - reference).max()) / spread,
        kl=float(max(kl.mean(), 0.0)) if np.isfinite(kl).all() else float("nan"),
        top1=float(1 - differs.mean()),
        near_ties=int((differs & near).sum()),
        overturned=int((differs & ~near).sum()),
    )


def divergences(expected: NDArray[np.floating[Any]], got: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Kullback-Leibler divergences [positions], nats, of logarithms of probabilities [positions, V]."""
    return np.asarray((np.exp(expected) * (expected - got)).sum(-1, dtype=np.float64))


def _log_softmax(logits: Array) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))
