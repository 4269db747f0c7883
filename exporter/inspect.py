"""Saying what a checkpoint holds: configuration, parameters per part and depth, the slice of a depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from exporter.checkpoint import Checkpoint
from exporter.ladder import Ladder, plan_slice, slice_ladder
from exporter.layout import Part, heads_in

__all__ = ["as_text", "inspect"]


def inspect(checkpoint: Checkpoint, depth: int | None = None) -> dict[str, Any]:
    """Describe a checkpoint, JSON-ready; reads no tensor.

    Args:
        checkpoint: what to describe.
        depth: whose slice plan to add, or None.

    Raises:
        DepthError: the depth is not on the ladder.
    """
    total = checkpoint.config.num_layers
    described: dict[str, Any] = {
        "file": checkpoint.path.name,
        "dtypes": sorted(set(checkpoint.dtypes.values())),
        "step": checkpoint.step,
        "heads": heads_in(checkpoint.layout),
        "configuration": checkpoint.config.to_json(),
        "parameters": {str(d): _parameters(slice_ladder(checkpoint, d)) for d in range(2, total + 1)},
    }
    if depth is not None:
        described["slice"] = plan_slice(checkpoint.config, depth).to_json()
    return described


def _parameters(ladder: Ladder) -> dict[str, int]:
    """Number of parameters per part, and of all."""
    counts: Counter[str] = Counter()
    for spec in ladder.layout.values():
        counts[spec.part.value] += spec.size
    return {**{part.value: counts[part.value] for part in Part}, "total": counts.total()}


def as_text(described: dict[str, Any]) -> str:
    """The description as a page of text."""
    config = described["configuration"]
    lines = [
        (
            f"{described['file']}: {config['num_layers']} blocks, width {config['d_model']}, "
            f"vocabulary {config['vocab_size']}, {', '.join(described['dtypes'])}, "
            f"heads: {', '.join(described['heads']) or 'none'}"
        ),
        "",
        "configuration",
        *(f"  {key:<20} {_plain(value)}" for key, value in config.items()),
        "",
        "parameters by depth",
        *_table(described["parameters"]),
    ]
    if "slice" in described:
        plan = described["slice"]
        lines += ["", f"slice to depth {plan['depth']}"]
        lines += [f"  {key:<20} {_plain(value)}" for key, value in plan.items()]
    return "\n".join(lines)


def _table(parameters: dict[str, dict[str, int]]) -> Iterable[str]:
    parts = [*(part.value for part in Part), "total"]
    yield "  depth" + "".join(f"{part:>{max(len(part), 11) + 2}}" for part in parts)
    for depth, counts in parameters.items():
        yield f"  {depth:>5}" + "".join(f"{counts[p]:>{max(len(p), 11) + 2},}" for p in parts)


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return str(value) if value != "" else "-"
