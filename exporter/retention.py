"""Which blocks to keep: sets beyond the ladder, found by removing what is missed least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from exporter.examples import Example
from exporter.ladder import Ladder, SlicePlan, plan_blocks, plan_slice
from exporter.verify import require_reference

__all__ = ["Found", "as_table", "search"]


class Loss(Protocol):
    """What slices of a ladder are judged by."""

    def of(self, plan: SlicePlan) -> float:
        """The less, the better."""


@dataclass(frozen=True)
class Found:
    """The set that greedy removal keeps at a depth, beside the ladder's own."""

    depth: int
    blocks: tuple[int, ...]
    loss: float
    """Nats per token of the answers."""
    rung: tuple[int, ...]
    """The ladder's blocks at this depth."""
    rung_loss: float


def search(
    ladder: Ladder,
    depth: int,
    examples: Sequence[Example],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Found]:
    """Remove one block after another, each time the one without which the loss is least.

    Both ends stay. A set of depth d is a set of depth d + 1 less one block, so that L - depth steps of less
    than L runs each find every depth on the way; nothing says that a better set is not beside it.

    Args:
        ladder: whole.
        depth: where to stop.
        examples: to judge by; the loss is that of their answers.
        progress: told what is being done.

    Returns:
        Every depth from the whole ladder down to ``depth``.

    Raises:
        DepthError: there is no such rung.
        ReferenceUnavailableError: there is no PyTorch to run the examples.
    """
    require_reference("a search runs")
    plan_slice(ladder.config, depth)  # refuses a depth that is no rung
    from golden.reference.answers import AnswerLoss  # noqa: PLC0415 - PyTorch, only where it is asked for

    loss = AnswerLoss(ladder, [(example.tokens, example.prompt) for example in examples])
    return list(_removals(ladder, depth, loss, progress))


def _removals(ladder: Ladder, depth: int, loss: Loss, progress: Callable[[str], None]) -> Iterator[Found]:
    config = ladder.config
    blocks, least = tuple(range(config.num_layers)), loss.of(plan_blocks(config, range(config.num_layers)))
    while True:
        rung = plan_slice(config, len(blocks))
        yield Found(
            len(blocks), blocks, least, rung.blocks, least if rung.blocks == blocks else loss.of(rung)
        )
        if len(blocks) == depth:
            return
        progress(f"searching depth {len(blocks) - 1}")
        without = [blocks[:place] + blocks[place + 1 :] for place in range(1, len(blocks) - 1)]
        least, blocks = min((loss.of(plan_blocks(config, each)), each) for each in without)


def as_table(found: Sequence[Found]) -> str:
    """The sets by depth, in columns."""
    lines = ["depth   found  ladder  blocks"]
    for each in found:
        blocks = ",".join(map(str, each.blocks))
        lines.append(f"{each.depth:5d}  {each.loss:6.3f}  {each.rung_loss:6.3f}  {blocks}")
    return "\n".join(lines)
