"""Engram sites: n-gram hashing inside the graph, hashed tables, and the gate into a block's input."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.config import LadderConfig
from exporter.graph.builder import OPSET_END, TOKENS, shaped
from exporter.graph.lanes import EPSILON
from exporter.graph.linear import Linear, Table
from exporter.graph.source import Constant, Source
from exporter.layout import ENGRAM_TAPS

__all__ = ["EngramSite", "Ngrams", "SitePair", "gate_in", "hash_ngrams", "key_gain"]
_GOLDEN_RATIO = 0x9E3779B9
_FNV_PRIME = 0x01000193


class Ngrams(NamedTuple):
    """The n-grams that end at each new token, the same for every site."""

    rows: ir.Value
    """[T, tables] int64: row in a site's tables, laid end to end."""
    complete: ir.Value
    """[T, tables, 1] float32: 1 where the n-gram lies inside the sequence, else 0."""
    reachable: list[ir.Value] | None = None
    """Per tap [T, 1, 1] float32: 0 where its position is padding, where padding is hidden."""


class SitePair(NamedTuple):
    """Keys and values of a site, and the values that the next call needs."""

    key: ir.Value
    """[T, 1, C], normed."""
    value: ir.Value
    """[T, 1, C]."""
    history: ir.Value
    """[9, 1, C]."""


def hash_ngrams(op: OpBuilder, config: LadderConfig, ids: ir.Value) -> ir.Value:
    """Rows [T, tables] int64 of the n-grams that end at each of the last T of ``ids`` [m + T].

    FNV-like in wrapping uint32, newest token first; m is the longest order less one.
    """
    earlier = config.max_order - 1
    words = op.Unsqueeze(op.Cast(ids, to=ir.DataType.UINT32), [1])
    tokens = [
        op.Slice(words, [earlier - back], [-back or OPSET_END], [0]) for back in range(config.max_order)
    ]
    prime = _uint32(op, [_FNV_PRIME])
    columns = []
    for index, order in enumerate(config.engram_orders):
        numbers = [index * config.seed_stride + head + 1 for head in range(config.tables_per_order)]
        acc = _uint32(op, [_GOLDEN_RATIO * number & 0xFFFFFFFF for number in numbers])
        for back in range(order):
            acc = op.Mul(op.BitwiseXor(tokens[back], acc), prime)
        columns.append(op.BitwiseXor(acc, op.BitShift(acc, _uint32(op, [15]), direction="RIGHT")))
    joined = columns[0] if len(columns) == 1 else op.Concat(*columns, axis=1)
    rows = op.Cast(op.Mod(joined, _uint32(op, [config.engram_slots])), to=ir.DataType.INT64)
    offsets = [table * config.engram_slots for table in range(config.num_tables)]
    return op.Add(rows, offsets)


def _uint32(op: OpBuilder, values: list[int]) -> ir.Value:
    return op.Constant(value=ir.tensor(np.array(values, np.uint32)))


class EngramSite(nn.Module):
    """One site's tables, projections and taps; what it gives depends on the tokens alone."""

    def __init__(self, source: Source, site: int, key_gain: nn.Parameter) -> None:
        """Take the site's parameters; ``key_gain`` [C] is 1 / sqrt(C), for the agreement's mean."""
        super().__init__()
        self.config, self._key_gain = source.config, key_gain
        prefix = f"engrams_{site}"
        self.table = Table(source, f"{prefix}/embedding")
        self.project = Linear(source, [f"{prefix}/key_proj/kernel", f"{prefix}/value_proj/kernel"])
        self.taps = Constant(source, f"{prefix}/taps", None, (ENGRAM_TAPS, 1, self.config.d_model))

    def forward(self, op: OpBuilder, ngrams: Ngrams, history: ir.Value) -> SitePair:
        """Keys and values for the new tokens.

        Args:
            op: builder.
            ngrams: of the new tokens.
            history: [9, 1, C], earlier values before the taps; zeros at the start.
        """
        config = self.config
        rows = op.Mul(self.table(op, ngrams.rows), ngrams.complete)
        width = config.num_tables * config.table_width
        joined = shaped(op.Reshape(rows, [-1, 1, width]), [TOKENS, 1, width])
        key, value = op.Split(self.project(op, joined), [config.d_model, config.d_model], axis=-1, _outputs=2)
        key = op.SimplifiedLayerNormalization(key, self._key_gain, axis=-1, epsilon=EPSILON, stash_type=1)
        reach = (ENGRAM_TAPS - 1) * config.max_order
        values, taps = op.Concat(history, value, axis=0), self.taps(op)
        tapped = None
        for tap in range(ENGRAM_TAPS):
            back = tap * config.max_order
            shifted = op.Slice(values, [reach - back], [-back or OPSET_END], [0])
            shaped(shifted, [TOKENS, 1, config.d_model])
            if ngrams.reachable is not None:
                shifted = op.Mul(shifted, ngrams.reachable[tap])
            term = op.Mul(shifted, op.Gather(taps, tap, axis=0))
            tapped = term if tapped is None else op.Add(tapped, term)
        assert tapped is not None  # noqa: S101 - there are always taps
        return SitePair(key, tapped, op.Slice(values, [-reach], [OPSET_END], [0]))


def gate_in(op: OpBuilder, u: ir.Value, pair: SitePair, ones: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What the site adds to the block input ``u`` [T, 1, C], and the sum."""
    normed = op.SimplifiedLayerNormalization(u, ones, axis=-1, epsilon=EPSILON, stash_type=1)
    agreement = op.ReduceSum(op.Mul(normed, pair.key), [-1], keepdims=1)
    added = op.Mul(op.Sigmoid(agreement), pair.value)
    return added, op.Add(u, added)


def key_gain(width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[C]: the gain that makes a dot product of normed vectors their agreement."""
    return np.full(width, 1 / math.sqrt(width), np.float32)
