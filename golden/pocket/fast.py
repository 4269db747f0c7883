"""The reference's forward pass, rearranged for training on few CPU cores.

It computes what ``golden.reference`` computes, about three times as fast: matrices that are applied
one after the other, with nothing but a gain or a permutation in between, are multiplied once per
step instead of once per token, and the lanes' mixtures become batched products. Tests hold logits
and gradients to the reference's; nothing but training and evaluation goes through here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from exporter.layout import EMBEDDING, FINAL_NORM, Axis
from golden.pocket.sinkhorn import scaling_sinkhorn
from golden.reference import State, TensorLadder, model
from golden.reference.attention import rotate
from golden.reference.monarch import permutations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.config import LadderConfig
    from exporter.ladder import Array
    from golden.pocket.padding import Batch
    from golden.reference import Weights

__all__ = ["RowLadder", "answer_logits", "cells_of", "final_state"]

_OWN_LANE = 4.0
_EPSILON = 1e-6

Pair = tuple[Tensor, Tensor]


class RowLadder(TensorLadder):
    """A ladder of tensors that is split into rows once, so that a gradient is stacked once."""

    def __init__(self, config: LadderConfig, tensors: Mapping[str, Tensor]) -> None:
        """Wrap tensors under their checkpoint names."""
        super().__init__(config, tensors)
        stacked = (name for name, spec in self.layout.items() if spec.axis is Axis.BLOCKS)
        self.rows = {name: tensors[name].unbind(0) for name in stacked}

    def read(self, name: str, row: int | None = None) -> Array:
        """Return the tensor, or one row of it."""
        if row is None or name not in self.rows:
            return super().read(name, row)
        return cast("Array", self.rows[name][row])


class _Rms(torch.autograd.Function):
    """``x / sqrt(mean(x^2) + 1e-6)`` with a gradient of three passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        """Norm over the last axis."""
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        inverse = square.div_(x.shape[-1]).add_(_EPSILON).rsqrt_()
        y: Tensor = x * inverse
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        """Project the gradient off the output, and scale."""
        y, inverse = ctx.saved_tensors
        return torch.addcmul(grad, y, (grad * y).mean(-1, keepdim=True), value=-1).mul_(inverse)


def _rms(x: Tensor) -> Tensor:
    return cast("Tensor", _Rms.apply(x))  # type: ignore[no-untyped-call]


