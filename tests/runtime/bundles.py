"""Small bundles of random ladders, written without the verification that an export makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exporter.bundle import describe, write_sums
from exporter.config import LadderConfig
from exporter.export import build
from exporter.forms import describe_graphs
from exporter.graph import Rows
from exporter.ladder import Ladder, slice_ladder
from exporter.precision import PRECISIONS, plan_precision
from golden.pocket.tokenizer import TOKENIZER_PATH
from golden.synthetic import SyntheticLadder

__all__ = [
    "BARE",
    "GEOMETRIES",
    "USUAL",
    "WINDOW",
    "change",
    "make_bundle",
    "make_rungs",
    "random_ids",
    "random_ladder",
]

WINDOW = 12

USUAL: dict[str, Any] = {
    "vocab_size": 1024,
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_layers": 4,
    "qk_head_dim": 8,
    "v_head_dim": 8,
    "max_seq_len": 512,
    "embedding_dim": 16,
    "dtype": "float32",
    "engram_slots": 64,
    "engram_layers": (1, 3),
    "global_layers": (1, 3),
    "sliding_window": WINDOW,
}
"""Every kind of state there is."""

BARE: dict[str, Any] = {
    **USUAL,
    "engram_layers": (),
    "global_layers": (),
    "qkv_conv_taps": 0,
    "sliding_window": 5,
}
"""Local caches and nothing else."""

GEOMETRIES: dict[str, dict[str, Any]] = {
    "usual": USUAL,
    "bare": BARE,
    "no window": {**USUAL, "sliding_window": 0, "engram_orders": (1,)},
    "no global block": {**USUAL, "global_layers": (), "qkv_conv_taps": 5},
}


def random_ladder(fields: dict[str, Any], heads: tuple[str, ...] | None = None) -> SyntheticLadder:
    """A random ladder; the same tensors for the same shapes."""
    config = LadderConfig(**fields)
    return SyntheticLadder(config, 0) if heads is None else SyntheticLadder(config, 0, heads)


def make_bundle(
    folder: Path,
    fields: dict[str, Any] = USUAL,
    *,
    precision: str = "fp32",
    heads: tuple[str, ...] | None = None,
    all_logits: bool = False,
) -> Path:
    """Write a bundle into a new folder, and return that."""
    folder.mkdir(parents=True)
    ladder = random_ladder(fields, heads)
    plan = plan_precision(ladder.config, ladder.layout, PRECISIONS[precision])
    build(folder, ladder, plan, all_logits=all_logits)
    shutil.copyfile(TOKENIZER_PATH, folder / "tokenizer.json")
    describe(
        folder,
        {
            **_description(folder, ladder),
            "graphs": describe_graphs(ladder, Rows.ALL if all_logits else Rows.LAST),
        },
    )
    write_sums(folder)
    return folder


def _description(folder: Path, ladder: Ladder) -> dict[str, Any]:
    return {
        "name": folder.name,
        "target": {"onnxruntime": {"floor": "1.24.1", "tested": "1.32.0"}},
        "configuration": ladder.config.to_json(),
        "tokenizer": "tokenizer.json",
    }


def make_rungs(
    folder: Path,
    depths: Sequence[int],
    fields: dict[str, Any] = USUAL,
    *,
    heads: tuple[str, ...] | None = None,
    precision: str = "fp32",
    logits: str = "all",
) -> Path:
    """Write the rungs of a random ladder into one new folder, each with weights of its own."""
    base, own = random_ladder(fields, heads), dict[str, Any]()
    for depth in depths:
        ladder = slice_ladder(base, depth)
        (folder / f"d{depth}").mkdir(parents=True)
        plan = plan_precision(ladder.config, ladder.layout, PRECISIONS[precision])
        build(folder / f"d{depth}", ladder, plan, all_logits=logits == "all")
        graphs = describe_graphs(ladder, Rows(logits))
        graphs["weights"] = f"d{depth}/{graphs['weights']}"
        for graph in ("decode", "score", "readout"):
            if graph in graphs:
                graphs[graph]["file"] = f"d{depth}/{graphs[graph]['file']}"
        own[str(depth)] = graphs
    shutil.copyfile(TOKENIZER_PATH, folder / "tokenizer.json")
    deepest = own.pop(str(max(depths)))
    describe(folder, {**_description(folder, base), "graphs": deepest, "rungs": own})
    write_sums(folder)
    return folder


def change(folder: Path, edit: Callable[[Any], object]) -> None:
    """Edit a bundle's description; its sum is wrong afterwards."""
    path = folder / "bundle.json"
    description = json.loads(path.read_text("utf-8"))
    edit(description)
    path.write_text(json.dumps(description), encoding="utf-8")


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Token ids of the random ladders' vocabulary."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 1024, count)]
