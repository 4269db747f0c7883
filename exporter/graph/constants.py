"""Constants of a graph that no checkpoint stores, and the bytes they take in the weights file."""

from __future__ import annotations

from exporter.config import LadderConfig
from exporter.layout import ENGRAM_TAPS

__all__ = ["constant_bytes"]

_WORD = 4


def constant_bytes(config: LadderConfig, *, score: bool) -> int:
    """Bytes of unit gains, permutations and, for the scoring graph, the zeros that it starts from."""
    width = config.d_model
    gains = {config.mhc_lanes * width, width, config.qk_head_dim}
    words = sum(gains) + width + 2 * config.monarch_width
    if score:
        words += max(config.qkv_conv_taps - 1, 0) * config.qkv_width
        words += (ENGRAM_TAPS - 1) * config.max_order * width if config.engram_layers else 0
    return words * _WORD
