"""Train the three probe heads on the frozen ladder.

* confidence: is this answer right? Right answers against wrong ones to the same prompts: the mistakes of
  the ladder's own shallow rungs. Scored on ``bos`` + prompt + answer, without ``eos``.
* embedding: a query beside the tool that serves it, by a sigmoid loss over all pairs of a batch
  (Zhai et al., 2023); ``log_temp`` and ``bias`` are that loss's own.
* router: how many calls a query asks for, of the offered tools: none, one, or several. What the
  three logits of the published family mean is not documented; this is a plain use of them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from exporter.ladder import plan_slice
from golden.pocket.batches import encode, pad
from golden.pocket.data import PRACTICE, Example, examples
from golden.pocket.evaluate import reply
from golden.pocket.fast import cells_of
from golden.pocket.prompt import BOS_ID, parse_calls, render_prompt
from golden.pocket.tokenizer import load
from golden.reference import TensorLadder, Weights
from golden.reference.heads import pool, project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exporter.config import LadderConfig
    from golden.pocket.pools import Split

__all__ = [
    "TRAINED_HEADS",
    "HeadBatch",
    "HeadRecipe",
    "head_accuracy",
    "head_batches",
    "head_loss",
    "head_output",
    "train_heads",
]

Ids = list[int]

_ERRING_DEPTHS = (2, 4, 6)
_ASKED_AT_ONCE = 16
_BASIS = 128
"""Most directions of pooled vectors that a head's projection may use."""


@dataclass(frozen=True)
class HeadRecipe:
    """How each head is trained.

    The ladder is frozen, so what it says of a batch is computed once and visited many times.

    Attributes:
        batches: different batches.
        steps: optimiser steps, which take the batches in turn.
        batch: examples in a batch.
        rate: first learning rate of AdamW; a cosine takes it to zero.
        decay: weight decay.
        seed: the seed of the data.
    """

    batches: int = 96
    steps: int = 576
    batch: int = 16
    rate: float = 1e-2
    decay: float = 0.05
    seed: int = 7


@dataclass(frozen=True)
class HeadBatch:
    """Sequences and what a head should say of them.

    Attributes:
        sequences: ids without padding.
        labels: per sequence; for the embedding, which tool (second half) a query (first half) wants.
    """

    sequences: list[Ids]
    labels: Tensor


def _query_ids(text: str) -> Ids:
    return [BOS_ID, *load().encode(text).ids]


def _tool_ids(tool: dict[str, object]) -> Ids:
    """A tool by itself, shown as a prompt shows it, up to the end of the tools."""
    return _query_ids(render_prompt("", [tool]).partition("</tools>")[0])


