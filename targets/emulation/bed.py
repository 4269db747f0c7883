"""The test bed: a folder that holds an emulator and systems for it, made as far as it is missing."""

from __future__ import annotations

__all__ = ["Bed"]

import fcntl
import json
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from targets.emulation.archive import Archive
from targets.emulation.emulator import Guest
from targets.emulation.errors import BedError
from targets.emulation.files import call, replacing, step
from targets.emulation.machine import ARM64, ARMV7, PYTHON
from targets.emulation.wheels import unpack_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from targets.emulation.machine import Machine

_EMULATORS = (ARM64.emulator, ARMV7.emulator)
_OLDEST = 10
"""Major version of the emulator. 7.2 crashes where a library reads /proc/cpuinfo, and multiplies wrongly."""

_PACKED = "system.json"
_FIRST_WORDS = "import ctypes, json, zipfile; print(json.dumps('started'))"


@dataclass(frozen=True, slots=True)
class Bed:
    """A test bed; making one does nothing yet.

    Attributes:
        folder: Where everything of it lies; may be kept between runs, moved never.
    """

    folder: Path

    def guest(self, machine: Machine, wheels: Mapping[str, str]) -> Guest:
        """Make what a guest needs, going on from where an earlier try stopped.

        Args:
            machine: The guest's kind.
            wheels: Versions of the projects to import there, by name.

        Raises:
            BedError: A step failed; it says which, and a further try goes on from there.
        """
        with step("open the folder"):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            root = self._system(machine)
            packages = tuple(
                unpack_wheel(self.folder / "wheels" / machine.name, machine, name, version)
                for name, version in wheels.items()
            )
        return Guest(self.folder / "emulator" / machine.emulator, root, packages, machine)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a second process from making the same."""
        with step("lock the folder"), (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _system(self, machine: Machine) -> Path:
        """The root of a machine's system."""
        root = self.folder / "systems" / machine.name
        emulator = self.folder / "emulator"
        packed = json.dumps([PYTHON, *machine.system])
        native = () if emulator.is_dir() else ("qemu-user",)
        done = root / _PACKED
        if not native and done.is_file() and done.read_text(encoding="utf-8") == packed:
            return root
        _say(f"fetching the {machine.name} system")
        with step("keep packages"):
            archive = Archive(self.folder / "apt", self.folder / "packages")
            archive.packages.mkdir(exist_ok=True)
            files = archive.fetch(native, machine.system, machine.architecture)
        if native:
            self._unpack_emulator(next(file for file in files if file.name.startswith("qemu-user_")))
        title = f"unpack the {machine.name} system"
        with step(title), replacing(root) as beside:
            for file in files:
                if not file.name.startswith("qemu-user_"):
                    call(title, ["dpkg-deb", "-x", file, beside])
            self._try(machine, beside)
            (beside / _PACKED).write_text(packed, encoding="utf-8")
        shutil.rmtree(archive.packages, ignore_errors=True)
        return root

    def _unpack_emulator(self, package: Path) -> None:
        """Take the two programs out of the package's many, and look at their version."""
        title = "unpack the emulator"
        with step(title), replacing(self.folder / "emulator") as beside:
            command = ["dpkg-deb", "--fsys-tarfile", str(package)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - the bed's own
                stream = cast("BinaryIO", process.stdout)
                with tarfile.open(fileobj=stream, mode="r|") as archive:
                    for member in archive:
                        name = member.name.rpartition("/")[2]
                        if name in _EMULATORS and member.isreg() and (data := archive.extractfile(member)):
                            (beside / name).write_bytes(data.read())
                            (beside / name).chmod(0o755)
            for name in _EMULATORS:
                said = call(title, [beside / name, "--version"])
                found = re.search(r"version (\d+)", said)
                if found is None or int(found[1]) < _OLDEST:
                    fault = f"{name} calls itself {said.splitlines()[0]!r}"
                    raise BedError(title, fault, f"take version {_OLDEST} or newer")

    def _try(self, machine: Machine, root: Path) -> None:
        """Start the guest's Python once."""
        title = f"start the {machine.name} system"
        emulator = self.folder / "emulator" / machine.emulator
        python = root / "usr" / "bin" / f"python{PYTHON}"
        call(title, [emulator, "-cpu", machine.plainest, "-L", root, python, "-I", "-c", _FIRST_WORDS])


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"test bed: {text}", file=sys.stderr)  # noqa: T201 - progress, for whoever waits
