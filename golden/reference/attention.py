"""Gated grouped-query attention with causal taps, head norms and rotary positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from golden.reference.norms import zcrms
from golden.reference.state import BlockState
from golden.reference.weights import Weights

__all__ = ["attend", "rotate"]


def attend(
    weights: Weights, block: int, u: Tensor, state: BlockState, position: int, keep: Tensor
) -> tuple[Tensor, BlockState]:
    """The attention branch of a block, added to its input.

    Args:
        weights: the ladder.
        block: number of the block in this ladder.
        u: [B, T, C], the block's input (after its engram).
        state: caches of the P = ``position`` earlier positions.
        position: number of earlier positions.
        keep: [B, P + T] bool, False where a position is padding that nothing may look at.

    Returns:
        ``u + attention`` [B, T, C] and the state after these tokens.
    """
    config = weights.config
    length = u.shape[1]
    h = zcrms(u, weights.block("ZCRMSNorm_0/scale", block))
    raw = torch.cat([h @ weights.block(f"self_attn/{part}_proj/kernel", block) for part in "qkv"], -1)
    taps, tail = _causal_taps(weights, block, raw, state.taps, keep)
    q, k, v = taps.split([config.q_width, config.k_width, config.v_width], -1)
    positions = torch.arange(position, position + length)
    q = zcrms(_heads(q, config.num_heads), weights.block("self_attn/q_norm/scale", block))
    k = zcrms(_heads(k, config.num_kv_heads), weights.block("self_attn/k_norm/scale", block))
    q, k = (rotate(x, positions, config.rope_theta) for x in (q, k))
    key = torch.cat([state.key, k], 2)
    value = torch.cat([state.value, _heads(v, config.num_kv_heads)], 2)

    repeats = config.num_heads // config.num_kv_heads
    scores = q @ key.repeat_interleave(repeats, 1).mT / math.sqrt(config.qk_head_dim)
    visible = _visible(config.window(block), positions, key.shape[2]) & keep[:, None, None, :]
    # A finite floor, so that a query that may see nothing gives numbers, which no one then reads.
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    mixed = scores.softmax(-1) @ value.repeat_interleave(repeats, 1)

    gate = torch.sigmoid(h @ weights.block("self_attn/gate_proj/kernel", block))
    out = (mixed.transpose(1, 2).flatten(2) * gate) @ weights.block("self_attn/out_proj/kernel", block)
    out = zcrms(out, weights.block("post_attn_norm/scale", block))
    strength = torch.sigmoid(weights.block("attn_gate", block))
    return u + strength * out, BlockState(key, value, tail)


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * w] -> [B, heads, T, w]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _causal_taps(
    weights: Weights, block: int, raw: Tensor, earlier: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """Per-channel causal taps over q, k and v side by side; also the rows the next call needs."""
    count, length = weights.config.qkv_conv_taps, raw.shape[1]
    if not count:
        return raw, earlier
    taps = torch.cat([weights.block(f"self_attn/{part}_taps", block) for part in "qkv"], -1)
    rows = torch.cat([earlier, raw], 1)
    kept = torch.cat([torch.ones(raw.shape[0], count - 1), keep[:, -length:].float()], 1)[..., None]
    tapped = taps[0] * raw
    for j in range(1, count):
        start = count - 1 - j
        tapped = tapped + taps[j] * (rows * kept)[:, start : start + length]
    return tapped, rows[:, length:]


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding, pairs (i, i + w/2), of x [B, heads, T, w] at ``positions`` [T]."""
    half = x.shape[-1] // 2
    frequency = 1.0 / theta ** (torch.arange(half, dtype=torch.float32) * 2 / x.shape[-1])
    angle = positions[:, None].float() * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _visible(window: int, queries: Tensor, keys: int) -> Tensor:
    """[T, P + T] bool: causal, and within ``window`` positions where it is not 0."""
    distance = queries[:, None] - torch.arange(keys)[None, :]
    causal = distance >= 0
    return causal & (distance < window) if window else causal
