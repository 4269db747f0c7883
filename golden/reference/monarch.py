"""The Monarch MLP: three Kronecker-factored mixers with fixed permutations between them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad, silu

from exporter.config import LadderConfig
from golden.reference.norms import zcrms
from golden.reference.weights import Weights

__all__ = ["monarch_mlp", "permutations"]

_SEEDS = (11, 13)
_SECOND_HALF = 977


def permutations(width: int, *, halves: bool) -> tuple[Tensor, Tensor]:
    """The two fixed permutations of the padded width N, to gather with.

    Args:
        width: N.
        halves: whether each is two half permutations, as in a ladder of widths.
    """
    first, second = (torch.from_numpy(_draw(seed, width, halves=halves)) for seed in _SEEDS)
    return first, second


@lru_cache(maxsize=8)
def _draw(seed: int, width: int, *, halves: bool) -> NDArray[np.int64]:
    # Kept as an array: a tensor made in inference mode could not be trained with later.
    if not halves:
        return np.random.RandomState(seed).permutation(width)
    first = np.random.RandomState(seed).permutation(width // 2)
    second = np.random.RandomState(seed + _SECOND_HALF).permutation(width // 2) + width // 2
    return np.concatenate([first, second])


def monarch_mlp(weights: Weights, block: int, u: Tensor) -> Tensor:
    """The MLP branch of a block for u [B, T, C]; neither normed nor gated at its end."""
    config = weights.config

    def get(name: str) -> Tensor:
        return weights.block(f"hadamard_mlp/{name}", block)

    first, second = permutations(config.monarch_width, halves=bool(config.ladder_widths))
    m = zcrms(u, weights.block("pre_hada_norm/scale", block))
    condition = 1 + (m @ get("cond_v")).softmax(-1) @ get("cond_u")
    z = pad(m, (0, config.monarch_width - config.d_model))
    z = _kron(config, get("d1") * z, get("w1a"), get("w1b"))[..., first]
    z = silu(get("d2") * condition * z + get("b2"))
    z = _kron(config, z, get("w2a"), get("w2b"))[..., second]
    z = _kron(config, get("d3") * z, get("w3a"), get("w3b"))
    return (get("d4") * z)[..., : config.d_model]


def _kron(config: LadderConfig, z: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``rows^T Z columns`` with z [..., N] seen as a matrix Z [..., A, B]."""
    return (rows.mT @ z.unflatten(-1, config.monarch_shape) @ columns).flatten(-2)
