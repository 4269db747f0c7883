"""Root-mean-square norms, with the gain stored as its distance from one."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rms", "zcrms"]

_EPSILON = 1e-6


def rms(x: Tensor) -> Tensor:
    """``x / sqrt(mean(x^2) + 1e-6)`` over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPSILON)


def zcrms(x: Tensor, gain: Tensor) -> Tensor:
    """Zero-centred-gain norm ``(1 + gain) * rms(x)`` over the last axis."""
    return (1 + gain) * rms(x)
