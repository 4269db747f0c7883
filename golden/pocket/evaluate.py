"""Measure a ladder on held-out commands: ``python -m golden.pocket.evaluate CHECKPOINT``.

Every depth answers the same examples, whose values (names, numbers, places, phrases) never occur in
training. Printed per depth: exact calls, refusals, and the loss in bits per byte of answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from exporter.checkpoint import Checkpoint
from exporter.ladder import plan_slice
from exporter.lora import fold
from golden.pocket.batches import encode, pad
from golden.pocket.data import COMMANDS, NEW_TOOLS, Domain, Example, examples
from golden.pocket.fast import answer_logits
from golden.pocket.prompt import EOS_ID, parse_calls, render_answer
from golden.pocket.tokenizer import load
from golden.reference import TensorLadder, Weights, forward

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHECKPOINT", "Figures", "Reply", "evaluate", "greedy", "held_out", "read_tensors", "reply"]

_BATCH = 32
_SPARE_TOKENS = 8
_DOMAINS = {"seen": COMMANDS, "unseen": NEW_TOOLS}
CHECKPOINT = Path(__file__).with_name("pocket.safetensors")


@dataclass(frozen=True)
class Figures:
    """What one depth achieves.

    Attributes:
        depth: blocks that ran.
        parameters: how many the slice has, heads included.
        examples: held-out examples asked.
        exact: share answered with exactly the right calls, refusals among them.
        exact_single: the same over the examples with one call.
        exact_double: the same over the examples with two calls.
        refused: share of the off-topic examples answered with an empty list.
        refused_wrongly: share of the other examples answered with an empty list.
        bits_per_byte: cross-entropy of the right answers, per byte of their text.
    """

    depth: int
    parameters: int
    examples: int
    exact: float
    exact_single: float
    exact_double: float
    refused: float
    refused_wrongly: float
    bits_per_byte: float


@dataclass(frozen=True)
class Reply:
    """What a ladder answered, and its loss on the right answer.

    Attributes:
        ids: its tokens, without ``eos``.
        text: the same, decoded, markers included.
        nats: cross-entropy of the right answer, summed over its tokens.
    """

    ids: tuple[int, ...]
    text: str
    nats: float


@dataclass(frozen=True)
class _Answer:
    """One example's outcome: how many first tokens of the right answer were the likeliest, and its nats."""

    followed: int
    nats: float


def held_out(count: int, seed: int = 0, domain: Domain = COMMANDS) -> list[Example]:
    """Return the first ``count`` held-out examples of a seed, of the trained tools or of ``domain``."""
    return list(itertools.islice(examples("test", seed, domain), count))


def greedy(weights: Weights, prompt: Sequence[int], limit: int) -> list[int]:
    """Answer a prompt with the likeliest tokens, one at a time, up to ``eos`` (left out) or ``limit``."""
    answer: list[int] = []
    with torch.no_grad():
        out = forward(weights, torch.tensor([list(prompt)]))
        while len(answer) < limit:
            token = int(out.logits[0, -1].argmax())
            if token == EOS_ID:
                break
            answer.append(token)
            out = forward(weights, torch.tensor([[token]]), out.state)
    return answer


def _follow(weights: Weights, rows: Sequence[tuple[list[int], int]]) -> list[_Answer]:
    """Read every example's right answer and compare it with the likeliest tokens.

    As far as they agree, greedy decoding takes the same way without being run.
    """
    answers: list[_Answer] = []
    for start in range(0, len(rows), _BATCH):
        batch = pad(rows[start : start + _BATCH])
        with torch.no_grad():
            logits = answer_logits(weights, batch)
        nats = -log_softmax(logits, -1).gather(1, batch.targets[:, None])[:, 0]
        right = logits.argmax(-1) == batch.targets
        lengths = batch.answer.sum(1).tolist()
        answers += [
            _Answer(int(r.long().cumprod(0).sum()), n.sum().item())
            for r, n in zip(torch.split(right, lengths), torch.split(nats, lengths), strict=True)
        ]
    return answers


