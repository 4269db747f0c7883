"""Accuracy against average depth on held-out commands: ``python -m benchmarks.climbs BUNDLE``.

Every rung answers every command; what a climb with any threshold does follows from that, since it asks the
same rungs in the same order. Some climbs are run all the same, and must come out alike. Writes
``accuracy_by_depth`` as CSV, PNG and SVG.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from golden.pocket.data import Example, examples
from runtime_py import Answer, Asking, Climb, Model
from runtime_py.climb import CONFIDENCE, PROBABILITY

FIXED: Final = "fixed"
_CHECKED: Final = 10
"""Commands for which a climb is run, and not only replayed."""
_TIMED: Final = 30
"""Commands that the time is taken on."""
_APART: Final = 7
_NAME: Final = "accuracy_by_depth"


@dataclass(frozen=True)
class Outcome:
    """What one rung made of one command."""

    right: bool
    usable: bool
    """Whether the answer holds calls that can be read."""
    confidence: float
    probability: float


@dataclass(frozen=True)
class Point:
    """One way to choose the depth, over all commands."""

    way: str
    """``fixed``, or what a climb goes by."""
    threshold: float | None
    depths: str
    """Rungs that may be asked, in their order."""
    examples: int
    exact: float
    """Share answered with exactly the right calls."""
    depth: float
    """Average depth of the rung whose answer was given."""
    blocks: float
    """Average depth of all rungs that were asked, added up."""
    time: float | None = None
    """Processor time as a share of the deepest rung's, where it was taken: a rung checks the answer of the
    one before, which costs less than to answer alone."""


def measure(model: Model, asked: Sequence[Example], depths: Sequence[int]) -> list[dict[int, Outcome]]:
    """Ask every rung every command."""
    found = []
    for number, example in enumerate(asked):
        found.append({depth: _outcome(_ask(model, example, depth), example) for depth in depths})
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number + 1} of {len(asked)}")
    return found


def _ask(model: Model, example: Example, depth: int | Climb) -> Answer:
    asking = Asking(constrain=False, confidence=model.has_confidence)
    return model.call(example.query, example.tools, depth=depth, asking=asking)


def _outcome(answer: Answer, example: Example) -> Outcome:
    calls = answer.to_json()["calls"] if answer.problem is None else None
    right = calls == list(example.calls)
    return Outcome(right, answer.problem is None, answer.confidence or 0.0, answer.probability)


def fixed(found: Sequence[dict[int, Outcome]], depth: int) -> Point:
    """One depth for all commands."""
    right = sum(outcomes[depth].right for outcomes in found)
    return Point(FIXED, None, str(depth), len(found), right / len(found), depth, depth)


def replay(outcomes: dict[int, Outcome], climb: Climb) -> list[int]:
    """The rungs that a climb asks for a command; the last one answers."""
    for count, depth in enumerate(climb.depths, 1):
        outcome = outcomes[depth]
        if outcome.usable and getattr(outcome, str(climb.by)) >= climb.threshold:
            return list(climb.depths[:count])
    return list(climb.depths)


def climbed(found: Sequence[dict[int, Outcome]], climb: Climb) -> Point:
    """A climb for all commands."""
    ways, count = [replay(outcomes, climb) for outcomes in found], len(found)
    right = sum(outcomes[way[-1]].right for outcomes, way in zip(found, ways, strict=True))
    return Point(
        str(climb.by),
        climb.threshold,
        " ".join(map(str, climb.depths)),
        count,
        right / count,
        sum(way[-1] for way in ways) / count,
        sum(map(sum, ways)) / count,
    )


def curve(found: Sequence[dict[int, Outcome]], depths: tuple[int, ...], by: str) -> list[Point]:
    """Climbs by every threshold that makes a difference."""
    scores = {getattr(outcome, by) for outcomes in found for outcome in outcomes.values()}
    thresholds = sorted({0.0, 1.0, *scores})
    points = [climbed(found, Climb(depths=depths, threshold=t, by=by)) for t in thresholds]
    return [next(same) for _, same in itertools.groupby(points, lambda p: replace(p, threshold=None))]


def timed(model: Model, asked: Sequence[Example], ways: Sequence[int | Climb]) -> list[float]:
    """Processor time of each way to answer all commands, in turns, as a share of the first's."""
    spent = [0.0] * len(ways)
    for number in range(len(asked)):
        for place, way in enumerate(ways):
            # Another command each time, or a way would find the tools prefilled by the one before.
            example = asked[(number + place * _APART) % len(asked)]
            started = time.process_time()
            _ask(model, example, way)
            spent[place] += time.process_time() - started
    return [seconds / spent[0] for seconds in spent]


