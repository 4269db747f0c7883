"""Training: the fast forward pass, the ladder's loss, resuming, the heads, the evaluation."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from exporter.checkpoint import Checkpoint
from exporter.ladder import plan_slice
from golden.pocket.batches import Batch, batch_at, encode, pad
from golden.pocket.data import COMMANDS, PRACTICE, examples
from golden.pocket.evaluate import _follow, evaluate, greedy, held_out
from golden.pocket.fast import RowLadder, answer_logits, cells_of
from golden.pocket.finish import finish
from golden.pocket.heads import (
    HeadRecipe,
    head_accuracy,
    head_batches,
    head_output,
    train_heads,
)
from golden.pocket.init import POCKET, initial_tensors, walsh
from golden.pocket.objective import draw_depth, step_loss
from golden.pocket.prompt import BOS_ID, EOS_ID, PAD_ID
from golden.pocket.recipe import Recipe, learning_rate
from golden.pocket.sinkhorn import scaling_sinkhorn
from golden.pocket.tokenizer import load
from golden.pocket.train import Run, advance, save_ladder, start_from
from golden.reference import TensorLadder, Weights, forward
from golden.reference.lanes import sinkhorn

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

_TINY = replace(
    POCKET,
    d_model=32,
    num_heads=2,
    num_kv_heads=1,
    num_layers=6,
    qk_head_dim=8,
    v_head_dim=16,
    embedding_dim=8,
    engram_slots=32,
    engram_layers=(1, 3, 5),
    global_layers=(2, 5),
    sliding_window=16,
)
_RECIPE = Recipe(batch=3, steps=6, warm_up=2, favoured=(2, 4))


def _shaken(seed: int = 1) -> dict[str, Tensor]:
    """A ladder far from its initial values, so that no path is silent."""
    torch.manual_seed(seed)
    tensors = initial_tensors(_TINY)
    return {name: t + 0.1 * torch.randn(t.shape) for name, t in tensors.items()}


@pytest.fixture
def batch() -> Batch:
    rows = [encode(example) for example in itertools.islice(examples("train", 1), 3)]
    return pad([(ids[-40:], 20) for ids, _ in rows])


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_fast_sinkhorn_equals_the_reference(spread: float) -> None:
    torch.manual_seed(0)
    logits = (spread * torch.randn(2, 5, 4, 4, dtype=torch.float64)).requires_grad_()
    upstream = torch.randn(2, 5, 4, 4, dtype=torch.float64)
    results = []
    for function in (sinkhorn, scaling_sinkhorn):
        value = function(logits)
        (gradient,) = torch.autograd.grad(value, logits, upstream)
        results.append((value, gradient))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("depth", [6, 5, 3, 2])
def test_fast_forward_and_its_gradients_equal_the_reference(depth: int, batch: Batch) -> None:
    tensors = {name: t.requires_grad_() for name, t in _shaken().items()}
    language = [t for name, t in tensors.items() if "_head/" not in name]
    weights = Weights(RowLadder(_TINY, tensors)).sliced(plan_slice(_TINY, depth))
    slow = forward(weights, batch.tokens).logits[batch.answer]
    fast = answer_logits(weights, batch)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    torch.manual_seed(3)
    upstream = torch.randn(slow.shape)
    pairs = [torch.autograd.grad(x, language, upstream, allow_unused=True) for x in (slow, fast)]
    for expected, got in zip(*pairs, strict=True):
        # A slice leaves engram sites out: there the reference has no gradient.
        if expected is not None:
            scale = expected.abs().max().clamp_min(1e-3)
            torch.testing.assert_close(got / scale, expected / scale, rtol=0.0, atol=1e-3)


def test_fast_cells_mask_padding_as_the_reference_does(batch: Batch) -> None:
    weights = Weights(TensorLadder(_TINY, _shaken()))
    tokens = torch.cat([batch.tokens, torch.full((3, 4), PAD_ID)], 1)
    slow = forward(weights, tokens, mask_padding=True).cells
    fast = torch.stack(cells_of(weights, tokens, mask_padding=True), 2)
    real = tokens != PAD_ID
    torch.testing.assert_close(fast[real], slow[real], rtol=1e-4, atol=1e-4)


def test_pocket_has_every_part_below_three_million_parameters() -> None:
    tensors = initial_tensors()
    assert sum(t.numel() for t in tensors.values()) < 3_000_000
    assert {"confidence_head/probes", "embedding_head/probes", "router_head/calibration"} <= set(tensors)


@pytest.mark.parametrize("size", [1, 8, 16])
def test_walsh_is_orthonormal_and_symmetric(size: int) -> None:
    matrix = walsh(size)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(size))
    assert torch.equal(matrix, matrix.mT)


def test_initial_values_are_seeded() -> None:
    first, again, other = (initial_tensors(_TINY, seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding/embedding"], other["embedding/embedding"])


def test_answer_marks_exactly_the_answers_tokens() -> None:
    example = next(examples("train", 2))
    ids, prompt = encode(example)
    batch = pad([(ids, prompt)])
    assert batch.targets.tolist() == ids[prompt:]
    assert ids[0] == BOS_ID
    assert batch.targets[-1] == EOS_ID


def test_batches_depend_on_their_number_alone() -> None:
    forwards = [batch_at(_RECIPE, step).tokens for step in range(70)]
    assert torch.equal(batch_at(_RECIPE, 1).tokens, forwards[1])
    assert torch.equal(batch_at(_RECIPE, 66).tokens, forwards[66])
    assert max(tokens.shape[1] for tokens in forwards) <= _RECIPE.longest


def test_rare_kinds_come_more_often_from_a_step_on() -> None:
    early, late = (replace(_RECIPE, batch=8, rare_from=first) for first in (32, 0))
    assert torch.equal(batch_at(early, 40).tokens, batch_at(late, 40).tokens)
    assert torch.equal(batch_at(early, 3).tokens, batch_at(early, 3, "train", COMMANDS).tokens)
    assert torch.equal(batch_at(late, 3).tokens, batch_at(late, 3, "train", PRACTICE).tokens)
    assert not torch.equal(batch_at(early, 3).tokens, batch_at(late, 3).tokens)


def test_depths_follow_the_recipe() -> None:
    recipe = Recipe(ladder_share=0.8, favoured=(4, 8), favoured_share=0.4)
    depths = [draw_depth(recipe, 20, step) for step in range(4000)]
    assert 0.17 < depths.count(20) / 4000 < 0.23
    assert 0.18 < depths.count(4) / 4000 < 0.24
    assert set(depths) == set(range(2, 21))
    assert depths.count(2) > depths.count(5) > depths.count(16)


def test_a_favoured_depth_that_a_ladder_lacks_is_not_drawn() -> None:
    recipe = Recipe(favoured=(4, 8), favoured_share=1.0)
    assert {draw_depth(recipe, 6, step) for step in range(50)} == {4}
    assert {draw_depth(recipe, 4, step) for step in range(200)} == {2, 3}


def test_a_control_has_no_rungs() -> None:
    assert {draw_depth(Recipe(ladder_share=0.0), 20, step) for step in range(500)} == {20}


def test_learning_rate_warms_up_and_falls() -> None:
    recipe = Recipe(steps=1000, warm_up=100, peak=1.0, floor=0.1)
    rates = [learning_rate(recipe, s, recipe.progress(s, 0.0)) for s in range(1001)]
    assert rates[0] == pytest.approx(0.01)
    assert max(rates) == pytest.approx(1.0, abs=0.05)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[200:] == sorted(rates[200:], reverse=True)


def test_loss_is_the_full_depths_and_the_rungs(batch: Batch) -> None:
    weights = Weights(TensorLadder(_TINY, _shaken()))
    teacher = forward(weights, batch.tokens).logits[batch.answer].log_softmax(-1)
    student = forward(weights.sliced(plan_slice(_TINY, 3)), batch.tokens).logits[batch.answer].log_softmax(-1)
    full, entropy = (-p.gather(1, batch.targets[:, None]).mean() for p in (teacher, student))
    divergence = (teacher.exp() * (teacher - student)).sum(-1).mean()
    result = step_loss(weights, batch, 3, Recipe(ladder_weight=0.3, teacher_weight=0.5))
    assert result.loss.item() == pytest.approx((full + 0.3 * (entropy + 0.5 * divergence)).item(), rel=1e-4)
    assert result.nats == pytest.approx(full.item(), rel=1e-4)
    assert result.rung_nats == pytest.approx(entropy.item(), rel=1e-4)


def test_a_step_without_a_rung_is_the_full_depths_alone(batch: Batch) -> None:
    result = step_loss(Weights(TensorLadder(_TINY, _shaken())), batch, 6, Recipe())
    assert result.loss.item() == result.nats
    assert result.rung_nats is None


def test_teacher_gets_no_gradient_of_the_divergence(batch: Batch) -> None:
    tensors = {name: t.requires_grad_() for name, t in _shaken().items()}
    weights = Weights(RowLadder(_TINY, tensors))
    gradients: list[Tensor] = []
    for teacher_weight in (0.0, 5.0):
        loss = step_loss(weights, batch, 2, Recipe(teacher_weight=teacher_weight)).loss
        gradients += torch.autograd.grad(loss, [tensors["stack/mhc_b_pre"]], retain_graph=True)
    assert (gradients[0] - gradients[1])[[0, 5]].abs().min() > 0
    torch.testing.assert_close(gradients[0][1:5], gradients[1][1:5])


def test_a_run_starts_from_a_checkpoint(tmp_path: Path) -> None:
    save_ladder(Run(_RECIPE, _TINY, _shaken()), tmp_path / "first.safetensors")
    run = start_from(tmp_path / "first.safetensors", _RECIPE)
    assert run.step == 0
    assert run.config == _TINY
    torch.testing.assert_close(
        run.tensors["embedding/embedding"].detach(), _shaken()["embedding/embedding"], rtol=1e-3, atol=1e-4
    )
    assert run.recipe.start == hashlib.sha256((tmp_path / "first.safetensors").read_bytes()).hexdigest()
    run.save(tmp_path / "state.safetensors")
    assert Run.load(tmp_path / "state.safetensors", _TINY).recipe == run.recipe


def test_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = Run(_RECIPE, _TINY, initial_tensors(_TINY))
    broken = Run(_RECIPE, _TINY, initial_tensors(_TINY))
    for _ in range(4):
        advance(unbroken)
    for _ in range(2):
        advance(broken)
    broken.save(tmp_path / "state.safetensors")
    resumed = Run.load(tmp_path / "state.safetensors", _TINY)
    assert resumed.recipe == _RECIPE
    for _ in range(2):
        advance(resumed)
    assert resumed.step == unbroken.step == 4
    for name, tensor in unbroken.tensors.items():
        assert torch.equal(resumed.tensors[name], tensor), name


def test_training_lowers_the_loss() -> None:
    run = Run(replace(_RECIPE, steps=25, peak=1e-2), _TINY, initial_tensors(_TINY))
    losses = [advance(run)["nats"] for _ in range(25)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_saved_ladder_is_a_checkpoint(tmp_path: Path) -> None:
    run = Run(_RECIPE, _TINY, _shaken())
    save_ladder(run, tmp_path / "ladder.safetensors")
    checkpoint = Checkpoint(tmp_path / "ladder.safetensors")
    assert checkpoint.config == _TINY
    assert set(checkpoint.dtypes.values()) == {"F16"}
    stored = torch.from_numpy(checkpoint.read("embedding/embedding"))
    torch.testing.assert_close(stored, run.tensors["embedding/embedding"].detach(), rtol=1e-3, atol=1e-4)


def test_confidence_learns_from_right_and_wrong_answers_to_the_same_prompts() -> None:
    weights = Weights(TensorLadder(_TINY, _shaken()))
    batch = next(head_batches("confidence", "train", HeadRecipe(batch=6), weights))
    assert batch.labels.tolist() == [1.0] * 3 + [0.0] * 3
    (start,) = load().encode("<tool_call>").ids
    for right, wrong in zip(batch.sequences[:3], batch.sequences[3:], strict=True):
        prompt = right.index(start)
        assert right[:prompt] == wrong[:prompt]
        assert right != wrong
        assert EOS_ID not in {*right, *wrong}


@pytest.mark.parametrize("head", ["confidence", "embedding", "router"])
def test_head_training_touches_the_heads_alone(head: str) -> None:
    tensors = _shaken()
    before = {name: t.clone() for name, t in tensors.items()}
    train_heads(_TINY, tensors, HeadRecipe(batches=1, steps=1, batch=4))
    changed = {name for name, t in tensors.items() if not torch.equal(t, before[name])}
    assert changed
    assert all("_head/" in name for name in changed)
    assert f"{head}_head/probes" in changed
    assert not any(t.requires_grad for t in tensors.values())


@pytest.mark.parametrize("head", ["confidence", "embedding", "router"])
def test_head_accuracy_is_a_share(head: str) -> None:
    weights = Weights(TensorLadder(_TINY, _shaken()))
    batch = next(head_batches(head, "test", HeadRecipe(batch=6), weights))
    output = head_output(weights, head, batch)
    assert 0.0 <= head_accuracy(head, output, batch.labels) <= 1.0


def test_head_accuracy_of_right_and_wrong_outputs() -> None:
    labels = torch.tensor([0, 2, 1])
    assert head_accuracy("router", torch.eye(3)[labels], labels) == 1.0
    right = torch.tensor([1.0, 0.0])
    assert head_accuracy("confidence", torch.tensor([[3.0], [-3.0]]), right) == 1.0
    assert head_accuracy("confidence", torch.tensor([[-3.0], [3.0]]), right) == 0.0
    vectors = torch.cat([torch.eye(3), torch.eye(3)])
    assert head_accuracy("embedding", vectors, torch.eye(3)) == 1.0


def test_finished_checkpoint_tells_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("golden.pocket.finish._TEST_BATCHES", 1)
    run = Run(_RECIPE, _TINY, _shaken(), step=5, seconds=9.0)
    shares = finish(run, tmp_path / "pocket.safetensors", HeadRecipe(batches=1, steps=1, batch=4))
    checkpoint = Checkpoint(tmp_path / "pocket.safetensors")
    assert checkpoint.step == 5
    assert checkpoint.run["recipe"] == _RECIPE.to_json()
    assert checkpoint.run["head_accuracy"] == shares
    assert set(shares) == {"confidence", "embedding", "router"}


def test_greedy_takes_the_likeliest_tokens() -> None:
    weights = Weights(TensorLadder(_TINY, _shaken()))
    prompt = encode(next(examples("test", 1)))[0][:30]
    answer = greedy(weights, prompt, 4)
    assert 1 <= len(answer) <= 4
    logits = forward(weights, torch.tensor([[*prompt, *answer]])).logits[0]
    assert logits[29 : 29 + len(answer)].argmax(-1).tolist() == answer


def test_untrained_ladder_answers_nothing_right() -> None:
    asked = held_out(4)
    figures = evaluate(Weights(TensorLadder(_TINY, _shaken())), asked)
    assert figures.depth == 6
    assert figures.exact == 0.0
    assert figures.bits_per_byte > 1.0
    assert math.isnan(figures.exact_double) or figures.exact_double == 0.0


def test_held_out_examples_are_seeded() -> None:
    assert held_out(5, 1) == held_out(5, 1)
    assert held_out(5, 1) != held_out(5, 2)


def test_evaluation_equals_decoding_every_answer() -> None:
    weights, asked = Weights(TensorLadder(_TINY, _shaken())), held_out(3)
    rows = [encode(example) for example in asked]
    for answer, (ids, prompt) in zip(_follow(weights, rows), rows, strict=True):
        decoded = greedy(weights, ids[:prompt], answer.followed + 1)
        assert decoded[: answer.followed] == ids[prompt : prompt + answer.followed]
        assert decoded != ids[prompt : prompt + len(decoded)]
