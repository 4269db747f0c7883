"""Which tensor is stored in which bits and blocks, and how many bytes that makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from exporter.config import LadderConfig
from exporter.errors import PrecisionError
from exporter.ladder import Array, Ladder, SlicedLadder
from exporter.layout import Axis, Part, TensorSpec
from exporter.quantize import (
    METHODS,
    NEAREST,
    SEARCH,
    Blocks,
    dequantise,
    finite_half,
    joined,
    packed_width,
    quantise,
)

__all__ = [
    "BLOCKS",
    "CALIBRATED",
    "GATHERED",
    "INT8_ACTIVATIONS",
    "MIXED",
    "PRECISIONS",
    "QUANTISERS",
    "RECOVERED",
    "Key",
    "PrecisionPlan",
    "Role",
    "Scheme",
    "Storage",
    "StoredLadder",
    "plan_precision",
    "role_of",
    "to_half",
]

_FULL, _HALF, _BYTE = 32, 16, 8
"""Bits of the float formats."""

MIXED = "mixed"
"""Name of the precision whose widths are chosen per tensor under a budget."""

CALIBRATED = "gptq"
RECOVERED = "recovered"
QUANTISERS = (*METHODS, CALIBRATED, RECOVERED)
"""How codes and scales are found, by name. The third looks at examples, and leaves to the search what they do
not reach; the last takes them from a file, tuned together with the gains of norms."""

INT8_ACTIVATIONS = 4
"""MatMulNBits' accuracy level whose kernels round activations to int8 where the CPU is faster so."""

_HEAD_BITS = 8
"""The least bits of a probe head's weights."""

GATHERED = (4, 8)
"""Bits that GatherBlockQuantized reads since 1.24; fewer are unpacked by plain operators."""

_SMALL, _NARROW = 128, 16
"""Tensors with fewer values per block, and fewer on the last axis, stay float32: nothing to win."""

BLOCKS = (16, 32, 64, 128, 256)
"""Block sizes that the operators take; a table's width must be a multiple."""


Key = tuple[str, int | None]
"""A tensor's name with a row of its leading axis, or None for all of it."""

_Found = TypeVar("_Found")


class Role(StrEnum):
    """How the graph uses a tensor, which decides the storage it may have."""

    MATMUL = "matmul"
    """A kernel [..., K, N], multiplied with from the left."""
    TABLE = "table"
    """Rows [..., C] that are gathered."""
    TIED = "tied"
    """The embedding: gathered by id, and multiplied with for the logits."""
    SMALL = "small"
    """Gains, biases, taps, gates, the Monarch factors."""


