"""Engram sites: hashed n-gram tables whose rows are keys and values gated into one block's input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exporter.config import LadderConfig
from exporter.layout import ENGRAM_TAPS
from golden.reference.norms import rms
from golden.reference.weights import Weights

__all__ = ["gate_in", "history_rows", "ngram_rows", "site_pairs"]

_MASK32 = 0xFFFFFFFF
_GOLDEN_RATIO = 0x9E3779B9
_FNV_PRIME = 0x01000193


def history_rows(config: LadderConfig) -> int:
    """Earlier rows of values that the engram taps reach: 9 for orders (2, 3)."""
    return (ENGRAM_TAPS - 1) * config.max_order


def ngram_rows(config: LadderConfig, tokens: Tensor) -> Tensor:
    """Table rows of the n-grams that end at each token.

    The hash is FNV-like in 32-bit arithmetic, newest token first; int64 holds every product here, since
    both factors are below 2^32 and the prime below 2^25.

    Args:
        config: geometry.
        tokens: [B, m + T] ids, m = max order - 1 earlier ones first (any value before the start).

    Returns:
        [B, T, tables] int64; orders first, then hash heads.
    """
    earlier = config.max_order - 1
    length = tokens.shape[1] - earlier
    columns = []
    for index, order in enumerate(config.engram_orders):
        for head in range(config.tables_per_order):
            seed = _GOLDEN_RATIO * (index * config.seed_stride + head + 1) & _MASK32
            acc = torch.full((tokens.shape[0], length), seed, dtype=torch.int64)
            for back in range(order):
                token = tokens[:, earlier - back : earlier - back + length].long() & _MASK32
                acc = ((acc ^ token) * _FNV_PRIME) & _MASK32
            acc = acc ^ (acc >> 15)
            columns.append(acc % config.engram_slots)
    return torch.stack(columns, -1)


def site_pairs(
    weights: Weights, site: int, rows: Tensor, complete: Tensor, history: Tensor, reachable: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values of an engram site; they depend on the tokens alone.

    Args:
        weights: the ladder.
        site: number of the site.
        rows: [B, T, tables] from :func:`ngram_rows`.
        complete: [B, T, tables], 1 where the n-gram lies inside the sequence, else 0.
        history: [B, 9, C], the untapped values of earlier positions (zeros before the start).
        reachable: [B, T, 4], 1 where tap j may read its position, else 0.

    Returns:
        keys [B, T, C], values [B, T, C], untapped values with their history [B, 9 + T, C].
    """
    config, prefix = weights.config, f"engrams_{site}"
    tables = [weights.gather(f"{prefix}/embedding", i, rows[..., i]) for i in range(config.num_tables)]
    rows_of = [table * complete[..., i, None] for i, table in enumerate(tables)]
    joined = torch.cat(rows_of, -1)
    key = joined @ weights.whole(f"{prefix}/key_proj/kernel")
    value = torch.cat([history, joined @ weights.whole(f"{prefix}/value_proj/kernel")], 1)
    taps = weights.whole(f"{prefix}/taps")
    length, reach = rows.shape[1], history.shape[1]
    tapped = sum(
        taps[j] * reachable[..., j, None] * value[:, reach - j * config.max_order :][:, :length]
        for j in range(ENGRAM_TAPS)
    )
    return key, torch.as_tensor(tapped), value


def gate_in(u: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The block input u [B, T, C] with the site's value added as far as its key agrees."""
    agreement = (rms(u) * rms(key)).sum(-1, keepdim=True) / math.sqrt(u.shape[-1])
    return u + torch.sigmoid(agreement) * value
