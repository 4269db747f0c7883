"""Probe heads: attention pooling over all times and depths, then one projection."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.lanes import EPSILON
from exporter.graph.linear import MICROSOFT, Linear, Table
from exporter.graph.source import Constant, Source

__all__ = ["ProbeHead"]

_LENGTH_EPSILON = 1e-12


class ProbeHead(nn.Module):
    """One head over the cells of all times."""

    def __init__(self, source: Source, head: str, ones: nn.Parameter) -> None:
        """Take the head's parameters; ``ones`` [C] is the unit gain of its norm."""
        super().__init__()
        config = source.config
        self.head, self.width, self._ones = head, config.d_model, ones
        self.rows, self.probes, self.queries = (
            config.num_layers + 1,
            config.probes(head),
            config.queries(head),
        )
        prefix = f"{head}_head"
        self.table = Table(source, f"{prefix}/probes")
        self.gain = Constant(source, f"{prefix}/gain", None, (self.rows, self.probes, 1))
        self.query = Constant(source, f"{prefix}/query", None, (self.queries, self.width))
        self.row_bias = Constant(source, f"{prefix}/row_bias", None, (self.queries, self.rows * self.probes))
        self.project = Linear(source, f"{prefix}/proj/kernel")
        if head != "embedding":
            self.bias = Constant(source, f"{prefix}/proj/bias", None, (self.project.outputs,))

    def forward(self, op: OpBuilder, cells: ir.Value, hidden: ir.Value) -> ir.Value:
        """The head's output [1, outputs].

        Args:
            op: builder.
            cells: [rows, T, C].
            hidden: [1, T, 1], a great negative number at padding, else 0.
        """
        scale = 1 / math.sqrt(self.width)
        numbers = np.arange(self.rows * self.probes, dtype=np.int64).reshape(self.rows, self.probes)
        probes = self.table(op, op.Constant(value=ir.tensor(numbers)))
        scores = op.FusedMatMul(cells, probes, transB=1, alpha=scale, **MICROSOFT)
        weights = op.Softmax(op.Add(scores, hidden), axis=1)
        pooled = op.FusedMatMul(weights, cells, transA=1, **MICROSOFT)
        normed = op.SimplifiedLayerNormalization(pooled, self._ones, axis=-1, epsilon=EPSILON, stash_type=1)
        pooled = op.Reshape(op.Mul(normed, self.gain(op)), [self.rows * self.probes, self.width])
        choice = op.FusedMatMul(self.query(op), pooled, transB=1, alpha=scale, **MICROSOFT)
        choice = op.Softmax(op.Add(choice, self.row_bias(op)), axis=-1)
        joined = op.Reshape(op.MatMul(choice, pooled), [1, self.queries * self.width])
        out = self.project(op, joined)
        if self.head != "embedding":
            return op.Add(out, self.bias(op))
        square = op.ReduceSum(op.Mul(out, out), [-1], keepdims=1)
        return op.Div(out, op.Sqrt(op.Add(square, _LENGTH_EPSILON)))
