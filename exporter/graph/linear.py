"""Multiplying with, and gathering from, parameters of any storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from exporter.graph.source import Source
from exporter.precision import GATHERED, Storage

__all__ = ["MICROSOFT", "Linear", "Table", "TiedEmbedding"]

MICROSOFT = {"_domain": "com.microsoft", "_version": 1}
"""Operator arguments that select ONNX Runtime's own domain."""


class Linear(nn.Module):
    """``x @ W + bias`` for kernels [K, N_i] side by side, in one operator.

    Joining kernels on N changes nothing in their quantisation, whose blocks run along K.
    """

    def __init__(
        self,
        source: Source,
        names: str | Sequence[str],
        row: int | None = None,
        *,
        scale: nn.Parameter | None = None,
        bias: nn.Parameter | None = None,
    ) -> None:
        """Take the kernels.

        Args:
            source: of the parameters.
            names: kernels of one storage and one K.
            row: row of their leading axis, or None.
            scale: [N] float32 that multiplies the outputs before the bias; folded into the weights on load.
            bias: [N] float32.
        """
        super().__init__()
        names = (names,) if isinstance(names, str) else tuple(names)
        shapes = [source.ladder.layout[name].shape for name in names]
        self.inputs = shapes[0][-2]
        self.outputs = sum(shape[-1] for shape in shapes)
        self.storage = source.storage(names[0])
        if self.storage.block:
            quantised = source.quantised(names, row, (self.outputs, self.inputs), kernel=True)
            self.codes, self.scales = quantised.as_kernel(), quantised.scale()
            if (zeros := quantised.zero()) is not None:
                self.zeros = zeros
        else:
            self.weight = source.stored(names, row, (self.inputs, self.outputs))
        if scale is not None:
            self.scale = scale
        if bias is not None:
            self.bias = bias

    def forward(self, op: OpBuilder, x: ir.Value, bias: ir.Value | None = None) -> ir.Value:
        """``x`` [..., K] -> [..., N]; ``bias`` [N] takes the place of the layer's own."""
        scale = getattr(self, "scale", None)
        bias = getattr(self, "bias", None) if bias is None else bias
        if self.storage.block:
            scales = op.Cast(self.scales, to=ir.DataType.FLOAT)
            if scale is not None:
                scales = op.Mul(scales, op.Unsqueeze(scale, [1]))
            blocks = BlockValues(self.codes, scales, getattr(self, "zeros", None))
            return matmul_nbits(op, x, blocks, bias, self.storage, (self.outputs, self.inputs))
        weight = self.weight
        if self.storage.half:
            weight = op.Cast(weight, to=ir.DataType.FLOAT)
        if scale is not None:
            weight = op.Mul(weight, scale)
        y = op.MatMul(x, weight)
        return y if bias is None else op.Add(y, bias)


class BlockValues(NamedTuple):
    """What an operator takes of a block-quantised matrix."""

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None = None


def matmul_nbits(
    op: OpBuilder,
    x: ir.Value,
    blocks: BlockValues,
    bias: ir.Value | None,
    storage: Storage,
    shape: tuple[int, int],
) -> ir.Value:
    """One MatMulNBits node over a matrix of ``shape`` [N, K], with every attribute stated."""
    operands = [x, *blocks, None, bias]
    while operands[-1] is None:
        operands.pop()
    return op.MatMulNBits(
        *operands,
        K=shape[1],
        N=shape[0],
        bits=storage.bits,
        block_size=storage.block,
        accuracy_level=storage.accuracy_level,
        **MICROSOFT,
    )


class Table(nn.Module):
    """Rows [.., C] of a checkpoint tensor, gathered by number and presented as float32."""

    def __init__(self, source: Source, name: str) -> None:
        """Take the table; leading axes are flattened into one of rows."""
        super().__init__()
        shape = source.ladder.layout[name].shape
        self.storage = source.storage(name)
        rows, width = source.ladder.layout[name].size // shape[-1], shape[-1]
        if self.storage.block:
            quantised = source.quantised((name,), None, (rows, width), kernel=False)
            self.codes, self.scales = quantised.as_table(), quantised.scale()
            if (zeros := quantised.zero()) is not None:
                self.zeros = zeros
        else:
            self.rows = source.stored((name,), None, (rows, width))

    def forward(self, op: OpBuilder, indices: ir.Value) -> ir.Value:
        """Rows [..., C] of ``indices`` [...], int64."""
        if self.storage.block:
            # Scales stay float16 here, so that a large table costs no float32 copy of them in memory.
            blocks = BlockValues(self.codes, self.scales, getattr(self, "zeros", None))
            rows = gather_blocks(op, blocks, indices, self.storage)
            return op.Cast(rows, to=ir.DataType.FLOAT)
        rows = op.Gather(self.rows, indices, axis=0)
        return rows if not self.storage.half else op.Cast(rows, to=ir.DataType.FLOAT)


