"""What a graph derives from where it is in the sequence, once for all blocks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from exporter.config import LadderConfig
from exporter.graph.attention import Timing
from exporter.graph.engram import Ngrams, hash_ngrams

__all__ = ["complete_ngrams", "ngrams_at", "positions_from", "rotary_angles", "timing_at"]


def positions_from(op: OpBuilder, ids: ir.Value, start: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """The number of tokens [1] in ``ids`` [1, T], and their positions [T, 1] from ``start`` [1], int64."""
    count = op.Shape(ids, start=1, end=2)
    steps = op.Range(0, op.Squeeze(count, [0]), 1)
    if start is not None:
        steps = op.Add(steps, start)
    return count, op.Unsqueeze(steps, [1])


def rotary_angles(op: OpBuilder, config: LadderConfig, positions: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine [T, width / 2] of the rotation at ``positions`` [T, 1] int64."""
    width = config.qk_head_dim
    exponent = np.arange(width // 2, dtype=np.float32) * 2 / width
    frequency = (1 / np.float32(config.rope_theta) ** exponent).astype(np.float32)
    real = op.Cast(positions, to=ir.DataType.FLOAT)
    angles = op.Mul(real, op.Constant(value=ir.tensor(frequency)))
    return op.Cos(angles), op.Sin(angles)


def timing_at(
    op: OpBuilder,
    config: LadderConfig,
    positions: ir.Value,
    count: ir.Value,
    cached: dict[bool, ir.Value],
) -> Timing:
    """Timing of a call that appends to caches.

    Args:
        op: builder.
        config: geometry.
        positions: [T, 1] int64, of the new tokens.
        count: [1] int64, T.
        cached: per (is it a global block) [1] int64, positions that its caches hold already.
    """
    totals = {kind: op.Cast(op.Add(held, count), to=ir.DataType.INT32) for kind, held in cached.items()}
    one = op.Constant(value=ir.tensor(np.array([1], np.int32)))
    last = {kind: op.Sub(total, one) for kind, total in totals.items()}
    cosine, sine = rotary_angles(op, config, positions)
    return Timing(cosine, sine, last, {kind: op.Squeeze(total, [0]) for kind, total in totals.items()})


def complete_ngrams(op: OpBuilder, config: LadderConfig, positions: ir.Value) -> ir.Value:
    """[T, tables] bool: whether each table's n-gram lies inside the sequence."""
    reach = [order - 1 for order in config.engram_orders for _ in range(config.tables_per_order)]
    return op.GreaterOrEqual(positions, reach)


def ngrams_at(
    op: OpBuilder,
    config: LadderConfig,
    ids: ir.Value,
    positions: ir.Value,
) -> Ngrams:
    """N-grams of the last T of ``ids`` [m + T], at ``positions`` [T, 1]."""
    complete = op.Cast(complete_ngrams(op, config, positions), to=ir.DataType.FLOAT)
    return Ngrams(hash_ngrams(op, config, ids), op.Unsqueeze(complete, [2]))
