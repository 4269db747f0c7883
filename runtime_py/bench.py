"""Measuring a bundle: loading, prefill, decode and memory, each time in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from runtime_py.errors import BundleError, InputError
from runtime_py.model import Model
from runtime_py.usage import peak_memory, resident_memory

__all__ = ["main", "measure"]

Figures = Mapping[str, float | None]

_ROWS: Final = (
    ("load_seconds", "load, s", 1.0, 3),
    ("prefill_rate", "prefill, tokens/s", 1.0, 1),
    ("decode_rate", "decode, tokens/s", 1.0, 1),
    ("resident", "memory, loaded, MB", 1e6, 1),
    ("peak", "memory, peak, MB", 1e6, 1),
)


def measure(
    bundle: Path, *, prompt: int, decode: int, threads: int, depth: int | None = None, verify: bool = False
) -> Figures:
    """Measure a bundle in this process.

    Args:
        bundle: its folder.
        prompt: tokens of the prefill, random ones.
        decode: tokens fed one by one after it.
        threads: as of :meth:`Model.load`.
        depth: as of :meth:`Model.state`.
        verify: whether loading includes the sums of the files.

    Returns:
        Seconds, tokens per second, and bytes; memory is None where the system does not say.
    """
    start = time.perf_counter()
    model = Model.load(bundle, threads=threads, verify=verify)
    loaded = time.perf_counter() - start
    state = model.state(prompt + decode, depth=depth)
    resident = resident_memory()
    low = min(20, model.bundle.vocabulary - 1)
    ids = np.random.default_rng(0).integers(low, model.bundle.vocabulary, prompt + decode)
    # What the runtime does only once, it does here.
    model.prefill(state, ids[: min(prompt, 8)])
    model.step(state, int(ids[0]))
    state.reset()
    start = time.perf_counter()
    model.prefill(state, ids[:prompt])
    prefilled = time.perf_counter()
    for token in ids[prompt:]:
        model.step(state, int(token))
    decoded = time.perf_counter()
    return {
        "load_seconds": loaded,
        "prefill_rate": prompt / (prefilled - start),
        "decode_rate": decode / (decoded - prefilled),
        "resident": resident,
        "peak": peak_memory(),
    }


def main(arguments: Sequence[str]) -> int:
    """Print a table of one or two bundles."""
    parser = argparse.ArgumentParser("python -m runtime_py bench", description=main.__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--compare", type=Path, metavar="OTHER_BUNDLE")
    parser.add_argument("--prompt", type=int, default=256, help="tokens prefilled; default 256")
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded; default 64")
    parser.add_argument("--rounds", type=int, default=3, help="processes per bundle, in turn; default 3")
    parser.add_argument("--threads", type=int, default=1, help="default 1")
    parser.add_argument("--depth", type=int, help="blocks that run; default: all")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if min(options.prompt, options.decode, options.rounds) < 1:
        raise InputError("prompt, decode and rounds: give 1 or more of each.")
    if options.child:
        figures = measure(
            options.bundle,
            prompt=options.prompt,
            decode=options.decode,
            threads=options.threads,
            depth=options.depth,
        )
        sys.stdout.write(json.dumps(figures) + "\n")
        return 0
    bundles = [options.bundle, *([options.compare] if options.compare else [])]
    runs: list[list[Figures]] = [[] for _ in bundles]
    for _ in range(options.rounds):
        for bundle, figures_of in zip(bundles, runs, strict=True):
            figures_of.append(_in_process(bundle, options))
    medians = [_medians(figures_of) for figures_of in runs]
    if options.json:
        named = [{"bundle": str(b), **m} for b, m in zip(bundles, medians, strict=True)]
        sys.stdout.write(json.dumps(named, indent=1) + "\n")
    else:
        sys.stdout.write(_table(bundles, medians))
    return 0


def _in_process(bundle: Path, options: argparse.Namespace) -> Figures:
    """Measure in a fresh process, whose peak of memory is the bundle's own."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("prompt", "decode", "threads")]
    sizes += [f"--depth={options.depth}"] if options.depth is not None else []
    command = [sys.executable, "-m", "runtime_py", "bench", str(bundle.absolute()), "--child", *sizes]
    here = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(  # noqa: S603 - this very program
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": here}
    )
    if done.returncode:
        raise BundleError(done.stderr.strip().removeprefix("error: ") or f"{bundle}: could not be measured.")
    return dict(json.loads(done.stdout))


def _medians(runs: Sequence[Figures]) -> Figures:
    medians: dict[str, float | None] = {}
    for name in runs[0]:
        values = [value for run in runs if (value := run[name]) is not None]
        medians[name] = statistics.median(values) if values else None
    return medians


def _table(bundles: Sequence[Path], medians: Sequence[Figures]) -> str:
    """A row per figure, a column per bundle, and how many times as much the other takes."""
    compared = len(bundles) > 1
    heads = [bundle.resolve().name for bundle in bundles] + (["ratio"] if compared else [])
    widths = [max(12, len(head)) for head in heads]
    lines = [[" " * 20, *(head.rjust(width) for head, width in zip(heads, widths, strict=True))]]
    for name, label, unit, digits in _ROWS:
        values = [figures[name] for figures in medians]
        cells = ["-" if value is None else f"{value / unit:.{digits}f}" for value in values]
        if compared:
            first, second = values
            cells.append(f"{second / first:.2f}" if first and second is not None else "-")
        lines.append(
            [label.ljust(20), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))]
        )
    return "".join("  ".join(line) + "\n" for line in lines)
