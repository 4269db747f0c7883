"""The external data file of an export: written once, in order, shared by every graph of a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["WeightFile"]

_ALIGNMENT = 64
_PAGE = 4096
_LARGE = 1 << 16


class WeightFile:
    """Appends tensors to a file; the same name is stored once, however many graphs ask for it.

    Large tensors start on a page, so that a runtime can map them; small ones on a cache line.

    Attributes:
        path: the file; graphs refer to it by its name alone.
        padding: bytes spent on alignment.
    """

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self.path = path
        self.padding = 0
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._spans: dict[str, tuple[int, int]] = {}
        self._size = 0

    def __enter__(self) -> Self:
        """Enter a context that closes the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def tensor(
        self, name: str, dtype: ir.DataType, shape: tuple[int, ...], values: Callable[[], NDArray[Any]]
    ) -> ir.ExternalTensor:
        """A tensor in the file; ``values`` is called, and written, only when the name is new.

        Args:
            name: identity of the data in the file.
            dtype: element type.
            shape: shape to present it in; another than the first call's is a view of the same bytes.
            values: gives the contiguous data.
        """
        if name not in self._spans:
            self._spans[name] = self._append(np.ascontiguousarray(values()))
        offset, length = self._spans[name]
        expected = int(np.prod(shape)) * dtype.itemsize
        if expected != length:
            message = f"{name}: {length} bytes are stored, and {dtype}{list(shape)} takes {expected}"
            raise ValueError(message)
        return ir.ExternalTensor(
            self.path.name,
            offset,
            length,
            dtype,
            shape=ir.Shape(shape),
            name=name,
            base_dir=self.path.parent,
        )

    def _append(self, data: NDArray[Any]) -> tuple[int, int]:
        start = self._size
        offset, length = self._place(data.nbytes)
        self._write(bytes(offset - start))
        self._write(data.reshape(-1).view(np.uint8).data)
        return offset, length

    def _place(self, length: int) -> tuple[int, int]:
        """Set a span of the file aside, behind what is there."""
        gap = -self._size % (_PAGE if length >= _LARGE else _ALIGNMENT)
        offset = self._size + gap
        self.padding += gap
        self._size = offset + length
        return offset, length

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._size

    @property
    def sha256(self) -> str:
        """Digest of what was written."""
        return self._digest.hexdigest()
