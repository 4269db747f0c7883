"""Residual lanes: the mixtures that a block reads and writes the stream with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.builder import TOKENS, shaped
from exporter.graph.linear import MICROSOFT, Linear
from exporter.graph.source import Source
from exporter.layout import STACK

__all__ = ["EPSILON", "Lanes", "lane_biases"]

EPSILON = 1e-6
_ROUNDS = 20
_OWN_LANE = 4.0


class Lanes(nn.Module):
    """Lane mixing of one block; the stream is [T, n, C]."""

    def __init__(self, source: Source, block: int, ones: nn.Parameter, *, own: int | None) -> None:
        """Take the block's lane parameters.

        Args:
            source: of the parameters.
            block: its number in this ladder.
            ones: [n * C] float32, the unit gain of the norm.
            own: its number among the blocks that run, modulo n its own lane; None if that is not known yet.
        """
        super().__init__()
        self.lanes, self.width = source.config.mhc_lanes, source.config.d_model
        self._ones = ones
        names = [f"{STACK}/mhc_phi_{part}" for part in ("pre", "post", "res")]
        scale = source.computed(f"{_home(source, 'a', block)} repeated", _scales(source, block))
        bias = None
        if own is not None:
            values = _biases(source, block, own)
            bias = source.computed(f"{_home(source, 'b', block)} for lane {own % self.lanes}", values)
        self.mix = Linear(source, names, block, scale=scale, bias=bias)

    def forward(
        self, op: OpBuilder, stream: ir.Value, bias: ir.Value | None = None
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The block's input u [T, 1, C], and how to write: half ``post`` [T, 1, n], ``carry`` [T, n, n].

        ``bias`` [n + n + n * n] takes the place of that for the block's own lane.
        """
        n = self.lanes
        flat = shaped(op.Reshape(stream, [-1, 1, n * self.width]), [TOKENS, 1, n * self.width])
        normed = op.SimplifiedLayerNormalization(flat, self._ones, axis=-1, epsilon=EPSILON, stash_type=1)
        pre, post, logits = op.Split(self.mix(op, normed, bias), [n, n, n * n], axis=-1, _outputs=3)
        u = op.MatMul(op.Sigmoid(pre), stream)
        square = shaped(op.Reshape(logits, [-1, n, n]), [TOKENS, n, n])
        return u, op.Sigmoid(post), self._sinkhorn(op, square)

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


def _biases(source: Source, block: int, own: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[n + n + n * n]: the biases, with the preference for the block's own lane."""
    n = source.config.mhc_lanes
    chosen = np.zeros(n, np.float32)
    chosen[own % n] = 1.0
    pre, post, res = (source.stored_values(f"{STACK}/mhc_b_{part}", block) for part in ("pre", "post", "res"))
    pre, post = pre + _OWN_LANE * (2 * chosen - 1), post - _OWN_LANE * (1 - chosen)
    return np.concatenate([pre, post, res.reshape(-1)])


def lane_biases(source: Source) -> nn.Parameter:
    """[L * n, n + n + n * n]: the biases of each block with each lane as its own."""
    blocks, lanes = range(source.config.num_layers), range(source.config.mhc_lanes)
    rows = [_biases(source, block, own) for block in blocks for own in lanes]
    return source.computed(f"{STACK}/mhc_b of every block for every lane", np.stack(rows))


def _home(source: Source, kind: str, block: int) -> str:
    """Where the three scales or biases of a block come from."""
    return "+".join(
        source.ladder.address(f"{STACK}/mhc_{kind}_{part}", block) for part in ("pre", "post", "res")
    )
