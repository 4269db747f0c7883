"""What the comparison with the oracle is worth: it fails for every plausible mistake."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from exporter.ladder import plan_slice
from golden.cases import oracle
from golden.reference import Weights, forward, head_outputs
from tests.helpers import oracle_ladder
from tests.reference.damages import DAMAGES, HARMLESS, HEAD_DAMAGES, lane_of_parent

TOLERANCE = 2e-5
"""Of the comparison with the oracle."""

CLEAR = 1e-4
"""A damage has to show by more than this, so that it is not caught by luck."""


@lru_cache(maxsize=4)
def weights_of(depth: int) -> Weights:
    ladder = oracle_ladder("tiny")
    return Weights(ladder).sliced(plan_slice(ladder.config, depth))


def logits_off(depth: int) -> float:
    """Greatest difference of tiny's logits from the oracle's; NaN counts as infinite."""
    case = oracle("tiny")
    logits = forward(weights_of(depth), torch.from_numpy(case.tokens)).logits.numpy()
    return float(np.nan_to_num(np.abs(logits - case.logits(depth)), nan=np.inf).max())


def heads_off(depth: int, tokens: torch.Tensor) -> float:
    """Greatest difference of tiny's head outputs from the oracle's, on padded tokens."""
    outputs, expected = head_outputs(weights_of(depth), tokens), oracle("tiny").heads(depth, padded=True)
    return max(float(np.abs(outputs[head].numpy() - expected[head]).max()) for head in expected)


def padded() -> torch.Tensor:
    """The oracle's tokens, right-padded to 48 as upstream was given them."""
    return torch.nn.functional.pad(torch.from_numpy(oracle("tiny").tokens), (0, 8))


@pytest.mark.parametrize("name", DAMAGES)
def test_a_mistake_shows_in_the_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DAMAGES[name](monkeypatch)
    assert logits_off(8) > CLEAR
    assert logits_off(20) > CLEAR


@pytest.mark.parametrize("name", HARMLESS)
def test_another_way_to_the_same_numbers_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    HARMLESS[name](monkeypatch)
    assert logits_off(8) <= TOLERANCE
    assert logits_off(20) <= TOLERANCE


@pytest.mark.parametrize("name", HEAD_DAMAGES)
def test_a_mistake_shows_in_the_heads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert heads_off(8, padded()) <= TOLERANCE
    HEAD_DAMAGES[name](monkeypatch)
    if "padding" in name:
        case = oracle("tiny")
        outputs = head_outputs(weights_of(20), torch.from_numpy(case.tokens_with_padding))
        assert np.abs(outputs["confidence"].numpy() - case.confidence_with_padding).max() > CLEAR
    else:
        assert heads_off(8, padded()) > CLEAR


def test_the_lane_of_the_original_block_shows_below_full_depth_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = plan_slice(oracle_ladder("tiny").config, 8).blocks
    with monkeypatch.context() as patch:
        lane_of_parent(range(20))(patch)
        assert logits_off(20) <= 10 * TOLERANCE
    with monkeypatch.context() as patch:
        lane_of_parent(blocks)(patch)
        assert logits_off(8) > 1


def test_a_head_row_per_block_number_shows_in_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_slice(oracle_ladder("tiny").config, 8)
    assert heads_off(8, padded()) <= TOLERANCE
    # Row 0 is the embedding's, so that block l has row l + 1.
    monkeypatch.setattr(weights_of(8).ladder, "plan", replace(plan, head_rows=(0, *plan.blocks)))
    assert heads_off(8, padded()) > CLEAR
