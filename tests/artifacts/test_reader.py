"""Archives are checked from their stream, and nothing is written to a disk."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from exporter.artifacts import read_archive, write_artifact
from exporter.bundle import pack
from exporter.cli import main
from exporter.config import LadderConfig
from exporter.errors import NotABundleError, TamperedBundleError
from exporter.session import GraphSession
from targets import load

Bundle = Callable[[str], Path]
KINDS = ["rpi4", "wearos", "tar.gz", "zip"]


@pytest.fixture(params=KINDS)
def archive(request: pytest.FixtureRequest, bundle: Bundle, tmp_path: Path) -> Path:
    """An artifact, or a bundle that was packed by itself."""
    kind: str = request.param
    if kind in {"rpi4", "wearos"}:
        return tmp_path / write_artifact(bundle(kind), load(kind), tmp_path).name
    folder = bundle("rpi4")
    path = tmp_path / f"{folder.name}.{kind}"
    pack(folder, folder.name, path)
    return path


def contents(archive: Path) -> dict[str, bytes]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            return {name: zipped.read(name) for name in zipped.namelist()}
    with tarfile.open(archive) as tar:
        return {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers()}


def rewrite(archive: Path, files: dict[str, bytes]) -> None:
    """Write an archive of the same kind with other content."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive, "w") as zipped:
            for name, data in files.items():
                zipped.writestr(name, data)
        return
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def one(files: dict[str, bytes], end: str) -> str:
    return next(name for name in files if name.endswith(end))


def test_a_sound_archive_gives_its_bundle(archive: Path) -> None:
    found = read_archive(archive)
    assert found.description["slice"]["depth"] == 2
    assert {"model.onnx", "weights.bin", "bundle.json"} <= found.files.keys()


def test_its_graph_runs_from_memory_as_from_the_disk(bundle: Bundle, tmp_path: Path) -> None:
    folder = bundle("wearos")
    found = read_archive(tmp_path / write_artifact(folder, load("wearos"), tmp_path).name)
    config = LadderConfig.from_json(found.description["configuration"])
    graphs = (found.graph("model.onnx"), folder / "model.onnx")
    mapped, loaded = (GraphSession(graph, config).run([2, 5, 7], [3]).logits[2] for graph in graphs)
    np.testing.assert_array_equal(mapped, loaded)


def test_verify_writes_nothing(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("something would be unpacked")

    for name in ("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile"):
        monkeypatch.setattr(tempfile, name, refuse)
    before = sorted(archive.parent.iterdir())
    result = CliRunner().invoke(main, ["verify", str(archive)])
    assert result.exit_code == 0, result.output
    assert "files intact; logits within" in result.stdout
    assert sorted(archive.parent.iterdir()) == before


@pytest.mark.parametrize("end", ["model.onnx", "weights.bin", "bundle.json"])
def test_an_altered_file_is_named(archive: Path, end: str) -> None:
    files = contents(archive)
    name = one(files, end)
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    rewrite(archive, files)
    with pytest.raises(TamperedBundleError, match=rf"{end}: differs from it \(SHA256SUMS\)"):
        read_archive(archive)


def test_a_missing_file_is_named(archive: Path) -> None:
    files = contents(archive)
    del files[one(files, "score.onnx")]
    rewrite(archive, files)
    with pytest.raises(TamperedBundleError, match=r"score\.onnx: is missing"):
        read_archive(archive)


def test_a_file_too_many_is_named(archive: Path) -> None:
    files = contents(archive)
    files[one(files, "model.onnx").replace("model.onnx", "extra.py")] = b"import os"
    rewrite(archive, files)
    with pytest.raises(TamperedBundleError, match=r"extra\.py: is not listed in it"):
        read_archive(archive)


def test_altered_sums_of_a_board_are_found_by_the_outer_ones(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / write_artifact(bundle("rpi4"), load("rpi4"), tmp_path).name
    files = contents(path)
    sums = one(files, "bundle/SHA256SUMS")
    files[sums] += files[sums].splitlines(keepends=True)[0]
    rewrite(path, files)
    with pytest.raises(TamperedBundleError, match="bundle/SHA256SUMS: differs"):
        read_archive(path)


def test_sums_that_are_none_are_refused(archive: Path) -> None:
    files = contents(archive)
    files[one(files, "SHA256SUMS")] += b"\n"
    rewrite(archive, files)
    with pytest.raises(TamperedBundleError, match="SHA256SUMS: '' is no sum"):
        read_archive(archive)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\evil"])
def test_a_name_that_leads_elsewhere_is_refused(archive: Path, name: str) -> None:
    files = contents(archive)
    rewrite(archive, {**files, name: b""})
    with pytest.raises(NotABundleError, match="is no plain file below the archive's own folder"):
        read_archive(archive)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / write_artifact(bundle("wearos"), load("wearos"), tmp_path).name
    name = one(contents(path), "weights.bin")
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr(name, b"others")
    with pytest.raises(TamperedBundleError, match=r"holds .*weights\.bin' twice"):
        read_archive(path)


def test_a_link_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / write_artifact(bundle("rpi4"), load("rpi4"), tmp_path).name
    files = contents(path)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo(one(files, "model.onnx") + ".link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(NotABundleError, match="is no plain file"):
        read_archive(path)


def test_a_truncated_archive_is_told_apart_from_a_tampered_one(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size * 2 // 3])
    with pytest.raises(NotABundleError, match="cannot be read as a bundle"):
        read_archive(archive)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(NotABundleError, match="cannot be read as a bundle"):
        read_archive(path)


def test_a_missing_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError, match=r"x\.aar: cannot be read as a bundle"):
        read_archive(tmp_path / "x.aar")


def test_an_archive_without_a_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("a/readme.txt", "hello")
    with pytest.raises(NotABundleError, match="holds 0 files SHA256SUMS"):
        read_archive(path)