def _confidence(stream: Iterator[Example], count: int, weights: Weights) -> Iterator[HeadBatch]:
    """Prompts with their right answers and with a rung's wrong ones: the prompts then tell nothing."""
    half = -(-count // 2)
    right: list[Ids] = []
    wrong: list[Ids] = []
    for depth in itertools.cycle(_ERRING_DEPTHS):
        rung = weights.sliced(plan_slice(weights.config, min(depth, weights.config.num_layers)))
        rows = list(itertools.islice(stream, _ASKED_AT_ONCE))
        for row, answer in zip(rows, reply(rung, rows), strict=True):
            if parse_calls(answer.text) != list(row.calls):
                ids, prompt = encode(row)
                right.append(ids[:-1])
                wrong.append([*ids[:prompt], *answer.ids])
        while len(right) >= half:
            labels = torch.tensor([1.0] * half + [0.0] * half)
            yield HeadBatch([*right[:half], *wrong[:half]], labels)
            del right[:half], wrong[:half]


def _embedding(stream: Iterator[Example], count: int) -> HeadBatch:
    queries: list[Ids] = []
    wanted: list[str] = []
    tools: dict[str, Ids] = {}
    while len(queries) < count:
        row = next(stream)
        if len(row.calls) == 1:
            name = str(row.calls[0]["name"])
            tool = next(tool for tool in row.tools if tool["name"] == name)
            queries.append(_query_ids(render_prompt(row.query, ())))
            wanted.append(name)
            tools[name] = _tool_ids(tool)
    columns = list(tools)
    labels = torch.tensor([[name == column for column in columns] for name in wanted]).float()
    return HeadBatch([*queries, *tools.values()], labels)


def _router(stream: Iterator[Example], count: int) -> HeadBatch:
    rows: list[Example] = []
    while len(rows) < count:
        row = next(stream)
        # Single calls are most of the data: take the three kinds in turn.
        if min(len(row.calls), 2) == len(rows) % 3:
            rows.append(row)
    ids = [_query_ids(render_prompt(row.query, row.tools)) for row in rows]
    return HeadBatch(ids, torch.tensor([min(len(row.calls), 2) for row in rows]))


TRAINED_HEADS = ("confidence", "embedding", "router")
"""The heads, in the order in which they are trained."""


def head_batches(head: str, split: Split, recipe: HeadRecipe, weights: Weights) -> Iterator[HeadBatch]:
    """Yield a head's batches: an endless stream, the same for the same arguments.

    Args:
        head: one of ``TRAINED_HEADS``.
        split: whose values occur.
        recipe: seed and size.
        weights: the ladder, whose rungs make the mistakes that the confidence head learns from.
    """
    stream = examples(split, recipe.seed, PRACTICE)
    if head == "confidence":
        yield from _confidence(stream, recipe.batch, weights)
    maker = _embedding if head == "embedding" else _router
    while True:
        yield maker(stream, recipe.batch)


def read_cells(weights: Weights, batch: HeadBatch) -> tuple[Tensor, Tensor]:
    """Run the frozen ladder: cells [B, T, L + 1, C], and [B, T] True where a token is no padding."""
    tokens = pad([(ids, len(ids)) for ids in batch.sequences]).tokens
    with torch.no_grad():
        cells = torch.stack(cells_of(weights, tokens, mask_padding=True), 2)
    return cells, tokens != weights.config.pad_token_id


def head_output(weights: Weights, head: str, batch: HeadBatch) -> Tensor:
    """Run the frozen ladder, then the head."""
    return project(weights, head, pool(weights, head, *read_cells(weights, batch)))


def head_loss(weights: Weights, head: str, output: Tensor, labels: Tensor) -> Tensor:
    """A head's loss for its output on a batch."""
    if head == "confidence":
        return binary_cross_entropy_with_logits(output[:, 0], labels)
    if head == "router":
        return cross_entropy(output, labels)
    queries, tools = output[: len(labels)], output[len(labels) :]
    scale, bias = weights.whole("embedding_head/log_temp").exp(), weights.whole("embedding_head/bias")
    logits = scale * (queries @ tools.mT) + bias
    return -logsigmoid((2 * labels - 1) * logits).sum(1).mean()


def head_accuracy(head: str, output: Tensor, labels: Tensor) -> float:
    """Share of right decisions: sign, nearest tool, or largest logit."""
    if head == "confidence":
        return ((output[:, 0] > 0) == (labels > 0)).float().mean().item()
    if head == "router":
        return (output.argmax(-1) == labels).float().mean().item()
    chosen = (output[: len(labels)] @ output[len(labels) :].mT).argmax(-1, keepdim=True)
    return labels.gather(1, chosen).mean().item()


def _basis(features: Tensor) -> Tensor:
    """Directions in which pooled vectors differ, each scaled to deviation one: [queries * C, r].

    Pooled vectors share one large component, which no sequence differs in; descending along it would
    take most of the training. The basis is orthogonal to it, so that products with it have mean zero.
    """
    common = torch.nn.functional.normalize(features.mean(0), dim=0)
    rest = features - (features @ common)[:, None] * common
    _, deviations, directions = torch.linalg.svd(rest, full_matrices=False)
    kept = min(_BASIS, len(features) // 4)
    basis: Tensor = directions[:kept].mT * (math.sqrt(len(features)) / deviations[:kept])
    return basis


def _train_head(weights: Weights, head: str, recipe: HeadRecipe) -> tuple[dict[str, Tensor], list[float]]:
    """Train one head: its new tensors, and the losses."""
    config, tensors = weights.config, cast("TensorLadder", weights.ladder).tensors
    batches = list(itertools.islice(head_batches(head, "train", recipe, weights), recipe.batches))
    cells = [read_cells(weights, batch) for batch in batches]
    basis = _basis(torch.cat([pool(weights, head, *read) for read in cells]))
    kernel = f"{head}_head/proj/kernel"
    mix = torch.eye(basis.shape[1], tensors[kernel].shape[1]) * (head == "embedding")
    own = {n: t.clone() for n, t in tensors.items() if n.startswith(f"{head}_head/")}
    own |= {kernel: mix}
    trained = [t.requires_grad_() for n, t in own.items() if "calibration" not in n]
    optimiser = torch.optim.AdamW(trained, lr=recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    losses = []
    for step in range(recipe.steps):
        index = step % recipe.batches
        now = Weights(TensorLadder(config, {**tensors, **own, kernel: basis @ mix}))
        output = project(now, head, pool(now, head, *cells[index]))
        loss = head_loss(now, head, output, batches[index].labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return {n: t.detach() for n, t in {**own, kernel: basis @ mix}.items()}, losses


def train_heads(
    config: LadderConfig, tensors: dict[str, Tensor], recipe: HeadRecipe
) -> dict[str, list[float]]:
    """Train all heads; nothing else of ``tensors`` changes.

    Args:
        config: the ladder's geometry.
        tensors: its parameters by checkpoint name; those of the heads are exchanged.
        recipe: length and rate.

    Returns:
        Every head's losses, step by step.
    """
    losses: dict[str, list[float]] = {}
    for head in TRAINED_HEADS:
        own, losses[head] = _train_head(Weights(TensorLadder(config, tensors)), head, recipe)
        tensors.update(own)
    return losses
