"""The readout graph: what a head makes of the pooling that a decoding graph carried along."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.builder import describe, finish, new_builder
from exporter.graph.choice import active_input, head_rows
from exporter.graph.contract import pool_contract
from exporter.graph.heads import Readout
from exporter.graph.source import Source

__all__ = ["LadderReadout", "build_readout"]


class LadderReadout(nn.Module):
    """Pools in, head outputs out."""

    def __init__(self, source: Source, heads: Sequence[str]) -> None:
        """Take everything of the heads but their probes."""
        super().__init__()
        width = source.config.d_model
        self.unit = source.computed(f"ones[{width}]", np.ones(width, np.float32))
        self.readouts = [Readout(source, head, self.unit) for head in heads]
        self.heads = nn.ModuleList([*self.readouts])

    def forward(
        self, op: OpBuilder, pools: Sequence[tuple[ir.Value, ir.Value]], active: ir.Value | None = None
    ) -> list[ir.Value]:
        """Output [1, n] of each head, for its (denominator, numerator) over the ``active`` [L] blocks."""
        rows = None if active is None else head_rows(op, active)
        means = [op.Div(numerator, op.Unsqueeze(denominator, [2])) for denominator, numerator in pools]
        return [readout(op, mean, rows) for readout, mean in zip(self.readouts, means, strict=True)]


def build_readout(source: Source, heads: Sequence[str], *, elastic: bool = False) -> ir.Model:
    """Build the readout graph of a ladder.

    Inputs, for each head: ``present_pool.<head>.denominator`` [rows, probes] and ``.numerator``
    [rows, probes, C], as the decoding graph gives them; of an elastic graph ``active_blocks`` [L] bool, the
    blocks that ran. Outputs, by the head's name, as of the scoring graph.

    Args:
        source: of the parameters; what is not in its weights file yet is appended.
        heads: which heads, each pooled by the decoding graph.
        elastic: whether blocks may stand idle.
    """
    builder = new_builder("ladder_readout")
    pools = []
    for head in heads:
        _, denominator, numerator = (
            builder.input(state.present, ir.DataType.FLOAT, state.graph_shape("", elastic=elastic))
            if index
            else None
            for index, state in enumerate(pool_contract(source.config, head))
        )
        pools.append((denominator, numerator))
    active = active_input(builder, source.config.num_layers) if elastic else None
    module = LadderReadout(source, heads)
    outputs = module(builder.op, pools, active)
    for head, readout, value in zip(heads, module.readouts, outputs, strict=True):
        builder.add_output(value, head)
        describe(value, ir.DataType.FLOAT, [1, readout.project.outputs])
    return finish(builder)
