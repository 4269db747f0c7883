"""Probe heads: attention pooling over all times and depths, then one projection."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.lanes import EPSILON
from exporter.graph.linear import MICROSOFT, Linear, Table
from exporter.graph.source import Constant, Source

__all__ = ["Pool", "PoolStep", "ProbeHead", "Readout"]

_LENGTH_EPSILON = 1e-12


class Probes(nn.Module):
    """A head's probes: how much each of them looks at each cell."""

    def __init__(self, source: Source, head: str) -> None:
        """Take the head's probes."""
        super().__init__()
        config = source.config
        self.width = config.d_model
        self.shape = (config.num_layers + 1, config.probes(head))
        self.table = Table(source, f"{head}_head/probes")

    def forward(self, op: OpBuilder, cells: ir.Value, kept: ir.Value | None = None) -> ir.Value:
        """Scores [rows, T, probes] of cells [rows, T, C]; ``kept`` [L + 1] bool says which rows these are."""
        rows, count = self.shape
        numbers = np.arange(rows * count, dtype=np.int64).reshape(rows, count)
        probes = self.table(op, op.Constant(value=ir.tensor(numbers)))
        if kept is not None:
            probes = op.Compress(probes, kept, axis=0)
        return op.FusedMatMul(cells, probes, transB=1, alpha=1 / math.sqrt(self.width), **MICROSOFT)


class Readout(nn.Module):
    """What a head makes of its pooled cells."""

    def __init__(self, source: Source, head: str, ones: nn.Parameter) -> None:
        """Take everything of the head but its probes; ``ones`` [C] is the unit gain of its norm."""
        super().__init__()
        config = source.config
        self.head, self.width, self._ones = head, config.d_model, ones
        self.rows, self.probes, self.queries = (
            config.num_layers + 1,
            config.probes(head),
            config.queries(head),
        )
        prefix = f"{head}_head"
        self.gain = Constant(source, f"{prefix}/gain", None, (self.rows, self.probes, 1))
        self.query = Constant(source, f"{prefix}/query", None, (self.queries, self.width))
        self.row_bias = Constant(source, f"{prefix}/row_bias", None, (self.queries, self.rows * self.probes))
        self.project = Linear(source, f"{prefix}/proj/kernel")
        if head != "embedding":
            self.bias = Constant(source, f"{prefix}/proj/bias", None, (self.project.outputs,))

    def forward(self, op: OpBuilder, pooled: ir.Value, kept: ir.Value | None = None) -> ir.Value:
        """The head's output [1, outputs].

        Args:
            op: builder.
            pooled: [rows, probes, C].
            kept: [L + 1] bool, which rows these are; None for all.
        """
        normed = op.SimplifiedLayerNormalization(pooled, self._ones, axis=-1, epsilon=EPSILON, stash_type=1)
        gain, row_bias = self.gain(op), self.row_bias(op)
        if kept is not None:
            gain = op.Compress(gain, kept, axis=0)
            row_bias = op.Reshape(row_bias, [self.queries, self.rows, self.probes])
            row_bias = op.Reshape(op.Compress(row_bias, kept, axis=1), [self.queries, -1])
        pooled = op.Reshape(op.Mul(normed, gain), [-1, self.width])
        scale = 1 / math.sqrt(self.width)
        choice = op.FusedMatMul(self.query(op), pooled, transB=1, alpha=scale, **MICROSOFT)
        choice = op.Softmax(op.Add(choice, row_bias), axis=-1)
        joined = op.Reshape(op.MatMul(choice, pooled), [1, self.queries * self.width])
        out = self.project(op, joined)
        if self.head != "embedding":
            return op.Add(out, self.bias(op))
        square = op.ReduceSum(op.Mul(out, out), [-1], keepdims=1)
        return op.Div(out, op.Sqrt(op.Add(square, _LENGTH_EPSILON)))


class ProbeHead(nn.Module):
    """One head over the cells of all times."""

    def __init__(self, source: Source, head: str, ones: nn.Parameter) -> None:
        """Take the head's parameters; ``ones`` [C] is the unit gain of its norm."""
        super().__init__()
        self.probes, self.readout = Probes(source, head), Readout(source, head, ones)

    def forward(
        self, op: OpBuilder, cells: ir.Value, hidden: ir.Value, kept: ir.Value | None = None
    ) -> ir.Value:
        """The head's output [1, outputs].

        Args:
            op: builder.
            cells: [rows, T, C].
            hidden: [1, T, 1], a great negative number at padding, else 0.
            kept: [L + 1] bool, which rows these are; None for all.
        """
        weights = op.Softmax(op.Add(self.probes(op, cells, kept), hidden), axis=1)
        return self.readout(op, op.FusedMatMul(weights, cells, transA=1, **MICROSOFT), kept)


class Pool(NamedTuple):
    """The softmax over time of every row and probe, so far."""

    greatest: ir.Value
    """[rows, probes]: greatest score."""
    denominator: ir.Value
    """[rows, probes]: sum of exponentials, relative to the greatest."""
    numerator: ir.Value
    """[rows, probes, C]: the same sum, weighted with the cells."""


class PoolStep(nn.Module):
    """Carries a head's pooling over the new tokens, so that no cell is kept."""

    def __init__(self, source: Source, head: str) -> None:
        """Take the head's probes."""
        super().__init__()
        self.probes = Probes(source, head)

    def forward(self, op: OpBuilder, cells: ir.Value, past: Pool, kept: ir.Value | None = None) -> Pool:
        """The pool after the new tokens' cells [rows, T, C]; ``kept`` [L + 1] bool says which rows."""
        scores = self.probes(op, cells, kept)
        greatest = op.Max(past.greatest, op.ReduceMax(scores, [1], keepdims=0))
        weights = op.Exp(op.Sub(scores, op.Unsqueeze(greatest, [1])))
        kept = op.Exp(op.Sub(past.greatest, greatest))
        added = op.FusedMatMul(weights, cells, transA=1, **MICROSOFT)
        return Pool(
            greatest,
            op.Add(op.Mul(past.denominator, kept), op.ReduceSum(weights, [1], keepdims=0)),
            op.Add(op.Mul(past.numerator, op.Unsqueeze(kept, [2])), added),
        )
