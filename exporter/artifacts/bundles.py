"""From a bundle's folder to the one file that a device class receives."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exporter.artifacts.aar import write_aar
from exporter.artifacts.index import Entry
from exporter.artifacts.papers import LICENCE, NOTICE, licence_text, notice
from exporter.artifacts.sbom import SBOM, bill_of_materials
from exporter.artifacts.tarball import requirements, write_tarball
from exporter.bundle import DESCRIPTION, RUNTIME, SUMS, publish, staging, write_sums
from targets import Target

__all__ = ["write_artifact"]

_AAR, _TARBALL = "aar", "tar.gz"


def write_artifact(
    folder: Path, target: Target, output: Path, *, wheels: Sequence[Path] = (), force: bool = False
) -> Entry:
    """Write the artifact of a bundle, with its papers.

    Args:
        folder: the bundle; its papers are added to it, and what the device has no use for is taken away.
        target: profile that it was exported for; its packing says what is written.
        output: folder to write into.
        wheels: Python packages to ship along, where the packing has a place for them.
        force: replace an artifact of the same name.

    Raises:
        OutputError: it cannot be written.
        MissingPackageError: cyclonedx-python-lib is not installed.
    """
    description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    name = description["name"]
    android = target.archive == _AAR
    if android:
        # There is no Python; an app drives the graphs through ONNX Runtime's own library.
        shutil.rmtree(folder / RUNTIME)
    _add_papers(folder, target, description, python=not android)
    path = output / f"{name}.{_AAR if android else _TARBALL}"
    with staging(path, force=force) as stage:
        if android:
            write_aar(folder, name, stage / path.name)
        else:
            write_tarball(folder, name, target, stage / path.name, wheels)
        publish(stage / path.name, path)
    return _entry(path, target, description)


def _add_papers(folder: Path, target: Target, description: dict[str, Any], *, python: bool) -> None:
    """Add licence, notice and bill of materials, and sum all files anew."""
    (folder / LICENCE).write_bytes(licence_text())
    (folder / NOTICE).write_text(notice(description), encoding="utf-8")
    sums = _sums(folder)
    required = {"onnxruntime": f">={target.onnxruntime.floor}"}
    if python:
        required |= dict(line.split("==") for line in requirements(target).splitlines())
    (folder / SBOM).write_text(bill_of_materials(description, sums, required), encoding="utf-8")
    _sums(folder)


def _sums(folder: Path) -> dict[str, str]:
    """Sum all files anew; returns the sums by name."""
    write_sums(folder)
    lines = (folder / SUMS).read_text("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _entry(path: Path, target: Target, description: dict[str, Any]) -> Entry:
    verification = description["verification"]
    runs = verification["comparisons"].get("fidelity", {}).values()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Entry(
        name=path.name,
        target=target.name,
        depth=description["slice"]["depth"],
        precision=description["precision"]["scheme"]["name"],
        bytes=path.stat().st_size,
        sha256=digest,
        verified=verification["against"],
        fidelity=max((run["difference"] for run in runs), default=None),
        footprint=description["footprint"],
    )
