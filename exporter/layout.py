"""Which tensors a ladder checkpoint of a given configuration holds: names, shapes, parts, slicing axes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from exporter.config import HEADS, LadderConfig

__all__ = [
    "BLOCK",
    "COND_RANK",
    "EMBEDDING",
    "ENGRAM_TAPS",
    "FINAL_NORM",
    "PROJECTIONS",
    "STACK",
    "Axis",
    "Part",
    "TensorSpec",
    "head_of",
    "heads_in",
    "layout",
]

STACK = "stack"
BLOCK = "stack/layers/block"
EMBEDDING = "embedding/embedding"
FINAL_NORM = "stack/final_norm/scale"
PROJECTIONS = tuple(f"{BLOCK}/self_attn/{part}_proj/kernel" for part in ("q", "k", "v", "gate", "out"))
"""Names of the five stacked projections that a LoRA adapter may change."""

COND_RANK = 8
"""Width of the Monarch MLP's conditioning softmax."""

ENGRAM_TAPS = 4
"""Causal taps over an engram site's values."""


class Part(StrEnum):
    """Part of the model that a tensor belongs to."""

    EMBEDDING = "embedding"
    ENGRAM_TABLES = "engram tables"
    ENGRAM = "engram projections"
    LANES = "lanes"
    ATTENTION = "attention"
    MLP = "monarch mlp"
    NORMS = "norms"
    HEADS = "probe heads"


class Axis(StrEnum):
    """What slicing to a depth does to a tensor."""

    SHARED = "shared"
    BLOCKS = "blocks"
    """Rows of axis 0 are blocks."""
    SITE = "site"
    """The whole tensor belongs to the block that owns the engram site."""
    ROWS_0 = "head rows on axis 0"
    ROWS_1 = "head rows on axis 1"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    part: Part
    axis: Axis = Axis.SHARED
    optional: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


def head_of(name: str) -> str | None:
    """The probe head that a tensor belongs to, or None."""
    for head in HEADS:
        if name.startswith(f"{head}_head/"):
            return head
    return None


def heads_in(names: Container[str]) -> list[str]:
    """The probe heads whose tensors are among ``names``, in the order of :data:`~exporter.config.HEADS`."""
    return [head for head in HEADS if f"{head}_head/probes" in names]


def layout(config: LadderConfig, heads: Iterable[str] = HEADS) -> dict[str, TensorSpec]:
    """Every tensor of a ladder, by name, in a fixed order.

    Args:
        config: geometry.
        heads: which of :data:`~exporter.config.HEADS` the ladder carries.
    """
    specs = [
        TensorSpec(EMBEDDING, (config.vocab_size, config.d_model), Part.EMBEDDING),
        *_engrams(config),
        *_lanes(config),
        *_attention(config),
        *_mlp(config),
        TensorSpec(FINAL_NORM, (config.d_model,), Part.NORMS),
    ]
    for head in HEADS:
        if head in heads:
            specs.extend(_head(config, head))
    return {spec.name: spec for spec in specs}


def _engrams(config: LadderConfig) -> Iterator[TensorSpec]:
    width = config.d_model
    for site in range(len(config.engram_layers)):
        prefix = f"engrams_{site}"
        tables = (config.num_tables, config.engram_slots, config.table_width)
        joined = config.num_tables * config.table_width
        yield TensorSpec(f"{prefix}/embedding", tables, Part.ENGRAM_TABLES, Axis.SITE)
        yield TensorSpec(f"{prefix}/key_proj/kernel", (joined, width), Part.ENGRAM, Axis.SITE)
        yield TensorSpec(f"{prefix}/value_proj/kernel", (joined, width), Part.ENGRAM, Axis.SITE)
        yield TensorSpec(f"{prefix}/taps", (ENGRAM_TAPS, width), Part.ENGRAM, Axis.SITE)


def _stacked(
    config: LadderConfig, prefix: str, part: Part, **shapes: tuple[int, ...]
) -> Iterator[TensorSpec]:
    """Specs of tensors stacked on blocks; ``__`` in a keyword stands for ``/``."""
    for name, shape in shapes.items():
        path = f"{prefix}{name.replace('__', '/')}"
        yield TensorSpec(path, (config.num_layers, *shape), part, Axis.BLOCKS)


