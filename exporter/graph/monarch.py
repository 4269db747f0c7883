"""The Monarch MLP: three Kronecker-factored mixers with fixed permutations between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.builder import TOKENS, shaped
from exporter.graph.lanes import EPSILON
from exporter.graph.linear import MICROSOFT
from exporter.graph.source import Constant, Source
from exporter.layout import BLOCK, COND_RANK

__all__ = ["Monarch", "permutations"]

_SEEDS = (11, 13)
_SECOND_HALF = 977


def permutations(source: Source) -> tuple[nn.Parameter, nn.Parameter]:
    """The two fixed permutations [N] int32 of the padded width, to gather with."""
    width, halves = source.config.monarch_width, bool(source.config.ladder_widths)

    def draw(seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        if not halves:
            return np.random.RandomState(seed).permutation(width).astype(np.int32)
        parts = [np.random.RandomState(s).permutation(width // 2) for s in (seed, seed + _SECOND_HALF)]
        return np.concatenate([parts[0], parts[1] + width // 2]).astype(np.int32)

    first, second = (source.computed(f"monarch/permutation[{i}]", draw(s)) for i, s in enumerate(_SEEDS))
    return first, second


class Monarch(nn.Module):
    """The MLP branch of one block."""

    def __init__(self, source: Source, block: int, orders: tuple[nn.Parameter, nn.Parameter]) -> None:
        """Take the block's parameters and the two permutations."""
        super().__init__()
        config = self.config = source.config
        rows, columns = config.monarch_shape
        self._orders = orders
        prefix = f"{BLOCK}/hadamard_mlp"

        def constant(name: str, *shape: int) -> Constant:
            return Constant(source, f"{prefix}/{name}", block, shape)

        self.norm = Constant(source, f"{BLOCK}/pre_hada_norm/scale", block, (config.d_model,))
        self.cond_v = constant("cond_v", config.d_model, COND_RANK)
        self.cond_u = constant("cond_u", COND_RANK, config.monarch_width)
        self.d1, self.d2, self.d3, self.d4, self.b2 = (
            constant(name, config.monarch_width) for name in ("d1", "d2", "d3", "d4", "b2")
        )
        self.w1a, self.w2a, self.w3a = (constant(f"w{i}a", rows, rows) for i in (1, 2, 3))
        self.w1b, self.w2b, self.w3b = (constant(f"w{i}b", columns, columns) for i in (1, 2, 3))

    def forward(self, op: OpBuilder, u: ir.Value, branch: ir.Value) -> ir.Value:
        """The branch [T, 1, C] for the block input ``u`` and its attention ``branch``, both [T, 1, C]."""
        config, (first, second) = self.config, self._orders
        gain = op.Add(self.norm(op), 1.0)
        m = op.SkipSimplifiedLayerNormalization(u, branch, gain, epsilon=EPSILON, **MICROSOFT)
        # A softmax sums to one, so d2 * (1 + s @ U) is s @ (d2 * (1 + U)).
        steering = op.Softmax(op.MatMul(m, self.cond_v(op)), axis=-1)
        condition = op.MatMul(steering, op.Mul(op.Add(self.cond_u(op), 1.0), self.d2(op)))
        pad = config.monarch_width - config.d_model
        z = op.Pad(m, [0, 0, 0, 0, 0, pad]) if pad else m
        z = self._kron(op, op.Mul(z, self.d1(op)), self.w1a, self.w1b, first)
        z = op.QuickGelu(op.Add(op.Mul(z, condition), self.b2(op)), alpha=1.0, **MICROSOFT)
        z = self._kron(op, z, self.w2a, self.w2b, second)
        z = self._kron(op, op.Mul(z, self.d3(op)), self.w3a, self.w3b, None)
        z = op.Mul(z, self.d4(op))
        return op.Slice(z, [0], [config.d_model], [2]) if pad else z

    def _kron(
        self,
        op: OpBuilder,
        z: ir.Value,
        rows: Constant,
        columns: Constant,
        order: nn.Parameter | None,
    ) -> ir.Value:
        """``rows^T Z columns`` of z [T, 1, N] seen as [T, A, B], then permuted by ``order``.

        The permutation is gathered from rows of T values, not from single ones: over 256 tokens that takes
        a third of the MLP's time away, and costs a single token 15 % of it in two more nodes.
        """
        a, b = self.config.monarch_shape
        square = shaped(op.Reshape(z, [-1, a, b]), [TOKENS, a, b])
        matrix = op.MatMul(square, columns(op))
        matrix = op.MatMul(op.Transpose(rows(op), perm=[1, 0]), matrix)
        if order is not None:
            flat = shaped(op.Reshape(matrix, [-1, a * b]), [TOKENS, a * b])
            moved = op.Transpose(flat, perm=[1, 0])
            matrix = op.Transpose(op.Gather(moved, order, axis=0), perm=[1, 0])
        return shaped(op.Reshape(matrix, [-1, 1, a * b]), [TOKENS, 1, a * b])
