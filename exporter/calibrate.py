"""Quantising a ladder for what its matrices are multiplied with on calibration examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from exporter.examples import Example
from exporter.ladder import Array, Ladder
from exporter.layout import Axis, Part, TensorSpec
from exporter.precision import Key, PrecisionPlan, Role, role_of
from exporter.quantize import Blocks, joined, quantise_for
from exporter.verify import require_reference

__all__ = ["calibrated"]


def calibrated(
    plans: Sequence[PrecisionPlan],
    ladder: Ladder,
    examples: Sequence[Example],
    progress: Callable[[str], None] = lambda _: None,
) -> list[PrecisionPlan]:
    """Plans that know the codes and scales of every matrix which calibration can help.

    The examples are run once for all plans.

    Those are the kernels and the embedding, for their inputs on the examples, and the engram tables, whose
    rows are inputs themselves: an error there costs what the site's projections make of it. Probe heads keep
    what the search finds.

    Args:
        plans: of the storage.
        ladder: what is stored.
        examples: to run.
        progress: told what is being done.

    Raises:
        ReferenceUnavailableError: there is no PyTorch to run the examples.
    """
    require_reference("calibrating runs", ", or choose another --quantiser")
    from golden.reference.answers import input_moments  # noqa: PLC0415 - PyTorch, only where it is asked for

    layout = ladder.layout.items()
    wanted = [[key for name, spec in layout for key in _keys(plan, name, spec)] for plan in plans]
    every = {key: key for keys in wanted for key in keys}
    moments = input_moments(ladder, every, [example.tokens for example in examples])
    return [
        _calibrated(plan, ladder, {key: moments[key] for key in keys if key in moments}, progress)
        for plan, keys in zip(plans, wanted, strict=True)
    ]


def _calibrated(
    plan: PrecisionPlan, ladder: Ladder, moments: Mapping[Key, Array], progress: Callable[[str], None]
) -> PrecisionPlan:
    known: dict[Key, Blocks] = {}
    for (name, row), moment in moments.items():
        progress(f"calibrating {name}{'' if row is None else f'[{row}]'}")
        values, role = ladder.read(name, row), role_of(ladder.layout[name])
        matrix = np.ascontiguousarray(values.T if role is Role.MATMUL else values)
        known[name, row] = _quantised(plan, name, matrix, _isotropic(moment) if role is Role.TIED else moment)
    for name, spec in ladder.layout.items():
        if spec.part is Part.ENGRAM_TABLES and plan.storage[name].block:
            progress(f"calibrating {name}")
            known[name, None] = _tables(plan, ladder, name)
    return replace(plan, known=known)


def _keys(plan: PrecisionPlan, name: str, spec: TensorSpec) -> list[Key]:
    """The matrices of a tensor that have inputs to calibrate on."""
    if not plan.storage[name].block or spec.part is Part.HEADS or role_of(spec) is Role.TABLE:
        return []
    return [(name, row) for row in range(spec.shape[0])] if spec.axis is Axis.BLOCKS else [(name, None)]


def _isotropic(moment: Array) -> Array:
    """The moment of a tied embedding: its rows are embeddings too, where all directions count the same."""
    size = len(moment)
    return np.asarray(moment * (size / moment.trace()) + np.eye(size), np.float32)


def _quantised(plan: PrecisionPlan, name: str, matrix: Array, moment: Array) -> Blocks:
    storage = plan.storage[name]
    return quantise_for(matrix, moment, storage.bits, storage.block, zero_points=storage.zero_points)


def _tables(plan: PrecisionPlan, ladder: Ladder, name: str) -> Blocks:
    """A site's tables, each for its share of what the site's projections sum over."""
    prefix, width = name.removesuffix("embedding"), ladder.layout[name].shape[-1]
    sums = [ladder.read(f"{prefix}{kind}_proj/kernel") for kind in ("key", "value")]
    moment = sum(kernel @ kernel.T for kernel in sums)
    tables = ladder.read(name)
    spans = [slice(table * width, (table + 1) * width) for table in range(len(tables))]
    return joined(
        [
            _quantised(plan, name, t, np.asarray(moment)[span, span])
            for t, span in zip(tables, spans, strict=True)
        ]
    )
