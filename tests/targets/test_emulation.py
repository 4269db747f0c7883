"""The test bed's steps and the guest's ways to end, with stand-ins for apt and for the emulator."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from targets.emulation import (
    ARM64,
    ArchiveError,
    Bed,
    DownloadError,
    EmulatorCrashError,
    Guest,
    GuestFailedError,
    MissingPackageError,
    MissingToolError,
    UnknownCpuError,
)
from targets.emulation.archive import ADDRESS, Archive

_APT = """#!/bin/sh
echo "$@" >> "{folder}/asked"
case "$*" in
  *indextargets*) cat "{folder}/sources" ;;
  *" --print-uris "*) cat "{folder}/uris" ;;
  *" download "*) cp "{folder}"/served/* . 2>/dev/null; exit "$(cat "{folder}/status")" ;;
esac
"""
_PACKAGES = {"one_1_arm64.deb": b"the first", "two_2%3a1_arm64.deb": b"the second"}


def program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that says what the stand-in for apt answers."""
    folder, tools = tmp_path / "apt", tmp_path / "tools"
    (folder / "served").mkdir(parents=True)
    tools.mkdir()
    program(tools / "apt-get", _APT.format(folder=folder))
    program(tools / "dpkg", "#!/bin/sh\necho amd64\n")
    program(tools / "dpkg-deb", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.delenv(ADDRESS, raising=False)
    lines = [
        f"'http://archive.test/{name}' {name} {len(data)} SHA256:{hashlib.sha256(data).hexdigest()}"
        for name, data in _PACKAGES.items()
    ]
    (folder / "uris").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (folder / "sources").write_text(
        f"http://archive.test/debian/|Debian|Debian|main|{folder / 'debian.sources'}:2\n", encoding="utf-8"
    )
    (folder / "debian.sources").write_text(
        "# A comment.\n\nURIs: http://other.test\nSigned-By: /keys/other.gpg\n\n"
        "URIs: http://archive.test/debian\nSigned-By: /keys/debian.gpg\n",
        encoding="utf-8",
    )
    (folder / "status").write_text("0", encoding="utf-8")
    return folder


def fetch(folder: Path) -> list[Path]:
    archive = Archive(folder / "private", folder / "packages")
    return archive.fetch((), ("one", "two"), "arm64")


def test_packages_arrive_whole(apt: Path, tmp_path: Path) -> None:
    for name, data in _PACKAGES.items():
        (apt / "served" / name).write_bytes(data)
    assert {path.name: path.read_bytes() for path in fetch(tmp_path)} == _PACKAGES


@pytest.mark.usefixtures("apt")
def test_the_archive_and_its_keys_are_the_machine_s(tmp_path: Path) -> None:
    with pytest.raises(DownloadError):
        fetch(tmp_path)
    source = (tmp_path / "private" / "sources.list").read_text("utf-8")
    assert "deb [arch=arm64 signed-by=/keys/debian.gpg] http://archive.test/debian/ bookworm main" in source
    assert "deb [arch=amd64 signed-by=/keys/debian.gpg] http://archive.test/debian/ trixie main" in source


def test_an_interrupted_download_keeps_what_arrived(apt: Path, tmp_path: Path) -> None:
    first, second = _PACKAGES
    (apt / "served" / first).write_bytes(_PACKAGES[first])
    (apt / "served" / second).write_bytes(_PACKAGES[second][:4])
    (apt / "status").write_text("100", encoding="utf-8")
    with pytest.raises(DownloadError, match="download packages"):
        fetch(tmp_path)
    assert [path.name for path in (tmp_path / "packages").glob("*.deb")] == [first]

    (apt / "served" / first).unlink()
    (apt / "served" / second).write_bytes(_PACKAGES[second])
    (apt / "status").write_text("0", encoding="utf-8")
    assert {path.name for path in fetch(tmp_path)} == set(_PACKAGES)
    assert (apt / "asked").read_text("utf-8").splitlines()[-1].endswith("download two:arm64/bookworm")


def test_a_package_that_is_another_than_listed_is_refused(apt: Path, tmp_path: Path) -> None:
    for name in _PACKAGES:
        (apt / "served" / name).write_bytes(b"something else")
    with pytest.raises(DownloadError, match=r"one_1_arm64\.deb differs"):
        fetch(tmp_path)
    assert not list((tmp_path / "packages").glob("*.deb"))


def test_sources_without_a_debian_archive(apt: Path, tmp_path: Path) -> None:
    (apt / "sources").write_text("http://a.test/u/|Ubuntu|Ubuntu|main|/none:1\n", encoding="utf-8")
    with pytest.raises(ArchiveError, match=ADDRESS):
        fetch(tmp_path)


def test_an_archive_may_be_given(apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (apt / "sources").write_text("", encoding="utf-8")
    monkeypatch.setenv(ADDRESS, "http://given.test/debian")
    with pytest.raises(DownloadError):
        fetch(tmp_path)
    assert "http://given.test/debian bookworm" in (tmp_path / "private" / "sources.list").read_text("utf-8")


def test_a_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=r"apt-get.*Debian"):
        Bed(tmp_path / "bed").guest(ARM64, {})


def guest(folder: Path, text: str) -> Guest:
    return Guest(program(folder / "emulator", f"#!/bin/sh\n{text}\n"), folder, (), ARM64)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("echo \"qemu: unable to find CPU model 'x'\" >&2; exit 1", UnknownCpuError, "no such core"),
        ("echo 'libz.so.1: cannot open shared object file' >&2; exit 127", MissingPackageError, "libz"),
        ("exit 64", MissingPackageError, "packages"),
        ("echo 'case: b'; kill -ILL $$", EmulatorCrashError, "b, died of SIGILL"),
        ("kill -KILL $$", EmulatorCrashError, "memory"),
        ("echo Traceback >&2; exit 1", GuestFailedError, "Traceback"),
    ],
)
def test_a_guest_s_end_has_a_cause(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        guest(tmp_path, text).run("x", tmp_path / "script.py", timeout=30)


def test_a_guest_gets_a_named_core_and_none_of_the_machine_s_environment(tmp_path: Path) -> None:
    said = guest(tmp_path, 'echo "$@"; env').run("cortex-a53", tmp_path / "s.py", timeout=30, lean=True)
    assert said.startswith(f"-cpu cortex-a53 -L {tmp_path} -tb-size 8")
    assert not set(os.environ) & {"QEMU_CPU"}
    assert "HOME=" not in said
