"""The command line: options in, one call out."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from exporter.artifacts import download_wheels, update_index, write_artifact
from exporter.budget import Quantising
from exporter.checkpoint import Checkpoint
from exporter.errors import ExporterError
from exporter.examples import CALIBRATION, examples_beside, read_examples
from exporter.export import AUTO, SHIPPED, Export, ExportResult, export, load_target
from exporter.inspect import as_text, inspect
from exporter.mixed import parse_bytes
from exporter.plot import draw, draw_quality, measure, require_matplotlib, write_csv
from exporter.precision import MIXED, PRECISIONS, QUANTISERS
from exporter.quality import STORED, as_table, misses, read_quality
from exporter.quality_run import quality_of
from exporter.quantize import SEARCH
from exporter.recheck import recheck
from exporter.recover import recover
from exporter.retention import as_table as as_retention_table
from exporter.retention import search
from targets import Budget, names

__all__ = ["main"]

FILE = click.Path(path_type=Path)


class _Depth(click.ParamType[int | str]):
    """A number of blocks, or ``auto``."""

    name = f"number|{AUTO}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ANN401 - as in click
        """The number, or ``auto``."""
        return AUTO if value == AUTO else int(click.INT.convert(value, param, ctx))


class _Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers, with commas between."""

    name = "number,number,..."

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as in click
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers with commas between.", param, ctx)


class _DefaultGroup(click.Group):
    """A group whose command ``export`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``export`` in front where no command is named."""
        if not args or (args[0].startswith("-") and args[0] not in {"--help", "-h", "--version"}):
            args = ["export", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as in click
        """Run the command; an exporter's error becomes a message and its class's exit code."""
        try:
            return super().invoke(ctx)
        except ExporterError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="needle-ladder-export")
def main() -> None:
    """Export any depth of a ladder checkpoint to ONNX, proven against the reference.

    Without a command, exports. Exit codes: 2 usage, 3 checkpoint, 4 depth, 5 adapter, 6 precision,
    7 verification, 8 output, 9 bundle, 10 target, 11 budget, 12 examples.
    """


