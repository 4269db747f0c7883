"""Symmetric round-to-nearest quantisation in blocks along the last axis.

A value is ``(code - 2^(bits-1)) * scale``; the codes are unsigned, packed low nibble first, as
MatMulNBits and GatherBlockQuantized read them when no zero point is given. A block's scale maps its value
of greatest magnitude onto the one end of the code range that has a code more, so no code is idle.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.errors import PrecisionError

__all__ = ["Blocks", "dequantise", "pack", "quantise", "unpack"]

_BYTE = 8

_CHUNK = 1 << 16
"""Values quantised at a time: the temporaries of a chunk stay in a core's cache."""

_WORTH_THREADS = 8
"""Chunks from which on threads are worth starting."""


@dataclass(frozen=True)
class Blocks:
    """A quantised matrix [N, K], K padded with zeros to whole blocks."""

    codes: NDArray[np.uint8]
    """[N, blocks, block * bits / 8], packed."""
    scales: NDArray[np.float16]
    """[N, blocks]."""


def quantise(matrix: NDArray[np.float32], bits: int, block: int) -> Blocks:
    """Quantise a matrix in blocks along its last axis.

    Args:
        matrix: [N, K] float32.
        bits: 4 or 8.
        block: values per scale.

    Raises:
        PrecisionError: a block's scale exceeds float16.
    """
    rows, columns = matrix.shape
    count = -(-columns // block)
    codes = np.empty((rows, count, block * bits // 8), np.uint8)
    scales = np.empty((rows, count), np.float16)
    step = max(1, _CHUNK // max(columns, 1))

    def work(start: int) -> None:
        part = matrix[start : start + step]
        if count * block != columns:
            part = np.pad(part, ((0, 0), (0, count * block - columns)))
        blocks = part.reshape(-1, count, block)
        codes[start : start + step], scales[start : start + step] = _quantise(blocks, bits)

    starts = range(0, rows, step)
    if len(starts) < _WORTH_THREADS:
        for start in starts:
            work(start)
        return Blocks(codes, scales)
    # NumPy lets go of the interpreter inside its loops, so threads share the work.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, starts):
            pass
    return Blocks(codes, scales)


def _quantise(blocks: NDArray[np.float32], bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Codes (packed) and scales of blocks [..., block]."""
    half = 1 << (bits - 1)
    low, high = blocks.min(-1), blocks.max(-1)
    # The signed extreme goes to code 0, that is -half: the scale takes the opposite sign.
    extreme = np.where(-low > high, low, high)
    with np.errstate(over="ignore"):
        scales = (extreme / -half).astype(np.float16)
    if not np.isfinite(scales).all():
        message = (
            f"a weight of magnitude {float(np.abs(extreme).max()):.3g} needs a quantisation scale beyond "
            "float16: export with --precision fp32, or look at the checkpoint's training."
        )
        raise PrecisionError(message)
    wide = scales.astype(np.float32)
    inverse = np.divide(1.0, wide, out=np.zeros_like(wide), where=wide != 0)
    codes = blocks * inverse[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, -half, half - 1, out=codes)
    codes += half
    return pack(codes.astype(np.uint8), bits), scales


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes [..., n] into bytes [..., n * bits / 8], the earlier code in the lower bits."""
    if bits == _BYTE:
        return codes
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << 4), np.uint8)


def unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes [..., n] of packed bytes; the inverse of :func:`pack`."""
    if bits == _BYTE:
        return packed
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    codes[..., 0::2] = packed & 0xF
    codes[..., 1::2] = packed >> 4
    return codes


def dequantise(blocks: Blocks, bits: int, columns: int) -> NDArray[np.float32]:
    """The matrix [N, columns] that a kernel multiplies with, float32."""
    codes = unpack(blocks.codes, bits).astype(np.float32) - (1 << (bits - 1))
    values = codes * blocks.scales.astype(np.float32)[..., None]
    return np.ascontiguousarray(values.reshape(values.shape[0], -1)[:, :columns])
