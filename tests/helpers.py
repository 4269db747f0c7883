"""Ladders of every shape, ladders in memory, checkpoint files on purpose: what several tests need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from exporter import export
from exporter.checkpoint import Checkpoint
from exporter.config import HEADS, LadderConfig
from exporter.graph import state_contract
from exporter.ladder import Array, Ladder, slice_ladder
from exporter.layout import EMBEDDING, head_of, layout
from exporter.precision import PRECISIONS, PrecisionPlan, Scheme, plan_precision
from exporter.session import GraphSession, open_session
from exporter.verify import MODEL, SCORE
from exporter.weights import WeightFile
from golden.cases import oracle
from golden.reference import Weights, forward, head_outputs
from golden.synthetic import SyntheticLadder

__all__ = [
    "GEOMETRIES",
    "Built",
    "MemoryLadder",
    "Tensors",
    "build",
    "geometry",
    "heads_of",
    "loaded",
    "oracle_ladder",
    "reference_heads",
    "reference_logits",
    "small_ladder",
    "tensors_of",
    "write_checkpoint",
]

Tensors = dict[str, NDArray[Any]]

_SMALL: dict[str, Any] = {
    "vocab_size": 67,
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_layers": 5,
    "qk_head_dim": 6,
    "v_head_dim": 10,
    "max_seq_len": 128,
    "embedding_dim": 8,
    "engram_slots": 61,
    "engram_layers": (1, 3),
    "global_layers": (2, 4),
    "sliding_window": 7,
}

GEOMETRIES: Mapping[str, Mapping[str, Any]] = {
    "small": {},
    "no taps": {"qkv_conv_taps": 0},
    "one tap, a window of one": {"qkv_conv_taps": 1, "sliding_window": 1},
    "five taps": {"qkv_conv_taps": 5},
    "no engrams": {"engram_layers": ()},
    "no globals": {"global_layers": ()},
    "no window": {"sliding_window": 0},
    "blocks alone": {"qkv_conv_taps": 0, "engram_layers": (), "global_layers": (), "num_layers": 3},
    "seven blocks, two lanes": {"num_layers": 7, "mhc_lanes": 2, "engram_layers": (0, 6)},
    "one lane": {"mhc_lanes": 1},
    "three lanes, width 40 of 64": {"mhc_lanes": 3, "d_model": 40},
    "fewer logits than ids, another pad id": {"out_vocab": 40, "pad_token_id": 3},
    "keys wider than values": {"qk_head_dim": 14, "v_head_dim": 4, "rope_theta": 500.0},
    "keys as wide as values": {"qk_head_dim": 8, "v_head_dim": 8},
    "all queries on one key": {"num_heads": 6, "num_kv_heads": 1},
    "a key for every query": {"num_kv_heads": 4},
    "orders 2, 3, 4 over a width they do not divide": {"engram_orders": (2, 3, 4), "engram_seed_heads": 3},
    "orders 1 and 2, four hash heads": {"engram_orders": (1, 2), "engram_heads": 4},
    "order 1 alone": {"engram_orders": (1,), "engram_heads": 2},
    "many ids": {"vocab_size": 70_001, "d_model": 16, "num_layers": 2, "global_layers": ()},
    "half permutations": {"ladder_widths": (16,)},
    "a window crossed from its middle": {"sliding_window": 150},
    "heads of other sizes": {
        "embedding_dim": 5,
        "confidence_probes": 1,
        "confidence_queries": 2,
        "embedding_probes": 3,
        "embedding_queries": 1,
        "router_probes": 2,
        "router_queries": 3,
    },
}
"""Changes to a small ladder of 5 blocks that make implementations go astray."""


def geometry(name: str = "small", **changes: object) -> LadderConfig:
    """A configuration of :data:`GEOMETRIES`, with further changes."""
    fields = {**_SMALL, **GEOMETRIES[name], **changes}
    sites = fields["engram_layers"]
    fields["engram_layers"] = tuple(site for site in sites if site < fields["num_layers"])
    fields["global_layers"] = tuple(b for b in fields["global_layers"] if b < fields["num_layers"])
    return LadderConfig(**fields)


class MemoryLadder(Ladder):
    """A ladder of arrays in memory, which may be changed."""

    def __init__(self, config: LadderConfig, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Wrap arrays under their checkpoint names."""
        self.config, self.tensors = config, dict(tensors)
        heads = {head for name in tensors if (head := head_of(name))}
        self.layout = {n: s for n, s in layout(config, heads).items() if n in tensors}

    def read(self, name: str, row: int | None = None) -> Array:
        """The array, or one row of its leading axis."""
        values = self.tensors[name]
        return np.asarray(values if row is None else values[row], dtype=np.float32)


