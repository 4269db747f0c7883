"""What a graph remembers between two calls, as data: names, shapes, dtypes, how each state grows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import onnx_ir as ir

from exporter.config import LadderConfig
from exporter.graph.attention import cache_width
from exporter.ladder import SlicePlan
from exporter.layout import ENGRAM_TAPS

__all__ = [
    "LOWEST",
    "POOLED",
    "Rows",
    "StateSpec",
    "pool_contract",
    "pooled_of",
    "present_of",
    "state_contract",
]

LOWEST = -3.4028234663852886e38
"""The least finite float32."""

POOLED = ("confidence",)
"""Probe heads whose pooling the decoding graph carries along, so that they cost no second pass."""


def pooled_of(heads: Iterable[str]) -> list[str]:
    """Those of a ladder's heads whose pooling its decoding graph carries along."""
    return [head for head in heads if head in POOLED]


class Rows(StrEnum):
    """Positions of a call that get logits."""

    LAST = "last"
    ALL = "all"
    KEPT = "kept"
    """As many of the last as the input ``logits_kept`` says."""


@dataclass(frozen=True)
class StateSpec:
    """One state: the graph takes it as ``past`` and gives it back, advanced, as ``present``.

    ``shape`` is that of the empty state, to be filled with ``fill``. ``grows`` names the axis that gets a
    position per token, or is None for a state of constant shape. ``window`` is the number of latest
    positions that have to be kept of a growing state; 0 keeps all. ``block`` is the block that it belongs to,
    if any. ``rows`` names the axis that has one row more than there are blocks that run.
    """

    past: str
    present: str
    dtype: str
    shape: tuple[int, ...]
    grows: int | None = None
    window: int = 0
    fill: float = 0.0
    block: int | None = None
    rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The specification, JSON-ready."""
        return {**asdict(self), "shape": list(self.shape)}

    @property
    def element_type(self) -> ir.DataType:
        """The dtype as onnx_ir has it."""
        return ir.DataType[{"float32": "FLOAT", "int64": "INT64"}[self.dtype]]

    def graph_shape(self, time: str, *, elastic: bool = False) -> list[int | str]:
        """The shape with the axes named whose extent is not fixed.

        Args:
            time: past or present.
            elastic: whether blocks may stand idle, so that each has a number of positions of its own.
        """
        kind = f"block_{self.block}" if elastic else "local" if self.window else "global"
        names: dict[int | None, str] = {self.grows: f"{time}_{kind}_positions"}
        if elastic:
            names[self.rows] = "rows"
        return [names.get(axis, extent) for axis, extent in enumerate(self.shape)]

    def in_parent(self, plan: SlicePlan) -> StateSpec:
        """The same state of a slice, under the names that it has in the ladder that the slice is of."""
        if self.block is None:
            return self
        numbers = plan.sites if self.past.startswith("past_engram.") else plan.blocks
        past, present = (
            re.sub(r"\.(\d+)", lambda found: f".{numbers[int(found[1])]}", name, count=1)
            for name in (self.past, self.present)
        )
        return replace(self, past=past, present=present, block=plan.blocks[self.block])

    def shape_for(self, running: int) -> tuple[int, ...]:
        """The shape of the empty state where ``running`` blocks run."""
        return tuple(running + 1 if axis == self.rows else extent for axis, extent in enumerate(self.shape))


def present_of(past: str) -> str:
    """The output that gives back the state of an input."""
    return past.replace("past_key_values.", "past.", 1).replace("past", "present", 1)


def pool_contract(config: LadderConfig, head: str) -> list[StateSpec]:
    """States of a probe head's pooling over time, carried along while decoding.

    Per row and probe the softmax over time as its greatest score, and relative to that its denominator
    and numerator; the first starts below every score.
    """
    rows = (config.num_layers + 1, config.probes(head))
    shapes = {"max": rows, "denominator": rows, "numerator": (*rows, config.d_model)}
    return [
        StateSpec(
            f"past_pool.{head}.{kind}",
            f"present_pool.{head}.{kind}",
            "float32",
            shape,
            fill=LOWEST if kind == "max" else 0.0,
            rows=0,
        )
        for kind, shape in shapes.items()
    ]


def state_contract(config: LadderConfig, pooled: Sequence[str] = ()) -> list[StateSpec]:
    """States of a ladder's graph, in the order of its inputs and outputs.

    Args:
        config: geometry.
        pooled: probe heads whose pooling the graph carries along.
    """
    states = []
    shape = (1, config.num_kv_heads, 0, cache_width(config))
    for block in range(config.num_layers):
        for kind in ("key", "value"):
            past, present = f"past_key_values.{block}.{kind}", f"present.{block}.{kind}"
            states.append(StateSpec(past, present, "float32", shape, 2, config.window(block), block=block))
        if config.qkv_conv_taps > 1:
            tail = (config.qkv_conv_taps - 1, 1, config.qkv_width)
            states.append(
                StateSpec(f"past_taps.{block}", f"present_taps.{block}", "float32", tail, block=block)
            )
    if config.engram_layers:
        reach = ((ENGRAM_TAPS - 1) * config.max_order, 1, config.d_model)
        states += [
            StateSpec(f"past_engram.{site}", f"present_engram.{site}", "float32", reach, block=block)
            for site, block in enumerate(config.engram_layers)
        ]
        if config.max_order > 1:
            states.append(StateSpec("past_ids", "present_ids", "int64", (1, config.max_order - 1)))
    for head in pooled:
        states += pool_contract(config, head)
    return states
