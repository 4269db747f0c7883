"""Decode and prefill beside the Rust port, in the same run: ``nox -s bench_peers``.

Full geometry, random weights, 4 bits, one thread, 256 tokens of context; each engine in processes of its
own, in turn, so that a machine's changing speed meets both. Goals at depth 20: 2.5 times its decode,
5 times its prefill, and no more than 148 MB (83 at depth 8, 64 at depth 2). A miss is printed, not failed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exporter.export import Export, export

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.bench
pytest.importorskip("needle_rs")
pytest.importorskip("needle")

HERE = Path(__file__).resolve().parent
ROUNDS = 5
DECODE_GOAL, PREFILL_GOAL = 2.5, 5.0
MEMORY_GOALS = {20: 148, 8: 83, 2: 64}
"""Megabytes by depth."""

Figures = Mapping[str, float]


def run(command: Sequence[str]) -> Figures:
    """Figures that a process prints as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, env=environment
    )
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout else {}


@pytest.fixture(scope="session")
def archive(full_size: Path) -> Path:
    """The same ladder in the Rust port's form."""
    path = full_size.with_suffix(".cact")
    run([str(HERE / "archive.py"), str(full_size), str(path)])
    return path


@pytest.mark.parametrize("depth", MEMORY_GOALS)
def test_beside_the_rust_port(
    benchmark: BenchmarkFixture,
    full_size: Path,
    archive: Path,
    tmp_path: Path,
    depth: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = export(Export(checkpoint=full_size, depth=depth, precision="int4", output=tmp_path)).path
    ours: list[Figures] = []
    peers: list[Figures] = []

    def pair() -> None:
        sizes = ["--prompt=256", "--decode=64", "--threads=1"]
        ours.append(run(["-m", "runtime_py", "bench", str(bundle), "--child", *sizes]))
        peers.append(run([str(HERE / "peer.py"), str(archive), str(depth)]))

    benchmark.pedantic(pair, rounds=ROUNDS)

    def ratio(name: str) -> float:
        return statistics.median(a[name] / b[name] for a, b in zip(ours, peers, strict=True))

    def median(figures: Sequence[Figures], name: str) -> float:
        return statistics.median(figure[name] for figure in figures)

    lines = [f"depth {depth}, tokens/s (ours, Rust port, median of {ROUNDS} ratios):"]
    for name, goal in (("decode_rate", DECODE_GOAL), ("prefill_rate", PREFILL_GOAL)):
        figures = f"{median(ours, name):.0f}, {median(peers, name):.0f}, {ratio(name):.2f}x"
        lines.append(f"  {name:<14}{figures} (goal at depth 20: {goal}x)")
        benchmark.extra_info[f"{name}_ratio"] = ratio(name)
    peak, peer_peak = (median(figures, "peak") / 1e6 for figures in (ours, peers))
    lines.append(f"  peak memory   {peak:.0f} MB, {peer_peak:.0f} MB (goal {MEMORY_GOALS[depth]} MB)")
    benchmark.extra_info["peak_megabytes"] = peak
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
