"""What a graph remembers between two calls, as data: names, shapes, dtypes, how each state grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from exporter.config import LadderConfig
from exporter.graph.attention import cache_width
from exporter.layout import ENGRAM_TAPS

__all__ = ["LOWEST", "POOLED", "StateSpec", "pool_contract", "pooled_of", "state_contract"]

LOWEST = -3.4028234663852886e38
"""The least finite float32."""

POOLED = ("confidence",)
"""Probe heads whose pooling the decoding graph carries along, so that they cost no second pass."""


def pooled_of(heads: Iterable[str]) -> list[str]:
    """Those of a ladder's heads whose pooling its decoding graph carries along."""
    return [head for head in heads if head in POOLED]


@dataclass(frozen=True)
class StateSpec:
    """One state: the graph takes it as ``past`` and gives it back, advanced, as ``present``.

    ``shape`` is that of the empty state, to be filled with ``fill``. ``grows`` names the axis that gets a
    position per token, or is None for a state of constant shape. ``window`` is the number of latest
    positions that have to be kept of a growing state; 0 keeps all.
    """

    past: str
    present: str
    dtype: str
    shape: tuple[int, ...]
    grows: int | None = None
    window: int = 0
    fill: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The specification, JSON-ready."""
        return {**asdict(self), "shape": list(self.shape)}

    @property
    def element_type(self) -> ir.DataType:
        """The dtype as onnx_ir has it."""
        return ir.DataType[{"float32": "FLOAT", "int64": "INT64"}[self.dtype]]

    def graph_shape(self, time: str) -> list[int | str]:
        """The shape with the growing axis named; ``time`` is past or present."""
        growing = f"{time}_{'local' if self.window else 'global'}_positions"
        return [growing if axis == self.grows else extent for axis, extent in enumerate(self.shape)]


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
            states.append(StateSpec(past, present, "float32", shape, 2, config.window(block)))
        if config.qkv_conv_taps > 1:
            tail = (config.qkv_conv_taps - 1, 1, config.qkv_width)
            states.append(StateSpec(f"past_taps.{block}", f"present_taps.{block}", "float32", tail))
    if config.engram_layers:
        reach = ((ENGRAM_TAPS - 1) * config.max_order, 1, config.d_model)
        states += [
            StateSpec(f"past_engram.{site}", f"present_engram.{site}", "float32", reach)
            for site in range(len(config.engram_layers))
        ]
        if config.max_order > 1:
            states.append(StateSpec("past_ids", "present_ids", "int64", (1, config.max_order - 1)))
    for head in pooled:
        states += pool_contract(config, head)
    return states
