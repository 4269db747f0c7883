"""Quantised matrices in blocks along the last axis, and their packing.

A value is ``(code - zero) * scale``; codes are unsigned, packed lowest bits first, as MatMulNBits and
GatherBlockQuantized read them. Without stored zero points, zero is the middle code ``2^(bits-1)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter.errors import PrecisionError

__all__ = ["Blocks", "dequantise", "finite_half", "half_scales", "joined", "pack", "packed_width", "unpack"]

_BYTE = 8


@dataclass(frozen=True)
class Blocks:
    """A quantised matrix [N, K], K padded with zeros to whole blocks."""

    codes: NDArray[np.uint8]
    """[N, blocks, block * bits / 8], packed."""
    scales: NDArray[np.float16]
    """[N, blocks]."""
    zeros: NDArray[np.uint8] | None = None
    """[N, ceil(blocks * bits / 8)], packed zero points; None where each is the middle code."""

    def rows(self, chosen: Sequence[int] | slice) -> Blocks:
        """Some rows of the matrix."""
        zeros = None if self.zeros is None else self.zeros[chosen]
        return Blocks(self.codes[chosen], self.scales[chosen], zeros)


def joined(parts: Sequence[Blocks]) -> Blocks:
    """Matrices of one grid and one K, below each other."""
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return Blocks(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(zeros) if zeros else None,
    )


def packed_width(count: int, bits: int) -> int:
    """Bytes that ``count`` codes take."""
    return -(-count * bits // _BYTE)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes [..., n] into bytes [..., ceil(n * bits / 8)], the earlier code in the lower bits."""
    if bits == _BYTE:
        return codes
    per_byte = _BYTE // bits
    short = -codes.shape[-1] % per_byte
    if short:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, short)])
    packed = codes[..., 0::per_byte].copy()
    for place in range(1, per_byte):
        packed |= codes[..., place::per_byte] << (bits * place)
    return packed


def unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes [..., n] of packed bytes; the inverse of :func:`pack`, padding included."""
    if bits == _BYTE:
        return packed
    per_byte = _BYTE // bits
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * per_byte), np.uint8)
    for place in range(per_byte):
        codes[..., place::per_byte] = (packed >> (bits * place)) & ((1 << bits) - 1)
    return codes


def dequantise(blocks: Blocks, bits: int, columns: int) -> NDArray[np.float32]:
    """The matrix [N, columns] that a kernel multiplies with, float32."""
    codes = unpack(blocks.codes, bits).astype(np.float32)
    if blocks.zeros is None:
        codes -= 1 << (bits - 1)
    else:
        codes -= unpack(blocks.zeros, bits)[:, : blocks.scales.shape[1], None]
    values = codes * blocks.scales.astype(np.float32)[..., None]
    return np.ascontiguousarray(values.reshape(values.shape[0], -1)[:, :columns])


def finite_half(values: NDArray[Any]) -> NDArray[np.float16] | None:
    """Values rounded to float16; None where one exceeds it, or is no number."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.isfinite(half).all() else None


def half_scales(scales: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round scales to float16.

    Args:
        scales: of blocks of ``values``.
        values: for the message.

    Raises:
        PrecisionError: one exceeds float16.
    """
    half = finite_half(scales)
    if half is None:
        message = (
            f"a weight of magnitude {float(np.abs(values).max()):.3g} needs a quantisation scale beyond "
            "float16: export with --precision fp32, or look at the checkpoint's training."
        )
        raise PrecisionError(message)
    return half
