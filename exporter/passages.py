"""What a bundle's graphs are run on, and running them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from exporter.config import LadderConfig
from exporter.graph import state_contract
from exporter.ladder import Array, SlicePlan
from exporter.session import Graph, GraphSession, States, choice_of, open_session

__all__ = [
    "MODEL",
    "READOUT",
    "SCORE",
    "Passage",
    "Runs",
    "graphs_in",
    "made_up_states",
    "passages_of",
    "run_heads",
    "run_passages",
    "run_sizes",
    "suffixed",
]

_FRESH = 32
_LONG_WINDOW = 128
_TAIL = 16
_BOS = 2
_CHUNKS = (1, 7, 2, 19, 5, 11, 3)
"""Uneven chunk sizes, repeated as long as there are tokens."""

MODEL, SCORE, READOUT = "model.onnx", "score.onnx", "readout.onnx"


@dataclass(frozen=True)
class Passage:
    """Tokens to run, from the start of a sequence or from a made-up state in its middle."""

    tokens: tuple[int, ...]
    position: int = 0
    seed: int | None = None
    """Seed of the made-up caches of ``position`` earlier tokens; None at the start of a sequence."""


def passages_of(config: LadderConfig) -> list[Passage]:
    """The golden prompts of a checkpoint that brings none: seeded ids, past the sliding window.

    A short window is outrun from the start of a sequence. A long one is crossed from a made-up state just
    before its end, which the graph and the reference both continue.
    """
    rng = np.random.RandomState(config.vocab_size)

    def draw(count: int) -> tuple[int, ...]:
        ids = rng.randint(1, config.vocab_size, count - 1)
        ids[ids == config.pad_token_id] = 1
        return (_BOS % config.vocab_size, *(int(i) for i in ids))

    windows = {config.window(block) for block in range(config.num_layers)}
    longest = max(windows)
    if longest <= _LONG_WINDOW:
        return [Passage(draw(max(_FRESH, longest + _TAIL)))]
    return [Passage(draw(_FRESH)), Passage(draw(_TAIL), position=longest - _TAIL // 2, seed=1)]


def run_sizes(count: int) -> dict[str, list[int]]:
    """Chunk sizes of the three ways to run ``count`` tokens: at once, in uneven chunks, one by one."""
    chunks: list[int] = []
    sizes = itertools.cycle(_CHUNKS)
    while (left := count - sum(chunks)) > 0:
        chunks.append(min(left, next(sizes)))
    return {"prefill": [count], "chunks": chunks, "steps": [1] * count}


@lru_cache(maxsize=2)
def made_up_states(config: LadderConfig, passage: Passage) -> States | None:
    """Seeded past states of a passage in the middle of a sequence; None at its start."""
    if passage.seed is None:
        return None
    rng = np.random.default_rng(passage.seed)
    states: dict[str, NDArray[Any]] = {}
    for state in state_contract(config):
        shape = tuple(passage.position if a == state.grows else n for a, n in enumerate(state.shape))
        if state.dtype == "int64":
            states[state.past] = rng.integers(0, config.vocab_size, shape)
            continue
        values = 0.5 * rng.standard_normal(shape, dtype=np.float32)
        if state.grows is not None:
            width = config.qk_head_dim if state.past.endswith("key") else config.v_head_dim
            values[..., width:] = 0  # the cache's padding
        states[state.past] = values
    return states


Runs = dict[str, list[dict[int, Array]]]
"""Per way to run, per passage: logits [V] by number of the token."""


def run_passages(
    graph: Path | Graph | ort.InferenceSession,
    config: LadderConfig,
    passages: Sequence[Passage],
    plan: SlicePlan | None = None,
) -> Runs:
    """Run passages through a decoding graph at once, in uneven chunks and token by token.

    Args:
        graph: the decoding graph, or its session.
        config: geometry of what runs.
        passages: what to feed.
        plan: of the slice that runs, of an elastic graph.
    """
    session = GraphSession(graph, config, plan)
    runs: Runs = {}
    for passage in passages:
        for way, sizes in run_sizes(len(passage.tokens)).items():
            states = made_up_states(config, passage)
            run = session.run(passage.tokens, sizes, states, passage.position)
            runs.setdefault(way, []).append(run.logits)
    return runs


def run_heads(
    graphs: Mapping[str, Path] | Mapping[str, ort.InferenceSession],
    config: LadderConfig,
    passage: Passage,
    plan: SlicePlan | None = None,
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Head outputs of a whole sequence: from the scoring graph, and from what decoding carried along.

    Args:
        graphs: of one bundle, or their sessions, by name.
        config: their geometry.
        passage: from the start of a sequence, without padding.
        plan: of the slice that runs, of elastic graphs.

    Yields:
        The graph's name, and its outputs [1, n] by head.
    """
    choice = {} if plan is None else choice_of(plan)
    if SCORE in graphs:
        yield SCORE, _outputs(graphs[SCORE], {"input_ids": np.array([passage.tokens], np.int64), **choice})
    if READOUT in graphs:
        session = GraphSession(graphs[MODEL], config, plan)
        states = session.run(passage.tokens, run_sizes(len(passage.tokens))["chunks"]).states
        present = {state.present: states[state.past] for state in session.contract}
        yield READOUT, _outputs(graphs[READOUT], {**present, **choice})


def _outputs(graph: Path | ort.InferenceSession, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Every output of a graph, fed with those of ``feeds`` that it takes."""
    session = open_session(graph) if isinstance(graph, Path) else graph
    names = [value.name for value in session.get_outputs()]
    wanted = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, wanted), strict=True))


def graphs_in(folder: Path, suffix: str = "") -> dict[str, Path]:
    """The graphs that a bundle has, by name.

    Args:
        folder: the bundle.
        suffix: of the files of one rung among several, such as ``-d4``.
    """
    paths = {name: folder / suffixed(name, suffix) for name in (MODEL, SCORE, READOUT)}
    return {name: path for name, path in paths.items() if path.exists()}


def suffixed(name: str, suffix: str) -> str:
    """The name of a graph's file with a suffix before its kind."""
    stem, dot, kind = name.rpartition(".")
    return f"{stem}{suffix}{dot}{kind}"
