"""Residual lanes: the mixtures that a block reads and writes the stream with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.linear import MICROSOFT, Linear
from exporter.graph.source import Source
from exporter.layout import STACK

__all__ = ["EPSILON", "Lanes"]

EPSILON = 1e-6
_ROUNDS = 20
_OWN_LANE = 4.0


class Lanes(nn.Module):
    """Lane mixing of one block; the stream is [T, n, C]."""

    def __init__(self, source: Source, block: int, ones: nn.Parameter) -> None:
        """Take the block's lane parameters.

        Args:
            source: of the parameters.
            block: its number in this ladder; its own lane is that modulo n.
            ones: [n * C] float32, the unit gain of the norm.
        """
        super().__init__()
        self.lanes, self.width = source.config.mhc_lanes, source.config.d_model
        self._ones = ones
        names = [f"{STACK}/mhc_phi_{part}" for part in ("pre", "post", "res")]
        self.mix = Linear(
            source,
            names,
            block,
            scale=source.computed(f"{STACK}/mhc_a[{block}]", _scales(source, block)),
            bias=source.computed(f"{STACK}/mhc_b[{block}]", _biases(source, block)),
        )

    def forward(self, op: OpBuilder, stream: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The block's input u [T, 1, C], and how to write: half ``post`` [T, 1, n], ``carry`` [T, n, n]."""
        n = self.lanes
        flat = op.Reshape(stream, [-1, 1, n * self.width])
        normed = op.SimplifiedLayerNormalization(flat, self._ones, axis=-1, epsilon=EPSILON, stash_type=1)
        pre, post, logits = op.Split(self.mix(op, normed), [n, n, n * n], axis=-1, _outputs=3)
        u = op.MatMul(op.Sigmoid(pre), stream)
        return u, op.Sigmoid(post), self._sinkhorn(op, op.Reshape(logits, [-1, n, n]))

    @staticmethod
    def _sinkhorn(op: OpBuilder, logits: ir.Value) -> ir.Value:
        """Exactly 20 rounds of row, then column normalisation of exp(logits) [T, n, n].

        In the domain of the exponentials a half round is one division by sums, and the first row step,
        which is also the exponential, is a softmax.
        """
        matrix = op.Softmax(logits, axis=-1)
        for step in range(1, 2 * _ROUNDS):
            matrix = op.LpNormalization(matrix, p=1, axis=1 if step % 2 else 2)
        return matrix

    def write(
        self, op: OpBuilder, stream: ir.Value, post: ir.Value, carry: ir.Value, y: ir.Value
    ) -> ir.Value:
        """The stream after the block gave ``y`` [T, 1, C]: ``carry @ stream + 2 post^T y``."""
        written = op.FusedMatMul(post, y, transA=1, alpha=2.0, **MICROSOFT)
        return op.Add(op.MatMul(carry, stream), written)


def _scales(source: Source, block: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[n + n + n * n]: what the projections for pre, post and carry are multiplied with."""
    n = source.config.mhc_lanes
    scale = [float(source.stored_values(f"{STACK}/mhc_a_{part}", block)) for part in ("pre", "post", "res")]
    return np.repeat(np.array(scale, np.float32), [n, n, n * n])


def _biases(source: Source, block: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[n + n + n * n]: the biases, with the preference for the block's own lane."""
    n = source.config.mhc_lanes
    own = np.zeros(n, np.float32)
    own[block % n] = 1.0
    pre, post, res = (source.stored_values(f"{STACK}/mhc_b_{part}", block) for part in ("pre", "post", "res"))
    return np.concatenate([pre + _OWN_LANE * (2 * own - 1), post - _OWN_LANE * (1 - own), res.reshape(-1)])