class Built(NamedTuple):
    """Graphs that were written, and of what."""

    folder: Path
    ladder: Ladder
    plan: PrecisionPlan
    heads: list[str]
    file: WeightFile

    @property
    def config(self) -> LadderConfig:
        """Geometry of the slice."""
        return self.ladder.config

    @property
    def model(self) -> Path:
        """The decoding graph."""
        return self.folder / MODEL

    def runs(self, tokens: Sequence[int], sizes: Sequence[int]) -> dict[int, Array]:
        """The decoding graph's last logits [V] of every chunk, by the number of its last token."""
        return GraphSession(self.model, self.config).run(tokens, sizes).logits

    def prefill(self, tokens: Sequence[int]) -> Array:
        """Logits [T or 1, V] of one call on the empty state, written out as the contract says it."""
        session = open_session(self.model, threads=1)
        known = {value.name for value in session.get_inputs()}
        contract = state_contract(self.config, [h for h in HEADS if f"past_pool.{h}.max" in known])
        feeds = {state.past: np.full(state.shape, state.fill, state.dtype) for state in contract}
        feeds |= {"input_ids": np.array([tokens], np.int64), "position": np.zeros(1, np.int64)}
        feeds |= {name: np.zeros(1, np.int64) for name in ("cached_global", "cached_local")}
        return np.asarray(session.run(["logits"], {k: v for k, v in feeds.items() if k in known})[0][0])

    def score(self, tokens: Sequence[int]) -> dict[str, Array]:
        """Outputs of the scoring graph."""
        session = open_session(self.folder / SCORE, threads=1)
        names = [output.name for output in session.get_outputs()]
        outputs = session.run(names, {"input_ids": np.array([tokens], np.int64)})
        return dict(zip(names, outputs, strict=True))


def tensors_of(ladder: Ladder) -> Tensors:
    """Writable copies of every tensor."""
    return {name: np.array(ladder.read(name)) for name in ladder.layout}


def loaded(ladder: Ladder) -> MemoryLadder:
    """A ladder read into memory."""
    return MemoryLadder(ladder.config, tensors_of(ladder))


@lru_cache(maxsize=32)
def small_ladder(name: str = "small", heads: tuple[str, ...] = HEADS) -> MemoryLadder:
    """A random ladder of a geometry; shared, so not to be changed."""
    config = geometry(name)
    drawn = SyntheticLadder(config, seed=len(name), heads=heads)
    # A synthetic ladder draws row by row, which takes seconds where there are many ids.
    rows = np.random.default_rng(len(name)).standard_normal((config.vocab_size, config.d_model), np.float32)
    tensors = {tensor: drawn.read(tensor) for tensor in drawn.layout if tensor != EMBEDDING}
    # Lanes that are far apart, so that Sinkhorn's rounds have not converged.
    tensors["stack/mhc_b_res"] *= 6
    return MemoryLadder(config, {EMBEDDING: rows / np.float32(config.d_model**0.5), **tensors})


@lru_cache(maxsize=2)
def oracle_ladder(name: str) -> MemoryLadder:
    """A ladder of the oracle; shared, so not to be changed."""
    return loaded(Checkpoint(oracle(name).checkpoint))


def heads_of(ladder: Ladder) -> list[str]:
    """Probe heads that a ladder carries."""
    return [head for head in HEADS if f"{head}_head/probes" in ladder.layout]


def reference_logits(ladder: Ladder, tokens: Sequence[int]) -> Array:
    """Logits [T, V] of the reference."""
    with torch.inference_mode():
        return np.asarray(forward(Weights(ladder), torch.tensor([list(tokens)])).logits[0].numpy())


def reference_heads(ladder: Ladder, tokens: Sequence[int]) -> dict[str, Array]:
    """Outputs [1, n] of the reference's probe heads; padding is hidden."""
    with torch.inference_mode():
        outputs = head_outputs(Weights(ladder), torch.tensor([list(tokens)]))
    return {head: np.asarray(value.numpy()) for head, value in outputs.items()}


def build(
    folder: Path,
    ladder: Ladder,
    precision: str | Scheme = "fp32",
    *,
    depth: int | None = None,
    all_logits: bool = False,
) -> Built:
    """Write the graphs and weights of a slice into ``folder``."""
    scheme = PRECISIONS[precision] if isinstance(precision, str) else precision
    sliced: Ladder = ladder if depth is None else slice_ladder(ladder, depth)
    plan = plan_precision(sliced.config, sliced.layout, scheme)
    heads, file = export.build(folder, sliced, plan, all_logits=all_logits)
    return Built(folder, sliced, plan, heads, file)


def write_checkpoint(
    path: Path,
    ladder: Ladder | None = None,
    *,
    metadata: Mapping[str, str | None] | None = None,
    change: Callable[[Tensors], object] = lambda _: None,
    drop: Sequence[str] = (),
) -> Path:
    """Write a checkpoint file that may be wrong.

    Args:
        path: where.
        ladder: whose tensors and configuration; the small one by default.
        metadata: entries to replace, or to leave out where None.
        change: edits the tensors in place.
        drop: tensors to leave out.
    """
    ladder = small_ladder() if ladder is None else ladder
    tensors = tensors_of(ladder)
    change(tensors)
    for name in drop:
        del tensors[name]
    entries: dict[str, str | None] = {
        "format_version": "2",
        "config": json.dumps(ladder.config.to_json()),
        "step": "7",
        "run": '{"note": "made by a test"}',
        **(metadata or {}),
    }
    save_file(tensors, path, {key: text for key, text in entries.items() if text is not None})
    return path
