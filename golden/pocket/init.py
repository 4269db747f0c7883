"""Geometry and initial values of the pocket ladder.

The initial values make a block close to the identity: each lane keeps itself, taps pass the current
token, the Monarch mixers are orthonormal Walsh matrices and their output starts small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exporter.config import LadderConfig
from exporter.layout import layout

__all__ = ["POCKET", "initial_tensors", "walsh"]

POCKET = LadderConfig(
    vocab_size=1024,
    d_model=128,
    num_heads=4,
    num_kv_heads=2,
    num_layers=20,
    qk_head_dim=24,
    v_head_dim=32,
    max_seq_len=1024,
    embedding_dim=64,
    dtype="float32",
    flash=False,
    remat=False,
    engram_slots=1024,
    sliding_window=64,
)
"""Geometry of the pocket ladder; every part of Needle 3 is present."""

_NORMAL = 0.02
_PROJECTION = 0.05
"""Deviation of a matrix that reads the width 128: about half of 1 / sqrt(128)."""

_CONSTANTS: dict[str, float] = {
    "a_post": 0.01,
    "a_pre": 0.01,
    "a_res": 0.01,
    "d1": 1.0,
    "d2": 1.0,
    "d3": 1.0,
    "d4": 0.02,
    "gain": 1.0,
    "log_temp": math.log(10.0),
}
_ZEROS = frozenset(["attn_gate", "b2", "b_post", "b_pre", "bias", "cond_u", "row_bias", "scale"])
_CALIBRATION = (0.90, 0.00, 0.60)
_OWN_LANE_LOGIT = 4.0


def walsh(size: int) -> Tensor:
    """The orthonormal Walsh matrix of a power of two, [size, size] (Sylvester's construction)."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / math.sqrt(size)


def _taps(shape: tuple[int, ...]) -> Tensor:
    """Taps that pass the current token and nothing else."""
    taps = torch.zeros(shape)
    taps[..., 0, :] = 1.0
    return taps


def _special(name: str, leaf: str, shape: tuple[int, ...]) -> Tensor | None:
    """Return the tensors that start as a structure, or None for the drawn ones."""
    if leaf in _ZEROS | _CONSTANTS.keys():
        return torch.full(shape, _CONSTANTS.get(leaf, 0.0))
    if leaf == "b_res":
        return (_OWN_LANE_LOGIT * torch.eye(shape[-1])).expand(shape).clone()
    if leaf == "calibration":
        return torch.tensor(_CALIBRATION)
    if leaf.endswith("taps"):
        return _taps(shape)
    if leaf[0] == "w" and "hadamard_mlp" in name:
        return walsh(shape[-1]).expand(shape).clone()
    return None


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    leaf = name.rsplit("/", 1)[-1].removeprefix("mhc_")
    special = _special(name, leaf, shape)
    if special is not None:
        return special
    deviation = _PROJECTION if leaf == "kernel" else _NORMAL
    return torch.randn(shape, generator=generator) * deviation


def initial_tensors(config: LadderConfig = POCKET, seed: int = 0) -> dict[str, Tensor]:
    """Draw the untrained ladder.

    Args:
        config: its geometry.
        seed: decides every drawn value.

    Returns:
        float32 tensors under their checkpoint names, all three heads among them.
    """
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(name, spec.shape, generator) for name, spec in layout(config).items()}
