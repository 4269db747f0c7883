"""What a device receives: a folder of graphs, weights, tokenizer and their description."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exporter.errors import (
    NotABundleError,
    OutputError,
    OutputExistsError,
    TamperedBundleError,
)

__all__ = [
    "BUNDLE_VERSION",
    "DESCRIPTION",
    "FILE_MODE",
    "RUNTIME",
    "SUMS",
    "archive_name",
    "check_sums",
    "describe",
    "files_of",
    "pack",
    "publish",
    "staging",
    "write_sums",
]

BUNDLE_VERSION = 1
DESCRIPTION, SUMS, RUNTIME = "bundle.json", "SHA256SUMS", "runtime_py"
_CHUNK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
FILE_MODE = 0o644


@contextmanager
def staging(output: Path, *, force: bool) -> Iterator[Path]:
    """A folder beside ``output`` to write into, gone when the context ends however it ends.

    Args:
        output: what :func:`publish` will put in place.
        force: whether something at ``output`` may be replaced.

    Raises:
        OutputExistsError: there is something, and it may not.
        OutputError: nothing can be written there, or the disk is full.
    """
    if os.path.lexists(output) and not force:
        message = f"{output}: exists already, and is kept. Give --force to replace it, or another --output."
        raise OutputExistsError(message)
    folder: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        folder.chmod(0o755)
        yield folder
    except OSError as error:
        raise _unwritable(output, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _unwritable(output: Path, error: OSError) -> OutputError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        why = "the disk is full. Free space there, or choose another place with --output"
    else:
        why = f"cannot be written ({error.strerror or error}). Choose another place with --output"
    return OutputError(f"{output}: {why}.")


def publish(built: Path, output: Path) -> None:
    """Put what was built in the staging folder in place, replacing what is there as one step."""
    aside = built.with_name(f"{built.name}.replaced")
    if os.path.lexists(output):
        output.rename(aside)
    try:
        built.rename(output)
    except OSError:
        if os.path.lexists(aside):
            aside.rename(output)
        raise
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink(missing_ok=True)


def describe(folder: Path, description: dict[str, Any]) -> None:
    """Write ``bundle.json``."""
    text = json.dumps({"bundle_version": BUNDLE_VERSION, **description}, indent=1, ensure_ascii=False)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def write_sums(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write ``SHA256SUMS`` of every other file, in the format of sha256sum.

    Args:
        folder: the bundle.
        known: digests taken while a file was written, by name, so that a large one is not read again.
    """
    digests = {
        name: _sha256(folder / name) for name in files_of(folder) if name not in {SUMS, *(known or {})}
    }
    digests |= known or {}
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    for name in files_of(folder):
        (folder / name).chmod(FILE_MODE)


def files_of(folder: Path) -> list[str]:
    """Names of a bundle's files, those of its runtime as ``runtime_py/<name>``, sorted.

    What the interpreter leaves beside the runtime when it runs from here is not the bundle's.
    """
    paths = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return sorted(path.as_posix() for path in paths if "__pycache__" not in path.parts)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def archive_name(folder: Path, kind: str) -> Path:
    """Path of the one file that a bundle's folder is packed into."""
    return folder.with_name(f"{folder.name}.{kind}")


def pack(folder: Path, name: str, archive: Path) -> None:
    """Pack a bundle into one file, the same bytes for the same content.

    A ``.tar.gz``, or a ``.zip`` that stores its entries uncompressed: weights do not compress, and an app
    can map what is stored.

    Args:
        folder: the bundle.
        name: of the folder inside the archive.
        archive: the file to write.
    """
    names = files_of(folder)
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for path in (folder / inner for inner in names):
                info = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", _EPOCH)
                info.external_attr = FILE_MODE << 16
                large = path.stat().st_size >= 1 << 31
                with file.open(info, "w", force_zip64=large) as target, path.open("rb") as source:
                    shutil.copyfileobj(source, target, _CHUNK)
        return
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in (folder / inner for inner in names):
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            entry.size, entry.mode = path.stat().st_size, FILE_MODE
            with path.open("rb") as source:
                tar.addfile(entry, source)


def check_sums(folder: Path) -> dict[str, Any]:
    """Check every file of a bundle against its sums, and read its description.

    Raises:
        NotABundleError: there is no bundle here, or one of another version.
        TamperedBundleError: a file is missing, altered or not listed.
    """
    try:
        lines = (folder / SUMS).read_text("utf-8").splitlines()
        listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        description = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"{folder}: holds no readable {SUMS} and {DESCRIPTION} ({error}). Give a bundle's folder."
        raise NotABundleError(message) from error
    present = set(files_of(folder)) - {SUMS}
    for name in sorted(present | listed.keys()):
        fault = None
        if name not in present or not (folder / name).exists():
            fault = "is missing"
        elif name not in listed:
            fault = "is not listed in it"
        elif _sha256(folder / name) != listed[name]:
            fault = "differs from it"
        if fault:
            message = f"{folder / name}: {fault} ({SUMS}). Take the bundle from its source again."
            raise TamperedBundleError(message)
    version = description.get("bundle_version") if isinstance(description, dict) else None
    if version != BUNDLE_VERSION:
        message = (
            f"{folder}: bundle_version is {version!r}, and this exporter reads {BUNDLE_VERSION}. "
            "Verify it with the exporter that wrote it."
        )
        raise NotABundleError(message)
    checked: dict[str, Any] = description
    return checked
