"""Recovering a quantised ladder: scales and gains tuned by distillation, at every depth at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exporter.budget import Quantising, scheme_for
from exporter.bundle import FILE_MODE, publish, staging
from exporter.checkpoint import Checkpoint
from exporter.errors import PrecisionError
from exporter.examples import Example, read_examples
from exporter.export import load_target
from exporter.ladder import Array, Ladder
from exporter.planning import Planning
from exporter.precision import RECOVERED, Key, PrecisionPlan, Role, StoredLadder, plan_precision, role_of
from exporter.quantize import Blocks, finite_half
from exporter.recovered import is_tuned, keys_of, path_beside, save_recovered
from exporter.verify import require_reference

if TYPE_CHECKING:
    from golden.recovery import Recovery, Tuned

__all__ = ["recover", "recovered"]


def recover(
    *,
    checkpoint: Path,
    precision: str,
    quantising: Quantising,
    calibration: Path | None = None,
    examples: Path | None = None,
    output: Path | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    **recipe: Any,  # noqa: ANN401 - fields of golden.recovery.Recovery
) -> Path:
    """Recover a checkpoint that is quantised, and write what an export takes with ``--quantiser recovered``.

    Args:
        checkpoint: its path.
        precision: one that quantises.
        quantising: how the codes are found, which then stay.
        calibration: examples that the codes are found on, where the quantiser asks for them; None takes those
            beside the checkpoint.
        examples: whose answers to keep; None takes those of ``calibration``.
        output: the file to write; None for the one that an export looks for.
        force: whether that may be replaced.
        progress: told what is being done.
        recipe: steps, batch, rate and seed, where they are to be others.

    Returns:
        The file.

    Raises:
        ExporterError: of the class that names the cause.
    """
    require_reference("recovery runs")
    from golden.recovery import Recovery  # noqa: PLC0415 - PyTorch, only where it is asked for

    scheme = scheme_for(load_target("host"), precision, quantising)
    if not scheme.block or scheme.quantiser == RECOVERED:
        message = f"{precision} {scheme.quantiser} has nothing to recover: choose int8 or int4, and another."
        raise PrecisionError(message)
    ladder, recovery = Checkpoint(checkpoint), Recovery(**recipe)
    planning = Planning(checkpoint, calibration)
    asked = planning.examples(ladder.config) if examples is None else read_examples(examples, ladder.config)
    [plan] = planning.informed([plan_precision(ladder.config, ladder.layout, scheme)], ladder, progress)
    plan = recovered(plan, ladder, asked, recovery, progress)
    path = output or path_beside(checkpoint, precision)
    with staging(path, force=force) as stage:
        save_recovered(stage / path.name, ladder, plan, {**recovery.to_json(), "examples": len(asked)})
        (stage / path.name).chmod(FILE_MODE)
        publish(stage / path.name, path)
    return path


def recovered(
    plan: PrecisionPlan,
    ladder: Ladder,
    examples: Sequence[Example],
    recovery: Recovery,
    progress: Callable[[str], None] = lambda _: None,
) -> PrecisionPlan:
    """A plan whose scales and gains were tuned so that the ladder answers as it did in float32.

    Codes and zero points stay as the plan has them. Every step runs another rung, so one plan of the whole
    ladder serves all depths. Tensors of probe heads are left alone: no answer depends on them.

    Args:
        plan: of the storage of the whole ladder.
        ladder: what is stored.
        examples: whose answers to keep.
        recovery: how.
        progress: told how far it is.

    Raises:
        ReferenceUnavailableError: there is no PyTorch.
    """
    require_reference("recovery runs")
    from golden.recovery import Span, tune  # noqa: PLC0415 - PyTorch, only where it is asked for

    names = [name for name, spec in ladder.layout.items() if is_tuned(plan, spec)]
    spans = {
        name: Span(-2 if role_of(ladder.layout[name]) is Role.MATMUL else -1, plan.storage[name].block)
        for name in names
        if plan.storage[name].block
    }
    gains = [name for name in names if name not in spans]
    asked = [(example.tokens, example.prompt) for example in examples]
    tuned = tune(ladder, StoredLadder(ladder, plan), spans, gains, asked, recovery, progress)
    return _with(plan, ladder, tuned)


def _with(plan: PrecisionPlan, ladder: Ladder, tuned: Tuned) -> PrecisionPlan:
    """The plan with what was tuned in it."""
    known: dict[Key, Blocks] = {}
    values: dict[Key, Array] = {}
    for name, factors in tuned.factors.items():
        for key in keys_of(name, ladder.layout[name]):
            found = _quantised(plan, ladder, key)
            wanted = factors if key[1] is None else factors[key[1]]
            scales = finite_half(found.scales * wanted.reshape(found.scales.shape))
            # A factor is a few per cent, so only a scale that all but overflows can.
            known[key] = found if scales is None else replace(found, scales=scales)
    for name, gain in tuned.gains.items():
        for key in keys_of(name, ladder.layout[name]):
            values[key] = gain if key[1] is None else gain[key[1]]
    return replace(plan, known=known, tuned=values)


def _quantised(plan: PrecisionPlan, ladder: Ladder, key: Key) -> Blocks:
    """A matrix as the plan quantises it, or tables below each other."""
    values, kernel = ladder.read(*key), role_of(ladder.layout[key[0]]) is Role.MATMUL
    matrix = values.T if kernel else values.reshape(-1, values.shape[-1])
    return plan.quantise(key[0], np.ascontiguousarray(matrix), key[1])
