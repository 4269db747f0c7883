"""Train a LoRA adapter for tools the ladder never saw: ``python -m golden.pocket.adapt --out FILE``.

The base is frozen; the five projections of every block are changed. Every step runs the full depth and a
rung, as the base's training does (``--ladder-share 0`` leaves the rung out). The file has the published
family's form, so the exporter folds it in before it slices, and every depth has it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from exporter.layout import PROJECTIONS
from golden.pocket.batches import batch_at
from golden.pocket.data import COMMANDS, NEW_TOOLS, Domain
from golden.pocket.evaluate import CHECKPOINT, read_tensors
from golden.pocket.fast import RowLadder
from golden.pocket.objective import draw_depth, step_loss
from golden.pocket.recipe import Recipe, learning_rate
from golden.reference import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.config import LadderConfig
    from golden.pocket.padding import Batch

__all__ = ["ADAPTER", "AdapterRecipe", "adapter_batch", "fold_in", "save_adapter", "start", "train_adapter"]

ADAPTER = Path(__file__).with_name("new_tools.safetensors")
"""The shipped adapter, trained on the tools of ``unseen.py``."""

Pairs = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AdapterRecipe:
    """A training run of an adapter.

    Attributes:
        rank: columns of A and rows of B.
        alpha: strength of the product, before it is divided by the rank.
        steps: optimiser steps.
        batch: examples in a batch.
        peak: highest learning rate of AdamW, reached after 10 steps.
        replay: share of the steps on the commands that the base knows, so that it does not forget them.
        ladder_share: share of the steps that run a rung after the full depth, as the base's training does.
        seed: decides initial values, data and rungs.
    """

    rank: int = 4
    alpha: float = 8.0
    steps: int = 300
    batch: int = 8
    peak: float = 4e-3
    replay: float = 0.25
    ladder_share: float = 1.0
    seed: int = 1

    @property
    def scale(self) -> float:
        """What A @ B is multiplied by."""
        return self.alpha / self.rank

    @property
    def data(self) -> Recipe:
        """The same as a recipe of batches, learning rates and rungs."""
        return Recipe(
            seed=self.seed,
            steps=self.steps,
            batch=self.batch,
            peak=self.peak,
            warm_up=10,
            ladder_share=self.ladder_share,
        )


def start(config: LadderConfig, tensors: Mapping[str, Tensor], recipe: AdapterRecipe) -> Pairs:
    """Draw A [L, in, r] with a deviation of 1 / sqrt(in) and set B [L, r, out] to zero."""
    generator = torch.Generator().manual_seed(recipe.seed)
    pairs: Pairs = {}
    for target in PROJECTIONS:
        blocks, inputs, outputs = config.num_layers, *tensors[target].shape[1:]
        a = torch.randn(blocks, inputs, recipe.rank, generator=generator) / math.sqrt(inputs)
        pairs[target] = a, torch.zeros(blocks, recipe.rank, outputs)
    return pairs


def fold_in(tensors: Mapping[str, Tensor], pairs: Pairs, scale: float) -> dict[str, Tensor]:
    """The tensors with ``W + scale * A @ B`` in place of each W that an adapter changes."""
    return dict(tensors) | {name: tensors[name] + scale * (a @ b) for name, (a, b) in pairs.items()}


def _domain(recipe: AdapterRecipe, step: int) -> Domain:
    rng = random.Random(f"replay-{recipe.seed}-{step}")  # noqa: S311 - reproducible draw
    return COMMANDS if rng.random() < recipe.replay else NEW_TOOLS


def adapter_batch(recipe: AdapterRecipe, step: int) -> Batch:
    """Return the batch of step ``step``: of the new tools, or now and then of the known ones."""
    return batch_at(recipe.data, step, "train", _domain(recipe, step))


def train_adapter(
    config: LadderConfig,
    tensors: Mapping[str, Tensor],
    recipe: AdapterRecipe,
    log: Callable[[str], object] = lambda _: None,
) -> Pairs:
    """Train an adapter.

    Args:
        config: the base's geometry.
        tensors: the base's parameters by checkpoint name, which stay as they are.
        recipe: length, rank and rates.
        log: takes a line of progress now and then.

    Returns:
        A [L, in, r] and B [L, r, out] of every target.
    """
    pairs = start(config, tensors, recipe)
    trained = [side.requires_grad_() for pair in pairs.values() for side in pair]
    optimiser = torch.optim.AdamW(trained, lr=recipe.peak, weight_decay=0.0)
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe.data, step, recipe.data.progress(step, 0.0))
        batch = adapter_batch(recipe, step)
        folded = Weights(RowLadder(config, fold_in(tensors, pairs, recipe.scale)))
        depth = draw_depth(recipe.data, config.num_layers, step)
        result = step_loss(folded, batch, depth, recipe.data)
        optimiser.zero_grad()
        result.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        if step % 10 == 0:
            log(f"step {step}: {result.nats:.4f} nats\n")
    return {name: (a.detach(), b.detach()) for name, (a, b) in pairs.items()}


def save_adapter(pairs: Pairs, path: Path, recipe: AdapterRecipe, base: str) -> None:
    """Write an adapter as the published trainer does: float32 pairs, every metadata entry as JSON."""
    sides = {
        f"lora/{name}/{side}": t for name, pair in pairs.items() for side, t in zip("AB", pair, strict=True)
    }
    entries = {
        "rank": recipe.rank,
        "scale": recipe.scale,
        "pieces": None,
        "languages": None,
        "seed": recipe.seed,
        "base": base,
        "recipe": asdict(recipe),
    }
    metadata = {key: json.dumps(value) for key, value in entries.items()}
    save_file({name: side.contiguous() for name, side in sides.items()}, path, metadata=metadata)


def main() -> None:
    """Train an adapter from the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=ADAPTER, help="the adapter to write")
    parser.add_argument("--base", type=Path, default=CHECKPOINT, help="checkpoint to adapt, unsliced")
    parser.add_argument("--steps", type=int, default=AdapterRecipe.steps)
    parser.add_argument("--rank", type=int, default=AdapterRecipe.rank)
    parser.add_argument("--ladder-share", type=float, default=AdapterRecipe.ladder_share)
    options = parser.parse_args()
    weights = read_tensors(options.base)
    tensors = {name: weights.whole(name) for name in weights.ladder.layout}
    recipe = replace(AdapterRecipe(), steps=options.steps, rank=options.rank)
    recipe = replace(recipe, ladder_share=options.ladder_share)
    pairs = train_adapter(weights.config, tensors, recipe, sys.stderr.write)
    save_adapter(pairs, options.out, recipe, options.base.name)
    sys.stdout.write(f"{options.out}\n")


if __name__ == "__main__":
    main()
