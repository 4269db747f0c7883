"""The reference run on any ladder, arrays in and arrays out: what an export is verified against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exporter.config import LadderConfig
from exporter.ladder import Array, Ladder
from golden.reference.heads import pool, project
from golden.reference.model import forward
from golden.reference.state import BlockState, State
from golden.reference.weights import Weights

__all__ = ["Outputs", "run"]


class Outputs(NamedTuple):
    """What the reference gives for some tokens."""

    logits: Array
    """[T, V] of every position."""
    heads: dict[str, Array]
    """[1, n] of every probe head that the ladder carries; of whole sequences only."""


def run(
    ladder: Ladder,
    tokens: Sequence[int],
    position: int = 0,
    states: Mapping[str, NDArray[Any]] | None = None,
) -> Outputs:
    """Run the reference once.

    Args:
        ladder: any.
        tokens: ids, none of them padding.
        position: tokens before them.
        states: past states under the exported graph's names, or None at the start of a sequence.
    """
    weights = Weights(ladder)
    ids = torch.tensor([list(tokens)])
    with torch.inference_mode():
        output = forward(weights, ids, None if states is None else _state(ladder.config, position, states))
        keep = ids != ladder.config.pad_token_id
        heads = () if states is not None else weights.heads
        outputs = {h: project(weights, h, pool(weights, h, output.cells, keep)).numpy() for h in heads}
    return Outputs(np.asarray(output.logits[0].numpy()), outputs)


def _state(config: LadderConfig, position: int, states: Mapping[str, NDArray[Any]]) -> State:
    """The reference's state of a graph's: caches without padding, batch first."""
    empty = State.empty(config)

    def rows(name: str, default: Tensor) -> Tensor:
        """A graph's [rows, 1, width] as [1, rows, width]."""
        return torch.from_numpy(states[name]).transpose(0, 1) if name in states else default

    blocks = []
    for block in range(config.num_layers):
        key, value = (torch.from_numpy(states[f"past_key_values.{block}.{k}"]) for k in ("key", "value"))
        taps = rows(f"past_taps.{block}", empty.blocks[block].taps)
        blocks.append(BlockState(key[..., : config.qk_head_dim], value[..., : config.v_head_dim], taps))
    sites = tuple(rows(f"past_engram.{s}", empty.sites[s]) for s in range(len(config.engram_layers)))
    tokens = torch.from_numpy(states["past_ids"]) if "past_ids" in states else empty.tokens
    return State(position, tokens, tuple(blocks), sites)
