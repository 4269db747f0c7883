"""The reference in chunks, in batches and behind its window: one model, however it is run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.ladder import plan_slice
from golden.cases import oracle
from golden.reference import Output, Weights, forward, head_outputs
from golden.synthetic import SyntheticLadder
from tests.helpers import GEOMETRIES, geometry, loaded, oracle_ladder, small_ladder

LENGTH = 24


def tokens_of(vocabulary: int, batch: int = 1, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, vocabulary, (batch, length), generator=generator)


def in_chunks(weights: Weights, tokens: torch.Tensor, cuts: list[int]) -> Output:
    """Run tokens cut at places; the output has the logits and cells of all."""
    state, outputs = None, []
    for start, end in pairwise([0, *cuts, tokens.shape[1]]):
        outputs.append(forward(weights, tokens[:, start:end], state))
        state = outputs[-1].state
    logits, cells = (torch.cat([getattr(o, part) for o in outputs], 1) for part in ("logits", "cells"))
    return Output(logits, cells, outputs[-1].state)


def assert_same(got: Output, expected: Output) -> None:
    torch.testing.assert_close(got.logits, expected.logits, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(got.cells, expected.cells, atol=2e-4, rtol=2e-5)
    assert got.state.position == expected.state.position
    assert got.state.tokens.tolist() == expected.state.tokens.tolist()
    for mine, whole in zip(got.state.blocks, expected.state.blocks, strict=True):
        for part in ("key", "value", "taps"):
            torch.testing.assert_close(getattr(mine, part), getattr(whole, part), atol=2e-4, rtol=2e-4)
    for mine_site, whole_site in zip(got.state.sites, expected.state.sites, strict=True):
        torch.testing.assert_close(mine_site, whole_site, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_chunks_equal_the_whole(name: str) -> None:
    ladder = small_ladder(name)
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size)
    whole = forward(weights, tokens)
    for cuts in ([1], [5, 6, 8, 17, 18, 19]):
        assert_same(in_chunks(weights, tokens, cuts), whole)


@pytest.mark.parametrize("name", ["small", "five taps", "no engrams", "blocks alone"])
def test_steps_equal_the_whole(name: str) -> None:
    ladder = small_ladder(name)
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size)
    assert_same(in_chunks(weights, tokens, list(range(1, LENGTH))), forward(weights, tokens))


@settings(max_examples=12, deadline=None)
@given(st.sets(st.integers(1, LENGTH - 1)))
def test_any_cut_equals_the_whole(cuts: set[int]) -> None:
    ladder = small_ladder()
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size)
    assert_same(in_chunks(weights, tokens, sorted(cuts)), forward(weights, tokens))


@pytest.mark.parametrize("depth", [2, 8])
def test_steps_give_the_oracles_logits(depth: int) -> None:
    case, ladder = oracle("tiny"), oracle_ladder("tiny")
    weights = Weights(ladder).sliced(plan_slice(ladder.config, depth))
    tokens = torch.from_numpy(case.tokens)
    stepped = in_chunks(weights, tokens, list(range(1, tokens.shape[1])))
    torch.testing.assert_close(stepped.logits, torch.from_numpy(case.logits(depth).copy()), atol=2e-5, rtol=0)


def test_rows_of_a_batch_do_not_know_each_other() -> None:
    ladder = small_ladder()
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size, batch=3)
    together = forward(weights, tokens)
    heads = head_outputs(weights, tokens)
    for row in range(3):
        alone = forward(weights, tokens[row : row + 1])
        torch.testing.assert_close(together.logits[row : row + 1], alone.logits, atol=2e-5, rtol=2e-5)
        for head, outputs in head_outputs(weights, tokens[row : row + 1]).items():
            torch.testing.assert_close(heads[head][row : row + 1], outputs, atol=2e-5, rtol=2e-5)


def test_no_position_sees_a_later_one() -> None:
    ladder = small_ladder()
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size)
    changed = tokens.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % 60 + 1
    before, after = forward(weights, tokens).logits, forward(weights, changed).logits
    torch.testing.assert_close(before[:, :15], after[:, :15])
    assert float((before[:, 15:] - after[:, 15:]).abs().min(-1).values.max()) > 1e-4


@pytest.mark.parametrize(("window", "layers"), [(3, 2), (4, 3), (1, 2)])
def test_a_window_holds_that_many_positions_the_current_one_included(window: int, layers: int) -> None:
    # Without taps and engrams only attention carries anything from one position to another.
    config = geometry("blocks alone", num_layers=layers, sliding_window=window)
    weights = Weights(loaded(SyntheticLadder(config, seed=2)))
    tokens = tokens_of(config.vocab_size)
    last = forward(weights, tokens).logits[0, -1]
    reach = layers * (window - 1)
    for back, seen in ((reach, True), (reach + 1, False)):
        changed = tokens.clone()
        changed[0, -1 - back] = (int(changed[0, -1 - back]) + 7) % config.vocab_size
        assert torch.equal(forward(weights, changed).logits[0, -1], last) is not seen


@pytest.mark.parametrize("pad", [0, 3])
def test_padding_anywhere_changes_no_head(pad: int) -> None:
    # The blocks keep counting positions over padding, and rotary attention knows distances alone, so
    # padding at an end is invisible.
    config = geometry(pad_token_id=pad)
    weights = Weights(loaded(SyntheticLadder(config, seed=1)))
    tokens = tokens_of(config.vocab_size)
    tokens[tokens == pad] = pad + 1
    plain = head_outputs(weights, tokens)
    for ahead, behind in ((0, 9), (4, 0), (3, 5)):
        padded = torch.nn.functional.pad(tokens, (ahead, behind), value=pad)
        for head, outputs in head_outputs(weights, padded).items():
            torch.testing.assert_close(outputs, plain[head], atol=2e-5, rtol=2e-5)


def test_padding_is_masked_from_the_start_alone() -> None:
    ladder = small_ladder()
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size)
    state = forward(weights, tokens).state
    with pytest.raises(ValueError, match="only be masked at the start of a sequence: pass state=None"):
        forward(weights, tokens, state, mask_padding=True)


def test_a_state_is_not_changed_in_place() -> None:
    ladder = small_ladder()
    weights, tokens = Weights(ladder), tokens_of(ladder.config.vocab_size)
    state = forward(weights, tokens).state
    first = forward(weights, tokens[:, :5], state).logits
    assert state.position == LENGTH
    assert torch.equal(forward(weights, tokens[:, :5], state).logits, first)


def test_a_state_has_the_shapes_that_it_says() -> None:
    ladder = small_ladder()
    config = ladder.config
    state = forward(Weights(ladder), tokens_of(config.vocab_size)).state
    assert state.tokens.shape == (1, 2)
    assert [tuple(site.shape) for site in state.sites] == [(1, 9, 32)] * 2
    for block in state.blocks:
        assert block.key.shape == (1, 2, LENGTH, 6)
        assert block.value.shape == (1, 2, LENGTH, 10)
        assert block.taps.shape == (1, 2, config.qkv_width)


def test_a_ladder_without_heads_gives_none() -> None:
    ladder = small_ladder("small", heads=("router",))
    outputs = head_outputs(Weights(ladder), tokens_of(ladder.config.vocab_size))
    assert list(outputs) == ["router"]
    assert head_outputs(Weights(small_ladder("small", heads=())), tokens_of(60)) == {}
