"""The decoding graph: one for prefill and decode, with an explicit state for every block kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.attention import BlockCache
from exporter.graph.builder import OPSET_END, TOKENS, describe, finish, new_builder
from exporter.graph.choice import ACTIVE, active_input
from exporter.graph.clock import ngrams_at, positions_from, timing_at
from exporter.graph.contract import Rows, pool_contract, state_contract
from exporter.graph.heads import Pool, PoolStep
from exporter.graph.lanes import EPSILON
from exporter.graph.source import Constant, Source
from exporter.graph.trunk import Step, Trunk
from exporter.layout import FINAL_NORM

__all__ = ["CACHED", "LOGITS_KEPT", "LadderModel", "build_model"]

CACHED = {True: "cached_global", False: "cached_local"}
"""Inputs that say how many positions the caches hold, per (is the block global)."""

LOGITS_KEPT = "logits_kept"
"""The input that says how many of the last positions get logits."""


class LadderModel(nn.Module):
    """Token ids and states in, logits and states out."""

    def __init__(self, source: Source, pooled: Sequence[str], *, elastic: bool = False) -> None:
        """Take every parameter but the probe heads'; of those only the probes that it pools with."""
        super().__init__()
        self.config = source.config
        self.pools = {head: PoolStep(source, head) for head in pooled}
        self.pooling = nn.ModuleList([*self.pools.values()])
        self.trunk = Trunk(source, elastic=elastic)
        self.final_norm = Constant(source, FINAL_NORM, None, (source.config.d_model,))

    def forward(
        self,
        op: OpBuilder,
        ids: ir.Value,
        inputs: Mapping[str, ir.Value],
        rows: Rows,
    ) -> tuple[ir.Value, dict[str, ir.Value]]:
        """Logits [1, N, logits width] of the ``rows``, and the present states by name."""
        config = self.config
        present: dict[str, ir.Value] = {}
        count, positions = positions_from(op, ids, inputs["position"])
        cached = {kind: inputs[name] for kind, name in CACHED.items() if name in inputs}
        timing = timing_at(op, config, positions, count, cached)
        ngrams, sites = None, range(len(config.engram_layers))
        if sites:
            seen = ids
            if config.max_order > 1:
                seen = op.Concat(inputs["past_ids"], ids, axis=1)
                present["present_ids"] = op.Slice(seen, [1 - config.max_order], [OPSET_END], [1])
            ngrams = ngrams_at(op, config, op.Reshape(seen, [-1]), positions)
        histories = [inputs[f"past_engram.{site}"] for site in sites]
        caches = [_past_cache(inputs, block) for block in range(config.num_layers)]
        active = inputs.get(ACTIVE)
        walk = self.trunk(op, ids, ngrams, histories, caches, timing, active, cells=bool(self.pools))
        kept = None if walk.choice is None else walk.choice.rows
        present |= {f"present_engram.{site}": history for site, history in enumerate(walk.histories)}
        for block, step in enumerate(walk.steps):
            present |= _present_cache(step, block)
        if self.pools:
            cells = walk.cells(op)
            for head, step in self.pools.items():
                states = pool_contract(config, head)
                pool = step(op, cells, Pool(*(inputs[state.past] for state in states)), kept)
                names = [state.present for state in states]
                present |= dict(zip(names, pool, strict=True))
        stream = walk.steps[-1].stream
        if rows is not Rows.ALL:
            start = op.Neg(inputs[LOGITS_KEPT]) if rows is Rows.KEPT else [-1]
            stream = op.Slice(stream, start, [OPSET_END], [0])
        mean = op.ReduceMean(stream, [1], keepdims=0)
        gain = op.Add(self.final_norm(op), 1.0)
        x = op.SimplifiedLayerNormalization(mean, gain, axis=-1, epsilon=EPSILON, stash_type=1)
        return op.Unsqueeze(self.trunk.embedding.logits(op, x), [0]), present


def _past_cache(inputs: Mapping[str, ir.Value], block: int) -> BlockCache:
    key, value = (inputs[f"past_key_values.{block}.{kind}"] for kind in ("key", "value"))
    return BlockCache(key, value, inputs.get(f"past_taps.{block}"))


def _present_cache(step: Step, block: int) -> dict[str, ir.Value]:
    states = {
        f"present.{block}.key": step.cache.key,
        f"present.{block}.value": step.cache.value,
        f"present_taps.{block}": step.cache.taps,
    }
    return {name: value for name, value in states.items() if value is not None}


def build_model(
    source: Source, *, rows: Rows = Rows.LAST, pooled: Sequence[str] = (), elastic: bool = False
) -> ir.Model:
    """Build the decoding graph of a ladder.

    Inputs: ``input_ids`` [1, T] int64; ``position`` [1] int64, the number of tokens before; for the kinds
    of block there are, ``cached_global`` and ``cached_local`` [1] int64, the positions that their caches
    hold; ``logits_kept`` [1] int64, the number of last positions that get logits, where ``rows`` says so;
    ``active_blocks`` [L] bool, the blocks that run, of an elastic graph; the past states of
    :func:`~exporter.graph.contract.state_contract`. Outputs: ``logits`` [1, N, V] float32 and the present
    states. A state of an idle block comes back as it is given.

    Args:
        source: of the parameters; what is not in its weights file yet is appended.
        rows: positions that get logits.
        pooled: probe heads whose pooling over time is carried along as states.
        elastic: whether blocks may stand idle; the first and the last always run.
    """
    config = source.config
    builder = new_builder("ladder")
    ids = builder.input("input_ids", ir.DataType.INT64, [1, TOKENS])
    inputs = {"position": builder.input("position", ir.DataType.INT64, [1])}
    for kind in sorted({config.window(block) == 0 for block in range(config.num_layers)}, reverse=True):
        inputs[CACHED[kind]] = builder.input(CACHED[kind], ir.DataType.INT64, [1])
    if rows is Rows.KEPT:
        inputs[LOGITS_KEPT] = builder.input(LOGITS_KEPT, ir.DataType.INT64, [1])
    if elastic:
        inputs[ACTIVE] = active_input(builder, config.num_layers)
    contract = state_contract(config, pooled)
    for state in contract:
        shape = state.graph_shape("past", elastic=elastic)
        inputs[state.past] = builder.input(state.past, state.element_type, shape)
    model = LadderModel(source, pooled, elastic=elastic)
    logits, present = model(builder.op, ids, inputs, rows)
    builder.add_output(logits, "logits")
    extents: dict[Rows, int | str] = {Rows.LAST: 1, Rows.ALL: TOKENS, Rows.KEPT: "kept"}
    describe(logits, ir.DataType.FLOAT, [1, extents[rows], config.logits_width])
    for state in contract:
        value = present[state.present]
        builder.add_output(value, state.present)
        describe(value, state.element_type, state.graph_shape("present", elastic=elastic))
    return finish(builder)
