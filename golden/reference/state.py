"""What decoding has to remember between two calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exporter.config import LadderConfig
from exporter.layout import ENGRAM_TAPS

__all__ = ["BlockState", "State"]


@dataclass(frozen=True)
class BlockState:
    """Caches of one block after P positions."""

    key: Tensor
    """[B, kv heads, P, qk_head_dim], normed and rotated."""
    value: Tensor
    """[B, kv heads, P, v_head_dim]."""
    taps: Tensor
    """[B, taps - 1, q + k + v widths]: the last rows before the taps."""


@dataclass(frozen=True)
class State:
    """Everything a ladder remembers of P positions; a new one is never changed in place."""

    position: int
    tokens: Tensor
    """[B, max order - 1] int64: the last ids."""
    blocks: tuple[BlockState, ...]
    sites: tuple[Tensor, ...]
    """Per engram site [B, 9, C]: the last untapped values."""

    @classmethod
    def empty(cls, config: LadderConfig, batch: int = 1) -> State:
        """The state before the first token."""
        tail = max(config.qkv_conv_taps - 1, 0)
        block = BlockState(
            torch.zeros(batch, config.num_kv_heads, 0, config.qk_head_dim),
            torch.zeros(batch, config.num_kv_heads, 0, config.v_head_dim),
            torch.zeros(batch, tail, config.qkv_width),
        )
        sites = len(config.engram_layers)
        earlier = config.max_order - 1 if sites else 0
        reach = (ENGRAM_TAPS - 1) * config.max_order if sites else 0
        return cls(
            position=0,
            tokens=torch.zeros(batch, earlier, dtype=torch.int64),
            blocks=(block,) * config.num_layers,
            sites=(torch.zeros(batch, reach, config.d_model),) * sites,
        )
