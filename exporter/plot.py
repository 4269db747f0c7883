"""File size against depth, measured from real exports."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.errors import MissingPackageError
from exporter.export import build
from exporter.ladder import Ladder, slice_ladder
from exporter.precision import PRECISIONS, plan_precision

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Size", "draw", "measure", "read_csv", "require_matplotlib", "write_csv"]

_MEGA = 1e6
_HEADROOM = 1.3
"""Height of the picture over its highest point, for the labels."""

_COLOURS = {"fp32": "#4c4c4c", "fp16": "#7a5195", "int8": "#2a6f97", "int4": "#d1495b"}


@dataclass(frozen=True)
class Size:
    """Bytes of one export, and how many engram sites it carries."""

    precision: str
    depth: int
    sites: int
    graph_bytes: int
    weights_bytes: int

    @property
    def total(self) -> int:
        """Bytes of graphs and weights together."""
        return self.graph_bytes + self.weights_bytes


def measure(
    ladder: Ladder,
    precisions: Sequence[str],
    depths: Iterable[int],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Size]:
    """Write graphs and weights of every depth and precision, and weigh them.

    Args:
        ladder: what to slice.
        precisions: names of :data:`~exporter.precision.PRECISIONS`.
        depths: rungs of the ladder.
        progress: told what is being done.
    """
    sizes, depths = [], list(depths)
    for precision in precisions:
        for depth in depths:
            progress(f"{precision}, depth {depth}")
            sliced = slice_ladder(ladder, depth)
            plan = plan_precision(sliced.config, sliced.layout, PRECISIONS[precision])
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                _, weights = build(folder, sliced, plan)
                graphs = sum(path.stat().st_size for path in folder.glob("*.onnx"))
                sizes.append(Size(precision, depth, len(sliced.plan.sites), graphs, weights.size))
    return sizes


def require_matplotlib() -> None:
    """Make sure that a picture can be drawn.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        message = "drawing needs matplotlib: pip install 'needle-ladder-export[plot]', or '.[plot]' here."
        raise MissingPackageError(message)


def write_csv(path: Path, sizes: Iterable[Size]) -> None:
    """Write the measured sizes, a row each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Size)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(size) for size in sizes)


def read_csv(path: Path) -> list[Size]:
    """Read what :func:`write_csv` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Size(row["precision"], *(int(row[field.name]) for field in fields(Size)[1:]))
            for row in csv.DictReader(file)
        ]


def draw(sizes: Sequence[Size], paths: Iterable[Path], title: str) -> None:
    """Draw the sizes; the suffix of a path chooses its format.

    Args:
        sizes: measured.
        paths: files to write, such as ``.svg`` and ``.png``.
        title: above the picture.
    """
    require_matplotlib()
    from matplotlib import rc_context  # noqa: PLC0415 - an extra, needed for pictures alone
    from matplotlib.figure import Figure  # noqa: PLC0415

    # Fixed salt and no date: the same sizes give the same bytes.
    with rc_context({"svg.hashsalt": "ladder", "font.size": 10}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for precision in dict.fromkeys(size.precision for size in sizes):
            _curve(axes, [size for size in sizes if size.precision == precision])
        _decorate(axes, sizes, title)
        for path in paths:
            metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=metadata)


def _curve(axes: Axes, sizes: Sequence[Size]) -> None:
    """One precision: its sizes, and the straight line that the blocks alone would make."""
    depths, megabytes = [size.depth for size in sizes], [size.total / _MEGA for size in sizes]
    colour = _COLOURS.get(sizes[0].precision, "#000000")
    axes.plot(depths, megabytes, "o-", color=colour, markersize=4, label=sizes[0].precision)
    pairs = list(itertools.pairwise(sizes))
    steps = [b.total - a.total for a, b in pairs if b.sites == a.sites and b.depth == a.depth + 1]
    if steps:
        block = sum(steps) / len(steps) / _MEGA
        line = [megabytes[0] + block * (depth - depths[0]) for depth in depths]
        axes.plot(depths, line, ":", color=colour, linewidth=1)


def _decorate(axes: Axes, sizes: Sequence[Size], title: str) -> None:
    """Axes, legend, and a mark at every depth where an engram site enters."""
    first = [size for size in sizes if size.precision == sizes[0].precision]
    for before, after in itertools.pairwise(first):
        if after.sites > before.sites:
            axes.axvline(after.depth, color="#bbbbbb", linewidth=0.8, zorder=0)
            axes.annotate(
                "engram site",
                (after.depth, 0.98),
                xycoords=("data", "axes fraction"),
                xytext=(2, 0),
                textcoords="offset points",
                rotation="vertical",
                verticalalignment="top",
                fontsize=7,
                color="#777777",
            )
    axes.set_title(title)
    axes.set_xlabel("depth (blocks kept)")
    axes.set_ylabel("graphs and weights, MB")
    axes.set_xticks([size.depth for size in first])
    axes.set_ylim(0, _HEADROOM * max(size.total for size in sizes) / _MEGA)
    axes.grid(axis="y", color="#eeeeee")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="dotted: blocks alone")
