"""Writing archives whose bytes depend on nothing but their content."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["PAGE", "Item", "write_tar", "write_zip"]

PAGE: Final = 1 << 14
"""The largest page of a device (Android 15 and later): what starts on one can be mapped from the archive."""

_CHUNK, _LEVEL = 1 << 20, 6
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_LOCAL_HEADER: Final = 30
_ALIGNMENT_FIELD, _FIELD = 0xD935, struct.Struct("<HHH")
"""The extra field with which Android's own tool pads: its number, its length, the alignment."""


@dataclass(frozen=True)
class Item:
    """One file of an archive."""

    name: str
    """Its path inside, with slashes."""
    content: Path | bytes
    executable: bool = False
    stored: bool = False
    """Whether a zip leaves it uncompressed, starting on a page, so that it can be mapped from there."""

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def mode(self) -> int:
        """Permissions."""
        return 0o755 if self.executable else 0o644

    def open(self) -> BinaryIO:
        """The content, from its start."""
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")


def write_tar(path: Path, items: Iterable[Item]) -> None:
    """Write a ``.tar.gz``: no times, no owners, entries in the order given."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for item in items:
            entry = tarfile.TarInfo(item.name)
            entry.size, entry.mode = item.size, item.mode
            with item.open() as source:
                tar.addfile(entry, source)


def write_zip(path: Path, items: Iterable[Item]) -> None:
    """Write a zip: no times, entries in the order given, stored ones aligned to :data:`PAGE`."""
    with (
        path.open("wb") as raw,
        zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as file,
    ):
        for item in items:
            info = zipfile.ZipInfo(item.name, _EPOCH)
            info.external_attr, info.file_size = item.mode << 16, item.size
            # A system of its own would be noted otherwise.
            info.create_system = 3
            info.compress_type = zipfile.ZIP_STORED if item.stored else zipfile.ZIP_DEFLATED
            if item.stored:
                info.extra = _padding(raw.tell() + _LOCAL_HEADER + len(item.name.encode()))
            with file.open(info, "w") as target, item.open() as source:
                shutil.copyfileobj(source, target, _CHUNK)


def _padding(start: int) -> bytes:
    """An extra field after which data begins on a page, where it would begin at ``start`` without one."""
    fill = -(start + _FIELD.size) % PAGE
    return _FIELD.pack(_ALIGNMENT_FIELD, fill + 2, PAGE) + bytes(fill)
