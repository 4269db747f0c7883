"""The forward pass of a ladder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exporter.layout import EMBEDDING, ENGRAM_TAPS, FINAL_NORM
from golden.reference.attention import attend
from golden.reference.engram import gate_in, ngram_rows, site_pairs
from golden.reference.lanes import lane_mix
from golden.reference.monarch import monarch_mlp
from golden.reference.norms import zcrms
from golden.reference.state import BlockState, State
from golden.reference.weights import Weights

__all__ = ["Output", "forward", "run_block"]


@dataclass(frozen=True)
class Output:
    """What a forward pass gives."""

    logits: Tensor
    """[B, T, logits width]."""
    cells: Tensor
    """[B, T, depth + 1, C]: the embedding, then the lane mean after each block; the heads read them."""
    state: State
    """To continue with."""


def forward(
    weights: Weights, tokens: Tensor, state: State | None = None, *, mask_padding: bool = False
) -> Output:
    """Run a ladder over tokens.

    Args:
        weights: the ladder.
        tokens: [B, T] ids.
        state: what an earlier call left, or None at the start of a sequence.
        mask_padding: hide positions of the pad id from every other position, as the probe heads ask;
            plain logits treat it as an ordinary id. Only at the start of a sequence.

    Raises:
        ValueError: padding is to be masked in the middle of a sequence.
    """
    config = weights.config
    if state is None:
        state = State.empty(config, tokens.shape[0])
    elif mask_padding:
        message = "padding can only be masked at the start of a sequence: pass state=None"
        raise ValueError(message)
    keep = torch.ones(tokens.shape[0], state.position + tokens.shape[1], dtype=torch.bool)
    if mask_padding:
        keep = tokens != config.pad_token_id

    embedding = weights.whole(EMBEDDING)
    x0 = embedding[tokens] * math.sqrt(config.d_model)
    pairs, sites = _engrams(weights, tokens, state, keep)
    stream = x0[:, :, None, :].expand(-1, -1, config.mhc_lanes, -1)
    cells, blocks = [x0], []
    for block in range(config.num_layers):
        site = config.site_of(block)
        pair = None if site is None else pairs[site]
        stream, block_state = run_block(
            weights, block, stream, pair, state.blocks[block], state.position, keep
        )
        cells.append(stream.mean(2))
        blocks.append(block_state)

    x = zcrms(cells[-1], weights.whole(FINAL_NORM))
    logits = x @ embedding[: config.logits_width].mT
    seen = torch.cat([state.tokens, tokens], 1)
    new = State(
        position=state.position + tokens.shape[1],
        tokens=seen[:, seen.shape[1] - state.tokens.shape[1] :],
        blocks=tuple(blocks),
        sites=tuple(sites),
    )
    return Output(logits, torch.stack(cells, 2), new)


def run_block(
    weights: Weights,
    block: int,
    stream: Tensor,
    pair: tuple[Tensor, Tensor] | None,
    state: BlockState,
    position: int,
    keep: Tensor,
) -> tuple[Tensor, BlockState]:
    """Carry the stream [B, T, n, C] through one block; ``pair`` is its engram site's (keys, values)."""
    mix = lane_mix(weights, block, stream)
    u = torch.einsum("btj,btjc->btc", mix.pre, stream)
    entered = u if pair is None else gate_in(u, *pair)
    attended, new = attend(weights, block, entered, state, position, keep)
    y = attended + monarch_mlp(weights, block, attended) - u
    carried = torch.einsum("btij,btjc->btic", mix.carry, stream)
    return carried + mix.post[..., None] * y[:, :, None, :], new


def _engrams(
    weights: Weights, tokens: Tensor, state: State, keep: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """(keys, values) of every engram site and the values that the next call needs."""
    config = weights.config
    if not config.engram_layers:
        return [], []
    length = tokens.shape[1]
    rows = ngram_rows(config, torch.cat([state.tokens, tokens], 1))

    def back(distance: int) -> Tensor:
        """[B, T]: 1 where the position ``distance`` before exists and is no padding."""
        ahead = torch.cat([torch.zeros(tokens.shape[0], distance), keep.float()], 1)
        return ahead[:, state.position :][:, :length]

    complete = torch.stack(
        [back(order - 1) for order in config.engram_orders for _ in range(config.tables_per_order)], -1
    )
    reachable = torch.stack([back(j * config.max_order) for j in range(ENGRAM_TAPS)], -1)
    pairs, histories = [], []
    for site, history in enumerate(state.sites):
        key, value, untapped = site_pairs(weights, site, rows, complete, history, reachable)
        pairs.append((key, value))
        histories.append(untapped[:, length:])
    return pairs, histories
