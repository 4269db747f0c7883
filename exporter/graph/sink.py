"""Moving constants into the branches that read them, where ONNX Runtime reaches them for nothing.

A branch takes every constant of the graph around it as an argument, each time that it runs; those of its own
are in its frame already. And a constant that a kernel has packed is no tensor any more: with one among its
arguments a branch loses its memory pattern, so that each of its nodes asks the allocator.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["sink_constants"]


def sink_constants(graph: ir.Graph) -> None:
    """Move a graph's initialisers into its branches.

    One that a single branch reads moves; of any other, each branch that reads it gets a copy, which names the
    same span of the weights file.
    """
    for name, value in list(graph.initializers.items()):
        owners: dict[int, ir.Graph] = {}
        for node, _ in value.uses():
            assert isinstance(node.graph, ir.Graph)  # noqa: S101 - there are no functions
            owners[id(node.graph)] = node.graph
        if list(owners.values()) == [graph]:
            continue
        if len(owners) == 1:
            (owner,) = owners.values()
            del graph.initializers[name]
            owner.register_initializer(value)
        else:
            for number, owner in enumerate(o for o in owners.values() if o is not graph):
                _copy_into(owner, value, f"{name}.{number}")
            if id(graph) not in owners:
                del graph.initializers[name]


def _copy_into(owner: ir.Graph, value: ir.Value, name: str) -> None:
    copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    owner.register_initializer(copy)
    for node, index in list(value.uses()):
        if node.graph is owner:
            node.replace_input_with(index, copy)
