"""The blocks of a ladder, from token ids to the stream: what every graph of a bundle shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.attention import Attention, BlockCache, Timing
from exporter.graph.builder import TOKENS, shaped
from exporter.graph.choice import Choice, branch, choose, settle
from exporter.graph.engram import EngramSite, Ngrams, SitePair, gate_in, key_gain
from exporter.graph.lanes import Lanes, lane_biases
from exporter.graph.linear import TiedEmbedding
from exporter.graph.monarch import Monarch, permutations
from exporter.graph.source import Source
from exporter.layout import EMBEDDING

__all__ = ["Block", "Step", "Trunk", "Walk"]


class Step(NamedTuple):
    """The stream before or after a block, and what the block remembers between two calls."""

    stream: ir.Value
    """[T, n, C]."""
    cache: BlockCache
    history: ir.Value | None
    """[9, 1, C] of its engram site, where it has one."""
    mean: ir.Value | None
    """[T, 1, C] over the lanes, where a probe head reads it; without a row where the block is idle."""

    @property
    def parts(self) -> list[ir.Value | None]:
        """All that it may hold, in a fixed order."""
        return [self.stream, *self.cache, self.history, self.mean]

    def values(self, like: Step | None = None) -> list[ir.Value]:
        """Those of its parts that are there, and that another step has."""
        other = self if like is None else like
        pairs = zip(self.parts, other.parts, strict=True)
        return [mine for mine, its in pairs if mine is not None and its is not None]

    def replaced(self, values: Sequence[ir.Value]) -> Step:
        """The same parts with other values."""
        rest = iter(values)
        stream, key, value, taps, history, mean = (None if p is None else next(rest) for p in self.parts)
        assert stream is not None  # noqa: S101 - it is always there
        return Step(stream, BlockCache(key, value, taps), history, mean)


class Walk(NamedTuple):
    """What came of carrying tokens through a ladder."""

    x0: ir.Value
    """[T, 1, C]: the scaled embedding."""
    steps: list[Step]
    choice: Choice | None
    """Of the blocks that run; None where all do."""

    @property
    def histories(self) -> list[ir.Value]:
        """Per engram site [9, 1, C]: the values that the next call needs."""
        return [step.history for step in self.steps if step.history is not None]

    def cells(self, op: OpBuilder) -> ir.Value:
        """[depth + 1, T, C]: the embedding, then the lane mean after each block that ran, for the heads."""
        means = [step.mean for step in self.steps if step.mean is not None]
        return op.Transpose(op.Concat(self.x0, *means, axis=1), perm=[1, 0, 2])


class Block(nn.Module):
    """One block: lanes in, engram, attention, MLP, lanes out."""

    def __init__(self, source: Source, block: int, shared: Trunk, *, elastic: bool) -> None:
        """Take the block's parameters, and the constants that all blocks share."""
        super().__init__()
        self.number, self._unit = block, shared.unit
        self.lanes = Lanes(source, block, shared.unit_flat, own=None if elastic else block)
        self.attention = Attention(source, block, shared.unit_head)
        self.mlp = Monarch(source, block, (shared.first_order, shared.second_order))

    def forward(
        self,
        op: OpBuilder,
        stream: ir.Value,
        pair: SitePair | None,
        cache: BlockCache,
        timing: Timing,
        choice: Choice | None,
        *,
        cells: bool,
    ) -> Step:
        """Carry the stream through the block; ``cells`` says that a probe head reads what comes out."""
        bias = None if choice is None else op.Gather(choice.biases, self.number, axis=0)
        u, post, carry = self.lanes(op, stream, bias)
        added = None
        if pair is not None:
            added, u = gate_in(op, u, pair, self._unit)
        attended, new = self.attention(op, u, cache, timing)
        y = op.Add(attended, self.mlp(op, u, attended))
        if added is not None:
            y = op.Add(y, added)
        history = None if pair is None else pair.history
        after = self.lanes.write(op, stream, post, carry, y)
        mean = op.ReduceMean(after, [1], keepdims=1) if cells else None
        return Step(after, new, history, mean)


