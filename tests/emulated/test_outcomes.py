"""A guest that gives no numbers says why, and never as wrong numbers."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from targets.emulation import (
    ARM64,
    Bed,
    DownloadError,
    EmulatorCrashError,
    Guest,
    GuestFailedError,
    GuestTimeoutError,
    MissingPackageError,
    UnknownCpuError,
)
from targets.emulation.guest import REFUSED
from tests.emulated.campaign import run_job

pytestmark = pytest.mark.emulated

_EXECUTE = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("{code}") + bytes.fromhex("c0035fd6"))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print("came back")
"""
_SDOT = "0094804e"
"""sdot v0.4s, v0.16b, v0.16b; little-endian, as it lies in memory."""


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_core_that_the_emulator_does_not_know(guest: Guest, tmp_path: Path) -> None:
    with pytest.raises(UnknownCpuError, match="cortex-a999"):
        guest.run("cortex-a999", script(tmp_path, ""), timeout=60)


def test_a_package_that_is_not_there(guest: Guest, tmp_path: Path) -> None:
    bare = replace(guest, packages=())
    with pytest.raises(MissingPackageError, match="numpy"):
        run_job(bare, "cortex-a53", [], tmp_path, timeout=60)


def test_a_system_without_its_loader(guest: Guest, tmp_path: Path) -> None:
    python = tmp_path / "usr/bin/python3.11"
    python.parent.mkdir(parents=True)
    python.write_bytes((guest.root / "usr/bin/python3.11").read_bytes())
    python.chmod(0o755)
    with pytest.raises(MissingPackageError, match="ld-linux"):
        replace(guest, root=tmp_path).run("cortex-a53", script(tmp_path, ""), timeout=60)


def test_an_instruction_that_the_core_lacks_is_a_crash(guest: Guest, tmp_path: Path) -> None:
    path = script(tmp_path, _EXECUTE.format(code=_SDOT))
    with pytest.raises(EmulatorCrashError, match="SIGILL") as caught:
        guest.run("cortex-a53", path, timeout=60)
    assert caught.value.signal == signal.SIGILL
    assert "came back" in guest.run("cortex-a76", path, timeout=60)


def test_a_crash_names_the_case(guest: Guest, tmp_path: Path) -> None:
    text = "import ctypes\nprint('case: the third', flush=True)\nctypes.string_at(0)\n"
    with pytest.raises(EmulatorCrashError, match=r"the third.*SIGSEGV"):
        guest.run("cortex-a53", script(tmp_path, text), timeout=60)


def test_a_guest_that_never_ends(guest: Guest, tmp_path: Path) -> None:
    text = "import time\nprint('case: the second', flush=True)\ntime.sleep(600)\n"
    with pytest.raises(GuestTimeoutError, match=r"the second.*stopped"):
        guest.run("cortex-a53", script(tmp_path, text), timeout=20)


def test_a_program_that_fails(guest: Guest, tmp_path: Path) -> None:
    with pytest.raises(GuestFailedError, match="ZeroDivisionError"):
        guest.run("cortex-a53", script(tmp_path, "1 / 0\n"), timeout=60)


def test_a_graph_that_does_not_load_is_that_case_s_result(guest: Guest, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "SHA256SUMS").write_text("", encoding="utf-8")
    (bundle / "bundle.json").write_text('{"graphs": {"decode": {"file": "model.onnx"}}}', encoding="utf-8")
    (bundle / "model.onnx").write_bytes(b"no graph")
    entry: dict[str, object] = {
        "name": "odd",
        "bundle": str(bundle),
        "options": {},
        "runs": [],
        "score": None,
    }
    found = run_job(guest, "cortex-a53", [entry], tmp_path / "job", timeout=120)
    assert found.case("odd")["state"] == REFUSED
    assert "model.onnx" in found.case("odd")["error"]


def test_a_wheel_that_does_not_exist(bed: Bed) -> None:
    with pytest.raises(DownloadError, match=r"fetch onnxruntime 1\.0\.99"):
        bed.guest(ARM64, {"onnxruntime": "1.0.99"})