@dataclass(frozen=True)
class Storage:
    """How one tensor is stored.

    ``block`` 0 is plain float of ``bits`` 32 or 16; otherwise ``bits`` is 2, 4 or 8 with a float16 scale per
    ``block`` values, and a zero point of as many bits where ``zero_points``, multiplied at
    ``accuracy_level`` (ONNX Runtime: 1 float32, 4 int8 activations).
    """

    bits: int
    block: int = 0
    accuracy_level: int = 0
    zero_points: bool = False

    @property
    def half(self) -> bool:
        """Whether this is plain float16."""
        return self.bits == _HALF and not self.block

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix whose blocks run along ``columns``."""
        if not self.block:
            return rows * columns * self.bits // 8
        blocks = -(-columns // self.block)
        zeros = packed_width(blocks, self.bits) if self.zero_points else 0
        return rows * (blocks * (self.block * self.bits // 8 + np.dtype(np.float16).itemsize) + zeros)

    @property
    def label(self) -> str:
        """What it is, in words."""
        if not self.block:
            return f"float{self.bits}"
        return f"int{self.bits} block {self.block}{' with zero points' if self.zero_points else ''}"


@dataclass(frozen=True)
class Scheme:
    """A precision by name, with the parameters that a target or the user may set.

    ``block`` is the preferred block size; a tensor whose width it does not suit gets a smaller one.
    ``quantiser`` is one of :data:`QUANTISERS`; a tensor whose operator takes no ``zero_points`` goes without.
    """

    name: str
    bits: int
    block: int = 0
    accuracy_level: int = 0
    quantiser: str = SEARCH
    zero_points: bool = False

    @property
    def quantised_by(self) -> str | None:
        """The quantiser, where there is anything to quantise."""
        return self.quantiser if self.block else None

    def to_json(self) -> dict[str, Any]:
        """The scheme, JSON-ready."""
        return asdict(self)


PRECISIONS: Mapping[str, Scheme] = {
    "fp32": Scheme("fp32", 32),
    "fp16": Scheme("fp16", 16),
    "int8": Scheme("int8", 8, 64, INT8_ACTIVATIONS),
    "int4": Scheme("int4", 4, 32, INT8_ACTIVATIONS),
}
"""The precisions by name, with defaults."""


@dataclass(frozen=True)
class PrecisionPlan:
    """Storage of every tensor of a ladder."""

    scheme: Scheme
    storage: Mapping[str, Storage]
    specs: Mapping[str, TensorSpec]
    known: Mapping[Key, Blocks] = field(default_factory=dict, repr=False)
    """What calibration found of tensors in blocks."""
    tuned: Mapping[Key, Array] = field(default_factory=dict, repr=False)
    """Values that take the place of the ladder's in tensors of plain storage; all rows of one, or none."""

    def nbytes(self, name: str) -> int:
        """Bytes that a tensor takes in the weights file."""
        spec = self.specs[name]
        columns = spec.shape[-1] if spec.shape else 1
        rows = spec.size // columns
        if role_of(spec) is Role.MATMUL:
            kernels, depth = spec.size // (spec.shape[-2] * columns), spec.shape[-2]
            return kernels * self.storage[name].nbytes(columns, depth)
        return self.storage[name].nbytes(rows, columns)

    @property
    def total(self) -> int:
        """Bytes that all tensors take in the weights file."""
        return sum(self.nbytes(name) for name in self.storage)

    @property
    def integer_arithmetic(self) -> bool:
        """Whether a product rounds its activations to int8."""
        return any(storage.accuracy_level == INT8_ACTIVATIONS for storage in self.storage.values())

    def to_json(self) -> dict[str, Any]:
        """The plan, JSON-ready: the scheme and one line per kind of storage."""
        kinds: dict[str, dict[str, int]] = {}
        for name, storage in self.storage.items():
            kind = kinds.setdefault(storage.label, {"tensors": 0, "values": 0, "bytes": 0})
            kind["tensors"] += 1
            kind["values"] += self.specs[name].size
            kind["bytes"] += self.nbytes(name)
        return {"scheme": self.scheme.to_json(), "bytes": self.total, "storage": kinds}

    def quantise(
        self, name: str, matrix: Array, row: int | None = None, indices: Sequence[int] | None = None
    ) -> Blocks:
        """Quantise a matrix [N, K] of a tensor, its blocks running along K, as the plan says.

        Args:
            name: of the tensor.
            matrix: its values.
            row: of its leading axis, where the matrix is one; None where it is the whole tensor.
            indices: rows of that row which the matrix holds; None for all.
        """
        found = self._found(name, row)
        if found is not None:
            return found if indices is None else found.rows(indices)
        storage, method = self.storage[name], self.scheme.quantiser
        method = NEAREST if method == NEAREST else SEARCH
        return quantise(matrix, storage.bits, storage.block, method=method, zero_points=storage.zero_points)

    def plain(self, name: str, values: Array, row: int | None = None) -> Array:
        """Values of a tensor of plain storage, or of one row of its leading axis, as they are stored.

        Args:
            name: of the tensor.
            values: the ladder's own.
            row: of its leading axis; None for the whole tensor.

        Raises:
            PrecisionError: one exceeds float16.
        """
        if (name, row) in self.tuned:
            values = self.tuned[name, row]
        elif row is None and (name, 0) in self.tuned:
            values = np.stack([self.tuned[name, each] for each in range(self.specs[name].shape[0])])
        return to_half(name, values).astype(np.float32) if self.storage[name].half else values

    def inherited(self, whole: PrecisionPlan, ladder: SlicedLadder) -> PrecisionPlan:
        """This plan of a slice, knowing what a plan of the slice's parent knows."""
        return replace(self, known=_kept(whole.known, ladder), tuned=_kept(whole.tuned, ladder))

    def _found(self, name: str, row: int | None) -> Blocks | None:
        """What calibration found of a tensor, or of one row of its leading axis."""
        if (name, row) in self.known:
            return self.known[name, row]
        shape = self.specs[name].shape
        if row is None and (name, 0) in self.known:
            return joined([self.known[name, each] for each in range(shape[0])])
        if row is not None and (name, None) in self.known:
            return self.known[name, None].rows(slice(row * shape[1], (row + 1) * shape[1]))
        return None


def _kept(found: Mapping[Key, _Found], ladder: SlicedLadder) -> dict[Key, _Found]:
    """What a slice keeps of things found of its parent's tensors, under its own names and rows."""
    numbers: dict[int | None, int] = {block: number for number, block in enumerate(ladder.plan.blocks)}
    kept: dict[Key, _Found] = {}
    for name, spec in ladder.layout.items():
        source, stacked = ladder.source(name), spec.axis is Axis.BLOCKS
        rows = [row for known, row in found if known == source and (not stacked or row in numbers)]
        kept |= {(name, numbers[row] if stacked else row): found[source, row] for row in rows}
    return kept


