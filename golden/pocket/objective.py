"""The loss of a ladder under training: one forward path a step, over all depths in turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from exporter.ladder import plan_slice
from golden.pocket.fast import answer_logits

if TYPE_CHECKING:
    from golden.pocket.batches import Batch
    from golden.pocket.recipe import Recipe
    from golden.reference import Weights

__all__ = ["draw_depth", "step_loss"]


def draw_depth(recipe: Recipe, num_layers: int, step: int) -> int:
    """Return the depth of step ``step``: mostly the full one, else uniform over 2 to L - 1."""
    rng = random.Random(f"depth-{recipe.seed}-{step}")  # noqa: S311 - reproducible draw
    if rng.random() >= recipe.ladder_share:
        return num_layers
    return rng.randint(2, num_layers - 1)


def step_loss(weights: Weights, batch: Batch, depth: int, teacher_weight: float) -> tuple[Tensor, float]:
    """Compute the loss of one step.

    At full depth it is the answers' cross-entropy. At depth d of L it is
    ``(d / 2L) * (CE(p_d) + w * KL(p_L || p_d))`` with the full model's prediction p_L on the same
    batch as a fixed target.

    Args:
        weights: the whole ladder.
        batch: what to predict.
        depth: how many blocks run.
        teacher_weight: the factor w.

    Returns:
        The loss to differentiate, and the plain cross-entropy in nats per token.
    """
    total = weights.config.num_layers
    if depth == total:
        loss = cross_entropy(answer_logits(weights, batch), batch.targets)
        return loss, loss.item()
    with torch.no_grad():
        teacher = log_softmax(answer_logits(weights, batch), -1)
    logits = answer_logits(weights.sliced(plan_slice(weights.config, depth)), batch)
    entropy = cross_entropy(logits, batch.targets)
    divergence = kl_div(log_softmax(logits, -1), teacher, reduction="batchmean", log_target=True)
    return depth / (2 * total) * (entropy + teacher_weight * divergence), entropy.item()
