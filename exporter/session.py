"""Driving an exported graph in ONNX Runtime: chunks of tokens in, logits out, states carried along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from exporter.config import HEADS, LadderConfig
from exporter.graph import CACHED, StateSpec, state_contract
from exporter.graph.contract import pool_contract
from exporter.ladder import Array

__all__ = ["Graph", "GraphSession", "Run", "States", "float_arithmetic", "open_session"]

States = Mapping[str, NDArray[Any]]
"""Past states by name."""


class Graph(NamedTuple):
    """A graph in memory, with the files of weights that it names."""

    name: str
    """For messages."""
    model: bytes
    files: Mapping[str, bytes]

    def __str__(self) -> str:
        """The name."""
        return self.name


def open_session(graph: Path | Graph, threads: int = 0) -> ort.InferenceSession:
    """Load a graph on the CPU; the weights of one that is a file are mapped from the file beside it.

    Args:
        graph: path of the graph, or the graph itself.
        threads: threads within an operator; 0 leaves it to the runtime.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    model: Path | bytes
    if isinstance(graph, Graph):
        model, files = graph.model, list(graph.files.values())
        sizes = [len(content) for content in files]
        options.add_external_initializers_from_files_in_memory(list(graph.files), files, sizes)
    else:
        model = graph
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Run(NamedTuple):
    """What came of feeding tokens."""

    logits: dict[int, Array]
    """The last logits [V] of each chunk, by the number of its last token."""
    states: States
    """The states after the last token."""


class GraphSession:
    """A decoding graph with the states of its contract."""

    def __init__(self, graph: Path | Graph, config: LadderConfig) -> None:
        """Load ``graph``; its inputs say which heads it pools for."""
        self.session = open_session(graph)
        self._inputs = {value.name for value in self.session.get_inputs()}
        pooled = [h for h in HEADS if {state.past for state in pool_contract(config, h)} <= self._inputs]
        self.contract = state_contract(config, pooled)
        self._outputs = [value.name for value in self.session.get_outputs()]

    def start(self) -> States:
        """The states before the first token."""
        return {state.past: np.full(state.shape, state.fill, state.dtype) for state in self.contract}

    def run(
        self, tokens: Sequence[int], sizes: Sequence[int], states: States | None = None, position: int = 0
    ) -> Run:
        """Feed tokens in chunks.

        Between chunks a local block's caches are cut to the positions that its window still reaches, as
        a device would.

        Args:
            tokens: ids.
            sizes: tokens of each chunk; their sum is the number of tokens.
            states: what to start from, those that are missing as at the start; None for the start.
            position: tokens before the first.
        """
        states, done = {**self.start(), **(states or {})}, 0
        logits: dict[int, Array] = {}
        for size in sizes:
            feeds: dict[str, NDArray[Any]] = {
                "input_ids": np.array([tokens[done : done + size]], np.int64),
                "position": np.array([position + done], np.int64),
                **self._cached(states),
                **states,
            }
            present = dict(zip(self._outputs, self.session.run(self._outputs, feeds), strict=True))
            done += size
            logits[done - 1] = present["logits"][0, -1]
            states = {state.past: _trim(state, present[state.present]) for state in self.contract}
        return Run(logits, states)

    def _cached(self, states: States) -> dict[str, NDArray[Any]]:
        """Positions held by the caches, per kind of block."""
        lengths: dict[str, NDArray[Any]] = {}
        for state in self.contract:
            if state.grows is not None:
                held = states[state.past].shape[state.grows]
                lengths[CACHED[state.window == 0]] = np.array([held], np.int64)
        return {name: value for name, value in lengths.items() if name in self._inputs}


def _trim(state: StateSpec, value: NDArray[Any]) -> NDArray[Any]:
    """Cut a windowed cache to what the next token may see besides itself."""
    if state.grows is None or not state.window:
        return value
    extent = value.shape[state.grows]
    return value.take(range(max(0, extent - state.window + 1), extent), axis=state.grows)


def float_arithmetic(source: Path, target: Path) -> None:
    """Write a graph's twin that multiplies quantised weights in float32.

    The weights are the same bytes of the same file, so what the twin proves of them holds for the graph.

    Args:
        source: a graph.
        target: where to write the twin, in the same folder.
    """
    model = ir.load(source)
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 1)
    ir.save(model, target)
