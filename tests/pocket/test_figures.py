"""What the shipped ladder can do, measured anew on some of the commands that its README reports on."""

from __future__ import annotations

import pytest
import torch

from exporter.ladder import plan_slice
from golden.pocket.evaluate import CHECKPOINT, Figures, evaluate, held_out, read_tensors
from golden.reference import TensorLadder, Weights

_ASKED = 60
_BOUNDS = {20: 0.9, 8: 0.8, 4: 0.5}
"""Least share of exactly right answers by depth: the goals that the ladder was trained for."""


def _figures(weights: Weights, depth: int) -> Figures:
    own = weights.config.num_layers
    sliced = weights if depth == own else weights.sliced(plan_slice(weights.config, depth))
    return evaluate(sliced, held_out(_ASKED, 0))


@pytest.mark.slow
@pytest.mark.parametrize("depth", _BOUNDS)
def test_exact_calls_reach_their_goal(depth: int) -> None:
    assert _figures(read_tensors(CHECKPOINT), depth).exact >= _BOUNDS[depth]


@pytest.mark.slow
def test_a_damaged_block_misses_the_goal() -> None:
    weights = read_tensors(CHECKPOINT)
    tensors = {name: weights.whole(name).clone() for name in weights.ladder.layout}
    tensors["stack/layers/block/self_attn/v_proj/kernel"][0].zero_()
    damaged = Weights(TensorLadder(weights.config, tensors))
    with torch.no_grad():
        assert _figures(damaged, 20).exact < _BOUNDS[20]
