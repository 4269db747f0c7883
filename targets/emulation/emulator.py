"""Running a guest, and telling apart the ways in which it can end."""

from __future__ import annotations

__all__ = ["RESIDENT", "Guest"]

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from targets.emulation.errors import (
    BedError,
    EmulatorCrashError,
    GuestFailedError,
    GuestTimeoutError,
    MissingPackageError,
    UnknownCpuError,
)
from targets.emulation.guest import CASE_MARK, MISSING
from targets.emulation.machine import PYTHON

if TYPE_CHECKING:
    from pathlib import Path

    from targets.emulation.machine import Machine

RESIDENT = 19_500_000
"""Bytes by which the peak memory of a lean guest exceeds that of the same program on a real core."""

_LEAN = ("-tb-size", "8")
_UNLINKED = re.compile(r"cannot open shared object file|Could not open '[^']*ld-linux|cannot be imported")
_LAST_LINES = 8


@dataclass(frozen=True, slots=True)
class Guest:
    """A system that programs can be started in.

    Attributes:
        emulator: The emulator's program.
        root: The system.
        packages: Folders that its Python imports from, besides its own.
        machine: Its kind.
    """

    emulator: Path
    root: Path
    packages: tuple[Path, ...]
    machine: Machine

    def run(self, cpu: str, script: Path, *arguments: str | Path, timeout: float, lean: bool = False) -> str:
        """Run a script under the guest's Python.

        Args:
            cpu: The core, as the emulator's ``-cpu`` takes it.
            script: The script.
            arguments: Its arguments.
            timeout: Seconds that it may take.
            lean: Whether the emulator keeps its own memory small and known (:data:`RESIDENT`), which is
                slower.

        Returns:
            Its standard output.

        Raises:
            UnknownCpuError: The emulator knows no such core.
            MissingPackageError: A library or package is not in the guest.
            EmulatorCrashError: It died of a signal.
            GuestTimeoutError: It took too long.
            GuestFailedError: It ended with an error of its own.
        """
        command = [self.emulator, "-cpu", cpu, "-L", self.root, *(_LEAN if lean else ())]
        if self.machine.libraries:
            folders = ":".join(str(self.root / folder) for folder in self.machine.libraries)
            command += ["-E", f"LD_LIBRARY_PATH={folders}"]
        command += [self.root / "usr/bin" / f"python{PYTHON}", "-I", script, *arguments]
        # A mapping for every large block gives freed memory back, so that the peak is the program's own.
        environment = {
            "LANG": "C.UTF-8",
            "MALLOC_MMAP_THRESHOLD_": "262144",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": "/usr/bin:/bin",
        }
        try:
            done = subprocess.run(  # noqa: S603 - the bed's own emulator
                command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
            remedy = "give it longer, or fewer cases"
            raise GuestTimeoutError(cpu, _place(said), f"was stopped after {timeout:g} s", remedy) from error
        except OSError as error:
            remedy = "delete the test bed's folder and run it again"
            raise BedError("start the emulator", str(error), remedy) from error
        if done.returncode:
            raise _cause(cpu, done)
        return done.stdout


def _place(said: str) -> str:
    """The last case that a guest named."""
    cases = [line.removeprefix(CASE_MARK) for line in said.splitlines() if line.startswith(CASE_MARK)]
    return cases[-1] if cases else ""


def _cause(cpu: str, done: subprocess.CompletedProcess[str]) -> Exception:
    """The error that says why a guest ended as it did."""
    place = _place(done.stdout)
    said = " / ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
    if done.returncode < 0:
        return EmulatorCrashError(cpu, place, -done.returncode)
    if "unable to find CPU model" in said:
        return UnknownCpuError(
            cpu, place, "did not start, for the emulator knows no such core", "see its -cpu help"
        )
    if done.returncode == MISSING or _UNLINKED.search(said):
        remedy = "add it to the guest's packages, or delete the test bed's folder and run it again"
        return MissingPackageError(cpu, place, f"lacks something: {said}", remedy)
    remedy = "see its message"
    return GuestFailedError(cpu, place, f"ended with status {done.returncode} and said: {said}", remedy)
