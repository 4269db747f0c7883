"""Random ladders of every shape: geometries as data, parameters far from their initial values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.upstream import Floats, Ids, Params, Upstream

__all__ = ["GEOMETRIES", "LENGTH", "Geometry", "Sample", "Samples", "adapter_factors", "randomised"]

LENGTH = 24
"""Tokens of a test sequence: longer than any window here plus what the engram taps reach."""

_BASE: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_layers": 7,
    "qk_head_dim": 12,
    "v_head_dim": 16,
    "max_seq_len": 64,
    "embedding_dim": 16,
    "dtype": "float32",
    "flash": False,
    "remat": False,
    "engram_slots": 53,
    "engram_layers": (1, 3, 6),
    "global_layers": (2, 6),
    "sliding_window": 7,
}


@dataclass(frozen=True)
class Geometry:
    """A shape of ladder that differs from the others where implementations go astray."""

    name: str
    seed: int
    depths: tuple[int, ...]
    """Depths to compare; the full one is compared always."""
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """Configuration fields that are not upstream's defaults."""
        return {**_BASE, **self.changes}


GEOMETRIES = (
    Geometry(
        "width 80 of 128, odd depths, 5 hash heads",
        41,
        (9, 2),
        {
            "d_model": 80,
            "num_layers": 13,
            "num_heads": 5,
            "num_kv_heads": 1,
            "engram_heads": 5,
            "engram_layers": (0, 2, 5, 8, 12),
            "global_layers": (4, 9),
        },
    ),
    Geometry(
        "width 96 of 128, two lanes, no taps",
        35,
        (3,),
        {"d_model": 96, "mhc_lanes": 2, "qkv_conv_taps": 0, "engram_heads": 2},
    ),
    Geometry(
        "no engrams, no globals",
        22,
        (5,),
        {"engram_layers": (), "global_layers": (), "sliding_window": 4},
    ),
    Geometry(
        "orders 2, 3, 4 over a width they do not divide",
        46,
        (4,),
        {"engram_orders": (2, 3, 4), "engram_seed_heads": 3},
    ),
    Geometry(
        "one order of 1, three lanes, five taps, flash",
        45,
        (5,),
        {
            "engram_orders": (1,),
            "engram_heads": 2,
            "mhc_lanes": 3,
            "qkv_conv_taps": 5,
            "flash": True,
        },
    ),
    Geometry(
        "eight heads on one, wide keys, no window",
        40,
        (4,),
        {
            "num_heads": 8,
            "num_kv_heads": 1,
            "qk_head_dim": 20,
            "v_head_dim": 6,
            "sliding_window": 0,
            "rope_theta": 500.0,
        },
    ),
    Geometry(
        "fewer logits than ids, other heads, another pad id",
        50,
        (6,),
        {
            "out_vocab": 40,
            "pad_token_id": 3,
            "embedding_dim": 5,
            "confidence_probes": 1,
            "confidence_queries": 2,
            "embedding_probes": 3,
            "embedding_queries": 1,
            "router_probes": 2,
            "router_queries": 3,
        },
    ),
    Geometry(
        "half permutations, legacy head widths, one lane",
        47,
        (3,),
        {
            "ladder_widths": (32,),
            "qk_head_dim": 0,
            "v_head_dim": 0,
            "mhc_lanes": 1,
            "sliding_window": 1,
            "qkv_conv_taps": 1,
        },
    ),
)

_SPREADS = {
    "attn_gate": (0.0, 1.0),
    "b2": (0.0, 0.3),
    "bias": (0.0, 0.5),
    "cond_u": (0.0, 0.6),
    "d1": (1.0, 0.3),
    "d2": (1.0, 0.3),
    "d3": (1.0, 0.3),
    "d4": (0.6, 0.2),
    "embedding": (0.0, 1.0),
    "gain": (1.0, 0.3),
    "k_taps": (0.3, 0.6),
    "log_temp": (2.0, 0.5),
    "mhc_a_post": (0.6, 0.2),
    "mhc_a_pre": (0.6, 0.2),
    "mhc_a_res": (0.6, 0.2),
    "mhc_b_post": (0.0, 0.7),
    "mhc_b_pre": (0.0, 0.7),
    "mhc_b_res": (0.0, 2.0),
    "probes": (0.0, 0.5),
    "q_taps": (0.3, 0.6),
    "query": (0.0, 1.0),
    "row_bias": (0.0, 0.7),
    "scale": (0.0, 0.3),
    "taps": (0.2, 0.5),
    "v_taps": (0.3, 0.6),
}
"""Mean and standard deviation by the last part of a name; other matrices: 0 and 1 / sqrt(in)."""

_SPECIAL = {"embedding/embedding": (0.0, 0.08), "stack/final_norm/scale": (0.0, 4.0)}


def randomised(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Params:
    """Parameters far from their initial values, so that no path of the model is silent."""
    random = np.random.default_rng(seed)
    params = {}
    for name, shape in sorted(shapes.items()):
        leaf = name.rsplit("/", 1)[-1]
        matrix = (0.0, 1 / float(np.sqrt(shape[-2]))) if len(shape) > 1 else None
        mean, deviation = _SPECIAL.get(name) or _SPREADS.get(leaf) or matrix or (0.0, 1.0)
        params[name] = (mean + deviation * random.standard_normal(shape)).astype(np.float32)
    return params


@dataclass(frozen=True)
class Sample:
    """A random ladder, as upstream holds it, and the file that upstream's writer made of it."""

    config: Any
    params: Params
    path: Path

    def tokens(self, seed: int = 5) -> Ids:
        """Three rows of ids [3, LENGTH]: without padding, with some inside, with some at both ends.

        A repeated stretch makes n-grams occur twice.
        """
        random = np.random.default_rng(seed)
        pad = self.config.pad_token_id
        ids = [token for token in range(self.config.vocab_size) if token != pad]
        rows = random.choice(ids, (3, LENGTH)).astype(np.int64)
        rows[:, 12:16] = rows[:, 4:8]
        rows[1, [5, 9, 10, 18]] = pad
        rows[2, :2] = rows[2, 7] = rows[2, -3:] = pad
        return rows


class Samples:
    """One sample for every geometry, made when first asked for."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        """Keep where samples come from and where they go."""
        self._upstream = upstream
        self._folder = folder
        self._made: dict[str, Sample] = {}

    def __getitem__(self, geometry: Geometry) -> Sample:
        """The sample of a geometry."""
        number = len(self._made)
        if geometry.name not in self._made:
            config = self._upstream.config(geometry.fields)
            params = randomised(self._upstream.shapes(config), geometry.seed)
            path = self._folder / f"{number}.safetensors"
            self._upstream.save(path, config, params, step=3)
            self._made[geometry.name] = Sample(config, params, path)
        return self._made[geometry.name]


def adapter_factors(
    params: Params, names: list[str], rank: int, seed: int
) -> dict[str, tuple[Floats, Floats]]:
    """Random factors (A [L, in, rank], B [L, rank, out]) for the named tensors."""
    random = np.random.default_rng(seed)
    factors = {}
    for name in names:
        blocks, rows, columns = params[name].shape
        a = random.standard_normal((blocks, rows, rank)) / rank
        b = 0.15 * random.standard_normal((blocks, rank, columns))
        factors[name] = (a.astype(np.float32), b.astype(np.float32))
    return factors
