"""Driving an exported graph in ONNX Runtime: chunks of tokens in, logits out, states carried along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from exporter.graph import CACHED, StateSpec
from exporter.ladder import Array

__all__ = ["GraphSession", "States", "float_arithmetic", "open_session"]

States = Mapping[str, NDArray[Any]]
"""Past states by name."""


def open_session(path: Path, threads: int = 0) -> ort.InferenceSession:
    """Load a graph on the CPU; its weights are mapped from the file beside it.

    Args:
        path: the graph.
        threads: threads within an operator; 0 leaves it to the runtime.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class GraphSession:
    """A decoding graph with the states of its contract."""

    def __init__(self, path: Path, contract: Sequence[StateSpec]) -> None:
        """Load the graph at ``path``."""
        self.session = open_session(path)
        self.contract = contract
        self._inputs = {value.name for value in self.session.get_inputs()}
        self._outputs = [value.name for value in self.session.get_outputs()]

    def start(self) -> States:
        """The states before the first token."""
        return {state.past: np.zeros(state.shape, state.dtype) for state in self.contract}

    def run(
        self, tokens: Sequence[int], sizes: Sequence[int], states: States | None = None, position: int = 0
    ) -> dict[int, Array]:
        """Feed tokens in chunks.

        Between chunks a local block's caches are cut to the positions that its window still reaches, as
        a device would.

        Args:
            tokens: ids.
            sizes: tokens of each chunk; their sum is the number of tokens.
            states: what to start from; None for the start of a sequence.
            position: tokens before the first.

        Returns:
            The last logits [V] of each chunk, by the number of its last token.
        """
        states, logits, done = states or self.start(), {}, 0
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
        return logits

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
