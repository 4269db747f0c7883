"""Wheels for a guest, which the machine at hand could not install."""

from __future__ import annotations

__all__ = ["unpack_wheel"]

import shutil
import sys
import zipfile
from importlib.util import find_spec
from typing import TYPE_CHECKING

from targets.emulation.errors import BedError, DownloadError, MissingToolError
from targets.emulation.files import call, replacing, step
from targets.emulation.machine import PYTHON

if TYPE_CHECKING:
    from pathlib import Path

    from targets.emulation.machine import Machine


def unpack_wheel(folder: Path, machine: Machine, name: str, version: str) -> Path:
    """Fetch a wheel without its dependencies and unpack it, or find it unpacked.

    Args:
        folder: Where the guest's packages are kept.
        machine: The guest's kind.
        name: The project.
        version: Its exact version.

    Returns:
        A folder to import from.

    Raises:
        MissingToolError: There is no pip to fetch it with.
        DownloadError: It did not arrive, or there is no such wheel.
        BedError: It cannot be unpacked.
    """
    target = folder / f"{name}-{version}"
    if target.is_dir():
        return target
    if find_spec("pip") is None:
        remedy = f"install pip for {sys.executable}, or run this in an environment that has it"
        raise MissingToolError("look for pip", "this Python has no pip", remedy)
    title = f"fetch {name} {version} for {machine.name}"
    with step(title), replacing(target) as beside:
        wheels = beside / ".wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        command += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
        command += [part for platform in machine.platforms for part in ("--platform", platform)]
        remedy = "check that the index has such a wheel and the network works, and run it again"
        # pip keeps to the index's own sums, and puts nothing there that is not whole.
        call(title, [*command, f"{name}=={version}"], error=DownloadError, remedy=remedy)
        try:
            for wheel in wheels.iterdir():
                zipfile.ZipFile(wheel).extractall(beside)
        except zipfile.BadZipFile as error:
            raise BedError(title, f"what arrived is no wheel ({error})", "run it again") from error
        shutil.rmtree(wheels)
    return target