_MATMULS = ("_proj/kernel", "/proj/kernel", "/mhc_phi_pre", "/mhc_phi_post", "/mhc_phi_res")


def role_of(spec: TensorSpec) -> Role:
    """How the graph uses a tensor."""
    if spec.part is Part.EMBEDDING:
        return Role.TIED
    if spec.part is Part.ENGRAM_TABLES or spec.name.endswith("_head/probes"):
        return Role.TABLE
    if spec.name.endswith(_MATMULS):
        return Role.MATMUL
    return Role.SMALL


def plan_precision(config: LadderConfig, specs: Mapping[str, TensorSpec], scheme: Scheme) -> PrecisionPlan:
    """Choose the storage of every tensor of a ladder.

    Args:
        config: geometry.
        specs: the ladder's tensors.
        scheme: the precision wanted.
    """
    storage = {name: _storage(config, spec, scheme) for name, spec in specs.items()}
    return PrecisionPlan(scheme, storage, dict(specs))


def _storage(config: LadderConfig, spec: TensorSpec, scheme: Scheme) -> Storage:
    role = role_of(spec)
    shape = spec.shape[1:] if spec.axis is Axis.BLOCKS else spec.shape
    small = math.prod(shape) < _SMALL and (not shape or shape[-1] < _NARROW)
    if scheme.bits == _FULL or small:
        return Storage(_FULL)
    if not scheme.block or role is Role.SMALL:
        return Storage(_HALF)
    # A head's few large weights decide on a scale that logits never see; finer bits cost it next to nothing.
    bits = max(scheme.bits, _HEAD_BITS) if spec.part is Part.HEADS else scheme.bits
    if role is Role.MATMUL:
        return Storage(bits, scheme.block, scheme.accuracy_level, scheme.zero_points)
    width = config.d_model if role is Role.TIED else spec.shape[-1]
    fitting = [size for size in BLOCKS if size <= scheme.block and width % size == 0]
    if not fitting:
        return Storage(_HALF)
    block = fitting[-1]
    # Zero points of a row that end within a byte are misread by GatherBlockQuantized 1.24, without a word.
    whole = width // block * bits % _BYTE == 0 and bits in GATHERED
    return Storage(bits, block, scheme.accuracy_level, scheme.zero_points and whole)


def to_half(name: str, values: Array) -> NDArray[np.float16]:
    """Round to float16.

    Raises:
        PrecisionError: a value exceeds float16.
    """
    half = finite_half(values)
    if half is None:
        message = (
            f"tensor {name!r} holds a value of magnitude {float(np.abs(values).max()):.3g}, beyond float16: "
            "export with --precision fp32."
        )
        raise PrecisionError(message)
    return half


class StoredLadder(Ladder):
    """A ladder as its stored form says it: every tensor rounded and back.

    The reference run on this is what an exported graph must equal, whatever the rounding costs.
    """

    def __init__(self, parent: Ladder, plan: PrecisionPlan) -> None:
        """Wrap ``parent``; a tensor is rounded when it is read."""
        self.parent, self.plan = parent, plan
        self.config, self.layout = parent.config, parent.layout

    def read(self, name: str, row: int | None = None) -> Array:
        """The tensor (or one row of its leading axis), rounded to its storage and back to float32."""
        return self._round(name, self.parent.read(name, row), row)

    def gather(self, name: str, row: int, indices: Sequence[int]) -> Array:
        """Read and round chosen rows of an engram table, whose blocks run within rows."""
        return self._round(name, self.parent.gather(name, row, indices), row, indices)

    def _round(
        self, name: str, values: Array, row: int | None, indices: Sequence[int] | None = None
    ) -> Array:
        storage = self.plan.storage[name]
        if not storage.block:
            return self.plan.plain(name, values, row)
        role = role_of(self.layout[name])
        matrices = values.swapaxes(-1, -2) if role is Role.MATMUL else values
        rows = np.ascontiguousarray(matrices).reshape(-1, matrices.shape[-1])
        back = dequantise(self.plan.quantise(name, rows, row, indices), storage.bits, rows.shape[1])
        if role is Role.TABLE:
            # Gathered rows leave GatherBlockQuantized in the dtype of its scales.
            back = back.astype(np.float16).astype(np.float32)
        back = back.reshape(matrices.shape)
        return np.ascontiguousarray(back.swapaxes(-1, -2)) if role is Role.MATMUL else back
