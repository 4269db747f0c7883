"""The archive for boards: a bundle, a script that runs it, and the wheels on request."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from exporter.artifacts.packed import Item, write_tar
from exporter.bundle import SUMS, files_of
from exporter.errors import OutputError
from targets import Target

__all__ = ["BUNDLE", "download_wheels", "requirements", "write_tarball"]

BUNDLE: Final = "bundle"
"""Folder of the bundle inside the archive."""

_PYTHONS: Final = ("3.11", "3.13")
"""Of Raspberry Pi OS on Debian 12 and 13."""
_GLIBC: Final = range(36, 16, -1)
"""Minor versions of the C library 2.x that wheels may ask for: Debian 12 has 2.36."""
_CHUNK: Final = 1 << 20
_MACHINES: Final = {"arm64": "aarch64", "armv7": "armv7l"}


def requirements(target: Target) -> str:
    """What the runtime needs on a board, as pip reads it: every package, each in one version."""
    text = files("exporter.artifacts").joinpath("device-requirements.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(sorted([*lines, f"onnxruntime=={target.onnxruntime.tested}"])) + "\n"


def write_tarball(folder: Path, name: str, target: Target, path: Path, wheels: Sequence[Path] = ()) -> None:
    """Write a ``.tar.gz`` that unpacks into one folder, with ``run`` to start it.

    Args:
        folder: the bundle.
        name: of the folder that it unpacks into.
        target: whose ONNX Runtime is asked for.
        path: the file to write.
        wheels: packages to ship.
    """
    script = files("exporter.artifacts").joinpath("run.sh").read_bytes()
    items = [
        Item("requirements.txt", requirements(target).encode()),
        Item("run", script, executable=True),
        *(Item(f"{BUNDLE}/{inner}", folder / inner) for inner in files_of(folder)),
        *(Item(f"wheels/{wheel.name}", wheel) for wheel in sorted(wheels)),
    ]
    # The bundle has sums of its own, which are summed here as the others are.
    own = (item for item in items if not item.name.startswith(f"{BUNDLE}/") or item.name.endswith(f"/{SUMS}"))
    sums = "".join(f"{_sha256(item)}  {item.name}\n" for item in own)
    items.append(Item(SUMS, sums.encode()))
    write_tar(path, (Item(f"{name}/{i.name}", i.content, i.executable) for i in items))


def download_wheels(target: Target, cache: Path) -> list[Path]:
    """Fetch the wheels that a board installs from, for the Pythons of its systems.

    Args:
        target: with 64-bit cores.
        cache: folder to keep them in; what is there already is not fetched again.

    Raises:
        OutputError: one cannot be had.
    """
    machine = _MACHINES.get(target.architecture)
    if machine is None:
        message = f"target {target.name!r} is of no one architecture, and has no wheels. Name a board."
        raise OutputError(message)
    folder = cache / f"{machine}-{target.onnxruntime.tested}"
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "requirements.txt"
    listed.write_text(requirements(target), encoding="utf-8")
    platforms = [word for glibc in _GLIBC for word in ("--platform", f"manylinux_2_{glibc}_{machine}")]
    platforms += ["--platform", f"manylinux2014_{machine}"]
    for python in _PYTHONS:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        command += [*platforms, "--dest", str(folder), "--requirement", str(listed)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
        if ran.returncode:
            message = f"the wheels of target {target.name!r} cannot be fetched: {ran.stderr.strip()[-400:]}"
            raise OutputError(f"{message}. Leave --offline out, or try again with a network.")
    wanted = tuple(f"{line.replace('==', '-')}-" for line in requirements(target).splitlines())
    return sorted(path for path in folder.glob("*.whl") if path.name.startswith(wanted))


def _sha256(item: Item) -> str:
    digest = hashlib.sha256()
    with item.open() as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
