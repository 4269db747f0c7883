"""What a bundle costs on a device: bytes of its files, and bytes resident while it runs.

Both are predicted from a graph that is built without its weights, so that a budget can refuse an export
before any weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from exporter.config import LadderConfig
from exporter.forms import graphs_of
from exporter.graph import Source, build_model, pooled_of, state_contract
from exporter.graph.constants import constant_bytes
from exporter.ladder import Ladder
from exporter.layout import heads_in
from exporter.precision import PrecisionPlan
from exporter.weights import WeightFile

__all__ = ["CHUNK", "Footprint", "Memory", "footprint", "weights_bytes"]

CHUNK: Final = 32
"""Tokens that the runtime prefills at once, unless told otherwise."""

_KIB, _MIB = 1 << 10, 1 << 20
_FLOAT = 4

# What follows was fitted to VmHWM and RssAnon of whole processes (Linux, x86-64, Python 3.11, ONNX Runtime
# 1.32, one thread) that ran ladders of widths 128 and 768 at depths 2, 6 and 20 in every precision.
# tests/exporter/test_footprint.py measures again.
_RUNTIME: Final = 66 * _MIB
"""Interpreter, NumPy, ONNX Runtime and the runtime package, code pages that a call touches included."""
_TEXT: Final = 6 * _MIB
"""The tokenizer's library, and what it makes of a small vocabulary."""
_NODE: Final = 5.5 * _KIB
"""One node of a session: its kernel, its place in the plan, its part of the graph."""
_SCALES: Final = 3.4
"""Float32 copies of block scales: folded, packed, and with the sums of blocks that int8 products need."""
_REFOLDED: Final = 1.15
"""A packed matrix that was cast to float32 on loading, with what the cast leaves taken in the arena."""
_CALL, _CALL_CHANNEL = 3.6 * _KIB, 135
"""Activations of a call per token, and per token and channel: planned once and traced once."""
_BLOCK, _BLOCK_CHANNEL = 1.94 * _KIB, 11.7
"""The same per block."""
_POOLED_CHANNEL: Final = 36
"""The same per block, channel and probe head whose pooling is carried along: its cells of all blocks."""
_COPIES_OF_CARRY: Final = 10
"""Two sides of the states of constant shape, and the marks that a rewind starts from."""
_MARGIN: Final = 63
"""Cache rows that the runtime keeps of a window beside what its queries see, so as to rewind."""
_OTHER_FILES: Final = 192 * _KIB
"""The runtime package, the description, sums and notices."""


class Memory(NamedTuple):
    """Bytes resident at the peak, by what takes them."""

    runtime: int
    """Before any bundle is loaded; the tokenizer, where there is one."""
    graph: int
    """Nodes of the session."""
    weights: int
    """Copies of weights: packed for the kernels, or folded to float32."""
    tables: int
    """Weights that are gathered where they lie in the mapped file; the system may let go of them."""
    caches: int
    """States, filled to the context."""
    activations: int
    """What a call computes, or, where that is more, what loading takes for a moment."""

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
    """Of a process that decodes; the scoring graph, loaded when it is asked, comes on top."""
    context: int
    """Tokens that the caches hold in it."""

    def to_json(self) -> dict[str, Any]:
        """The footprint, JSON-ready, in bytes."""
        memory = {"total": self.memory.total, **self.memory._asdict()}
        return {"storage": self.storage, "memory": memory, "context": self.context}


def footprint(
    ladder: Ladder,
    plan: PrecisionPlan,
    context: int,
    *,
    tokenizer: int = 0,
    chunk: int = CHUNK,
    beside: Sequence[tuple[Ladder, PrecisionPlan]] = (),
) -> Footprint:
    """Predict what the bundle of a ladder costs.

    Args:
        ladder: what would be exported; only a few small tensors of it are read.
        plan: its storage.
        context: tokens of a conversation; no more than the checkpoint was trained for are counted.
        tokenizer: bytes of the tokenizer's file, 0 for none.
        chunk: tokens that the runtime prefills at once.
        beside: slices with graphs of their own over the same weights, each with its storage. They take
            storage; memory only once they run, which is not counted.
    """
    config = ladder.config
    context = min(context, config.max_seq_len)
    pooled = pooled_of(heads_in(ladder.layout))
    file = _Sizes()
    model = build_model(Source(ladder, plan, file), pooled=pooled)
    held = _held(model)
    scored = bool(heads_in(ladder.layout))
    graph = len(ir.to_proto(model).SerializeToString())
    weights = plan.total + constant_bytes(config, score=scored) + file.padding
    caches = _caches(config, pooled, context, min(chunk, context))
    block = _BLOCK + (_BLOCK_CHANNEL + len(pooled) * _POOLED_CHANNEL) * config.d_model
    computing = min(chunk, context) * (_CALL + _CALL_CHANNEL * config.d_model + config.num_layers * block)
    memory = Memory(
        runtime=_RUNTIME + (_TEXT + 4 * tokenizer if tokenizer else 0),
        graph=round(_NODE * held.nodes),
        weights=round(held.copied),
        tables=held.mapped,
        caches=caches,
        activations=max(round(computing), held.loading - held.mapped - caches),
    )
    # The scoring graph is much like the decoding one.
    storage = weights + graph * (2 if scored else 1) + tokenizer + _OTHER_FILES
    return Footprint(storage + sum(_added(file, *each) for each in beside), memory, context)


