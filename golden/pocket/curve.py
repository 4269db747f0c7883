"""A run's log, thinned to a table and a picture: ``python -m golden.pocket.curve --run DIR --out DIR``.

Writes ``loss.csv`` and ``loss.svg``: the training loss of the full depth and of the rungs, each a mean
over a window of steps (every batch is new, so it is a loss on unseen examples).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.plot import require_matplotlib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Point", "draw", "read_csv", "thin", "write_csv"]

_WINDOW = 50
_BANDS = {"shallow": range(2, 5), "middle": range(5, 9), "deep": range(9, 1000)}


@dataclass(frozen=True)
class Point:
    """Mean losses, in nats per token of an answer, of a window of steps.

    Attributes:
        step: the window's last step.
        seconds: time spent in steps so far.
        full: of the full depth.
        shallow: of the rungs of 2 to 4 blocks; None where there was none.
        middle: of those of 5 to 8.
        deep: of those of 9 and more.
    """

    step: int
    seconds: float
    full: float
    shallow: float | None
    middle: float | None
    deep: float | None


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def thin(lines: Iterable[str], window: int = _WINDOW) -> list[Point]:
    """Average a log.

    Args:
        lines: of ``log.jsonl``.
        window: steps that one point stands for.
    """
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    # A run that was resumed has repeated the steps since its last save: the later row counts.
    last = {row["step"]: row for row in rows}
    points = []
    for _, group in itertools.groupby(
        sorted(last.values(), key=lambda row: row["step"]), lambda row: (row["step"] - 1) // window
    ):
        part = list(group)
        rungs = [(depth, nats) for row in part for depth, nats in row.get("rungs", [])]
        bands = {name: _mean([n for d, n in rungs if d in depths]) for name, depths in _BANDS.items()}
        full = sum(row["recent_nats"] for row in part) / len(part)
        points.append(Point(part[-1]["step"], part[-1]["seconds"], round(full, 4), **bands))
    return points


def write_csv(path: Path, points: Iterable[Point]) -> None:
    """Write the points, a row each; an empty field is a band without a rung."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def read_csv(path: Path) -> list[Point]:
    """Read what :func:`write_csv` wrote."""
    names = [field.name for field in fields(Point)[1:]]
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Point(int(row["step"]), **{name: float(row[name]) if row[name] else None for name in names})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


def draw(runs: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw the losses over the steps on a logarithmic axis.

    Args:
        runs: points by the run's label; the rungs of a run are drawn where it has any.
        path: what to write; its suffix chooses the format.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import rc_context  # noqa: PLC0415 - an extra, needed for pictures alone
    from matplotlib.figure import Figure  # noqa: PLC0415

    labels = {"full": "full depth", "shallow": "rungs 2 to 4", "middle": "5 to 8", "deep": "9 to 19"}
    # Fixed salt and no date: the same losses give the same bytes.
    with rc_context({"svg.hashsalt": "ladder", "font.size": 10}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for run, points in runs.items():
            for field, label in labels.items():
                known = [(p.step, y) for p in points if (y := getattr(p, field)) is not None]
                if known:
                    axes.semilogy(*zip(*known, strict=True), linewidth=1.2, label=f"{run}: {label}")
        axes.set_xlabel("step")
        axes.set_ylabel("nats per token of an answer")
        axes.grid(color="#eeeeee")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Thin the log of a run, and draw it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", type=Path, required=True, help="directory of the training run")
    parser.add_argument("--control", type=Path, help="directory of the run without a ladder")
    parser.add_argument("--out", type=Path, required=True, help="directory of loss.csv and loss.svg")
    options = parser.parse_args()
    out: Path = options.out
    runs = {"ladder": options.run, **({"control": options.control} if options.control else {})}
    read = {name: (folder / "log.jsonl").read_text("utf-8").splitlines() for name, folder in runs.items()}
    points = {name: thin(lines) for name, lines in read.items()}
    for name, values in points.items():
        write_csv(out / ("loss.csv" if name == "ladder" else f"loss_{name}.csv"), values)
    draw(points, out / "loss.svg")
    sys.stdout.write(f"{out / 'loss.svg'}\n")


if __name__ == "__main__":
    main()
