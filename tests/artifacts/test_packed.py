"""Archives whose bytes depend on their content alone, and zips that can be mapped."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from exporter.artifacts.packed import PAGE, Item, write_tar, write_zip


def items(tmp_path: Path) -> list[Item]:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 300)
    return [
        Item("notes.txt", b"as ever " * 100),
        Item("a/weights.bin", path, stored=True),
        Item("a/umlaut-\u00fc.onnx", b"graph", stored=True),
        Item("run", b"#!/bin/sh\n", executable=True),
        Item("empty", b""),
    ]


def content(item: Item) -> bytes:
    with item.open() as file:
        return file.read()


def data_offset(archive: Path, info: zipfile.ZipInfo) -> int:
    """Where an entry's data starts, by its local header."""
    with archive.open("rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
    return int(info.header_offset + 30 + name + extra)


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_what_is_packed_comes_out(tmp_path: Path, write: object) -> None:
    path, packed = tmp_path / "a", items(tmp_path)
    if write is write_tar:
        write_tar(path, packed)
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            found = {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in members}
            modes = {m.name: m.mode for m in members}
    else:
        write_zip(path, packed)
        with zipfile.ZipFile(path) as zipped:
            assert zipped.testzip() is None
            found = {info.filename: zipped.read(info) for info in zipped.infolist()}
            modes = {info.filename: info.external_attr >> 16 for info in zipped.infolist()}
    assert found == {item.name: content(item) for item in packed}
    assert modes == {item.name: 0o755 if item.name == "run" else 0o644 for item in packed}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_times_and_names_of_sources_leave_no_trace(tmp_path: Path, write: object) -> None:
    packed = items(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second-and-longer"
    pack = write_tar if write is write_tar else write_zip
    pack(first, packed)
    os.utime(tmp_path / "weights", (0, 0))
    (tmp_path / "weights").chmod(0o600)
    pack(second, packed)
    assert first.read_bytes() == second.read_bytes()


def test_stored_entries_can_be_mapped(tmp_path: Path) -> None:
    path, packed = tmp_path / "a.zip", items(tmp_path)
    write_zip(path, packed)
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as zipped:
        for item in packed:
            info = zipped.getinfo(item.name)
            assert (info.compress_type == zipfile.ZIP_STORED) == item.stored
            start = data_offset(path, info)
            if item.stored:
                assert start % PAGE == 0
                assert raw[start : start + item.size] == content(item)
