"""Running guests: a job in, arrays and a report out, and the verdict on each case."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import targets.emulation
from exporter.compare import Bound, Comparison, compare
from exporter.errors import ExporterError
from exporter.ladder import Array
from targets import CpuClass
from targets.emulation import ARM64, Bed, Guest, Machine
from targets.emulation.guest import RAN
from tests.emulated.bounds import head_bound, own_bound, stored_bound
from tests.emulated.cases import Case, bundle_of, ends_of, job_entry, tokens_of, truth_of
from tests.emulated.plan import ARMV7_BUILDS, GuestPlan
from tests.emulated.table import FAILED, PASSED, Row

__all__ = [
    "CORES",
    "SCRIPT",
    "Campaign",
    "Found",
    "heads_differ",
    "judge",
    "pinned",
    "run_job",
    "run_on_cores",
    "wheels",
]

SCRIPT = Path(targets.emulation.__file__).with_name("guest.py")

CORES = {
    "cortex-a53": CpuClass("cortex-a53", dotprod=False, i8mm=False, fp16=False),
    "cortex-a76": CpuClass("cortex-a76", dotprod=True, i8mm=False, fp16=True),
}
"""One of either kind of 8-bit arithmetic."""

_CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


@dataclass(frozen=True)
class Found:
    """What a guest left."""

    report: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def case(self, name: str) -> Mapping[str, Any]:
        """The report's entry of a case."""
        return next(entry for entry in self.report["cases"] if entry["case"] == name)


def pinned(project: str) -> str:
    """The version of a project that the constraints pin."""
    text = _CONSTRAINTS.read_text(encoding="utf-8")
    return str(re.search(rf"^{project}==(\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]


def wheels(machine: Machine, runtime: str) -> dict[str, str]:
    """What a guest imports besides its system."""
    if machine is ARM64:
        return {"numpy": pinned("numpy"), "onnxruntime": runtime}
    return {"sherpa-onnx-core": ARMV7_BUILDS[runtime]}


def run_job(
    guest: Guest, cpu: str, entries: Sequence[Mapping[str, Any]], folder: Path, *, timeout: float
) -> Found:
    """Run cases in one guest.

    Raises:
        GuestError: it did not get to its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = None
    if guest.machine is not ARM64:
        library = str(next(guest.packages[0].rglob("libonnxruntime.so*")))
    output = folder / "results.npz"
    output.unlink(missing_ok=True)
    job = {
        "packages": [str(package) for package in guest.packages],
        "library": library,
        "output": str(output),
        "cases": list(entries),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    guest.run(cpu, SCRIPT, folder / "job.json", timeout=timeout)
    with np.load(output, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return Found(json.loads(str(arrays.pop("report"))), arrays)


def run_on_cores(
    guest: Guest, entries: Sequence[Mapping[str, Any]], folder: Path, *, timeout: float
) -> dict[str, Found]:
    """Run cases in a guest on each of :data:`CORES`, side by side.

    Raises:
        GuestError: one did not get to its end.
    """
    with ThreadPoolExecutor(len(CORES)) as pool:
        jobs = {
            core: pool.submit(run_job, guest, core, entries, folder / core, timeout=timeout) for core in CORES
        }
    return {core: job.result() for core, job in jobs.items()}


class Campaign:
    """All guests of a plan, as many at once as there are workers."""

    def __init__(self, bed: Bed, folder: Path, workers: int, timeout: float) -> None:
        """Start nothing yet."""
        self.bed, self.folder, self._timeout = bed, folder, timeout
        self._pool = ThreadPoolExecutor(workers)
        self._futures: dict[str, Future[Found]] = {}
        self._bundles: dict[Case, Path] = {}
        self.refused: dict[Case, ExporterError] = {}
        """Cases that the exporter would not export, and why; the guests run without them."""

    def start(self, plans: Sequence[GuestPlan]) -> None:
        """Make the bed and export what the plans need, then queue the guests."""
        made = [self._pool.submit(self._guest, plan) for plan in plans[:1]]
        for case in dict.fromkeys(case for plan in plans for case in plan.cases):
            try:
                self.bundle(case)
            except ExporterError as error:
                self.refused[case] = error
        for future in made:
            future.result()
        for plan in plans:
            self._futures[plan.name] = self._pool.submit(self._run, plan)

    def close(self) -> None:
        """Let running guests end, and start no more."""
        self._pool.shutdown(cancel_futures=True)

    def found(self, plan: GuestPlan) -> Found:
        """What a plan's guest left, waiting for it.

        Raises:
            EmulationError: there is no guest, or it did not get to its end.
        """
        return self._futures[plan.name].result()

    def bundle(self, case: Case) -> Path:
        """The bundle of a case."""
        if case not in self._bundles:
            self._bundles[case] = bundle_of(case, self.folder / "bundles")
        return self._bundles[case]

    def _guest(self, plan: GuestPlan) -> Guest:
        return self.bed.guest(plan.machine, wheels(plan.machine, plan.runtime))

    def _run(self, plan: GuestPlan) -> Found:
        entries = [job_entry(c, self._bundles[c]) for c in plan.cases if c not in self.refused]
        folder = self.folder / "guests" / plan.name
        return run_job(self._guest(plan), plan.cpu.name, entries, folder, timeout=self._timeout)


def judge(plan: GuestPlan, case: Case, found: Found) -> Row:
    """Compare what a guest computed for a case with the reference."""
    entry = found.case(case.name)
    row = {"cpu": plan.cpu.name, "runtime": found.report["runtime"], "case": case.name}
    row["seconds"] = entry["seconds"]
    if entry["state"] != RAN:
        return Row(**row, state=entry["state"], note=entry["error"])
    truth = truth_of(case)
    bound, own = stored_bound(plan.cpu, case.precision), own_bound(case.precision)
    against = {
        "stored": _worst(case, found, truth.stored, bound),
        "own": _worst(case, found, truth.own, own),
    }
    heads, allowed = heads_differ(case, found, truth.heads), head_bound(plan.cpu, case.precision)
    fine = against["stored"].within(bound) and against["own"].within(own) and heads <= allowed
    return Row(
        **row,
        state=PASSED if fine else FAILED,
        stored=against["stored"].difference,
        stored_bound=bound.difference,
        own=against["own"].difference,
        own_bound=own.difference,
        heads=heads,
        heads_bound=allowed,
        note="" if fine else f"{_reason(against)}; heads {heads:.3g}",
    )


def _worst(case: Case, found: Found, reference: Array, bound: Bound) -> Comparison:
    """The comparison of the way to run that is farthest off; NaN is farther than anything."""
    ends = ends_of(len(tokens_of(case)))
    compared = [
        compare(found.arrays[f"{case.name}/{way}"], reference[numbers], bound)
        for way, numbers in ends.items()
    ]
    return max(compared, key=lambda c: (not c.within(bound), np.isnan(c.difference), c.difference))


def heads_differ(case: Case, found: Found, truth: Mapping[str, Array]) -> float:
    """Greatest difference of the probe heads' outputs, as a share of a head's greatest or of 1."""
    differences = [
        float(
            np.abs(found.arrays[f"{case.name}/score/{head}"] - output).max() / max(1.0, np.abs(output).max())
        )
        for head, output in truth.items()
    ]
    return float(np.max([0.0, *differences]))


def _reason(against: Mapping[str, Comparison]) -> str:
    return "; ".join(
        f"{name}: difference {c.difference:.3g}, KL {c.kl:.3g} nats, {c.overturned} clear choices overturned"
        for name, c in against.items()
    )
