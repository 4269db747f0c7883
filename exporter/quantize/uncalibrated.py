"""Quantisers that look at the weights alone: round to nearest, and a search for the scale of least error.

*Round to nearest* maps a block's value of greatest magnitude onto the one end of the code range that has a
code more, so that no code is idle; with zero points it maps the least and the greatest value onto the ends.

The *search* also tries ranges that clip a block's extremes, and the extreme on either end, and gives each
trial's codes the scale of least squared error, sum(q w) / sum(q q); that scale's codes are what is stored.
Same size, less error: HQQ (Badri and Shaji, 2023) minimises a robust norm over zero points in the same
spirit; over blocks of 32 the plain squared error is minimised nearly exactly by a handful of trials.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from exporter.quantize.blocks import Blocks, half_scales, pack, packed_width

__all__ = ["METHODS", "NEAREST", "SEARCH", "nearest_grid", "quantise", "search_grid"]

NEAREST: Final = "rtn"
SEARCH: Final = "search"
METHODS: Final = (NEAREST, SEARCH)

_CHUNK = 1 << 16
"""Values quantised at a time: the temporaries of a chunk stay in a core's cache."""

_WORTH_THREADS = 8
"""Chunks from which on threads are worth starting."""

_SHRINKS: Final = {2: (1.0, 0.85, 0.7, 0.55), 4: (1.0, 0.93, 0.86, 0.8), 8: (1.0,)}
"""Ranges tried, as shares of the whole, by bits."""

Values = NDArray[np.float32]
Grid = tuple[Values, Values | None]
"""Scales [...] float32 and zero points [...], integral, or None for the middle code."""


def quantise(
    matrix: Values, bits: int, block: int, *, method: str = NEAREST, zero_points: bool = False
) -> Blocks:
    """Quantise a matrix in blocks along its last axis, each row for itself.

    Args:
        matrix: [N, K] float32.
        bits: 2, 4 or 8.
        block: values per scale.
        method: one of :data:`METHODS`.
        zero_points: whether each block has a zero point.

    Raises:
        PrecisionError: a block's scale exceeds float16.
    """
    rows, columns = matrix.shape
    count = -(-columns // block)
    codes = np.empty((rows, count, block * bits // 8), np.uint8)
    scales = np.empty((rows, count), np.float16)
    zeros = np.empty((rows, packed_width(count, bits)), np.uint8) if zero_points else None
    step = max(1, _CHUNK // max(columns, 1))
    chosen: Callable[..., Grid] = search_grid if method == SEARCH else nearest_grid

    def work(start: int) -> None:
        part = matrix[start : start + step]
        if count * block != columns:
            part = np.pad(part, ((0, 0), (0, count * block - columns)))
        blocks = part.reshape(-1, count, block)
        wide, points = chosen(blocks, bits, zero_points=zero_points)
        half = half_scales(wide, blocks)
        rounded = round_to(blocks, half.astype(np.float32), points, bits)
        codes[start : start + step], scales[start : start + step] = pack(rounded, bits), half
        if zeros is not None and points is not None:
            zeros[start : start + step] = pack(points.astype(np.uint8), bits)

    starts = range(0, rows, step)
    if len(starts) < _WORTH_THREADS:
        for start in starts:
            work(start)
        return Blocks(codes, scales, zeros)
    # NumPy lets go of the interpreter inside its loops, so threads share the work.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, starts):
            pass
    return Blocks(codes, scales, zeros)


def nearest_grid(blocks: Values, bits: int, *, zero_points: bool) -> Grid:
    """The grids that span blocks [..., block]."""
    return next(_spans(blocks, bits, (1.0,), zero_points=zero_points))


def search_grid(blocks: Values, bits: int, *, zero_points: bool) -> Grid:
    """The grids of least squared error among those tried for blocks [..., block]."""
    best: Values | None = None
    scales, zeros = np.zeros(0, np.float32), None
    for scale, zero in _spans(blocks, bits, _SHRINKS[bits], zero_points=zero_points):
        codes = _codes(blocks, scale, zero, bits)
        weight = np.einsum("...i,...i->...", codes, codes)
        product = np.einsum("...i,...i->...", codes, blocks)
        with np.errstate(divide="ignore", invalid="ignore"):
            fitted = product / weight
            # What the least squares take off the sum of squares of the block.
            gain = product * fitted
        gain[weight == 0] = 0
        if best is None:
            best, scales, zeros = gain, np.where(weight == 0, scale, fitted), zero
            continue
        better = gain > best
        best = np.where(better, gain, best)
        scales = np.where(better, fitted, scales)
        if zero is not None and zeros is not None:
            zeros = np.where(better, zero, zeros)
    return scales.astype(np.float32), zeros


def round_to(blocks: Values, scales: Values, zeros: Values | None, bits: int) -> NDArray[np.uint8]:
    """The nearest codes of blocks [..., block]."""
    codes = _codes(blocks, scales, zeros, bits)
    codes += 1 << (bits - 1) if zeros is None else zeros[..., None]
    return codes.astype(np.uint8)


def _codes(blocks: Values, scales: Values, zeros: Values | None, bits: int) -> Values:
    """The nearest codes of blocks [..., block], less their zero points."""
    inverse = _inverse(scales)
    codes = blocks * inverse[..., None]
    np.rint(codes, out=codes)
    half, top = 1 << (bits - 1), (1 << bits) - 1
    if zeros is None:
        return np.clip(codes, -half, half - 1, out=codes)
    return np.clip(codes, -zeros[..., None], top - zeros[..., None], out=codes)


def _inverse(scales: Values) -> Values:
    """1 / scale, and 0 for one so small that float32 has no inverse of it; float16 stores 0 for it too."""
    return np.divide(
        1.0, scales, out=np.zeros_like(scales), where=np.abs(scales) >= np.finfo(np.float32).tiny
    )


def _spans(blocks: Values, bits: int, shares: tuple[float, ...], *, zero_points: bool) -> Iterator[Grid]:
    """Grids that reach as far as a share of the blocks' ranges; the first is that of rounding to nearest."""
    half, top = 1 << (bits - 1), (1 << bits) - 1
    low, high = blocks.min(-1), blocks.max(-1)
    if zero_points:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        for share in shares:
            scale = (high - low) * np.float32(share / top)
            yield scale, np.clip(np.rint(-low * np.float32(share) * _inverse(scale)), 0, top)
        return
    # The signed extreme goes to code 0, that is -half: the scale takes the opposite sign.
    extreme = np.where(-low > high, low, high)
    for share in shares:
        yield extreme * np.float32(share) / -half, None
        # And on the other end, where it has a code less, the rest of the block has one more.
        yield extreme * np.float32(share) / (half - 1), None