class Trunk(nn.Module):
    """Embedding, engram sites and blocks."""

    def __init__(self, source: Source, *, elastic: bool = False) -> None:
        """Take the parameters of everything below the heads; ``elastic`` says that blocks may stand idle."""
        super().__init__()
        config = self.config = source.config
        width = config.d_model
        self.unit_flat = _ones(source, config.mhc_lanes * width)
        self.unit = _ones(source, width)
        self.unit_head = _ones(source, config.qk_head_dim)
        self.key_gain = source.computed("engram/key_gain", key_gain(width))
        self.first_order, self.second_order = permutations(source)
        self.embedding = TiedEmbedding(source, EMBEDDING)
        self.sites = nn.ModuleList(
            [EngramSite(source, site, self.key_gain) for site in range(len(config.engram_layers))]
        )
        self.blocks = nn.ModuleList(
            [Block(source, block, self, elastic=elastic) for block in range(config.num_layers)]
        )
        if elastic:
            self.lane_biases = lane_biases(source)

    def forward(
        self,
        op: OpBuilder,
        ids: ir.Value,
        ngrams: Ngrams | None,
        histories: Sequence[ir.Value],
        caches: Sequence[BlockCache],
        timing: Timing,
        active: ir.Value | None = None,
        *,
        cells: bool = False,
    ) -> Walk:
        """Carry ``ids`` [1, T] through the engram sites and blocks.

        Args:
            op: builder.
            ids: token ids.
            ngrams: that end at them; None without engram sites.
            histories: per engram site.
            caches: per block; without keys, nothing is remembered.
            timing: of the call.
            active: [L] bool, the blocks that run; None for all.
            cells: whether a probe head reads what each block leaves.
        """
        config = self.config
        column = shaped(op.Reshape(ids, [-1, 1]), [TOKENS, 1], ir.DataType.INT64)
        rows = self.embedding(op, column)
        x0 = op.Mul(rows, float(np.float32(math.sqrt(config.d_model))))
        stream = op.Expand(x0, [1, config.mhc_lanes, 1])
        choice, none = None, None
        if active is not None:
            choice = choose(op, active, self.lane_biases, config.num_layers, config.mhc_lanes)
            none = op.Slice(x0, [0], [0], [1]) if cells else None
        steps: list[Step] = []
        for number, cache in enumerate(caches):
            site = config.site_of(number)
            past = Step(stream, cache, None if site is None else histories[site], none)
            steps.append(self._step(op, number, ngrams, past, timing, choice, cells=cells))
            stream = steps[-1].stream
        return Walk(x0, steps, choice)

    def _step(
        self,
        op: OpBuilder,
        number: int,
        ngrams: Ngrams | None,
        past: Step,
        timing: Timing,
        choice: Choice | None,
        *,
        cells: bool,
    ) -> Step:
        """What a block, with its engram site if it has one, makes of the stream and its states before."""
        site = self.config.site_of(number)

        def run(inner: OpBuilder) -> Step:
            pair = None
            if ngrams is not None and site is not None and past.history is not None:
                pair = self.sites[site](inner, ngrams, past.history)
            block = self.blocks[number]
            return block(inner, past.stream, pair, past.cache, timing, choice, cells=cells)

        if choice is None or number in {0, self.config.num_layers - 1}:
            return run(op)
        settle(op.builder, self.blocks[number])
        if site is not None:
            settle(op.builder, self.sites[site])
        carried = past
        if past.cache.key is None:
            carried = Step(past.stream, BlockCache(None, None, None), None, past.mean)
        idle = carried.values()
        outputs = branch(
            op,
            choice.flags[number],
            lambda inner: run(inner).values(like=carried),
            lambda inner: [inner.Identity(value) for value in idle],
            len(idle),
        )
        return carried.replaced(outputs)


def _ones(source: Source, width: int) -> nn.Parameter:
    return source.computed(f"ones[{width}]", np.ones(width, np.float32))
