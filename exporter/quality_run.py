"""One measurement of quality, from a checkpoint and its files of examples to figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from exporter.budget import Quantising, scheme_for
from exporter.checkpoint import Checkpoint
from exporter.config import MINIMUM_DEPTH
from exporter.examples import HELD_OUT, examples_beside, read_examples
from exporter.export import load_target
from exporter.ladder import Ladder
from exporter.planning import Planning
from exporter.precision import PRECISIONS, PrecisionPlan, Scheme, plan_precision
from exporter.quality import Quality, examples_described, measure
from exporter.quantize import SEARCH

__all__ = ["quality_of"]


def quality_of(
    *,
    checkpoint: Path,
    depths: Sequence[int],
    precisions: Sequence[str],
    quantisers: Sequence[str] = (SEARCH,),
    block: int | None = None,
    zero_points: bool = False,
    calibration: Path | None = None,
    recovered: Path | None = None,
    examples: Path | None = None,
    count: int | None = None,
    earlier: Quality | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Quality:
    """Measure a checkpoint.

    Args:
        checkpoint: its path.
        depths: rungs; all where there are none.
        precisions: beside float32.
        quantisers: for each precision that quantises; as in an export, like the two that follow.
        block: weights to a scale.
        zero_points: whether each scale has one.
        calibration: examples to calibrate on; None takes those beside the checkpoint.
        recovered: weights that are; None takes those beside the checkpoint.
        examples: to answer; None takes those beside the checkpoint.
        count: how many of them; None for all.
        earlier: figures that these are to stand beside.
        progress: told what is being done.

    Raises:
        ExporterError: of the class that names the cause.
    """
    ladder = Checkpoint(checkpoint)
    path = examples_beside(checkpoint, HELD_OUT, examples)
    asked = read_examples(path, ladder.config, count)
    about, target = examples_described(path, len(asked)), load_target("host")
    if earlier is not None:
        earlier.require_same(checkpoint.name, about)

    def schemes() -> Iterator[Scheme]:
        for name in dict.fromkeys(("fp32", *precisions)):
            if not PRECISIONS[name].block:
                yield scheme_for(target, name)
                continue
            for quantiser in quantisers:
                yield scheme_for(target, name, Quantising(quantiser, block, zero_points))

    def plans_of(sliced: Ladder) -> list[PrecisionPlan]:
        plans = [plan_precision(sliced.config, sliced.layout, scheme) for scheme in schemes()]
        return planning.informed(plans, sliced, progress)

    planning = Planning(checkpoint, calibration, recovered)
    rungs = depths or range(MINIMUM_DEPTH, ladder.config.num_layers + 1)
    figures = measure(ladder, rungs, plans_of, asked, progress)
    return Quality(checkpoint.name, about, figures)
