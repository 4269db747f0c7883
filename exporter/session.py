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
from exporter.errors import VerificationError
from exporter.graph import ACTIVE, CACHED, LOGITS_KEPT, StateSpec, state_contract
from exporter.graph.contract import pool_contract, present_of
from exporter.ladder import Array, SlicePlan

__all__ = ["Graph", "GraphSession", "Run", "States", "choice_of", "float_arithmetic", "open_session"]

States = Mapping[str, NDArray[Any]]
"""Past states by name."""


_OF_BLOCKS = ("past_key_values.", "past_taps.", "past_engram.")
_IDLE_POSITIONS = 3
"""Positions that the made-up caches of idle blocks hold."""


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
    """A decoding graph with the states of its contract.

    Of an elastic graph, with those of the slice that runs, under the names that a graph of that slice would
    give them. Idle blocks are fed made-up states, which have to come back as they are.
    """

    def __init__(
        self, graph: Path | Graph | ort.InferenceSession, config: LadderConfig, plan: SlicePlan | None = None
    ) -> None:
        """Load a graph; its inputs say which heads it pools for.

        Args:
            graph: the decoding graph, or a session of it.
            config: geometry of what runs.
            plan: of the slice that runs, of an elastic graph; None where the graph is of that slice.
        """
        self.session = open_session(graph) if isinstance(graph, Path | Graph) else graph
        self._inputs = {value.name for value in self.session.get_inputs()}
        pooled = [h for h in HEADS if {state.past for state in pool_contract(config, h)} <= self._inputs]
        self.contract = state_contract(config, pooled)
        self._names = {
            state.past: state if plan is None else state.in_parent(plan) for state in self.contract
        }
        self._outputs = [value.name for value in self.session.get_outputs()]
        self._idle = {} if plan is None else self._made_up()
        self._others: dict[str, NDArray[Any]] = {} if plan is None else {**choice_of(plan)}
        if "past_ids" in self._inputs:
            # No state of the slice where no engram site runs.
            shape = (1, config.max_order - 1)
            self._others["past_ids"] = np.zeros(shape, np.int64)

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

        Raises:
            VerificationError: the graph fails to run, or changes the state of an idle block.
        """
        states, done = {**self.start(), **(states or {})}, 0
        logits: dict[int, Array] = {}
        for size in sizes:
            feeds: dict[str, NDArray[Any]] = {
                "input_ids": np.array([tokens[done : done + size]], np.int64),
                "position": np.array([position + done], np.int64),
                **self._cached(states),
                **self._others,
                **self._idle,
                **{self._names[name].past: value for name, value in states.items()},
            }
            if LOGITS_KEPT in self._inputs:
                feeds[LOGITS_KEPT] = np.ones(1, np.int64)
            present = self._call(feeds)
            done += size
            logits[done - 1] = present["logits"][0, -1]
            self._check_idle(present)
            states = {
                state.past: _trim(state, present[self._names[state.past].present]) for state in self.contract
            }
        return Run(logits, states)

    def _call(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        try:
            outputs = self.session.run(self._outputs, feeds)
        except Exception as error:  # the runtime's own classes have no narrower base
            message = (
                f"the exported graph fails to run ({str(error).splitlines()[0]:.300}). Nothing was written; "
                "report the checkpoint's geometry."
            )
            raise VerificationError(message) from error
        return dict(zip(self._outputs, outputs, strict=True))

    def _made_up(self) -> dict[str, NDArray[Any]]:
        """Seeded states of the blocks that stand idle."""
        running, rng = {state.past for state in self._names.values()}, np.random.default_rng(0)
        return {
            value.name: rng.standard_normal(
                [extent if isinstance(extent, int) else _IDLE_POSITIONS for extent in value.shape], np.float32
            )
            for value in self.session.get_inputs()
            if value.name.startswith(_OF_BLOCKS) and value.name not in running
        }

    def _check_idle(self, present: Mapping[str, NDArray[Any]]) -> None:
        for name, given in self._idle.items():
            returned = present[present_of(name)]
            if not np.array_equal(returned, given):
                message = (
                    f"the graph changed the state {name!r} of a block that stands idle. Nothing was written; "
                    "report the checkpoint's geometry."
                )
                raise VerificationError(message)

    def _cached(self, states: States) -> dict[str, NDArray[Any]]:
        """Positions held by the caches, per kind of block."""
        lengths: dict[str, NDArray[Any]] = {name: np.zeros(1, np.int64) for name in CACHED.values()}
        for state in self.contract:
            if state.grows is not None:
                held = states[state.past].shape[state.grows]
                lengths[CACHED[state.window == 0]] = np.array([held], np.int64)
        return {name: value for name, value in lengths.items() if name in self._inputs}


def choice_of(plan: SlicePlan) -> dict[str, NDArray[np.bool_]]:
    """The input of an elastic graph that makes it run a slice."""
    active = np.zeros(plan.parent_depth, np.bool_)
    active[list(plan.blocks)] = True
    return {ACTIVE: active}


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
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 1)
    ir.save(model, target)
