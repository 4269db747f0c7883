"""The validated configuration of a ladder.

The fields and their legacy defaults are those of the checkpoint format, version 2: a key that a saved
configuration lacks takes the value it had before the key existed, and unknown keys are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from exporter.errors import ConfigError

__all__ = ["HEADS", "MINIMUM_DEPTH", "LadderConfig"]

HEADS = ("confidence", "embedding", "router")
"""The probe heads a checkpoint may carry, by the prefix of their tensors' names."""

MINIMUM_DEPTH = 2
"""Both ends of a ladder are always kept."""

_LEGACY = {
    "sliding_window": 0,
    "global_layers": (),
    "qkv_conv_taps": 0,
    "out_vocab": 0,
    "engram_seed_heads": 0,
    "ladder_depths": (),
    "ladder_sample": False,
    "ladder_widths": (),
    "ladder_order": (),
}


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
    """Geometry of a ladder, named as in the checkpoint; the defaults are Needle 3's.

    Zeros mean: ``qk_head_dim``, ``v_head_dim`` are never 0 here (a legacy 0 is resolved to width / heads);
    ``sliding_window`` 0 is no window, ``qkv_conv_taps`` 0 no taps, ``out_vocab`` 0 the whole vocabulary,
    ``engram_heads`` 0 derived, ``engram_seed_heads`` 0 the number of heads, ``kv_window`` 0 unwindowed.
    """

    vocab_size: int = 16384
    d_model: int = 768
    num_heads: int = 12
    num_kv_heads: int = 2
    num_layers: int = 20
    qk_head_dim: int = 48
    v_head_dim: int = 64
    max_seq_len: int = 4096
    pad_token_id: int = 0
    embedding_dim: int = 128
    embedding_probes: int = 4
    embedding_queries: int = 4
    confidence_probes: int = 4
    confidence_queries: int = 4
    router_probes: int = 4
    router_queries: int = 4
    rope_theta: float = 100000.0
    dtype: str = "bfloat16"
    flash: bool = True
    engram_orders: tuple[int, ...] = (2, 3)
    engram_heads: int = 0
    engram_slots: int = 18432
    engram_seed_heads: int = 0
    engram_layers: tuple[int, ...] = (3, 7, 11, 15, 19)
    global_layers: tuple[int, ...] = (4, 9, 14, 19)
    sliding_window: int = 1024
    ladder_depths: tuple[int, ...] = ()
    ladder_sample: bool = False
    ladder_widths: tuple[int, ...] = ()
    ladder_order: tuple[int, ...] = ()
    mhc_lanes: int = 4
    qkv_conv_taps: int = 3
    out_vocab: int = 0
    kv_window: int = 0
    kv_bits: int = 8
    act_bits: int = 8
    weight_bits: str = ""
    remat: bool = True
    scan_unroll: int = 1

    def __post_init__(self) -> None:
        """Refuse what no ladder can be.

        Raises:
            ConfigError: a field has the wrong type or an impossible value.
        """
        for field in fields(self):
            _check_type(field.name, str(field.type), getattr(self, field.name))
        _check_ranges(self)
        _check_blocks(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> LadderConfig:
        """Build from a saved configuration, filling legacy values and ignoring unknown keys.

        Args:
            saved: the decoded ``config`` entry of a checkpoint's metadata.

        Raises:
            ConfigError: a value is of the wrong type or impossible.
        """
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {**_LEGACY, **{k: v for k, v in saved.items() if k in known}}
        for key, value in values.items():
            if isinstance(value, list):
                values[key] = tuple(value)
        width, heads = values.get("d_model", cls.d_model), values.get("num_heads", cls.num_heads)
        for key in ("qk_head_dim", "v_head_dim"):
            if not values.get(key) and isinstance(width, int) and isinstance(heads, int) and heads:
                values[key] = width // heads
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Every field, JSON-ready; none is left out, since a missing key reads as its legacy value."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @property
    def logits_width(self) -> int:
        """Number of vocabulary rows that get a logit."""
        return self.out_vocab or self.vocab_size

    @property
    def tables_per_order(self) -> int:
        """Hash heads per n-gram order of an engram site."""
        return self.engram_heads or max(1, self.d_model // (len(self.engram_orders) * 128))

    @property
    def num_tables(self) -> int:
        """Hash tables of one engram site, all orders together."""
        return len(self.engram_orders) * self.tables_per_order

    @property
    def table_width(self) -> int:
        """Width of a row of an engram table."""
        return self.d_model // self.num_tables

    @property
    def seed_stride(self) -> int:
        """Step between the seeds of two orders."""
        return self.engram_seed_heads or self.tables_per_order

    @property
    def max_order(self) -> int:
        """Longest n-gram, which is also the dilation of the engram taps."""
        return max(self.engram_orders)

    @property
    def monarch_shape(self) -> tuple[int, int]:
        """Factors (A, B) of the Monarch MLP's padded width N = A * B, N the next power of two >= C."""
        bits = (self.d_model - 1).bit_length()
        rows = 1 << (bits // 2)
        return rows, (1 << bits) // rows

    @property
    def monarch_width(self) -> int:
        """Padded width N of the Monarch MLP."""
        rows, columns = self.monarch_shape
        return rows * columns

    @property
    def qkv_width(self) -> int:
        """Width of q, k and v side by side: what the causal taps run over."""
        return self.q_width + self.k_width + self.v_width

    @property
    def q_width(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.qk_head_dim

    @property
    def k_width(self) -> int:
        """Width of all key heads."""
        return self.num_kv_heads * self.qk_head_dim

    @property
    def v_width(self) -> int:
        """Width of all value heads."""
        return self.num_kv_heads * self.v_head_dim

    @property
    def o_width(self) -> int:
        """Width of the attention's output, before its projection."""
        return self.num_heads * self.v_head_dim

    def window(self, block: int) -> int:
        """Positions that ``block`` sees, the current one included; 0 means all."""
        return 0 if block in self.global_layers else self.sliding_window

    def site_of(self, block: int) -> int | None:
        """Number of the engram site that ``block`` owns, or None."""
        return self.engram_layers.index(block) if block in self.engram_layers else None

    def probes(self, head: str) -> int:
        """Probes per row of a head named in :data:`HEADS`."""
        value: int = getattr(self, f"{head}_probes")
        return value

    def queries(self, head: str) -> int:
        """Queries of a head named in :data:`HEADS`."""
        value: int = getattr(self, f"{head}_queries")
        return value


def _fail(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(
        f"configuration field {name!r} is {value!r}: {why}. Save the checkpoint again from its trainer, "
        "or correct the field in the file's metadata."
    )


def _check_type(name: str, declared: str, value: object) -> None:
    """Compare a value with its field's declared type (bool is no int, int is a float)."""
    good = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "tuple[int, ...]": isinstance(value, tuple)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value),
    }
    if not good[declared]:
        raise _fail(name, value, f"it should be {declared.replace('tuple[int, ...]', 'a list of int')}")


_POSITIVE = [
    "vocab_size",
    "d_model",
    "num_heads",
    "num_kv_heads",
    "qk_head_dim",
    "v_head_dim",
    "max_seq_len",
    "engram_slots",
    "mhc_lanes",
    "rope_theta",
    "embedding_dim",
    "embedding_probes",
    "embedding_queries",
    "confidence_probes",
    "confidence_queries",
    "router_probes",
    "router_queries",
]
_NATURAL = [
    "pad_token_id",
    "engram_heads",
    "engram_seed_heads",
    "sliding_window",
    "qkv_conv_taps",
    "out_vocab",
    "kv_window",
]


def _check_ranges(config: LadderConfig) -> None:
    """Check single values."""
    for name in _POSITIVE:
        if getattr(config, name) <= 0:
            raise _fail(name, getattr(config, name), "it should be positive")
    for name in _NATURAL:
        if getattr(config, name) < 0:
            raise _fail(name, getattr(config, name), "it should not be negative")
    if not math.isfinite(config.rope_theta):
        raise _fail("rope_theta", config.rope_theta, "it should be finite")
    if config.num_layers < MINIMUM_DEPTH:
        raise _fail("num_layers", config.num_layers, "a ladder has at least two blocks")
    if 0 < config.sliding_window < config.qkv_conv_taps:
        raise _fail("sliding_window", config.sliding_window, "it is shorter than the taps reach")
    _check_widths(config)


def _check_widths(config: LadderConfig) -> None:
    """Check the relations between widths."""
    if config.num_heads % config.num_kv_heads:
        raise _fail("num_kv_heads", config.num_kv_heads, f"it should divide num_heads {config.num_heads}")
    if config.qk_head_dim % 2:
        raise _fail("qk_head_dim", config.qk_head_dim, "rotary embedding needs an even width")
    if config.out_vocab > config.vocab_size:
        raise _fail("out_vocab", config.out_vocab, f"it exceeds vocab_size {config.vocab_size}")
    if config.engram_layers and (not config.engram_orders or min(config.engram_orders) < 1):
        raise _fail("engram_orders", config.engram_orders, "engram sites need orders of at least 1")
    if config.engram_layers and config.table_width < 1:
        raise _fail("engram_heads", config.engram_heads, f"the tables share the width {config.d_model}")


def _check_blocks(config: LadderConfig) -> None:
    """Check the lists of block numbers."""
    for name in ("engram_layers", "global_layers", "ladder_order"):
        numbers: tuple[int, ...] = getattr(config, name)
        if len(set(numbers)) != len(numbers) or any(not 0 <= b < config.num_layers for b in numbers):
            why = f"its block numbers should be distinct and below num_layers {config.num_layers}"
            raise _fail(name, numbers, why)
    if list(config.engram_layers) != sorted(config.engram_layers):
        raise _fail("engram_layers", config.engram_layers, "the sites should be in ascending order")
    order = config.ladder_order
    if order and (len(order) != config.num_layers or set(order[:2]) != {0, config.num_layers - 1}):
        raise _fail("ladder_order", order, "it should list every block, both ends first")
