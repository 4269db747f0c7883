"""Probe heads: attention pooling over all times and depths, then one projection."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from golden.reference.model import forward
from golden.reference.norms import rms
from golden.reference.weights import Weights

__all__ = ["head_outputs", "pool", "project"]


def pool(weights: Weights, head: str, cells: Tensor, keep: Tensor) -> Tensor:
    """Pool cells [B, T, R, C] with a head's probes and queries.

    Args:
        weights: the ladder.
        head: ``confidence``, ``embedding`` or ``router``.
        cells: of :class:`~golden.reference.model.Output`; R is depth + 1.
        keep: [B, T] bool, False at padding.

    Returns:
        [B, queries * C]: the queries' pooled vectors, joined.
    """
    prefix, scale = f"{head}_head", math.sqrt(cells.shape[-1])
    scores = torch.einsum("btrc,rpc->btrp", cells, weights.whole(f"{prefix}/probes")) / scale
    scores = scores.masked_fill(~keep[:, :, None, None], -torch.inf)
    pooled = torch.einsum("btrp,btrc->brpc", scores.softmax(1), cells)
    pooled = rms(pooled) * weights.whole(f"{prefix}/gain")[..., None]
    choice = torch.einsum("brpc,qc->bqrp", pooled, weights.whole(f"{prefix}/query")) / scale
    choice = (choice + weights.whole(f"{prefix}/row_bias")).flatten(2).softmax(-1)
    return torch.einsum("bqx,bxc->bqc", choice, pooled.flatten(1, 2)).flatten(1)


def project(weights: Weights, head: str, pooled: Tensor) -> Tensor:
    """A head's output of its pooled vectors [B, queries * C].

    Returns:
        confidence [B, 1] and router [B, 3] logits; the embedding [B, embedding_dim] has length 1.
    """
    out = pooled @ weights.whole(f"{head}_head/proj/kernel")
    if head == "embedding":
        return out / torch.sqrt(out.square().sum(-1, keepdim=True) + 1e-12)
    return out + weights.whole(f"{head}_head/proj/bias")


def head_outputs(weights: Weights, tokens: Tensor) -> dict[str, Tensor]:
    """Outputs of every head that the ladder carries, for whole sequences [B, T]; padding is masked."""
    cells = forward(weights, tokens, mask_padding=True).cells
    keep = tokens != weights.config.pad_token_id
    return {head: project(weights, head, pool(weights, head, cells, keep)) for head in weights.heads}