class _Forward:
    """One forward pass: what every block of it shares, and the parts of a block."""

    def __init__(self, weights: Weights, batch: int, length: int, keep: Tensor | None) -> None:
        self.weights, self.config = weights, weights.config
        self.batch, self.length, self.keep = batch, length, keep
        distance = torch.arange(length)[:, None] - torch.arange(length)
        self.masks = {window: self._mask(distance, window) for window in {0, self.config.sliding_window}}
        self.positions = torch.arange(length)
        self.permutations = permutations(self.config.monarch_width, halves=bool(self.config.ladder_widths))

    def _mask(self, distance: Tensor, window: int) -> Tensor:
        """Additive mask [B or 1, T, T] of a window; 0 is no window."""
        visible = (distance >= 0) & (distance < window) if window else distance >= 0
        visible = visible[None] if self.keep is None else visible & self.keep[:, None, :]
        # A finite floor, as in the reference, for padding that may see nothing.
        return torch.where(visible, 0.0, torch.finfo(torch.float32).min)

    def block(self, number: int, stream: Tensor, pair: Pair | None) -> Tensor:
        """Carry the stream [N, n, C] through one block, N = B * T."""
        pre, post, carry = self._lanes(number, stream)
        u = torch.bmm(pre[:, None], stream)[:, 0]
        entered = u
        if pair is not None:
            agreement = (_rms(u) * pair[0]).sum(-1, keepdim=True) / math.sqrt(u.shape[-1])
            entered = torch.addcmul(u, torch.sigmoid(agreement), pair[1])
        attended = entered + self._attention(number, entered)
        y = attended + self._monarch(number, attended) - u
        mixture = torch.cat([carry, post[..., None]], -1)
        return torch.bmm(mixture, torch.cat([stream, y[:, None]], 1))

    def _lanes(self, number: int, stream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mixtures of a block: pre [N, n], post [N, n], carry [N, n, n]."""
        lanes, lane = self.config.mhc_lanes, self.weights.lane
        own = torch.zeros(lanes)
        own[number % lanes] = 1.0
        parts = ("pre", "post", "res")
        phi = torch.cat([lane(f"a_{p}", number) * lane(f"phi_{p}", number) for p in parts], -1)
        bias = [
            lane("b_pre", number) + _OWN_LANE * (2 * own - 1),
            lane("b_post", number) - _OWN_LANE * (1 - own),
            lane("b_res", number).flatten(),
        ]
        logits = torch.addmm(torch.cat(bias), _rms(stream.flatten(1)), phi)
        pre, post, carry = torch.split(logits, [lanes, lanes, lanes * lanes], -1)
        carry = scaling_sinkhorn(carry.reshape(-1, lanes, lanes))
        return torch.sigmoid(pre), 2 * torch.sigmoid(post), carry

    def _attention(self, number: int, u: Tensor) -> Tensor:
        """The attention branch of a block for u [N, C]."""
        config, get = self.config, self.weights.block
        gain = 1 + get("ZCRMSNorm_0/scale", number)
        kernels = [get(f"self_attn/{part}_proj/kernel", number) for part in ("q", "k", "v", "gate")]
        projected = _rms(u) @ (gain[:, None] * torch.cat(kernels, 1))
        raw, gate = torch.split(projected, [config.qkv_width, config.o_width], -1)
        tapped = self._tapped(number, raw.reshape(self.batch, self.length, -1))
        q, k = self._queries_and_keys(number, tapped[..., : config.q_width + config.k_width])
        v = tapped[..., config.q_width + config.k_width :]
        # Query heads of one kv head lie side by side: fold them into its rows instead of repeating it.
        groups, repeats = self.batch * config.num_kv_heads, config.num_heads // config.num_kv_heads
        mask = self.masks[config.window(number)][:, None, None].expand(
            self.batch, config.num_kv_heads, repeats, -1, -1
        )
        scores = torch.baddbmm(
            mask.reshape(groups, repeats * self.length, self.length),
            q.reshape(groups, repeats * self.length, -1),
            k.reshape(groups, self.length, -1).mT,
            alpha=1 / math.sqrt(config.qk_head_dim),
        )
        values = v.reshape(self.batch, self.length, config.num_kv_heads, -1).transpose(1, 2)
        values = values.reshape(groups, self.length, -1)
        mixed = torch.bmm(scores.softmax(-1), values)
        mixed = mixed.reshape(self.batch, config.num_heads, self.length, -1).transpose(1, 2)
        out = (mixed.reshape(-1, config.o_width) * torch.sigmoid(gate)) @ get(
            "self_attn/out_proj/kernel", number
        )
        strength = torch.sigmoid(get("attn_gate", number))
        return _rms(out) * (strength * (1 + get("post_attn_norm/scale", number)))

    def _tapped(self, number: int, raw: Tensor) -> Tensor:
        """Causal taps over q, k and v side by side [B, T, widths]."""
        count = self.config.qkv_conv_taps
        if not count:
            return raw
        taps = torch.cat([self.weights.block(f"self_attn/{part}_taps", number) for part in "qkv"], -1)
        rows = raw if self.keep is None else raw * self.keep[..., None]
        tapped = taps[0] * raw
        for j in range(1, count):
            tapped = torch.addcmul(tapped, taps[j], pad(rows, (0, 0, j, 0))[:, : self.length])
        return tapped

    def _queries_and_keys(self, number: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split heads, norm and rotate: [B, T, heads * w] to [B, heads, T, w], queries and keys."""
        config, get = self.config, self.weights.block
        counts = [config.num_heads, config.num_kv_heads]
        gains = [
            get(f"self_attn/{part}_norm/scale", number).expand(count, -1)
            for part, count in zip("qk", counts, strict=True)
        ]
        heads = x.reshape(self.batch, self.length, sum(counts), config.qk_head_dim)
        normed = (_rms(heads) * (1 + torch.cat(gains))).transpose(1, 2)
        q, k = torch.split(rotate(normed, self.positions, config.rope_theta), counts, 1)
        return q, k

    def _monarch(self, number: int, u: Tensor) -> Tensor:
        """The MLP branch of a block for u [N, C], as two dense matrices.

        What follows the nonlinearity (two Kronecker steps, a permutation, two diagonals) is linear,
        and so is what precedes it.
        """
        width, padded = self.config.d_model, self.config.monarch_width
        first, second = self.permutations

        def get(name: str) -> Tensor:
            return self.weights.block(f"hadamard_mlp/{name}", number)

        gain = 1 + self.weights.block("pre_hada_norm/scale", number)
        normed = _rms(u)
        before = torch.kron(get("w1a"), get("w1b"))[:width, first] * (gain * get("d1")[:width])[:, None]
        middle = torch.kron(get("w2a"), get("w2b"))[:, second] * get("d3")
        after = middle @ (torch.kron(get("w3a"), get("w3b")) * get("d4"))[:, :width]
        chosen = (normed @ (gain[:, None] * get("cond_v"))).softmax(-1)
        condition = torch.addmm(get("d2"), chosen, get("cond_u") * get("d2"))
        z = torch.addcmul(get("b2").expand(1, padded), condition, normed @ before)
        return silu(z) @ after


def cells_of(weights: Weights, tokens: Tensor, *, mask_padding: bool = False) -> list[Tensor]:
    """Run a ladder over tokens [B, T] from the start of a sequence.

    Args:
        weights: the ladder.
        tokens: ids.
        mask_padding: hide positions of the pad id, as the probe heads ask.

    Returns:
        [B, T, C] each: the embedding, then the lane mean after every block, as
        ``golden.reference.forward`` gives them in ``cells``.
    """
    config = weights.config
    real = tokens != config.pad_token_id
    state = State.empty(config, tokens.shape[0])
    everything = torch.ones_like(real)
    pairs, _ = model._engrams(weights, tokens, state, real if mask_padding else everything)  # noqa: SLF001
    flat = [(_rms(key).flatten(0, 1), value.flatten(0, 1)) for key, value in pairs]
    x0 = weights.whole(EMBEDDING)[tokens] * math.sqrt(config.d_model)
    stream = x0.flatten(0, 1)[:, None].expand(-1, config.mhc_lanes, -1)
    run = _Forward(weights, tokens.shape[0], tokens.shape[1], real if mask_padding else None)
    cells = [x0]
    for number in range(config.num_layers):
        site = config.site_of(number)
        stream = run.block(number, stream, None if site is None else flat[site])
        cells.append(stream.mean(1).view_as(x0))
    return cells


def final_state(weights: Weights, tokens: Tensor) -> Tensor:
    """Return what the logits are read from: the normed lane mean [B, T, C] after the last block."""
    return _rms(cells_of(weights, tokens)[-1]) * (1 + weights.whole(FINAL_NORM))


def answer_logits(weights: Weights, batch: Batch) -> Tensor:
    """Return the logits [positions, V] of the answers' tokens only, row by row."""
    read = final_state(weights, batch.tokens)[batch.answer]
    return read @ weights.whole(EMBEDDING)[: weights.config.logits_width].mT