def _added(file: _Sizes, ladder: Ladder, plan: PrecisionPlan) -> int:
    """Bytes of a further slice's graphs, and of what it adds to the weights."""
    before, source = file.size, Source(ladder, plan, file)
    graphs = graphs_of(source, score=False).values()
    return file.size - before + sum(len(ir.to_proto(graph).SerializeToString()) for graph in graphs)


def weights_bytes(ladder: Ladder, plan: PrecisionPlan) -> int:
    """Bytes of the weights file that an export would write, laid out without its values.

    Args:
        ladder: what would be exported.
        plan: its storage.
    """
    file = _Sizes()
    graphs_of(Source(ladder, plan, file))
    return file.size


class _Sizes(WeightFile):
    """A weights file of which only the sizes are known: nothing is read or written."""

    def __init__(self) -> None:
        """Start empty, without a file."""
        self.path = Path("weights.bin")
        self.padding = 0
        self._spans, self._size = {}, 0

    def tensor(
        self, name: str, dtype: ir.DataType, shape: tuple[int, ...], values: Callable[[], NDArray[Any]]
    ) -> ir.ExternalTensor:
        """Lay a tensor out, without asking for its values."""
        if name not in self._spans:
            self._spans[name] = self._place(round(math.prod(shape) * dtype.itemsize))
        return super().tensor(name, dtype, shape, values)


class _Held(NamedTuple):
    """What a session holds of a graph."""

    nodes: int
    """That are left when constants are folded."""
    copied: float
    """Bytes of copies of weights."""
    mapped: int
    """Bytes of weights used where they lie."""
    loading: int
    """Bytes of the largest weight that lies beside its packed copy while that is made."""


class _Constant(NamedTuple):
    """A value that is known when the graph is loaded."""

    elements: int
    itemsize: float
    stored: int
    """Bytes in the weights file."""
    folded: bool

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return round(self.elements * self.itemsize)


def _held(model: ir.Model) -> _Held:
    """Follow every constant to the operators that use it, as ONNX Runtime folds and packs.

    A product packs its constant factor; a gather reads its table where it lies; what is computed from
    constants alone is computed on loading.
    """
    constants, nodes = _constants(model)
    copied, mapped, loading = 0.0, 0, 0
    uses = {
        (id(value), node.op_type, index == 1)
        for node in nodes
        for index, value in enumerate(node.inputs)
        if id(value) in constants
    }
    for identity, kind, second in uses:
        found = constants[identity]
        if second and kind in {"MatMulNBits", "MatMul", "Gemm"}:
            copied += found.nbytes * (_REFOLDED if found.folded else 1)
            loading = max(loading, found.nbytes if found.folded or kind == "MatMulNBits" else 0)
        elif kind == "MatMulNBits":
            copied += found.nbytes * _SCALES
        elif kind in {"Gather", "GatherBlockQuantized"} and not found.folded:
            mapped += found.stored
        elif found.folded:
            copied += found.nbytes
    return _Held(len(nodes), copied, mapped, loading)


def _constants(model: ir.Model) -> tuple[dict[int, _Constant], list[ir.Node]]:
    """Values known on loading, by identity, and the nodes that remain."""
    constants: dict[int, _Constant] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None:
            constants[id(value)] = _Constant(tensor.size, tensor.dtype.itemsize, tensor.nbytes, folded=False)
    nodes = []
    for node in model.graph:
        inputs = [constants.get(id(value)) for value in node.inputs if value is not None]
        known = [constant for constant in inputs if constant is not None]
        if len(known) < len(inputs):
            nodes.append(node)
            continue
        folded = _folded(node, known)
        constants |= {id(output): folded for output in node.outputs}
    return constants, nodes


def _folded(node: ir.Node, inputs: list[_Constant]) -> _Constant:
    """The result of a node over constants; of the operators used here none gives more than it takes."""
    if not inputs:
        tensor = node.attributes["value"].as_tensor()
        return _Constant(tensor.size, tensor.dtype.itemsize, 0, folded=True)
    largest = max(inputs, key=lambda constant: constant.elements)
    itemsize = largest.itemsize
    if node.op_type == "Cast":
        itemsize = ir.DataType(node.attributes["to"].as_int()).itemsize
    return _Constant(largest.elements, itemsize, 0, folded=True)


def _caches(config: LadderConfig, pooled: list[str], context: int, chunk: int) -> int:
    """Bytes of all states after ``context`` tokens, as the runtime keeps them."""

    def sizes() -> Iterator[int]:
        for state in state_contract(config, pooled):
            width = np.dtype(state.dtype).itemsize
            if state.grows is None:
                yield _COPIES_OF_CARRY * width * math.prod(state.shape)
                continue
            rows = min(context, state.window + _MARGIN + chunk) if state.window else context
            yield width * rows * math.prod(n for axis, n in enumerate(state.shape) if axis != state.grows)

    return sum(sizes())
