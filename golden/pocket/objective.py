"""The loss of a ladder under training: the full depth, and beside it one rung at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from exporter.ladder import plan_slice
from golden.pocket.fast import answer_logits

if TYPE_CHECKING:
    from golden.pocket.padding import Batch
    from golden.pocket.recipe import Recipe
    from golden.reference import Weights

__all__ = ["StepLoss", "draw_depth", "step_loss"]


@dataclass(frozen=True)
class StepLoss:
    """What one step is trained on.

    Attributes:
        loss: the scalar to differentiate.
        nats: the full depth's cross-entropy per token of an answer.
        rung_nats: the rung's, or None in a step without one.
    """

    loss: Tensor
    nats: float
    rung_nats: float | None = None


def draw_depth(recipe: Recipe, num_layers: int, step: int) -> int:
    """Return the rung of step ``step``, or ``num_layers`` where the step has none.

    A rung is one of the favoured depths, or else d of 2 to L - 1 with a weight of 1 / d: a shallow rung
    has the most to learn, and costs the least.
    """
    rng = random.Random(f"depth-{recipe.seed}-{step}")  # noqa: S311 - reproducible draw
    if rng.random() >= recipe.ladder_share:
        return num_layers
    favoured = [depth for depth in recipe.favoured if depth < num_layers]
    if favoured and rng.random() < recipe.favoured_share:
        return rng.choice(favoured)
    depths = range(2, num_layers)
    return rng.choices(depths, [1 / depth for depth in depths])[0]


def step_loss(weights: Weights, batch: Batch, depth: int, recipe: Recipe) -> StepLoss:
    """Compute the loss of one step.

    It is the answers' cross-entropy at full depth, plus, where ``depth`` is a rung d,
    ``w * (CE(p_d) + v * KL(p_L || p_d))`` with the prediction p_L of the full depth on the same batch
    as a fixed target, w the ladder's and v the teacher's weight.

    Args:
        weights: the whole ladder.
        batch: what to predict.
        depth: how many blocks the rung has; the ladder's own depth for none.
        recipe: the weights.
    """
    full = answer_logits(weights, batch)
    entropy = cross_entropy(full, batch.targets)
    if depth == weights.config.num_layers:
        return StepLoss(entropy, entropy.item())
    teacher = log_softmax(full.detach(), -1)
    logits = answer_logits(weights.sliced(plan_slice(weights.config, depth)), batch)
    shallow = cross_entropy(logits, batch.targets)
    divergence = kl_div(log_softmax(logits, -1), teacher, reduction="batchmean", log_target=True)
    loss = entropy + recipe.ladder_weight * (shallow + recipe.teacher_weight * divergence)
    return StepLoss(loss, entropy.item(), shallow.item())
