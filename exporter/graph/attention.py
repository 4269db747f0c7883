"""Gated grouped-query attention with causal taps, head norms and rotary positions."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.config import LadderConfig
from exporter.graph.builder import OPSET_END, TOKENS, shaped
from exporter.graph.lanes import EPSILON
from exporter.graph.linear import MICROSOFT, Linear
from exporter.graph.source import Constant, Source
from exporter.layout import BLOCK

__all__ = ["Attention", "BlockCache", "Timing", "cache_width"]

_WIDTH_MULTIPLE = 8
"""GroupQueryAttention's kernel asks for it on every CPU."""


def cache_width(config: LadderConfig) -> int:
    """Width of a head in the key and value caches: one for both, since the operator knows only one.

    The narrower of keys and values is padded with zeros, which change no product.
    """
    widest = max(config.qk_head_dim, config.v_head_dim)
    return -(-widest // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


class Timing(NamedTuple):
    """Where in the sequence a call is, computed once for all blocks."""

    cosine: ir.Value
    """[T, qk / 2]."""
    sine: ir.Value
    last: dict[bool, ir.Value]
    """Per (is it a global block): [1] int32, filled cache positions after this call, less one."""
    total: dict[bool, ir.Value]
    """Per (is it a global block): scalar int32, filled cache positions after this call."""
    bias: ir.Value | None = None
    """[1, 1, T, T]: added to the scores, where padding is hidden."""
    kept: ir.Value | None = None
    """[T, 1, 1]: 0 at padding, else 1, where padding is hidden."""


class BlockCache(NamedTuple):
    """Caches of a block, before or after a call; None where the graph keeps none."""

    key: ir.Value | None
    """[1, K, P, w], normed and rotated."""
    value: ir.Value | None
    """[1, K, P, w]."""
    taps: ir.Value | None
    """[taps - 1, 1, q + k + v]: the last rows before the taps."""


class Attention(nn.Module):
    """The attention branch of one block."""

    def __init__(self, source: Source, block: int, ones: nn.Parameter) -> None:
        """Take the block's parameters; ``ones`` [qk] is the unit gain of the head norms."""
        super().__init__()
        config = self.config = source.config
        self.window = config.window(block)
        self._ones = ones
        prefix = f"{BLOCK}/self_attn"
        self.norm = Constant(source, f"{BLOCK}/ZCRMSNorm_0/scale", block, (config.d_model,))
        names = [f"{prefix}/{part}_proj/kernel" for part in ("q", "k", "v", "gate")]
        self.project = Linear(source, names, block)
        if config.qkv_conv_taps:
            shape = (config.qkv_conv_taps, 1, config.qkv_width)
            self.taps = Constant(source, [f"{prefix}/{part}_taps" for part in "qkv"], block, shape)
        self.q_norm = Constant(source, f"{prefix}/q_norm/scale", block, (1, config.qk_head_dim))
        self.k_norm = Constant(source, f"{prefix}/k_norm/scale", block, (1, config.qk_head_dim))
        self.out = Linear(source, f"{prefix}/out_proj/kernel", block)
        self.out_norm = Constant(source, f"{BLOCK}/post_attn_norm/scale", block, (config.d_model,))
        self.strength = Constant(source, f"{BLOCK}/attn_gate", block, (1,))

    def forward(
        self,
        op: OpBuilder,
        u: ir.Value,
        cache: BlockCache,
        timing: Timing,
    ) -> tuple[ir.Value, BlockCache]:
        """The branch's output [T, 1, C] for ``u`` [T, 1, C], not yet added to it, and the new caches."""
        config = self.config
        gain = op.Add(self.norm(op), 1.0)
        h = op.SimplifiedLayerNormalization(u, gain, axis=-1, epsilon=EPSILON, stash_type=1)
        raw, gate = op.Split(self.project(op, h), [config.qkv_width, config.o_width], axis=-1, _outputs=2)
        tapped, taps = self._taps(op, raw, cache.taps, timing)
        q, k, v = self._heads(op, tapped, timing)
        mixed, key, value = self._mix(op, q, k, v, cache, timing)
        gated = op.Mul(mixed, op.Sigmoid(gate))
        strength = op.Mul(op.Add(self.out_norm(op), 1.0), op.Sigmoid(self.strength(op)))
        branch = op.SimplifiedLayerNormalization(
            self.out(op, gated), strength, axis=-1, epsilon=EPSILON, stash_type=1
        )
        return branch, BlockCache(key, value, taps)

    def _taps(
        self,
        op: OpBuilder,
        raw: ir.Value,
        earlier: ir.Value | None,
        timing: Timing,
    ) -> tuple[ir.Value, ir.Value | None]:
        """Causal taps over q, k and v side by side [T, 1, w], and the rows that the next call needs."""
        count = self.config.qkv_conv_taps
        if not count:
            return raw, None
        taps = self.taps(op)
        tapped = op.Mul(raw, op.Gather(taps, 0, axis=0))
        if count == 1:
            return tapped, None
        visible = raw if timing.kept is None else op.Mul(raw, timing.kept)
        rows = op.Concat(earlier, visible, axis=0)
        for back in range(1, count):
            shifted = op.Slice(rows, [count - 1 - back], [-back], [0])
            shaped(shifted, [TOKENS, 1, self.config.qkv_width])
            tapped = op.Add(tapped, op.Mul(shifted, op.Gather(taps, back, axis=0)))
        return tapped, op.Slice(rows, [1 - count], [OPSET_END], [0])

    def _heads(self, op: OpBuilder, tapped: ir.Value, timing: Timing) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Queries, keys (normed, rotated) and values [1, T, heads * w], padded to the cache's width."""
        config, width = self.config, cache_width(self.config)
        heads, qk = config.num_heads + config.num_kv_heads, config.qk_head_dim
        both, v = op.Split(tapped, [heads * qk, config.v_width], axis=-1, _outputs=2)
        both = shaped(op.Reshape(both, [-1, heads, qk]), [TOKENS, heads, qk])
        normed = op.SimplifiedLayerNormalization(both, self._ones, axis=-1, epsilon=EPSILON, stash_type=1)
        gains = op.Concat(
            op.Expand(self.q_norm(op), [config.num_heads, qk]),
            op.Expand(self.k_norm(op), [config.num_kv_heads, qk]),
            axis=0,
        )
        scaled = op.Reshape(op.Mul(normed, op.Add(gains, 1.0)), [1, -1, heads * qk])
        shaped(scaled, [1, TOKENS, heads * qk])
        rotated = op.RotaryEmbedding(scaled, [0], timing.cosine, timing.sine, **MICROSOFT)
        padded = self._pad(op, rotated, heads, qk)
        q, k = op.Split(padded, [config.num_heads * width, config.num_kv_heads * width], axis=-1, _outputs=2)
        return q, k, self._pad(op, v, config.num_kv_heads, config.v_head_dim)

    @staticmethod
    def _pad_to(width: int, narrow: int) -> list[int]:
        return [0, 0, 0, 0, 0, width - narrow]

    def _pad(self, op: OpBuilder, x: ir.Value, heads: int, narrow: int) -> ir.Value:
        """Heads [.., heads * narrow] in T rows -> [1, T, heads * w], zeros behind each."""
        width = cache_width(self.config)
        if narrow != width:
            rows = shaped(op.Reshape(x, [-1, heads, narrow]), [TOKENS, heads, narrow])
            x = shaped(op.Pad(rows, self._pad_to(width, narrow)), [TOKENS, heads, width])
        return shaped(op.Reshape(x, [1, -1, heads * width]), [1, TOKENS, heads * width])

    def _mix(
        self,
        op: OpBuilder,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        cache: BlockCache,
        timing: Timing,
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Attention over cached and new positions: [T, 1, heads * v] and the new caches."""
        config, everywhere = self.config, self.window == 0
        operands = [q, k, v, cache.key, cache.value, timing.last[everywhere], timing.total[everywhere]]
        if timing.bias is not None:
            operands += [None, None, None, timing.bias]
        mixed, key, value = op.GroupQueryAttention(
            *operands,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            scale=1 / math.sqrt(config.qk_head_dim),
            local_window_size=self.window or -1,
            do_rotary=0,
            _outputs=3,
            **MICROSOFT,
        )
        width = cache_width(config)
        if width != config.v_head_dim:
            mixed = op.Reshape(mixed, [-1, config.num_heads, width])
            shaped(mixed, [TOKENS, config.num_heads, width])
            mixed = op.Slice(mixed, [0], [config.v_head_dim], [2])
            shaped(mixed, [TOKENS, config.num_heads, config.v_head_dim])
        rows = shaped(op.Reshape(mixed, [-1, 1, config.o_width]), [TOKENS, 1, config.o_width])
        return rows, key, value