def _share(hits: Sequence[bool]) -> float:
    return round(sum(hits) / len(hits), 4) if hits else math.nan


def reply(weights: Weights, asked: Sequence[Example]) -> list[Reply]:
    """Let a ladder answer examples, greedily.

    Args:
        weights: the ladder or a slice of it.
        asked: examples, as ``held_out`` gives them.
    """
    tokenizer = load()
    rows = [encode(example) for example in asked]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index][0]))
    outcome = dict(zip(order, _follow(weights, [rows[index] for index in order]), strict=True))
    replies = []
    for index, (ids, prompt) in enumerate(rows):
        agreed = prompt + outcome[index].followed
        # An answer that agrees to its end needs no decoding; what is left of it is eos.
        rest = greedy(weights, ids[:agreed], len(ids) - agreed + _SPARE_TOKENS) if agreed < len(ids) else []
        own = [token for token in [*ids[prompt:agreed], *rest] if token != EOS_ID]
        replies.append(
            Reply(tuple(own), tokenizer.decode(own, skip_special_tokens=False), outcome[index].nats)
        )
    return replies


def evaluate(weights: Weights, asked: Sequence[Example]) -> Figures:
    """Ask a ladder the examples and compare its calls with the right ones.

    Args:
        weights: the ladder or a slice of it.
        asked: examples, as ``held_out`` gives them.

    Returns:
        Its figures; an answer that is no well-formed list of calls counts as wrong.
    """
    replies = reply(weights, asked)
    given = [parse_calls(answer.text) for answer in replies]
    right = [list(example.calls) == calls for example, calls in zip(asked, given, strict=True)]

    def among(calls: int) -> list[bool]:
        return [hit for hit, example in zip(right, asked, strict=True) if len(example.calls) == calls]

    size = sum(len(render_answer(example.calls).encode()) for example in asked)
    empty = [calls == [] for example, calls in zip(asked, given, strict=True) if example.calls]
    return Figures(
        depth=weights.config.num_layers,
        parameters=sum(math.prod(spec.shape) for spec in weights.ladder.layout.values()),
        examples=len(asked),
        exact=_share(right),
        exact_single=_share(among(1)),
        exact_double=_share(among(2)),
        refused=_share(among(0)),
        refused_wrongly=_share(empty),
        bits_per_byte=round(sum(answer.nats for answer in replies) / math.log(2) / size, 4),
    )


def read_tensors(path: Path, adapters: Sequence[Path] = ()) -> Weights:
    """Read a checkpoint, with adapters folded in, into float32 tensors."""
    ladder = fold(Checkpoint(path), adapters, keep_confidence=True)
    tensors: dict[str, Tensor] = {name: torch.from_numpy(ladder.read(name)) for name in ladder.layout}
    return Weights(TensorLadder(ladder.config, tensors))


def main() -> None:
    """Evaluate a checkpoint at the given depths and print a table, or JSON lines."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=CHECKPOINT)
    parser.add_argument("--depths", type=int, nargs="+", default=[20, 16, 12, 8, 4, 2])
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tools", choices=_DOMAINS, default="seen", help="those of the training, or new")
    parser.add_argument("--adapter", type=Path, nargs="+", default=[], help="LoRA adapters to fold in")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args()
    weights = read_tensors(options.checkpoint, options.adapter)
    asked = held_out(options.examples, options.seed, _DOMAINS[options.tools])
    for number, depth in enumerate(options.depths):
        sliced = weights
        if depth != weights.config.num_layers:
            sliced = weights.sliced(plan_slice(weights.config, depth))
        row = asdict(evaluate(sliced, asked))
        if not (options.json or number):
            sys.stdout.write("  ".join(f"{name:>15}" for name in row) + "\n")
        text = json.dumps(row) if options.json else "  ".join(f"{value:>15}" for value in row.values())
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
