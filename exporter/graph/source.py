"""Where graph modules take their parameters from: a ladder, a precision plan and the weights file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import OpBuilder, nn

from exporter.ladder import Array, Ladder
from exporter.precision import PrecisionPlan, Storage
from exporter.quantize import Blocks, joined, packed_width
from exporter.weights import WeightFile

__all__ = ["Constant", "Source"]


class Source:
    """Makes graph parameters whose data goes into the weights file under the checkpoint's names.

    What is stored is always a tensor of the checkpoint as it is, rounded to its storage. Arithmetic on
    constants (adding one to a gain, casting float16) is left in the graph: ONNX Runtime folds it when it
    loads, and graphs that use a tensor differently still share its bytes.
    """

    def __init__(self, ladder: Ladder, plan: PrecisionPlan, file: WeightFile) -> None:
        """Take a ladder, its plan and the file to append to."""
        self.ladder, self.plan, self.file = ladder, plan, file
        self.config = ladder.config

    def storage(self, name: str) -> Storage:
        """Storage of a tensor."""
        return self.plan.storage[name]

    def half(self, names: Sequence[str]) -> bool:
        """Whether tensors, joined, are stored as float16: only if each is."""
        return all(self.storage(name).half for name in names)

    def stored_values(self, name: str, row: int | None) -> Array:
        """A tensor of plain float storage, rounded to it, as float32."""
        return self.plan.plain(name, self.ladder.read(name, row), row)

    def stored(self, names: Sequence[str], row: int | None, shape: tuple[int, ...]) -> nn.Parameter:
        """Tensors of plain float storage, joined on their last axis."""
        half = self.half(names)

        def values() -> NDArray[Any]:
            arrays = [np.atleast_1d(self.stored_values(name, row)) for name in names]
            joined = np.concatenate(arrays, -1).reshape(shape)
            return joined.astype(np.float16) if half else joined

        dtype = ir.DataType.FLOAT16 if half else ir.DataType.FLOAT
        return self._parameter(self._key(names, row), dtype, shape, values)

    def computed(self, key: str, values: NDArray[Any]) -> nn.Parameter:
        """A constant that is derived, not stored in the checkpoint."""
        dtype = ir.DataType.from_numpy(values.dtype)
        return self._parameter(key, dtype, values.shape, lambda: values)

    def quantised(
        self, names: Sequence[str], row: int | None, shape: tuple[int, int], *, kernel: bool
    ) -> Quantised:
        """Block-quantised tensors, joined on the axis of rows.

        Args:
            names: tensors of one storage.
            row: row of their leading axis, or None.
            shape: [N, K] of the joined matrix, blocks running along K.
            kernel: whether each is stored [K, N] in the checkpoint, to be transposed.
        """
        storage, key = self.storage(names[0]), self._key(names, row)
        memo: list[Blocks] = []

        def blocks() -> Blocks:
            if not memo:
                memo.append(joined([self._blocks(name, row, kernel=kernel) for name in names]))
            return memo[0]

        def zeros() -> NDArray[np.uint8]:
            points = blocks().zeros
            assert points is not None  # noqa: S101 - the storage asks for them
            return points

        count = -(-shape[1] // storage.block)
        packed = storage.block * storage.bits // 8
        codes = self.file.tensor(
            f"{key}.codes", ir.DataType.UINT8, (shape[0], count, packed), lambda: blocks().codes
        )
        scales = self.file.tensor(
            f"{key}.scales", ir.DataType.FLOAT16, (shape[0], count), lambda: blocks().scales
        )
        points = None
        if storage.zero_points:
            extents = (shape[0], packed_width(count, storage.bits))
            points = self.file.tensor(f"{key}.zeros", ir.DataType.UINT8, extents, zeros)
        memo.clear()
        return Quantised(codes, scales, points, storage)

    def _blocks(self, name: str, row: int | None, *, kernel: bool) -> Blocks:
        """A quantised tensor, or one row of its leading axis, as a matrix [N, K]."""
        values = self.ladder.read(name, row)
        matrix = values.T if kernel else values.reshape(-1, values.shape[-1])
        return self.plan.quantise(name, np.ascontiguousarray(matrix), row)

    def _key(self, names: Sequence[str], row: int | None) -> str:
        return "+".join(self.ladder.address(name, row) for name in names)

    def _parameter(
        self, key: str, dtype: ir.DataType, shape: tuple[int, ...], values: Callable[[], NDArray[Any]]
    ) -> nn.Parameter:
        tensor = self.file.tensor(key, dtype, shape, values)
        return nn.Parameter(shape, dtype=dtype, data=tensor)


class Quantised:
    """Codes, scales and perhaps zero points of a block-quantised matrix [N, K] in the weights file."""

    def __init__(
        self,
        codes: ir.ExternalTensor,
        scales: ir.ExternalTensor,
        zeros: ir.ExternalTensor | None,
        storage: Storage,
    ) -> None:
        """Hold the tensors."""
        self.codes, self.scales, self.zeros, self.storage = codes, scales, zeros, storage

    def as_kernel(self) -> nn.Parameter:
        """Codes [N, blocks, bytes], as MatMulNBits reads them."""
        return self._present(_extents(self.codes))

    def as_table(self) -> nn.Parameter:
        """Codes [N, bytes], as GatherBlockQuantized reads them: the same bytes of the file."""
        rows, count, packed = _extents(self.codes)
        return self._present((rows, count * packed))

    def scale(self) -> nn.Parameter:
        """Scales [N, blocks] float16."""
        return nn.Parameter(_extents(self.scales), dtype=ir.DataType.FLOAT16, data=self.scales)

    def zero(self) -> nn.Parameter | None:
        """Zero points [N, bytes] uint8, or None where each is the middle code."""
        if self.zeros is None:
            return None
        return nn.Parameter(_extents(self.zeros), dtype=ir.DataType.UINT8, data=self.zeros)

    def _present(self, shape: tuple[int, ...]) -> nn.Parameter:
        codes = self.codes
        tensor = ir.ExternalTensor(
            codes.location,
            codes.offset,
            codes.length,
            codes.dtype,
            shape=ir.Shape(shape),
            name=codes.name or "",
            base_dir=codes.base_dir,
        )
        return nn.Parameter(shape, dtype=ir.DataType.UINT8, data=tensor)


class Constant(nn.Module):
    """A float parameter, presented to the graph as float32 whatever it is stored in."""

    def __init__(
        self, source: Source, names: str | Sequence[str], row: int | None, shape: tuple[int, ...]
    ) -> None:
        """Take tensors of the checkpoint, joined on their last axis, in the given shape."""
        super().__init__()
        names = (names,) if isinstance(names, str) else tuple(names)
        self.half = source.half(names)
        self.value = source.stored(names, row, shape)

    def forward(self, op: OpBuilder) -> ir.Value:
        """The constant as float32."""
        return op.Cast(self.value, to=ir.DataType.FLOAT) if self.half else self.value


def _extents(tensor: ir.ExternalTensor) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.shape.numpy())
