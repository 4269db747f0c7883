"""The reference against what upstream computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exporter.ladder import plan_slice, selection_order
from exporter.lora import fold
from golden.cases import NAMES, adapter_case, oracle
from golden.reference import Weights, forward, head_outputs
from tests.helpers import oracle_ladder

TOLERANCE = 2e-5
"""Absolute, on logits whose spread is about 3; upstream agrees with itself to 6e-6."""

DEPTHS = [(name, depth) for name in NAMES for depth in oracle(name).depths]
HEAD_DEPTHS = [(name, depth) for name in NAMES for depth in oracle(name).head_depths]


def weights_of(name: str, depth: int) -> Weights:
    ladder = oracle_ladder(name)
    return Weights(ladder).sliced(plan_slice(ladder.config, depth))


def assert_close(got: torch.Tensor, expected: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=TOLERANCE)


def test_every_depth_of_tiny_is_stored() -> None:
    assert oracle("tiny").depths == tuple(range(2, 21))


@pytest.mark.parametrize("name", NAMES)
def test_the_ladder_order_is_upstreams(name: str) -> None:
    assert selection_order(20) == oracle(name).ladder_order


@pytest.mark.parametrize(("name", "depth"), DEPTHS)
def test_logits(name: str, depth: int) -> None:
    case = oracle(name)
    logits = forward(weights_of(name, depth), torch.from_numpy(case.tokens)).logits
    assert_close(logits, case.logits(depth))


def test_the_tolerance_is_tight_for_the_logits_that_it_judges() -> None:
    assert all(oracle(name).logits(20).std() > 2 for name in NAMES)


@pytest.mark.parametrize(("name", "depth"), HEAD_DEPTHS)
@pytest.mark.parametrize("padded", [False, True])
def test_head_outputs(name: str, depth: int, *, padded: bool) -> None:
    case = oracle(name)
    tokens = torch.from_numpy(case.tokens)
    if padded:
        tokens = torch.nn.functional.pad(tokens, (0, 48 - tokens.shape[1]))
    outputs = head_outputs(weights_of(name, depth), tokens)
    assert list(outputs) == ["confidence", "embedding", "router"]
    for head, expected in case.heads(depth, padded=padded).items():
        assert_close(outputs[head], expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_embedding_has_length_one(name: str) -> None:
    outputs = head_outputs(weights_of(name, 8), torch.from_numpy(oracle(name).tokens))
    assert float(outputs["embedding"].square().sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_id_0_is_an_ordinary_token_to_plain_logits(name: str) -> None:
    case = oracle(name)
    assert (case.tokens_with_padding == 0).any()
    logits = forward(weights_of(name, 20), torch.from_numpy(case.tokens_with_padding)).logits
    assert_close(logits, case.logits_with_padding(masked=False))


@pytest.mark.parametrize("name", NAMES)
def test_masked_padding_is_hidden_from_every_other_position(name: str) -> None:
    case = oracle(name)
    tokens = torch.from_numpy(case.tokens_with_padding)
    output = forward(weights_of(name, 20), tokens, mask_padding=True)
    kept = tokens[0] != 0
    expected = case.logits_with_padding(masked=True)
    assert_close(output.logits[0, kept], expected[0, kept.numpy()])
    plain = case.logits_with_padding(masked=False)
    assert np.abs(plain - expected)[0, kept.numpy()].max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_confidence_of_tokens_with_padding(name: str) -> None:
    case = oracle(name)
    outputs = head_outputs(weights_of(name, 20), torch.from_numpy(case.tokens_with_padding))
    assert_close(outputs["confidence"], case.confidence_with_padding)


@pytest.mark.parametrize("name", NAMES)
def test_lane_means_after_first_and_last_block(name: str) -> None:
    case = oracle(name)
    cells = forward(weights_of(name, 20), torch.from_numpy(case.tokens)).cells
    assert cells.shape[2] == 21
    # Lane means grow to some hundreds, so that only a relative comparison is fair.
    for row, expected in ((1, case.first_last_hidden[0]), (-1, case.first_last_hidden[1])):
        scale = float(np.abs(expected).max())
        assert float(np.abs(cells[:, :, row].numpy() - expected).max()) <= 2e-6 * max(scale, 10)


@pytest.mark.parametrize("depth", adapter_case().depths)
def test_a_folded_adapter(depth: int) -> None:
    case = adapter_case()
    folded = fold(oracle_ladder("tiny"), [case.adapter])
    weights = Weights(folded).sliced(plan_slice(folded.config, depth))
    logits = forward(weights, torch.from_numpy(case.tokens)).logits
    assert_close(logits, case.logits(depth))
    unfolded = forward(weights_of("tiny", depth), torch.from_numpy(case.tokens)).logits
    assert float((unfolded - logits).abs().max()) > 0.1
