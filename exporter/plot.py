"""File size against depth, measured from real exports."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.errors import MissingPackageError
from exporter.export import build
from exporter.ladder import Ladder, slice_ladder
from exporter.precision import CALIBRATED, PRECISIONS, RECOVERED, plan_precision
from exporter.quality import GOALS, Figures
from exporter.quantize import SEARCH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Size", "draw", "draw_quality", "measure", "read_csv", "require_matplotlib", "write_csv"]

_MEGA = 1e6
_HEADROOM = 1.3
"""Height of the picture over its highest point, for the labels."""

_COLOURS = {"fp32": "#4c4c4c", "fp16": "#7a5195", "int8": "#2a6f97", "int4": "#d1495b"}
_LINES = {SEARCH: "-", CALIBRATED: "--", RECOVERED: "-."}


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


def draw(sizes: Sequence[Size], paths: Iterable[Path], title: str, figures: Sequence[Figures] = ()) -> None:
    """Draw the sizes; the suffix of a path chooses its format.

    Args:
        sizes: measured.
        paths: files to write, such as ``.svg`` and ``.png``.
        title: above the picture.
        figures: of quality, for a panel of its own.
    """
    with _picture(2 if figures else 1, paths) as panels:
        for precision in dict.fromkeys(size.precision for size in sizes):
            _curve(panels[0], [size for size in sizes if size.precision == precision])
        _decorate(panels[0], sizes, title)
        if figures:
            _exact_panel(panels[1], figures)


def draw_quality(figures: Sequence[Figures], paths: Iterable[Path], title: str) -> None:
    """Draw exact answers, and the loss above float32's, against depth.

    Args:
        figures: of quality; those of float32 among them.
        paths: files to write, such as ``.svg`` and ``.png``.
        title: above the picture.
    """
    with _picture(2, paths) as panels:
        _exact_panel(panels[0], figures)
        panels[0].set_title(title)
        _loss_panel(panels[1], figures)


@contextmanager
def _picture(panels: int, paths: Iterable[Path]) -> Iterator[list[Axes]]:
    """Panels side by side, written to the paths when the context ends."""
    require_matplotlib()
    from matplotlib import rc_context  # noqa: PLC0415 - an extra, needed for pictures alone
    from matplotlib.figure import Figure  # noqa: PLC0415

    # Fixed salt and no date: the same figures give the same bytes.
    with rc_context({"svg.hashsalt": "ladder", "font.size": 10}):
        figure = Figure(figsize=(8 * panels**0.7, 4.5), layout="constrained")
        yield [figure.add_subplot(1, panels, number + 1) for number in range(panels)]
        for path in paths:
            metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=metadata)


def _by_label(figures: Sequence[Figures]) -> dict[str, list[Figures]]:
    names = dict.fromkeys(row.label for row in figures)
    return {name: [row for row in figures if row.label == name] for name in names}


def _quality_curve(axes: Axes, label: str, rows: Sequence[Figures], values: Sequence[float]) -> None:
    """Values against depth: a colour per precision, a line per quantiser."""
    colour = _COLOURS.get(rows[0].precision, "#000000")
    line = _LINES.get(str(rows[0].scheme["quantiser"]), ":")
    depths = [row.depth for row in rows]
    axes.plot(depths, values, line, marker="o", color=colour, markersize=4, label=label)


def _exact_panel(axes: Axes, figures: Sequence[Figures]) -> None:
    """Share of exact answers against depth, a curve per precision."""
    for label, rows in _by_label(figures).items():
        _quality_curve(axes, label, rows, [100 * row.exact for row in rows])
    _by_depth(axes, figures, "exact answers, %")
    least = min(100 * row.exact for row in figures)
    axes.set_ylim(least - least % 10, 100)


def _loss_panel(axes: Axes, figures: Sequence[Figures]) -> None:
    """Loss above float32's against depth, with the goals dotted."""
    whole = {row.depth: row.bits_per_byte for row in figures if row.precision == "fp32"}
    for label, rows in _by_label(figures).items():
        known = [row for row in rows if row.depth in whole and row.precision != "fp32"]
        if known:
            above = [100 * (row.bits_per_byte / whole[row.depth] - 1) for row in known]
            _quality_curve(axes, label, known, above)
    for precision, (loss, _) in GOALS.items():
        axes.axhline(100 * loss, linestyle=":", color=_COLOURS[precision], linewidth=1)
    _by_depth(axes, figures, "loss above float32's, % (dotted: goal)")


def _by_depth(axes: Axes, figures: Sequence[Figures], label: str) -> None:
    axes.set_xlabel("depth (blocks kept)")
    axes.set_ylabel(label)
    axes.set_xticks(sorted({row.depth for row in figures}))
    axes.grid(axis="y", color="#eeeeee")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(edgecolor="none", framealpha=0.8)


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
