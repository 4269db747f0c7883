"""The blocks of a ladder, from token ids to the stream: what every graph of a bundle shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.attention import Attention, BlockCache, Timing
from exporter.graph.engram import EngramSite, Ngrams, SitePair, gate_in, key_gain
from exporter.graph.lanes import Lanes
from exporter.graph.linear import TiedEmbedding
from exporter.graph.monarch import Monarch, permutations
from exporter.graph.source import Source
from exporter.layout import EMBEDDING

__all__ = ["Block", "Step", "Trunk", "Walk"]


class Step(NamedTuple):
    """The stream after a block, and what the block leaves for the next call."""

    stream: ir.Value
    """[T, n, C]."""
    cache: BlockCache


class Walk(NamedTuple):
    """What came of carrying tokens through a ladder."""

    x0: ir.Value
    """[T, 1, C]: the scaled embedding."""
    steps: list[Step]
    histories: list[ir.Value]
    """Per engram site [9, 1, C]: the values that the next call needs."""

    def cells(self, op: OpBuilder) -> ir.Value:
        """[depth + 1, T, C]: the embedding, then the lane mean after each block; the heads read them."""
        means = [op.ReduceMean(step.stream, [1], keepdims=1) for step in self.steps]
        return op.Transpose(op.Concat(self.x0, *means, axis=1), perm=[1, 0, 2])


class Block(nn.Module):
    """One block: lanes in, engram, attention, MLP, lanes out."""

    def __init__(self, source: Source, block: int, shared: Trunk) -> None:
        """Take the block's parameters, and the constants that all blocks share."""
        super().__init__()
        self._unit = shared.unit
        self.lanes = Lanes(source, block, shared.unit_flat)
        self.attention = Attention(source, block, shared.unit_head)
        self.mlp = Monarch(source, block, (shared.first_order, shared.second_order))

    def forward(
        self,
        op: OpBuilder,
        stream: ir.Value,
        pair: SitePair | None,
        cache: BlockCache,
        timing: Timing,
    ) -> Step:
        """Carry the stream through the block."""
        u, post, carry = self.lanes(op, stream)
        added = None
        if pair is not None:
            added, u = gate_in(op, u, pair, self._unit)
        branch, new = self.attention(op, u, cache, timing)
        y = op.Add(branch, self.mlp(op, u, branch))
        if added is not None:
            y = op.Add(y, added)
        return Step(self.lanes.write(op, stream, post, carry, y), new)


class Trunk(nn.Module):
    """Embedding, engram sites and blocks."""

    def __init__(self, source: Source) -> None:
        """Take the parameters of everything below the heads."""
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
        self.blocks = nn.ModuleList([Block(source, block, self) for block in range(config.num_layers)])

    def forward(
        self,
        op: OpBuilder,
        ids: ir.Value,
        ngrams: Ngrams | None,
        histories: Sequence[ir.Value],
        caches: Sequence[BlockCache],
        timing: Timing,
    ) -> Walk:
        """Carry ``ids`` [1, T] through the engram sites and all blocks."""
        config = self.config
        rows = self.embedding(op, op.Reshape(ids, [-1, 1]))
        x0 = op.Mul(rows, float(np.float32(math.sqrt(config.d_model))))
        stream = op.Expand(x0, [1, config.mhc_lanes, 1])
        pairs = []
        if ngrams is not None:
            pairs = [site(op, ngrams, past) for site, past in zip(self.sites, histories, strict=True)]
        steps = []
        for number, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
            site = config.site_of(number)
            steps.append(block(op, stream, None if site is None else pairs[site], cache, timing))
            stream = steps[-1].stream
        return Walk(x0, steps, [pair.history for pair in pairs])


def _ones(source: Source, width: int) -> nn.Parameter:
    return source.computed(f"ones[{width}]", np.ones(width, np.float32))