def check(model: Model, asked: Sequence[Example], found: Sequence[dict[int, Outcome]], climb: Climb) -> None:
    """Run a climb, and compare it with its replay.

    Raises:
        SystemExit: they differ.
    """
    for example, outcomes in zip(asked, found, strict=True):
        answer = _ask(model, example, climb)
        tried = [attempt.depth for attempt in answer.attempts]
        if tried != replay(outcomes, climb) or _outcome(answer, example).right != outcomes[tried[-1]].right:
            sys.exit(f"{example.query!r}: the climb asked {tried}, its replay {replay(outcomes, climb)}")


def write_csv(path: Path, points: Iterable[Point]) -> None:
    """Write a row per point."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        for point in points:
            row = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(point).items()}
            writer.writerow(row)


def draw(points: Sequence[Point], paths: Iterable[Path], title: str) -> None:
    """Draw accuracy against the depth that answered, and against all blocks that were run."""
    from matplotlib import rc_context  # noqa: PLC0415 - an extra, needed for pictures alone
    from matplotlib.figure import Figure  # noqa: PLC0415

    colours = {FIXED: "#4c4c4c", CONFIDENCE: "#d1495b", PROBABILITY: "#2a6f97"}
    names = {
        FIXED: "one depth for all",
        CONFIDENCE: "climb by confidence",
        PROBABILITY: "climb by probability",
    }
    points = [point for point in points if point.time is None]
    with rc_context({"svg.hashsalt": "ladder", "font.size": 10}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        for number, (field, label) in enumerate(
            [("depth", "average depth that answered"), ("blocks", "average blocks run, all tries added up")]
        ):
            axes = figure.add_subplot(1, 2, number + 1)
            for way in dict.fromkeys(point.way for point in points):
                mine = [point for point in points if point.way == way]
                style = "o" if way == FIXED else "-"
                xs, ys = [getattr(point, field) for point in mine], [100 * point.exact for point in mine]
                axes.plot(xs, ys, style, color=colours[way], label=names[way], markersize=5)
            for point in points:
                if point.way == FIXED:
                    place = (getattr(point, field), 100 * point.exact)
                    axes.annotate(point.depths, place, (4, -10), textcoords="offset points", fontsize=8)
            axes.set_xlabel(label)
            axes.set_ylabel("exactly right, %")
            axes.grid(axis="y", color="#eeeeee")
            axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.suptitle(title)
        for path in paths:
            metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=metadata)


def main() -> None:
    """Measure, and write table and picture."""
    parser = argparse.ArgumentParser("python -m benchmarks.climbs", description=main.__doc__)
    parser.add_argument("bundle", type=Path, help="that runs at several depths")
    parser.add_argument("--climb", type=int, nargs="+", help="rungs of the climbs; default: the runtime's")
    parser.add_argument("--depths", type=int, nargs="+", help="depths to show besides those")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument(
        "--timed", type=float, nargs="*", default=[0.5, 0.9], help="thresholds by probability"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    model = Model.load(options.bundle, threads=1)
    rungs = Climb(depths=tuple(options.climb or ())).rungs(model.depths, model.bundle.name)
    asked = list(itertools.islice(examples("test", options.seed), options.examples))
    depths = sorted({*rungs, *(options.depths or [])})
    found = measure(model, asked, depths)
    points = [fixed(found, depth) for depth in depths]
    for by in [CONFIDENCE, PROBABILITY] if model.has_confidence else [PROBABILITY]:
        scores = sorted(getattr(outcomes[rungs[0]], by) for outcomes in found)
        middle = Climb(depths=rungs, threshold=scores[len(scores) // 2], by=by)
        check(model, asked[:_CHECKED], found[:_CHECKED], middle)
        points += curve(found, rungs, by)
    climbs = [Climb(depths=rungs, threshold=threshold, by=PROBABILITY) for threshold in options.timed]
    times = timed(model, asked[:_TIMED], [rungs[-1], *climbs])[1:]
    points += [replace(climbed(found, c), time=t) for c, t in zip(climbs, times, strict=True)]
    write_csv(options.out / f"{_NAME}.csv", points)
    title = f"{model.bundle.name}: {len(asked)} held-out commands"
    draw(points, [options.out / f"{_NAME}.{kind}" for kind in ("png", "svg")], title)
    for point in points:
        if point.way == FIXED:
            sys.stdout.write(f"depth {point.depths}: {100 * point.exact:.1f} % exact\n")
        elif point.time is not None:
            sys.stdout.write(
                f"climb to {point.threshold}: {100 * point.exact:.1f} % exact at depth {point.depth:.1f}, "
                f"{point.blocks:.1f} blocks in all, {point.time:.2f} of the time\n"
            )
    sys.stdout.write(f"{options.out / _NAME}.csv\n")


if __name__ == "__main__":
    main()
