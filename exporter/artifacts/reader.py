"""Checking an archive from its stream: nothing of it is written to a disk."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from exporter.bundle import BUNDLE_VERSION, DESCRIPTION, SUMS
from exporter.errors import NotABundleError, TamperedBundleError
from exporter.session import Graph

__all__ = ["Archive", "read_archive"]

_CHUNK: Final = 1 << 20
_KEPT: Final = (".bin", ".json", ".onnx", SUMS)
"""Ends of names whose content is kept: what describes a bundle and what a session is made of."""

_FRAME: Final = ("AndroidManifest.xml", "R.txt", "classes.jar")
"""Files of an Android library that belong to no bundle."""

_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)
"""What the libraries raise for archives that are damaged, encrypted or packed by another method."""


@dataclass(frozen=True)
class Archive:
    """An archive whose sums were found right."""

    path: Path
    description: Mapping[str, Any]
    """``bundle.json`` of the bundle inside."""
    files: Mapping[str, bytes]
    """Graphs, weights and descriptions of the bundle, by name."""

    def graph(self, name: str) -> Graph:
        """A graph of the bundle with its weights, to be loaded from memory."""
        weights = self.description["graphs"]["weights"]
        return Graph(f"{self.path}/{name}", self.files[name], {weights: self.files[weights]})


def read_archive(path: Path) -> Archive:
    """Read a bundle from an archive, a ``.tar.gz``, ``.zip`` or ``.aar``, and check all of its sums.

    Every file has to be listed by the sums of its folder, or of a folder above; files that only frame an
    Android library are none of a bundle and are let pass. Graphs and weights stay in memory, since a
    session can be made of them there; other files are summed as they pass.

    Args:
        path: the archive.

    Raises:
        NotABundleError: it cannot be read, or holds no bundle of a known version, or more than one.
        TamperedBundleError: a file is missing, altered, not listed, or there twice.
    """
    digests: dict[str, str] = {}
    kept: dict[str, bytes] = {}
    try:
        for name, stream in _members(path):
            if name in digests:
                message = f"{path}: holds {name!r} twice. Take the bundle from its source again."
                raise TamperedBundleError(message)
            digests[name], content = _digest(stream, keep=name.endswith(_KEPT))
            if content is not None:
                kept[name] = content
    except _BROKEN as error:
        message = (
            f"{path}: cannot be read as a bundle ({error}). Give a bundle's folder, .tar.gz, .zip or .aar."
        )
        raise NotABundleError(message) from error
    _check(path, digests, kept)
    return _bundle(path, kept)


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and streams of an archive's files, in its order, refusing any that could lie elsewhere."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            for info in zipped.infolist():
                with zipped.open(info) as stream:
                    yield _safe(path, info.filename, plain=not info.is_dir()), stream
        return
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = _safe(path, member.name, plain=member.isreg())
            yield name, archive.extractfile(member) or io.BytesIO()


def _safe(archive: Path, name: str, *, plain: bool) -> str:
    parts = PurePosixPath(name).parts
    if not plain or not parts or ".." in parts or name.startswith("/") or "\\" in name:
        message = (
            f"{archive}: its entry {name!r} is no plain file below the archive's own folder. Give an archive "
            "that the exporter wrote."
        )
        raise NotABundleError(message)
    return name


def _digest(stream: IO[bytes], *, keep: bool) -> tuple[str, bytes | None]:
    """SHA-256 of a stream, and its content where that is kept."""
    digest, content = hashlib.sha256(), bytearray()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
        if keep:
            content += chunk
    return digest.hexdigest(), bytes(content) if keep else None


def _check(path: Path, digests: Mapping[str, str], kept: Mapping[str, bytes]) -> None:
    """Compare every file with the sums that list it."""
    listed: dict[str, str] = {}
    for name in (name for name in kept if PurePosixPath(name).name == SUMS):
        for line in _text(path, name, kept[name]).splitlines():
            digest, _, inner = line.partition("  ")
            if not inner:
                message = f"{path}/{name}: {line!r} is no sum. Take the bundle from its source again."
                raise TamperedBundleError(message)
            listed[str(PurePosixPath(name).parent / inner)] = digest
    tops = [name for name in kept if PurePosixPath(name).name == SUMS and name not in listed]
    if len(tops) != 1:
        message = (
            f"{path}: holds {len(tops)} files {SUMS} that no other lists, and should hold one. Give a bundle."
        )
        raise NotABundleError(message)
    for name in sorted(digests.keys() | listed.keys()):
        fault = None
        if name not in digests:
            fault = "is missing"
        elif name not in listed:
            fault = None if name in {*tops, *_FRAME} else "is not listed in it"
        elif digests[name] != listed[name]:
            fault = "differs from it"
        if fault:
            message = f"{path}/{name}: {fault} ({SUMS}). Take the bundle from its source again."
            raise TamperedBundleError(message)


def _bundle(path: Path, kept: Mapping[str, bytes]) -> Archive:
    """The one bundle among the files."""
    folders = [PurePosixPath(name).parent for name in kept if PurePosixPath(name).name == DESCRIPTION]
    if len(folders) != 1:
        message = f"{path}: holds {len(folders)} files {DESCRIPTION}, and should hold one. Give a bundle."
        raise NotABundleError(message)
    folder = folders[0]
    files = {
        str(PurePosixPath(name).relative_to(folder)): content
        for name, content in kept.items()
        if PurePosixPath(name).is_relative_to(folder)
    }
    try:
        description = json.loads(files[DESCRIPTION])
    except ValueError as error:
        message = f"{path}: its {DESCRIPTION} is no JSON ({error}). Take the bundle from its source again."
        raise NotABundleError(message) from error
    version = description.get("bundle_version") if isinstance(description, dict) else None
    if version != BUNDLE_VERSION:
        message = (
            f"{path}: bundle_version is {version!r}, and this exporter reads {BUNDLE_VERSION}. Verify it "
            "with the exporter that wrote it."
        )
        raise NotABundleError(message)
    return Archive(path, description, files)


def _text(path: Path, name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotABundleError(f"{path}/{name}: is no text ({error}). Give a bundle.") from error