@main.command("export")
@click.option("--checkpoint", type=FILE, default=SHIPPED, help="Ladder checkpoint; default: the shipped one.")
@click.option(
    "--depth",
    type=_Depth(),
    help="Blocks to keep, 2 to all; auto: as many as fit the target.",
)
@click.option(
    "--elastic", is_flag=True, help="Graphs that are told at each call which blocks run; --depth is the most."
)
@click.option("--depths", type=_Numbers(), default=(), help="Several rungs that share their weights: 4,8,20.")
@click.option(
    "--blocks", type=_Numbers(), default=(), help="The blocks to keep, both ends among them: 0,3,7,19."
)
@click.option("--target", default="host", show_default=True, help="Profile's name, or path of a .toml.")
@click.option("--precision", metavar="|".join([*PRECISIONS, MIXED]), help="Default: the target's.")
@click.option(
    "--budget", metavar="SIZE", help="Of the weights, such as 14MB, for mixed widths (needs PyTorch)."
)
@click.option(
    "--quantiser",
    metavar="|".join(QUANTISERS),
    help="Round to nearest, search for the scales of least error (default), calibrate (needs PyTorch), or "
    "take what `recover` found.",
)
@click.option("--calibration", type=FILE, help="Default: calibration.jsonl beside the checkpoint.")
@click.option("--recovered", type=FILE, help="Default: CHECKPOINT.PRECISION.safetensors beside it.")
@click.option("--block", type=int, help="Weights to a scale; default: the target's.")
@click.option("--zero-points", is_flag=True, help="Asymmetric: a zero point beside every scale.")
@click.option(
    "--lora", "adapters", type=FILE, multiple=True, help="Adapter to fold first; repeatable, in order."
)
@click.option(
    "--keep-confidence", is_flag=True, help="Keep the confidence head although adapters are folded."
)
@click.option("--tokenizer", type=FILE, help="Default: tokenizer.json beside the checkpoint.")
@click.option("--all-logits", is_flag=True, help="Logits of every position instead of the last.")
@click.option("--archive", is_flag=True, help="One file, packed as the target takes it, instead of a folder.")
@click.option("--require-verified", is_flag=True, help="Fail where there is nothing to verify against.")
@click.option("--output", type=FILE, default=Path("dist"), show_default=True, help="Folder to write into.")
@click.option("--force", is_flag=True, help="Replace a bundle of the same name.")
def export_command(
    quantiser: str | None,
    block: int | None,
    budget: str | None,
    *,
    zero_points: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Slice, quantise, write ONNX graphs and verify them."""
    with _warnings_shown():
        quantising = Quantising(quantiser, block, zero_points)
        room = None if budget is None else parse_bytes(budget)
        result = export(Export(quantising=quantising, budget=room, **options), _progress)
    click.echo(_verdict(result), err=True)
    costs = result.footprint
    click.echo(
        f"takes {costs.storage / 2**20:.1f} MiB of storage and about {costs.memory.total / 2**20:.0f} MiB of "
        f"memory with {costs.context} tokens",
        err=True,
    )
    click.echo(result.path)


@main.command("quality")
@click.option("--checkpoint", type=FILE, default=SHIPPED, help="Ladder checkpoint; default: the shipped one.")
@click.option("--depth", "depths", type=int, multiple=True, help="Repeatable; default: every rung.")
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    default=("int8", "int4"),
    show_default=True,
    help="Beside fp32; repeatable.",
)
@click.option(
    "--quantiser",
    "quantisers",
    type=click.Choice(QUANTISERS),
    multiple=True,
    default=(SEARCH,),
    show_default=True,
    help="As in an export; repeatable.",
)
@click.option("--block", type=int, help="As in an export.")
@click.option("--zero-points", is_flag=True, help="As in an export.")
@click.option("--calibration", type=FILE, help="Default: calibration.jsonl beside the checkpoint.")
@click.option("--recovered", type=FILE, help="As in an export.")
@click.option("--examples", type=FILE, help="Default: held_out.jsonl beside the checkpoint.")
@click.option("--count", type=int, help="Examples to answer; default: all of the file.")
@click.option("--plot", type=FILE, help="Picture to draw, .svg or .png (extra `plot`).")
@click.option("--output", type=FILE, default=Path(STORED), show_default=True, help="File to write, JSON.")
def quality_command(plot: Path | None, output: Path, **options: Any) -> None:  # noqa: ANN401
    """Measure what precisions cost on held-out examples: loss, divergence, agreement, exact answers.

    Takes PyTorch, and minutes. Figures in quality.json beside a checkpoint go into the bundles of its slices.
    A file that there is keeps its figures of other depths and precisions.
    """
    if plot is not None:
        require_matplotlib()
    earlier = read_quality(output) if output.exists() else None
    found = quality_of(**options, earlier=earlier, progress=_progress)
    click.echo(as_table(found.figures))
    for missed in misses(found.figures):
        click.echo(f"goal missed: {missed}")
    if earlier is not None:
        found = earlier.joined(found)
    output.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        draw_quality(found.figures, [plot], f"{options['checkpoint'].stem}: quality by depth")
        click.echo(plot)
    click.echo(output)


@main.command("recover")
@click.option("--checkpoint", type=FILE, default=SHIPPED, help="Ladder checkpoint; default: the shipped one.")
@click.option("--precision", metavar="int8|int4", default="int4", show_default=True)
@click.option("--quantiser", metavar="|".join(QUANTISERS[:-1]), help="How codes are found; default: search.")
@click.option("--block", type=int, help="As in an export.")
@click.option("--zero-points", is_flag=True, help="As in an export.")
@click.option("--calibration", type=FILE, help="Default: calibration.jsonl beside the checkpoint.")
@click.option("--examples", type=FILE, help="Whose answers to keep; default: those of --calibration.")
@click.option("--steps", type=click.IntRange(1), default=300, show_default=True, help="Of the optimiser.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Examples in a step.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of examples and depths.")
@click.option("--output", type=FILE, help="Default: CHECKPOINT.PRECISION.safetensors beside it.")
@click.option("--force", is_flag=True, help="Replace a file of the same name.")
def recover_command(quantiser: str | None, block: int | None, *, zero_points: bool, **options: Any) -> None:  # noqa: ANN401
    """Tune a quantised ladder's scales and norms so that every depth answers as it does in float32.

    Takes PyTorch, and minutes. `export --quantiser recovered` takes what it writes, at any depth.
    """
    click.echo(recover(quantising=Quantising(quantiser, block, zero_points), progress=_progress, **options))


@main.command("search")
@click.option("--checkpoint", type=FILE, default=SHIPPED, help="Ladder checkpoint; default: the shipped one.")
@click.option("--depth", type=int, required=True, help="Blocks to keep at the end.")
@click.option("--calibration", type=FILE, help="Examples; default: calibration.jsonl beside the checkpoint.")
@click.option("--count", type=int, default=32, show_default=True, help="Examples to judge by.")
def search_command(checkpoint: Path, depth: int, calibration: Path | None, count: int) -> None:
    """Search the blocks to keep: remove what the examples' answers miss least, down to a depth.

    Takes PyTorch, and minutes. Prints the loss (nats per token) at each depth on the way beside that of the
    ladder's own blocks, and last what --blocks takes.
    """
    ladder = Checkpoint(checkpoint)
    examples = read_examples(examples_beside(checkpoint, CALIBRATION, calibration), ladder.config, count)
    found = search(ladder, depth, examples, _progress)
    click.echo(as_retention_table(found))
    click.echo(",".join(map(str, found[-1].blocks)))


@main.command("inspect")
@click.argument("checkpoint", type=FILE, default=SHIPPED)
@click.option("--depth", type=int, help="Show the slice plan of this depth.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_command(checkpoint: Path, depth: int | None, *, as_json: bool) -> None:
    """Show configuration, parameters per part and depth, and a slice plan."""
    described = inspect(Checkpoint(checkpoint), depth)
    click.echo(json.dumps(described, indent=1) if as_json else as_text(described))


@main.command("verify")
@click.argument("bundle", type=FILE)
def verify_command(bundle: Path) -> None:
    """Check a bundle's sums, and its graph on the witness that it carries.

    BUNDLE is a folder, or an archive that holds one; an archive is checked without being unpacked.
    """
    worst = recheck(bundle)
    if worst is None:
        click.echo(f"{bundle}: files intact; its numbers were never verified, and carry no witness")
        return
    click.echo(f"{bundle}: files intact; logits within {worst:.2g} of their spread of the reference's")


@main.command("bundles")
@click.option("--checkpoint", type=FILE, default=SHIPPED, help="Ladder checkpoint; default: the shipped one.")
@click.option("--target", "chosen", multiple=True, help="Profile's name or path; repeatable; default: all.")
@click.option("--offline", is_flag=True, help="Ship the wheels that a board installs from.")
@click.option("--output", type=FILE, default=Path("dist"), show_default=True, help="Folder to write into.")
def bundles_command(checkpoint: Path, chosen: tuple[str, ...], output: Path, *, offline: bool) -> None:
    """Write what each target receives: its deepest rung in its default precision, as one file, and an index.

    Artifacts of the same name are replaced.
    """
    for name in chosen or names():
        target = load_target(name)
        boards = offline and target.architecture == "arm64" and target.archive == "tar.gz"
        wheels = download_wheels(target, output / ".wheels") if boards else []
        with tempfile.TemporaryDirectory(prefix="bundle-") as scratch, _warnings_shown():
            request = Export(
                checkpoint=checkpoint, depth=AUTO, target=name, output=Path(scratch), require_verified=True
            )
            result = export(request, _progress)
            _progress(f"packing for {target.name}")
            entry = write_artifact(result.path, target, output, wheels=wheels, force=True)
        index = update_index(output, entry)
        click.echo(output / entry.name)
    click.echo(index)


@main.command("targets")
@click.argument("name", required=False)
def targets_command(name: str | None) -> None:
    """List the target profiles, or show one."""
    if name is None:
        for known in names():
            click.echo(f"{known:<14}{load_target(known).description}")
        return
    target = load_target(name)
    click.echo(f"{target.name}: {target.description}")
    click.echo(f"  cores        {', '.join(cpu.name for cpu in target.cpus) or 'the machine at hand'}")
    if target.depths:
        click.echo(f"  run there    depths {', '.join(map(str, target.depths))}")
    runtime = target.onnxruntime
    click.echo(f"  onnxruntime  {runtime.floor} or newer, tested with {runtime.tested}")
    click.echo(f"  precisions   {', '.join(target.precision.allowed)}; default {target.precision.default}")
    click.echo(f"  archive      {target.archive}")
    if target.budget is not None:
        click.echo(f"  budget       {_budget(target.budget)}")


@main.command("plot")
@click.option("--checkpoint", type=FILE, default=SHIPPED, help="Ladder checkpoint; default: the shipped one.")
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    default=("fp16", "int8", "int4"),
    show_default=True,
    help="Repeatable.",
)
@click.option("--quality", type=FILE, help="Figures of `quality`, for a second panel.")
@click.option("--output", type=FILE, default=Path("size_by_depth"), help="Path without suffix.")
def plot_command(checkpoint: Path, precisions: tuple[str, ...], quality: Path | None, output: Path) -> None:
    """Draw file size against depth from real exports: SVG and PNG, the data as CSV."""
    require_matplotlib()
    figures = () if quality is None else read_quality(quality).figures
    ladder = Checkpoint(checkpoint)
    sizes = measure(ladder, precisions, range(2, ladder.config.num_layers + 1), _progress)
    data, svg, png = (output.with_name(f"{output.name}.{kind}") for kind in ("csv", "svg", "png"))
    write_csv(data, sizes)
    draw(sizes, (svg, png), f"{checkpoint.stem}: file size by depth", figures)
    for path in (data, svg, png):
        click.echo(path)


def _budget(budget: Budget) -> str:
    """What a bundle may cost, in words."""
    amounts = {"storage": budget.storage, "memory": budget.memory}
    parts = [f"{size / 2**20:.0f} MiB of {what}" for what, size in amounts.items() if size is not None]
    return ", ".join([*parts, *([f"{budget.context} tokens"] if budget.context else [])])


def _progress(step: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{step} ...", err=True)


def _verdict(result: ExportResult) -> str:
    """One line on how the bundle was verified."""
    if result.report.against is None:
        return (
            "UNVERIFIED: there is no PyTorch here to run the reference, and no stored case of this "
            "checkpoint. Install the extra 'verify' and export again."
        )
    worst = max(runs.difference for runs in result.report.comparisons["fidelity"].values())
    return f"verified against the {result.report.against}: logits within {worst:.2g} of their spread"


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Print the exporter's warnings as lines on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)
