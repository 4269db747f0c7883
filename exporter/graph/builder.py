"""Starting and finishing a graph: operator sets, versions, tidy names."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnxscript import GraphBuilder

from exporter.graph.sink import sink_constants

__all__ = ["IR_VERSION", "OPSET", "OPSET_END", "TOKENS", "describe", "finish", "new_builder", "shaped"]

OPSET = 21
"""Newest operator set whose LpNormalization has a kernel in every supported runtime."""

IR_VERSION = 10

OPSET_END = 2**31 - 1
"""The end of an axis, to Slice."""


TOKENS = "tokens"
"""Name of the axis of a call's tokens, T."""

_SHAPED = "shaped"


def new_builder(name: str) -> GraphBuilder:
    """A builder for an empty graph of the operator sets used here."""
    imports = {"": OPSET, "com.microsoft": 1}
    return GraphBuilder(ir.Graph([], [], nodes=[], name=name, opset_imports=imports))


def describe(value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
    """State type and shape of a graph's output."""
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)


def shaped(value: ir.Value, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    """State the shape of a value behind which a runtime would lose it, and keep it in the graph.

    ONNX Runtime never reuses a buffer whose shape it does not know, and up to 1.31 looks through all of them
    for every node, so that loading would take the square of the nodes.
    """
    describe(value, dtype, shape)
    value.meta[_SHAPED] = True
    return value


def finish(builder: GraphBuilder) -> ir.Model:
    """Wrap a built graph into a model, without what only its building needed.

    Unused nodes and initialisers go. Intermediate values get short names, since names are most of a small
    graph's bytes; a node's name still says its place, such as ``blocks.3.attention/Softmax.17``.
    """
    graph = builder.graph
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="needle-ladder-export")
    common_passes.RemoveUnusedNodesPass()(model)
    sink_constants(graph)
    kept = {id(value) for value in graph.outputs}
    number = 0
    for index, node in enumerate(ir.traversal.RecursiveGraphIterator(graph)):
        place = ".".join(part for part in (node.name or "").split("/")[:-1] if part != "trunk")
        node.name = f"{place}/{node.op_type}.{index}" if place else f"{node.op_type}.{index}"
        node.metadata_props.clear()
        for value in node.outputs:
            if id(value) not in kept and not value.meta.get(_SHAPED):
                value.type = value.shape = None
            if id(value) not in kept and value.name:
                value.name = f"v{number}"
                number += 1
    return model
