"""Folders and archives that a device receives: complete, reproducible, checked."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from exporter import bundle as module
from exporter.bundle import (
    check_sums,
    describe,
    files_of,
    pack,
    publish,
    staging,
    write_sums,
)
from exporter.errors import NotABundleError, OutputError, OutputExistsError, TamperedBundleError

KINDS = ("tar.gz", "zip")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle of small files."""
    folder = tmp_path / "small-d3-host-fp32"
    (folder / "runtime_py").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(bytes(range(256)) * 20)
    # Bytes that cannot be compressed, so that an archive is mostly they.
    (folder / "weights.bin").write_bytes(np.random.default_rng(0).bytes(5000))
    (folder / "runtime_py" / "run.py").write_text("print('hello')\n", encoding="utf-8")
    describe(folder, {"name": folder.name, "note": "ünïcode"})
    write_sums(folder)
    return folder


def hidden(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir() if entry.name.startswith(".")]


# Writing.


def test_a_description_has_its_version_first_and_is_readable(folder: Path) -> None:
    text = (folder / "bundle.json").read_text("utf-8")
    assert json.loads(text) == {"bundle_version": 1, "name": folder.name, "note": "ünïcode"}
    assert text.startswith('{\n "bundle_version": 1,')
    assert "ünïcode" in text
    assert text.endswith("}\n")


