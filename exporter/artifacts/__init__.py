"""What a device class receives as one file: written, described, listed, and checked without unpacking."""

from __future__ import annotations

from exporter.artifacts.bundles import write_artifact
from exporter.artifacts.index import Entry, read_index, update_index
from exporter.artifacts.reader import Archive, read_archive
from exporter.artifacts.tarball import download_wheels

__all__ = [
    "Archive",
    "Entry",
    "download_wheels",
    "read_archive",
    "read_index",
    "update_index",
    "write_artifact",
]
