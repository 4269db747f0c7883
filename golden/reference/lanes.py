"""Residual lanes: n parallel streams, read by one mixture, written by another, mixed by a Sinkhorn matrix.

Manifold-constrained hyper-connections: the matrix that carries the lanes past a block is pushed towards
the doubly stochastic ones by a fixed number of normalisations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from golden.reference.norms import rms
from golden.reference.weights import Weights

__all__ = ["SINKHORN_ROUNDS", "LaneMix", "lane_mix", "sinkhorn"]

SINKHORN_ROUNDS = 20
"""Not converged after these, so the number is part of the model."""

_OWN_LANE = 4.0


class LaneMix(NamedTuple):
    """How one block reads and writes the lanes, per token."""

    pre: Tensor
    """[B, T, n]: weight of each lane in the block's input."""
    post: Tensor
    """[B, T, n]: weight of the block's output in each lane."""
    carry: Tensor
    """[B, T, n, n]: row i holds what lane i takes of every lane."""


def sinkhorn(logits: Tensor) -> Tensor:
    """Exponential of ``logits`` [..., n, n] after 20 rounds of row, then column normalisation."""
    for _ in range(SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def lane_mix(weights: Weights, block: int, stream: Tensor) -> LaneMix:
    """The mixtures of a block for a stream [B, T, n, C].

    The block's own lane is its number *in this ladder* modulo n: a slice renumbers it.
    """
    lanes = weights.config.mhc_lanes
    s = rms(stream.flatten(-2))
    own = torch.zeros(lanes)
    own[block % lanes] = 1.0

    def project(name: str) -> Tensor:
        return weights.lane(f"a_{name}", block) * (s @ weights.lane(f"phi_{name}", block))

    pre = torch.sigmoid(project("pre") + weights.lane("b_pre", block) + _OWN_LANE * (2 * own - 1))
    post = 2 * torch.sigmoid(project("post") + weights.lane("b_post", block) - _OWN_LANE * (1 - own))
    carry = project("res").unflatten(-1, (lanes, lanes)) + weights.lane("b_res", block)
    return LaneMix(pre, post, sinkhorn(carry))
