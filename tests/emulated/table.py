"""What a run of emulated guests found: one table, as text, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["FAILED", "NOT_EXPORTED", "PASSED", "Row", "as_lines", "write"]

PASSED, FAILED, NOT_EXPORTED = "passed", "failed", "not exported"
"""States of a case that gave numbers, and of one that the exporter refused. Those that gave none bear the
name of why: ``tampered``, ``refused``, ``crashed``, ``missing``, ``no cpu``, ``timeout``, ``failed to run``,
``no bed``."""

_COLUMNS = {
    "cpu": "core",
    "runtime": "onnxruntime",
    "case": "case",
    "state": "state",
    "stored": "stored weights",
    "own": "own weights",
    "heads": "heads",
    "peak": "peak MiB",
}
_MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One case under one core and one ONNX Runtime.

    Differences are the greatest ones, in units of the logits' spread, of the worst way to run.
    """

    cpu: str
    runtime: str
    case: str
    state: str
    stored: float | None = None
    """From the reference on the weights as stored."""
    stored_bound: float | None = None
    own: float | None = None
    """From the reference, or upstream, on the checkpoint's own weights."""
    own_bound: float | None = None
    heads: float | None = None
    """Of any output of a probe head, as a share of the head's greatest or of 1."""
    heads_bound: float | None = None
    peak: int | None = None
    """Peak resident bytes of a guest that ran this alone, less the emulator's own."""
    peak_bound: int | None = None
    seconds: float | None = None
    """That the emulation took, which says nothing about a device."""
    note: str = ""


def _cells(row: Row) -> list[str]:
    cells = []
    for name in _COLUMNS:
        value, bound = getattr(row, name), getattr(row, f"{name}_bound", None)
        if isinstance(value, int):
            text = f"{value / _MIB:.1f}" + (f" of {bound / _MIB:.0f}" if bound else "")
        elif isinstance(value, float):
            text = f"{value:.1e}" + (f" of {bound:g}" if bound is not None else "")
        else:
            text = value or "-"
        cells.append(text)
    return cells


def as_lines(rows: Sequence[Row], *, markdown: bool = False) -> list[str]:
    """The table, with a column as wide as its widest cell."""
    cells = [list(_COLUMNS.values()), *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    rule = ["-" * width for width in widths]
    if markdown:
        return [f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]]]
    return ["  ".join(line).rstrip() for line in [lines[0], rule, *lines[1:]]]


def write(rows: Sequence[Row], about: dict[str, str], folder: Path) -> list[Path]:
    """Write the table as ``results.json`` and ``results.md``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    states = sorted({row.state for row in rows})
    counts = {state: sum(row.state == state for row in rows) for state in states}
    kept = [asdict(row) for row in rows]
    document = {"about": about, "states": counts, "rows": kept}
    text = "\n".join(
        [
            "# Emulated Arm cores",
            "",
            ", ".join(f"{count} {state}" for state, count in counts.items()) + ".",
            "Differences are in units of the logits' spread, each with its bound.",
            "",
            *as_lines(rows, markdown=True),
            "",
            *(f"- {row.cpu}, {row.case}: {row.note}" for row in rows if row.note),
            *(f"- {name}: {value}" for name, value in about.items()),
            "",
        ]
    )
    paths = [folder / "results.json", folder / "results.md"]
    paths[0].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(text, encoding="utf-8")
    return paths
