"""Which guests to run and what in them, from the target profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from exporter.precision import PRECISIONS
from targets import CpuClass, Target, load, names
from targets.emulation import ARM64, ARMV7, Machine
from tests.emulated.cases import CHECKPOINTS, Case

__all__ = ["ARMV7_BUILDS", "Choice", "GuestPlan", "guests", "targets_of"]

_MACHINES = {machine.name: machine for machine in (ARM64, ARMV7)}

ARMV7_BUILDS = {"1.24.4": "1.13.0", "1.28.2": "2.0.1"}
"""ONNX Runtime has no wheels for 32-bit Arm; versions that sherpa-onnx-core's wheels hold, and theirs."""


@dataclass(frozen=True)
class Choice:
    """What the caller wants of the matrix; empty is all of it."""

    machine: str = ARM64.name
    targets: Sequence[str] = ()
    cpus: Sequence[str] = ()
    depths: Sequence[int] = ()
    precisions: Sequence[str] = ()
    runtimes: Sequence[str] = ()
    """Versions, or ``floor`` and ``tested``."""


@dataclass
class GuestPlan:
    """One guest: a core, a version of ONNX Runtime, and the cases to run."""

    machine: Machine
    cpu: CpuClass
    runtime: str
    cases: list[Case] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What tests and files call it."""
        return f"{self.cpu.name}-{self.runtime}"


def targets_of(choice: Choice) -> list[Target]:
    """The profiles of a machine's cores, of those chosen."""
    loaded = [load(name) for name in choice.targets or names()]
    return [target for target in loaded if target.cpus and target.architecture == choice.machine]


def guests(choice: Choice) -> list[GuestPlan]:
    """Every core of the profiles, under the oldest and the newest ONNX Runtime that they name.

    Profiles that share a core and a layout share a run.
    """
    plans: dict[str, GuestPlan] = {}
    known: dict[object, Case] = {}
    for target in targets_of(choice):
        cases = _cases(choice, target, known)
        for cpu in target.cpus:
            for runtime in _runtimes(choice, target):
                if choice.cpus and cpu.name not in choice.cpus:
                    continue
                plan = GuestPlan(_MACHINES[choice.machine], cpu, runtime)
                planned = plans.setdefault(plan.name, plan).cases
                planned += [case for case in cases if case not in planned]
    return list(plans.values())


def _cases(choice: Choice, target: Target, known: dict[object, Case]) -> list[Case]:
    """Cases of a profile; one that another profile has too is that one."""
    precisions = [p for p in target.precision.allowed if p in (choice.precisions or PRECISIONS)]
    cases = []
    for checkpoint, depth, precision in product(CHECKPOINTS, choice.depths or target.depths, precisions):
        key = (checkpoint, depth, precision, target.precision.quantisation(precision))
        if key not in known:
            name = f"{checkpoint}-d{depth}-{precision}"
            taken = any(case.name == name for case in known.values())
            full = f"{name}-{target.name}" if taken else name
            known[key] = Case(checkpoint, depth, precision, target.name, full)
        cases.append(known[key])
    return cases


def _runtimes(choice: Choice, target: Target) -> list[str]:
    both = {"floor": target.onnxruntime.floor, "tested": target.onnxruntime.tested}
    if target.architecture == ARMV7.name:
        both = {name: _oldest_build(version) for name, version in both.items()}
    wanted = choice.runtimes or tuple(both)
    return list(dict.fromkeys(both.get(runtime, runtime) for runtime in wanted))


def _oldest_build(version: str) -> str:
    """The oldest build for 32-bit Arm that is no older than a version."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(".")]

    return next(build for build in ARMV7_BUILDS if numbers(build) >= numbers(version))
