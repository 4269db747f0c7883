"""Train the heads of a trained run and save the shipped checkpoint.

``python -m golden.pocket.finish --run DIR --out FILE`` reads the state that training left in DIR.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from exporter.checkpoint import save
from golden.pocket.heads import (
    TRAINED_HEADS,
    HeadRecipe,
    head_accuracy,
    head_batches,
    head_output,
    train_heads,
)
from golden.pocket.train import Run
from golden.reference import TensorLadder, Weights

if TYPE_CHECKING:
    from exporter.config import LadderConfig

__all__ = ["finish", "measure_heads"]

_TEST_BATCHES = 12


def measure_heads(
    config: LadderConfig, tensors: dict[str, torch.Tensor], recipe: HeadRecipe
) -> dict[str, float]:
    """Measure every head's share of right decisions on held-out examples."""
    weights = Weights(TensorLadder(config, tensors))
    shares: dict[str, float] = {}
    for head in TRAINED_HEADS:
        batches = itertools.islice(head_batches(head, "test", recipe, weights), _TEST_BATCHES)
        with torch.no_grad():
            hits = [head_accuracy(head, head_output(weights, head, b), b.labels) for b in batches]
        shares[head] = round(sum(hits) / len(hits), 4)
    return shares


def finish(run: Run, out: Path, recipe: HeadRecipe) -> dict[str, float]:
    """Train the heads of a run in place, save its ladder as float16, and return the heads' figures.

    Args:
        run: a trained run.
        out: the checkpoint to write.
        recipe: how to train the heads.
    """
    tensors = {name: tensor.detach() for name, tensor in run.tensors.items()}
    train_heads(run.config, tensors, recipe)
    halved = {name: tensor.half().float() for name, tensor in tensors.items()}
    shares = measure_heads(run.config, halved, replace(recipe, seed=recipe.seed + 1))
    notes = {
        "recipe": run.recipe.to_json(),
        "seconds": round(run.seconds),
        "head_recipe": asdict(recipe),
        "head_accuracy": shares,
    }
    ladder = Weights(TensorLadder(run.config, tensors)).ladder
    save(ladder, out, dtype="float16", step=run.step, run=notes)
    return shares


def main() -> None:
    """Finish a run from the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", type=Path, required=True, help="directory of the training run")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument("--steps", type=int, default=HeadRecipe.steps, help="steps of each head")
    options = parser.parse_args()
    run = Run.load(options.run / "state.safetensors")
    shares = finish(run, options.out, HeadRecipe(steps=options.steps))
    sys.stderr.write(f"held-out accuracy of the heads: {shares}\n")
    sys.stdout.write(f"{options.out}\n")


if __name__ == "__main__":
    main()