def gather_blocks(op: OpBuilder, blocks: BlockValues, indices: ir.Value, storage: Storage) -> ir.Value:
    """Rows in the dtype of the scales: one GatherBlockQuantized node, where the bits have a kernel."""
    if storage.bits not in GATHERED:
        return _gather_unpacked(op, blocks, indices, storage)
    points = [] if blocks.zeros is None else [blocks.zeros]
    return op.GatherBlockQuantized(
        blocks.codes,
        indices,
        blocks.scales,
        *points,
        bits=storage.bits,
        block_size=storage.block,
        gather_axis=0,
        quantize_axis=1,
        **MICROSOFT,
    )


def _gather_unpacked(op: OpBuilder, blocks: BlockValues, indices: ir.Value, storage: Storage) -> ir.Value:
    """Rows [T, n, C] of ``indices`` [T, n], unpacked by plain operators, which every runtime has."""
    per_byte = 8 // storage.bits
    shifts, mask = (
        op.Constant(value=ir.tensor(np.array(values, np.uint8)))
        for values in ([storage.bits * place for place in range(per_byte)], [(1 << storage.bits) - 1])
    )
    packed = op.Unsqueeze(op.Gather(blocks.codes, indices, axis=0), [-1])
    codes = op.BitwiseAnd(op.BitShift(packed, shifts, direction="RIGHT"), mask)
    codes = op.Cast(op.Reshape(codes, [0, 0, -1, storage.block]), to=ir.DataType.FLOAT)
    values = op.Sub(codes, float(1 << (storage.bits - 1)))
    scales = op.Cast(op.Unsqueeze(op.Gather(blocks.scales, indices, axis=0), [-1]), to=ir.DataType.FLOAT)
    # A code of two bits times a float16 is a float16: nothing is rounded.
    return op.Cast(op.Reshape(op.Mul(values, scales), [0, 0, -1]), to=ir.DataType.FLOAT16)


class TiedEmbedding(nn.Module):
    """The embedding, stored once: gathered by id, and multiplied with for the logits."""

    def __init__(self, source: Source, name: str) -> None:
        """Take the embedding [V, C]."""
        super().__init__()
        self.vocabulary, self.width = source.ladder.layout[name].shape
        self.logits_width = source.config.logits_width
        self.storage = source.storage(name)
        if self.storage.block:
            quantised = source.quantised((name,), None, (self.vocabulary, self.width), kernel=False)
            self.table, self.scales = quantised.as_table(), quantised.scale()
            self.kernel = quantised.as_kernel()
            if (zeros := quantised.zero()) is not None:
                self.zeros = zeros
        else:
            self.rows = source.stored((name,), None, (self.vocabulary, self.width))

    def forward(self, op: OpBuilder, ids: ir.Value) -> ir.Value:
        """Rows [..., C] float32 of ``ids`` [...]."""
        if self.storage.block:
            scales = op.Cast(self.scales, to=ir.DataType.FLOAT)
            blocks = BlockValues(self.table, scales, getattr(self, "zeros", None))
            return gather_blocks(op, blocks, ids, self.storage)
        rows = op.Gather(self.rows, ids, axis=0)
        return rows if not self.storage.half else op.Cast(rows, to=ir.DataType.FLOAT)

    def logits(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Logits [T, logits width] of ``x`` [T, C]; call after :meth:`forward`."""
        whole = self.logits_width == self.vocabulary
        if self.storage.block:
            scales = op.Cast(self.scales, to=ir.DataType.FLOAT)
            blocks = BlockValues(self.kernel, scales, getattr(self, "zeros", None))
            y = matmul_nbits(op, x, blocks, None, self.storage, (self.vocabulary, self.width))
        else:
            rows = self.rows
            if self.storage.half:
                rows = op.Cast(rows, to=ir.DataType.FLOAT)
            y = op.Gemm(x, rows, transB=1)
        return y if whole else op.Slice(y, [0], [self.logits_width], [1])
