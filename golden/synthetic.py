"""Random ladders of any geometry, seeded, every parameter away from its initial value."""

from __future__ import annotations

import math
import zlib

import numpy as np

from exporter.config import HEADS, LadderConfig
from exporter.ladder import Array, Ladder
from exporter.layout import Axis, TensorSpec, layout

__all__ = ["SyntheticLadder"]


class SyntheticLadder(Ladder):
    """A ladder whose tensors are drawn when they are read; the same seed gives the same values.

    Kernels keep the scale of what they multiply; everything else is spread widely enough that a path
    left out, or taken twice, shows in the logits.
    """

    def __init__(self, config: LadderConfig, seed: int = 0, heads: tuple[str, ...] = HEADS) -> None:
        """Choose geometry, seed and heads; nothing is drawn yet."""
        self.config, self.seed = config, seed
        self.layout = {n: s for n, s in layout(config, heads).items() if not s.optional}

    def read(self, name: str, row: int | None = None) -> Array:
        """Draw a tensor, or one row of its leading axis."""
        spec = self.layout[name]
        if row is not None:
            return self._draw(spec, row)
        if not spec.shape:
            return self._draw(spec, None)
        return np.stack([self._draw(spec, number) for number in range(spec.shape[0])])

    def _draw(self, spec: TensorSpec, row: int | None) -> Array:
        shape = spec.shape[1:] if row is not None else spec.shape
        rng = np.random.default_rng([self.seed, zlib.crc32(spec.name.encode()), row or 0])
        values = rng.standard_normal(shape, dtype=np.float32)
        return np.asarray(values * np.float32(_scale(self.config, spec)) + np.float32(_centre(spec.name)))


def _scale(config: LadderConfig, spec: TensorSpec) -> float:
    """Standard deviation of a tensor's values."""
    if spec.name.endswith("kernel") or "phi_" in spec.name:
        return 1 / math.sqrt(spec.shape[-2])
    if spec.name == "embedding/embedding":
        return 1 / math.sqrt(config.d_model)
    if "/w" in spec.name and spec.axis is Axis.BLOCKS:
        return 1 / math.sqrt(spec.shape[-1])
    return 0.3


def _centre(name: str) -> float:
    """Mean of a tensor's values."""
    multiplies = name.endswith(("/d1", "/d2", "/d3", "/d4", "/gain", "mhc_a_pre", "mhc_a_post", "mhc_a_res"))
    return 1.0 if multiplies else 0.0