def test_every_other_file_has_a_sum(folder: Path) -> None:
    lines = (folder / "SHA256SUMS").read_text("utf-8").splitlines()
    assert [line[66:] for line in lines] == ["bundle.json", "model.onnx", "runtime_py/run.py", "weights.bin"]
    assert check_sums(folder)["name"] == folder.name


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum here")
def test_sums_are_those_of_sha256sum(folder: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(": OK") == 4


def test_files_are_readable_by_all_and_writable_by_one(folder: Path) -> None:
    assert {(folder / name).stat().st_mode & 0o777 for name in files_of(folder)} == {0o644}


def test_what_the_interpreter_leaves_is_not_the_bundles(folder: Path) -> None:
    cache = folder / "runtime_py" / "__pycache__"
    cache.mkdir()
    (cache / "run.cpython-311.pyc").write_bytes(b"x")
    assert check_sums(folder)["name"] == folder.name


# Archives.


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_the_same_bytes_whatever_the_files_times(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    archives = [tmp_path / f"{number}.{kind}" for number in range(2)]
    pack(folder, "bundle", archives[0])
    for name in files_of(folder):
        os.utime(folder / name, (1, 1))
        (folder / name).chmod(0o600)
    pack(folder, "bundle", archives[1])
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_a_zip_can_be_mapped(folder: Path, tmp_path: Path) -> None:
    pack(folder, "b", tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as file:
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
        assert all(info.filename.startswith("b/") for info in file.infolist())


def test_a_tar_holds_plain_files_of_nobody(folder: Path, tmp_path: Path) -> None:
    pack(folder, "b", tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as file:
        members = file.getmembers()
    assert all(
        member.isreg() and (member.uid, member.uname, member.mtime) == (0, "", 0) for member in members
    )
    assert {member.mode for member in members} == {0o644}


def _altered(folder: Path) -> str:
    data = bytearray((folder / "weights.bin").read_bytes())
    data[777] ^= 1
    (folder / "weights.bin").write_bytes(data)
    return "weights.bin: differs from it"


def _altered_runtime(folder: Path) -> str:
    (folder / "runtime_py" / "run.py").write_text("print('other')\n", encoding="utf-8")
    return "runtime_py/run.py: differs from it"


def _altered_description(folder: Path) -> str:
    describe(folder, {"name": "another"})
    return "bundle.json: differs from it"


def _removed(folder: Path) -> str:
    (folder / "model.onnx").unlink()
    return "model.onnx: is missing"


def _renamed(folder: Path) -> str:
    (folder / "model.onnx").rename(folder / "a.onnx")
    return "a.onnx: is not listed in it"


def _added(folder: Path) -> str:
    (folder / "extra.so").write_bytes(b"x")
    return "extra.so: is not listed in it"


def _added_to_the_runtime(folder: Path) -> str:
    (folder / "runtime_py" / "json.py").write_text("import os\n", encoding="utf-8")
    return "runtime_py/json.py: is not listed in it"


def _added_hidden(folder: Path) -> str:
    (folder / ".hidden").write_bytes(b"x")
    return ".hidden: is not listed in it"


def _replaced_by_a_folder(folder: Path) -> str:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").mkdir()
    return "model.onnx: is missing"


def _replaced_by_a_dangling_link(folder: Path) -> str:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to("nowhere")
    return "model.onnx: is missing"


def _truncated_weights(folder: Path) -> str:
    (folder / "weights.bin").write_bytes((folder / "weights.bin").read_bytes()[:-1])
    return "weights.bin: differs from it"


TAMPERED = (
    _altered,
    _altered_runtime,
    _altered_description,
    _removed,
    _renamed,
    _added,
    _added_to_the_runtime,
    _added_hidden,
    _replaced_by_a_folder,
    _replaced_by_a_dangling_link,
    _truncated_weights,
)


@pytest.mark.parametrize("tamper", TAMPERED)
def test_a_tampered_bundle_names_the_file(tamper: Callable[[Path], str], folder: Path) -> None:
    text = tamper(folder)
    with pytest.raises(TamperedBundleError) as caught:
        check_sums(folder)
    assert str(caught.value) == f"{folder}/{text} (SHA256SUMS). Take the bundle from its source again."
    assert caught.value.exit_code == 9


@pytest.mark.parametrize("name", ["SHA256SUMS", "bundle.json"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"no such form"])
def test_a_folder_without_sums_or_description_is_no_bundle(
    name: str, content: bytes | None, folder: Path
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(NotABundleError) as caught:
        check_sums(folder)
    assert f"{folder}: holds no readable SHA256SUMS and bundle.json (" in str(caught.value)


@pytest.mark.parametrize("text", ['{"bundle_version": 2}', '{"bundle_version": "1"}', "{}", "[]", "null"])
def test_another_version_is_refused(text: str, folder: Path) -> None:
    (folder / "bundle.json").write_text(text, encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    write_sums(folder)
    with pytest.raises(NotABundleError, match=r"and this exporter reads 1\. Verify it with the exporter"):
        check_sums(folder)


# Putting in place.


def test_what_was_staged_is_put_in_place(tmp_path: Path) -> None:
    output = tmp_path / "out" / "bundle"
    with staging(output, force=False) as stage:
        assert stage.parent == output.parent
        assert stage.name.startswith(".bundle.")
        (stage / "made").mkdir()
        (stage / "made" / "x").write_text("new", encoding="utf-8")
        publish(stage / "made", output)
    assert (output / "x").read_text("utf-8") == "new"
    assert [path.name for path in output.parent.iterdir()] == ["bundle"]


def _old_folder(output: Path) -> None:
    output.mkdir()
    (output / "x").write_text("old", encoding="utf-8")


def _old_file(output: Path) -> None:
    output.write_text("old", encoding="utf-8")


def _old_link(output: Path) -> None:
    target = output.with_name("target")
    target.mkdir()
    (target / "kept").touch()
    output.symlink_to(target)


def _dangling(output: Path) -> None:
    output.symlink_to(output.with_name("nowhere"))


@pytest.mark.parametrize("old", [_old_folder, _old_file, _old_link, _dangling])
def test_what_is_there_is_kept(old: Callable[[Path], None], tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    old(output)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(OutputExistsError) as caught, staging(output, force=False):
        pytest.fail("something was to be written")
    assert str(caught.value) == (
        f"{output}: exists already, and is kept. Give --force to replace it, or another --output."
    )
    assert caught.value.exit_code == 8
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("old", [_old_folder, _old_file, _old_link, _dangling])
def test_force_replaces_what_is_there(old: Callable[[Path], None], tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    old(output)
    with staging(output, force=True) as stage:
        (stage / "made").mkdir()
        (stage / "made" / "y").touch()
        publish(stage / "made", output)
    assert [path.name for path in output.iterdir()] == ["y"]
    assert not output.is_symlink()
    assert not hidden(tmp_path)
    if (tmp_path / "target").exists():
        assert (tmp_path / "target" / "kept").exists()


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    _old_folder(output)

    def work(stage: Path) -> None:
        (stage / "made").mkdir()
        raise RuntimeError

    with pytest.raises(RuntimeError), staging(output, force=True) as stage:
        work(stage)
    assert (output / "x").read_text("utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_failure_to_put_in_place_brings_back_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "bundle"
    _old_folder(output)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "made":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)

    def work(stage: Path) -> None:
        (stage / "made").mkdir()
        publish(stage / "made", output)

    with pytest.raises(OutputError, match="cannot be written"), staging(output, force=True) as stage:
        work(stage)
    assert (output / "x").read_text("utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "the disk is full. Free space there, or choose another place with --output."),
        (errno.EDQUOT, "the disk is full."),
        (errno.EACCES, "cannot be written (Permission denied). Choose another place with --output."),
        (errno.EROFS, "cannot be written (Read-only file system)."),
    ],
)
def test_a_write_that_fails_is_told(number: int, text: str, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    with pytest.raises(OutputError) as caught, staging(output, force=False):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith(f"{output}: ")
    assert text in str(caught.value)
    assert caught.value.exit_code == 8
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file" / "bundle", tmp_path / "file" / "deeper" / "bundle"):
        with pytest.raises(OutputError, match="cannot be written"), staging(output, force=False):
            pytest.fail("something was to be written")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_version_here_is_the_one_that_is_read() -> None:
    assert module.BUNDLE_VERSION == 1
