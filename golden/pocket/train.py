"""Train the pocket ladder: ``python -m golden.pocket.train --out DIR --minutes N``.

Writes ``log.jsonl`` (a line per ten steps), ``state.safetensors`` (to resume from, exactly) and, at
the end, ``ladder.safetensors``. A run that finds a state in DIR goes on from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from exporter.checkpoint import Checkpoint, save
from golden.pocket.batches import batch_at
from golden.pocket.fast import RowLadder
from golden.pocket.init import POCKET, initial_tensors
from golden.pocket.objective import draw_depth, step_loss
from golden.pocket.recipe import Recipe, learning_rate
from golden.reference import TensorLadder, Weights

if TYPE_CHECKING:
    from exporter.config import LadderConfig

__all__ = ["Run", "save_ladder", "start_from", "train"]

_LOG_EVERY = 10
_SAVE_SECONDS = 120.0
_NO_DECAY = ("scale", "taps", "bias", "gain")


@dataclass
class Run:
    """A training run between two steps.

    Attributes:
        recipe: what decides it.
        config: the ladder's geometry.
        tensors: parameters by checkpoint name.
        optimiser: AdamW over all of them that the language loss reaches.
        step: steps done.
        seconds: time spent in them.
    """

    recipe: Recipe
    config: LadderConfig
    tensors: dict[str, Tensor]
    optimiser: torch.optim.AdamW = field(init=False)
    step: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Make the optimiser; heads are trained later and stay as they are."""
        # Sorted, as a stored state is: the norm of all gradients is a sum, and sums have an order.
        self.tensors = dict(sorted(self.tensors.items()))
        trained = {name: t for name, t in self.tensors.items() if "_head/" not in name}
        for tensor in trained.values():
            tensor.requires_grad_(True)  # noqa: FBT003 - PyTorch's own signature
        matrix = {
            n: t.ndim > 1 and not n.endswith(_NO_DECAY) and "mhc_b" not in n for n, t in trained.items()
        }
        recipe = self.recipe
        groups = [
            {"params": [t for n, t in trained.items() if matrix[n]], "weight_decay": recipe.decay},
            {"params": [t for n, t in trained.items() if not matrix[n]], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(
            groups, lr=recipe.peak, betas=(recipe.beta1, recipe.beta2), fused=True
        )

    @property
    def names(self) -> list[str]:
        """Names of the trained tensors, in the optimiser's order."""
        of = {id(tensor): name for name, tensor in self.tensors.items()}
        return [of[id(tensor)] for group in self.optimiser.param_groups for tensor in group["params"]]

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs, beside first, then renamed."""
        tensors = {f"value/{name}": tensor.detach() for name, tensor in self.tensors.items()}
        for name in self.names:
            for key, value in self.optimiser.state[self.tensors[name]].items():
                tensors[f"{key}/{name}"] = value
        numbers = {"step": self.step, "seconds": self.seconds, "recipe": self.recipe.to_json()}
        beside = path.with_name(f".{path.name}.part")
        save_file(tensors, beside, metadata={"run": json.dumps(numbers)})
        beside.replace(path)

    @classmethod
    def load(cls, path: Path, config: LadderConfig = POCKET) -> Run:
        """Read what ``save`` wrote."""
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            numbers = json.loads(file.metadata()["run"])
        values = {n.removeprefix("value/"): t for n, t in stored.items() if n.startswith("value/")}
        run = cls(Recipe(**numbers["recipe"]), config, values, numbers["step"], numbers["seconds"])
        for name in run.names:
            keys = ("step", "exp_avg", "exp_avg_sq")
            state = {key: stored[f"{key}/{name}"] for key in keys if f"{key}/{name}" in stored}
            if state:
                run.optimiser.state[run.tensors[name]] = state
        return run


def advance(run: Run) -> dict[str, Any]:
    """Do one step and return its figures."""
    started = time.perf_counter()
    recipe = run.recipe
    rate = learning_rate(recipe, run.step, recipe.progress(run.step, run.seconds))
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    depth = draw_depth(recipe, run.config.num_layers, run.step)
    batch = batch_at(recipe, run.step)
    weights = Weights(RowLadder(run.config, run.tensors))
    result = step_loss(weights, batch, depth, recipe)
    result.loss.backward()  # type: ignore[no-untyped-call]
    trained = [t for group in run.optimiser.param_groups for t in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(trained, recipe.clip)
    run.optimiser.step()
    run.optimiser.zero_grad()
    seconds = time.perf_counter() - started
    run.step += 1
    run.seconds += seconds
    return {
        "step": run.step,
        "seconds": round(run.seconds, 2),
        "depth": depth,
        "nats": round(result.nats, 4),
        "rung_nats": None if result.rung_nats is None else round(result.rung_nats, 4),
        "norm": round(norm.item(), 3),
        "rate": rate,
        "tokens_per_second": round(batch.tokens.numel() / seconds),
    }


def save_ladder(run: Run, path: Path) -> None:
    """Save the run's ladder as a float16 checkpoint."""
    tensors = {name: tensor.detach() for name, tensor in run.tensors.items()}
    notes = {"recipe": run.recipe.to_json(), "seconds": round(run.seconds)}
    ladder = Weights(TensorLadder(run.config, tensors)).ladder
    save(ladder, path, dtype="float16", step=run.step, run=notes)


def train(run: Run, out: Path) -> None:
    """Run to the recipe's end, logging and saving on the way.

    Args:
        run: a fresh or resumed run.
        out: an existing directory.
    """
    state, saved_at = out / "state.safetensors", time.monotonic()
    recent: list[float] = []
    rungs: list[list[float]] = []
    with (out / "log.jsonl").open("a", encoding="utf-8") as log:
        while run.recipe.progress(run.step, run.seconds) < 1.0:
            figures = advance(run)
            recent.append(figures["nats"])
            if figures["rung_nats"] is not None:
                rungs.append([figures["depth"], figures["rung_nats"]])
            if run.step % _LOG_EVERY == 0:
                figures["recent_nats"] = round(sum(recent) / len(recent), 4)
                log.write(json.dumps(figures | {"rungs": rungs}) + "\n")
                log.flush()
                recent.clear()
                rungs.clear()
            if time.monotonic() - saved_at > _SAVE_SECONDS:
                run.save(state)
                saved_at = time.monotonic()
    run.save(state)
    save_ladder(run, out / "ladder.safetensors")


def start_from(path: Path, recipe: Recipe) -> Run:
    """Start a run from a checkpoint's parameters, with a fresh optimiser.

    Args:
        path: a checkpoint of the pocket's geometry, heads included.
        recipe: the run's recipe; the checkpoint's checksum is noted in it.
    """
    ladder = Checkpoint(path)
    tensors = {name: torch.from_numpy(ladder.read(name)).clone() for name in ladder.layout}
    return Run(replace(recipe, start=hashlib.sha256(path.read_bytes()).hexdigest()), ladder.config, tensors)


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--from", type=Path, dest="start", help="checkpoint to start from")
    parser.add_argument("--minutes", type=float, default=Recipe.minutes, help="length of the run")
    parser.add_argument("--steps", type=int, default=0, help="steps, in place of minutes")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--peak", type=float, default=Recipe.peak, help="highest learning rate")
    parser.add_argument("--ladder-share", type=float, default=Recipe.ladder_share, help="steps with a rung")
    parser.add_argument("--ladder-weight", type=float, default=Recipe.ladder_weight, help="of a rung's loss")
    parser.add_argument(
        "--rare-from", type=int, default=0, help="first step with more double calls, refusals"
    )
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    state = out / "state.safetensors"
    chosen = {name: value for name, value in vars(options).items() if name not in {"out", "start"}}
    if state.exists():
        run = Run.load(state)
        run.recipe = replace(
            run.recipe, steps=options.steps, minutes=options.minutes, rare_from=options.rare_from
        )
    elif options.start:
        run = start_from(options.start, Recipe(**chosen))
    else:
        run = Run(Recipe(**chosen), POCKET, initial_tensors(seed=options.seed))
    train(run, out)
    sys.stdout.write(f"{out / 'ladder.safetensors'}\n")


if __name__ == "__main__":
    main()
