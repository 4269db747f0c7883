"""A quantiser that knows what a matrix is multiplied with.

For a row w of the matrix and inputs x, the output's squared error is (w - q) H (w - q)^T, H being the mean of
x x^T. Codes are found as GPTQ does (Frantar et al., 2022): column by column, those of most weight in H first,
each rounding's error made good by the columns that follow. Then, in turns, scales take their least squares
under H, and codes move one by one to where the error is least (coordinate descent, as CDQuant, Nair and
Suggala, 2024). What is stored is the best that was seen, so it never errs more under H than the search.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from exporter.quantize.blocks import Blocks, dequantise, half_scales, pack, unpack
from exporter.quantize.uncalibrated import SEARCH, Values, quantise

__all__ = ["quantise_for"]

_DAMPING: Final = 0.01
"""Share of the mean of H's diagonal that is added to it."""

_TURNS: Final = 3
"""Times that scales and codes are found anew."""

_ROWS: Final = 1 << 13
"""Rows worked on at a time."""

Wide = NDArray[np.float64]


def quantise_for(
    matrix: Values, hessian: NDArray[np.floating], bits: int, block: int, *, zero_points: bool = False
) -> Blocks:
    """Quantise a matrix in blocks along its last axis, each row for itself.

    Args:
        matrix: [N, K] float32.
        hessian: [K, K], mean of x x^T over the inputs x that the rows are multiplied with.
        bits: 2, 4 or 8.
        block: values per scale.
        zero_points: whether each block has a zero point.

    Raises:
        PrecisionError: a block's scale exceeds float16.
    """
    columns = matrix.shape[1]
    first = quantise(matrix, bits, block, method=SEARCH, zero_points=zero_points)
    wide = np.asarray(hessian, np.float64)
    damped = wide + np.eye(columns) * max(_DAMPING * float(wide.trace()) / columns, np.finfo(np.float32).tiny)
    codes, scales = np.empty_like(first.codes), np.empty_like(first.scales)
    for start in range(0, len(matrix), _ROWS):
        part = slice(start, start + _ROWS)
        found = _Rows(matrix[part], damped, first.rows(part), bits, block).found()
        codes[part], scales[part] = found.codes, found.scales
    return Blocks(codes, scales, first.zeros)


class _Rows:
    """Rows of a matrix on their way."""

    def __init__(self, rows: Values, hessian: Wide, first: Blocks, bits: int, block: int) -> None:
        """Start from what the search found."""
        self.rows, self.hessian, self.first = rows.astype(np.float64), hessian, first
        self.bits, self.block = bits, block
        count, columns = first.scales.shape[1], rows.shape[1]
        self.block_of = np.arange(columns) // block
        zeros = np.full((len(rows), count), 1 << (bits - 1), np.float64)
        if first.zeros is not None:
            zeros = unpack(first.zeros, bits)[:, :count].astype(np.float64)
        self.low, self.high = -zeros, (1 << bits) - 1 - zeros

    def found(self) -> Blocks:
        """The best of all turns."""
        columns = self.rows.shape[1]
        scales = self.first.scales.astype(np.float64)
        best = dequantise(self.first, self.bits, columns).astype(np.float64)
        least, kept_scales = self._error(best), scales.copy()
        kept = self._codes_of(best, scales)
        codes = self._compensated(scales)
        for turn in range(_TURNS):
            codes = self._descended(codes, scales)
            error = self._error(codes * scales[:, self.block_of])
            better = error < least
            least = np.where(better, error, least)
            kept[better], kept_scales[better] = codes[better], scales[better]
            if turn + 1 < _TURNS:
                scales = self._refitted(codes, scales)
        return self._packed(kept, kept_scales)

    def _error(self, values: Wide) -> Wide:
        rest = self.rows - values
        return np.asarray(np.einsum("rk,rk->r", rest @ self.hessian, rest))

    def _codes_of(self, values: Wide, scales: Wide) -> Wide:
        """Codes, less their zero points, of values that lie on the grid."""
        wide = scales[:, self.block_of]
        return np.rint(np.divide(values, wide, out=np.zeros_like(values), where=wide != 0))

    def _rounded(self, values: Wide, scales: Wide, column: int) -> Wide:
        """The codes, less their zero points, nearest to one column's values."""
        block = self.block_of[column]
        scale = scales[:, block]
        codes = np.rint(np.divide(values, scale, out=np.zeros_like(values), where=scale != 0))
        return np.asarray(np.clip(codes, self.low[:, block], self.high[:, block]))

    def _compensated(self, scales: Wide) -> Wide:
        """Codes in GPTQ's manner."""
        order = np.argsort(-np.diag(self.hessian), kind="stable")
        inverse = np.linalg.inv(self.hessian[np.ix_(order, order)])
        upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
        rows = self.rows[:, order]
        codes = np.empty_like(rows)
        for step, column in enumerate(order):
            codes[:, column] = self._rounded(rows[:, step], scales, column)
            rest = rows[:, step] - codes[:, column] * scales[:, self.block_of[column]]
            rows[:, step + 1 :] -= np.outer(rest / upper[step, step], upper[step, step + 1 :])
        return codes

    def _descended(self, codes: Wide, scales: Wide) -> Wide:
        """Codes after every one moved, once, to where the error is least while the others stay."""
        codes = codes.copy()
        rest = self.rows - codes * scales[:, self.block_of]
        slope = rest @ self.hessian
        for column, weight in enumerate(np.diag(self.hessian)):
            scale = scales[:, self.block_of[column]]
            wanted = codes[:, column] * scale + slope[:, column] / weight
            moved = self._rounded(wanted, scales, column)
            change = (moved - codes[:, column]) * scale
            codes[:, column] = moved
            slope -= np.outer(change, self.hessian[column])
        return codes

    def _refitted(self, codes: Wide, scales: Wide) -> Wide:
        """Scales of least squared error under H for given codes, rounded to float16."""
        count, columns = scales.shape[1], codes.shape[1]
        target = self.rows @ self.hessian
        parts = [np.flatnonzero(self.block_of == block) for block in range(count)]
        right = np.stack([(codes[:, p] * target[:, p]).sum(1) for p in parts], 1)
        left = np.empty((len(codes), count, count))
        for block, part in enumerate(parts):
            spread = codes[:, part] @ self.hessian[part]
            for other in range(count):
                left[:, block, other] = (spread[:, parts[other]] * codes[:, parts[other]]).sum(1)
        # A block of zeros alone has no scale to find.
        empty = left[:, np.arange(count), np.arange(count)] <= 0
        left[:, np.arange(count), np.arange(count)] += np.where(empty, 1.0, 1e-9 * columns)
        solved = np.linalg.solve(left, right[..., None])[..., 0]
        fitted = np.where(empty, scales, solved).astype(np.float32)
        return half_scales(fitted, self.rows.astype(np.float32)).astype(np.float64)

    def _packed(self, codes: Wide, scales: Wide) -> Blocks:
        count = scales.shape[1]
        unsigned = codes - self.low[:, self.block_of]
        short = count * self.block - codes.shape[1]
        if short:
            unsigned = np.concatenate([unsigned, np.repeat(-self.low[:, -1:], short, 1)], 1)
        packed = pack(unsigned.astype(np.uint8).reshape(len(codes), count, self.block), self.bits)
        return Blocks(packed, scales.astype(np.float16), self.first.zeros)
