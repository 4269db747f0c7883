"""Blocks that run or stand idle: what the set of those that run decides, and the branch around each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder, nn

__all__ = ["ACTIVE", "Choice", "active_input", "branch", "choose", "head_rows", "settle"]

ACTIVE = "active_blocks"
"""The input that says which blocks run."""

Trace = Callable[[OpBuilder], Sequence[ir.Value]]


class Choice(NamedTuple):
    """Which blocks run, once for all of a graph."""

    active: ir.Value
    """[L] bool."""
    flags: Sequence[ir.Value]
    """Per block [1] bool."""
    biases: ir.Value
    """[L, n + n + n * n]: the lane biases of each block, for its own lane among the blocks that run."""
    rows: ir.Value
    """[L + 1] bool: rows of the probe heads that count."""


def active_input(builder: GraphBuilder, blocks: int) -> ir.Value:
    """The input of a graph whose blocks may stand idle."""
    return builder.input(ACTIVE, ir.DataType.BOOL, [blocks])


def head_rows(op: OpBuilder, active: ir.Value) -> ir.Value:
    """[L + 1] bool: rows of the probe heads that count, the embedding's and those of blocks that run."""
    return op.Concat(op.Constant(value=ir.tensor(np.array([True]))), active, axis=0)


def choose(op: OpBuilder, active: ir.Value, biases: ir.Value, blocks: int, lanes: int) -> Choice:
    """Read the set of blocks that run.

    A block's own lane is the number of blocks that run before it, modulo n.

    Args:
        op: builder.
        active: [L] bool.
        biases: [L * n, n + n + n * n]: for each block and each lane that may be its own.
        blocks: L.
        lanes: n.
    """
    flags = op.Split(active, num_outputs=blocks, axis=0, _outputs=blocks)
    rank = op.CumSum(op.Cast(active, to=ir.DataType.INT64), 0, exclusive=1)
    rows = op.Add(op.Mod(rank, lanes), [block * lanes for block in range(blocks)])
    return Choice(active, flags, op.Gather(biases, rows, axis=0), head_rows(op, active))


def branch(op: OpBuilder, flag: ir.Value, run: Trace, idle: Trace, count: int) -> Sequence[ir.Value]:
    """The ``count`` values of ``run`` where ``flag`` [1] is set, else those of ``idle``.

    Only what is chosen is computed; parameters of both stay in the outermost graph.
    """
    taken, passed = (
        op.builder.subgraph(trace, [], [ir.Value() for _ in range(count)], name=name)
        for trace, name in ((run, "run"), (idle, "idle"))
    )
    outputs = op.If(flag, then_branch=taken, else_branch=passed, _outputs=count)
    return [outputs] if count == 1 else list(outputs)


def settle(builder: GraphBuilder, module: nn.Module) -> None:
    """Put a module's parameters into the graph under its full name, ahead of the branch that calls it.

    onnxscript puts those of a branch into the outermost graph as well, but under names without their module.
    """
    builder.push_module(module.name or "")
    for parameter in module.parameters(recurse=False):
        parameter._realize(builder)  # noqa: SLF001 - there is no public way
    for child in module.children():
        settle(builder, child)
    builder.pop_module()
