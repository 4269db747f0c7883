"""The scoring graph: a whole sequence in, the outputs of the probe heads out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.config import LadderConfig
from exporter.graph.attention import BlockCache, Timing
from exporter.graph.builder import OPSET_END, TOKENS, describe, finish, new_builder
from exporter.graph.choice import active_input
from exporter.graph.clock import positions_from, rotary_angles
from exporter.graph.engram import Ngrams, hash_ngrams
from exporter.graph.heads import ProbeHead
from exporter.graph.source import Source
from exporter.graph.trunk import Trunk
from exporter.layout import ENGRAM_TAPS

__all__ = ["LadderScore", "build_score"]

_HIDDEN = float(np.finfo(np.float32).min)
"""Added to a score that must not count; finite, so that a row of nothing else still gives numbers."""


class LadderScore(nn.Module):
    """Token ids of a whole sequence in, head outputs out; padding is hidden from everything."""

    def __init__(self, source: Source, heads: Sequence[str], *, elastic: bool = False) -> None:
        """Take every parameter but the final norm."""
        super().__init__()
        config = self.config = source.config
        self.trunk = Trunk(source, elastic=elastic)
        self.probes = [ProbeHead(source, head, self.trunk.unit) for head in heads]
        self.heads = nn.ModuleList([*self.probes])
        tail, reach = max(config.qkv_conv_taps - 1, 0), 0
        if config.engram_layers:
            reach = (ENGRAM_TAPS - 1) * config.max_order
        self.no_taps = source.computed("start/taps", np.zeros((tail, 1, config.qkv_width), np.float32))
        self.no_history = source.computed("start/engram", np.zeros((reach, 1, config.d_model), np.float32))

    def forward(self, op: OpBuilder, ids: ir.Value, active: ir.Value | None = None) -> list[ir.Value]:
        """Output [1, n] of each head, for ``ids`` [1, T] and the blocks that are ``active`` [L], or all."""
        config = self.config
        count, positions = positions_from(op, ids, None)
        flat = op.Reshape(ids, [-1])
        kept = op.Cast(op.Not(op.Equal(flat, config.pad_token_id)), to=ir.DataType.FLOAT)
        hidden = op.Mul(op.Sub(1.0, kept), _HIDDEN)
        timing = self._timing(op, positions, count, kept, hidden)
        ngrams, histories = None, []
        if config.engram_layers:
            ngrams = _ngrams(op, config, flat, kept)
            histories = [self.no_history for _ in config.engram_layers]
        caches = [BlockCache(None, None, self.no_taps)] * config.num_layers
        walk = self.trunk(op, ids, ngrams, histories, caches, timing, active, cells=True)
        cells, rows = walk.cells(op), None if walk.choice is None else walk.choice.rows
        return [head(op, cells, op.Unsqueeze(hidden, [0, 2]), rows) for head in self.probes]

    def _timing(
        self,
        op: OpBuilder,
        positions: ir.Value,
        count: ir.Value,
        kept: ir.Value,
        hidden: ir.Value,
    ) -> Timing:
        total = op.Cast(count, to=ir.DataType.INT32)
        last = op.Sub(total, op.Constant(value=ir.tensor(np.array([1], np.int32))))
        cosine, sine = rotary_angles(op, self.config, positions)
        square = op.Concat([1, 1], count, count, axis=0)
        bias = op.Expand(op.Unsqueeze(hidden, [0, 1, 2]), square)
        scalar = op.Squeeze(total, [0])
        return Timing(
            cosine,
            sine,
            last=dict.fromkeys((True, False), last),
            total=dict.fromkeys((True, False), scalar),
            bias=bias,
            kept=op.Unsqueeze(kept, [1, 2]),
        )


def _ngrams(op: OpBuilder, config: LadderConfig, ids: ir.Value, kept: ir.Value) -> Ngrams:
    """N-grams of a whole sequence ``ids`` [T], those that start at padding hidden."""
    reach = max(config.max_order - 1, (ENGRAM_TAPS - 1) * config.max_order)
    ahead = op.Concat(op.Constant(value=ir.tensor(np.zeros(reach, np.float32))), kept, axis=0)

    def back(distance: int) -> ir.Value:
        """[T, 1]: 1 where the position ``distance`` before exists and is no padding."""
        return op.Unsqueeze(op.Slice(ahead, [reach - distance], [-distance or OPSET_END], [0]), [1])

    columns = [back(order - 1) for order in config.engram_orders for _ in range(config.tables_per_order)]
    complete = columns[0] if len(columns) == 1 else op.Concat(*columns, axis=1)
    reachable = [op.Unsqueeze(back(tap * config.max_order), [2]) for tap in range(ENGRAM_TAPS)]
    seen = ids
    if config.max_order > 1:
        seen = op.Concat([0] * (config.max_order - 1), ids, axis=0)
    return Ngrams(hash_ngrams(op, config, seen), op.Unsqueeze(complete, [2]), reachable)


def build_score(source: Source, heads: Sequence[str], *, elastic: bool = False) -> ir.Model:
    """Build the scoring graph of a ladder.

    Inputs: ``input_ids`` [1, T] int64, bos first, without eos; of an elastic graph ``active_blocks`` [L]
    bool, the blocks that run. Outputs, for the heads asked for:
    ``confidence`` [1, 1] and ``router`` [1, 3], logits; ``embedding`` [1, embedding_dim] of length 1.

    Args:
        source: of the parameters; what is not in its weights file yet is appended.
        heads: which heads, each carried by the ladder.
        elastic: whether blocks may stand idle.
    """
    builder = new_builder("ladder_score")
    ids = builder.input("input_ids", ir.DataType.INT64, [1, TOKENS])
    active = active_input(builder, source.config.num_layers) if elastic else None
    module = LadderScore(source, heads, elastic=elastic)
    outputs = module(builder.op, ids, active)
    for head, probe, value in zip(heads, module.probes, outputs, strict=True):
        builder.add_output(value, head)
        describe(value, ir.DataType.FLOAT, [1, probe.readout.project.outputs])
    return finish(builder)
