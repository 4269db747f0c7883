"""The ladder model as ONNX graphs, one module per part of the block."""

from __future__ import annotations

from exporter.graph.choice import ACTIVE
from exporter.graph.contract import Rows, StateSpec, pooled_of, state_contract
from exporter.graph.model import CACHED, LOGITS_KEPT, build_model
from exporter.graph.readout import build_readout
from exporter.graph.score import build_score
from exporter.graph.source import Source

__all__ = [
    "ACTIVE",
    "CACHED",
    "LOGITS_KEPT",
    "Rows",
    "Source",
    "StateSpec",
    "build_model",
    "build_readout",
    "build_score",
    "pooled_of",
    "state_contract",
]
