"""What a bundle costs on a device: bytes of its files, and bytes resident while it runs.

Both are predicted from a graph that is built without its weights, so that a budget can refuse an export
before a tensor is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from exporter.graph import Source, StateSpec, build_model, state_contract
from exporter.graph.constants import constant_bytes
from exporter.ladder import Ladder
from exporter.precision import INT8_ACTIVATIONS, PrecisionPlan
from exporter.weights import WeightFile

__all__ = ["CHUNK", "Footprint", "Memory", "footprint"]

CHUNK = 256
"""Tokens that the runtime prefills at once, unless told otherwise."""

_KIB, _MIB = 1 << 10, 1 << 20
_FLOAT = 4

# What follows is measured: VmHWM and RssAnon of whole processes (Linux, x86-64, Python 3.11, ONNX Runtime
# 1.32, one thread) that run ladders of widths 128 and 768 at depths 2, 6 and 20 in every precision.
_RUNTIME = 65 * _MIB
"""Interpreter, NumPy, ONNX Runtime and the runtime package: what there is before any bundle."""
_TEXT = 6 * _MIB
"""The tokenizer's library and what it makes of a small vocabulary."""
_NODE = 6 * _KIB
"""One node of a session: its kernel, its place in the plan, its part of the graph."""
_REFOLDED = 0.25
"""Of a matrix that is cast to float32 on loading: what stays taken in the arena besides the packed copy."""
_PAPERS = 64 * _KIB
"""Description, sums and notices."""
_ROWS_BESIDE_WINDOW = 63
"""Cache rows that the runtime keeps of a window besides what its next query sees, so as to rewind."""
_COPIES_OF_CARRY = 10
"""Two sides of the states of constant shape, and the marks that a rewind starts from."""


class Memory(NamedTuple):
    """Bytes resident at the peak, by what takes them."""

    runtime: int
    """Before any bundle is loaded; the tokenizer, where there is one."""
    graph: int
    """Nodes of the session."""
    weights: int
    """Copies of weights: packed for the kernels, or folded to float32."""
    tables: int
    """Weights read where they lie in the mapped file. The system may drop and read them again."""
    caches: int
    """States, filled to the context."""
    activations: int
    """What one call computes."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


@dataclass(frozen=True)
class Footprint:
    """What a bundle costs."""

    storage: int
    """Bytes of its files, unpacked."""
    memory: Memory
    """Of a process that decodes with it; the scoring graph, loaded on demand, comes on top."""
    context: int
    """Tokens that the caches hold in it."""

    def to_json(self) -> dict[str, Any]:
        """The footprint, JSON-ready, in bytes."""
        return {
            "storage": self.storage,
            "memory": {"total": self.memory.total, **self.memory._asdict()},
            "context": self.context,
        }