def _lanes(config: LadderConfig) -> Iterator[TensorSpec]:
    lanes = config.mhc_lanes
    flat = lanes * config.d_model
    yield from _stacked(
        config,
        f"{STACK}/mhc_",
        Part.LANES,
        a_pre=(),
        a_post=(),
        a_res=(),
        b_pre=(lanes,),
        b_post=(lanes,),
        b_res=(lanes, lanes),
        phi_pre=(flat, lanes),
        phi_post=(flat, lanes),
        phi_res=(flat, lanes * lanes),
    )


def _attention(config: LadderConfig) -> Iterator[TensorSpec]:
    width = config.d_model
    prefix = f"{BLOCK}/self_attn/"
    yield from _stacked(
        config, f"{BLOCK}/", Part.NORMS, ZCRMSNorm_0__scale=(width,), post_attn_norm__scale=(width,)
    )
    yield from _stacked(config, f"{BLOCK}/", Part.ATTENTION, attn_gate=())
    yield from _stacked(
        config,
        prefix,
        Part.ATTENTION,
        q_proj__kernel=(width, config.q_width),
        k_proj__kernel=(width, config.k_width),
        v_proj__kernel=(width, config.v_width),
        gate_proj__kernel=(width, config.o_width),
        out_proj__kernel=(config.o_width, width),
    )
    yield from _stacked(
        config,
        prefix,
        Part.NORMS,
        q_norm__scale=(config.qk_head_dim,),
        k_norm__scale=(config.qk_head_dim,),
    )
    if taps := config.qkv_conv_taps:
        yield from _stacked(
            config,
            prefix,
            Part.ATTENTION,
            q_taps=(taps, config.q_width),
            k_taps=(taps, config.k_width),
            v_taps=(taps, config.v_width),
        )


def _mlp(config: LadderConfig) -> Iterator[TensorSpec]:
    rows, columns = config.monarch_shape
    padded = rows * columns
    factors = {f"w{i}a": (rows, rows) for i in (1, 2, 3)} | {f"w{i}b": (columns, columns) for i in (1, 2, 3)}
    yield from _stacked(config, f"{BLOCK}/", Part.NORMS, pre_hada_norm__scale=(config.d_model,))
    yield from _stacked(
        config,
        f"{BLOCK}/hadamard_mlp/",
        Part.MLP,
        b2=(padded,),
        cond_u=(COND_RANK, padded),
        cond_v=(config.d_model, COND_RANK),
        d1=(padded,),
        d2=(padded,),
        d3=(padded,),
        d4=(padded,),
        **factors,
    )


def _head(config: LadderConfig, head: str) -> Iterator[TensorSpec]:
    rows, width = config.num_layers + 1, config.d_model
    probes, queries = config.probes(head), config.queries(head)
    outputs = {"confidence": 1, "router": 3, "embedding": config.embedding_dim}[head]
    prefix = f"{head}_head"
    yield TensorSpec(f"{prefix}/probes", (rows, probes, width), Part.HEADS, Axis.ROWS_0)
    yield TensorSpec(f"{prefix}/gain", (rows, probes), Part.HEADS, Axis.ROWS_0)
    yield TensorSpec(f"{prefix}/query", (queries, width), Part.HEADS)
    yield TensorSpec(f"{prefix}/row_bias", (queries, rows, probes), Part.HEADS, Axis.ROWS_1)
    yield TensorSpec(f"{prefix}/proj/kernel", (queries * width, outputs), Part.HEADS)
    if head == "embedding":
        yield TensorSpec(f"{prefix}/bias", (), Part.HEADS, optional=True)
        yield TensorSpec(f"{prefix}/log_temp", (), Part.HEADS, optional=True)
    else:
        yield TensorSpec(f"{prefix}/proj/bias", (outputs,), Part.HEADS)
    if head == "router":
        yield TensorSpec(f"{prefix}/calibration", (3,), Part.HEADS, optional=True)
