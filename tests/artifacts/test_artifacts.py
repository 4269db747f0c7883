"""What a device class receives as one file."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from exporter.artifacts import Entry, read_archive, read_index, update_index, write_artifact
from exporter.artifacts.aar import MINIMUM_SDK, namespace
from exporter.artifacts.papers import licence_text
from exporter.artifacts.tarball import requirements
from exporter.bundle import check_sums
from targets import load

Bundle = Callable[[str], Path]
ANDROID = "{http://schemas.android.com/apk/res/android}"


def written(bundle: Bundle, target: str, output: Path) -> Entry:
    return write_artifact(bundle(target), load(target), output)


def sbom_of(content: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(content)
    return document


def test_a_board_receives_one_folder_that_runs(bundle: Bundle, tmp_path: Path) -> None:
    entry = written(bundle, "rpi4", tmp_path)
    assert entry.name == "small-d2-rpi4-int4.tar.gz"
    with tarfile.open(tmp_path / entry.name) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert {path.name for path in folder.iterdir()} == {"SHA256SUMS", "bundle", "requirements.txt", "run"}
    check_sums(folder / "bundle")
    for place in (folder, folder / "bundle"):
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=place, check=True)  # noqa: S607
    assert (folder / "run").stat().st_mode & 0o111
    subprocess.run(["sh", "-n", str(folder / "run")], check=True)  # noqa: S603, S607
    assert (folder / "bundle" / "runtime_py" / "__main__.py").exists()


def test_run_hands_its_words_to_the_runtime(bundle: Bundle, tmp_path: Path) -> None:
    entry = written(bundle, "rpi4", tmp_path)
    with tarfile.open(tmp_path / entry.name) as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / entry.name.removesuffix(".tar.gz")
    # A stand-in for the virtual environment that the first run would install.
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$PYTHONPATH"\nfor word; do echo "$word"; done\n', encoding="utf-8")
    python.chmod(0o755)
    (folder / ".venv" / "complete").touch()
    ran = subprocess.run(  # noqa: S603
        [folder / "run", "turn it on", "--tools", "a b.json"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    inner = str(folder / "bundle")
    assert ran.stdout.splitlines() == [inner, "-m", "runtime_py", inner, "turn it on", "--tools", "a b.json"]


def test_wheels_are_shipped_and_summed(bundle: Bundle, tmp_path: Path) -> None:
    wheel = tmp_path / "numpy-2.4.6-cp311-cp311-manylinux_2_28_aarch64.whl"
    wheel.write_bytes(b"wheel")
    entry = write_artifact(bundle("rpi4"), load("rpi4"), tmp_path, wheels=[wheel])
    with tarfile.open(tmp_path / entry.name) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert f"wheels/{wheel.name}" in names
    assert read_archive(tmp_path / entry.name).description["name"] == "small-d2-rpi4-int4"


def test_an_android_library_holds_the_bundle_among_its_assets(bundle: Bundle, tmp_path: Path) -> None:
    entry = written(bundle, "wearos", tmp_path)
    assert entry.name == "small-d2-wearos-int4.aar"
    with zipfile.ZipFile(tmp_path / entry.name) as library:
        assert library.testzip() is None
        manifest = ET.fromstring(library.read("AndroidManifest.xml"))  # noqa: S314 - its own
        with zipfile.ZipFile(io.BytesIO(library.read("classes.jar"))) as jar:
            assert jar.namelist() == ["META-INF/MANIFEST.MF"]
        assert library.read("R.txt") == b""
        infos = {info.filename: info for info in library.infolist()}
        library.extractall(tmp_path / "unpacked")  # noqa: S202 - its own
    assert re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+", manifest.attrib["package"])
    sdk = manifest.find("uses-sdk")
    assert sdk is not None
    assert sdk.attrib[f"{ANDROID}minSdkVersion"] == str(MINIMUM_SDK)
    assets = "assets/small-d2-wearos-int4"
    check_sums(tmp_path / "unpacked" / assets)
    stored = {name for name, info in infos.items() if info.compress_type == zipfile.ZIP_STORED}
    graphs = {"model.onnx", "readout.onnx", "score.onnx", "weights.bin"}
    assert stored == {f"{assets}/{name}" for name in graphs}
    assert not any("runtime_py" in name for name in infos)


@pytest.mark.parametrize(
    ("name", "package"),
    [("pocket-d6-wearos-int4", "pocket_d6_wearos_int4"), ("3b-D2", "b3b_d2"), ("-x-", "x")],
)
def test_a_library_has_a_package_name_of_its_own(name: str, package: str) -> None:
    assert namespace(name) == f"ladder.bundle.{package}"


@pytest.mark.parametrize("target", ["rpi4", "wearos"])
def test_papers_lie_in_the_bundle(bundle: Bundle, tmp_path: Path, target: str) -> None:
    folder = bundle(target)
    write_artifact(folder, load(target), tmp_path)
    assert (folder / "LICENSE").read_bytes() == licence_text()
    assert b"Apache License" in licence_text()
    notice = (folder / "NOTICE").read_text("utf-8")
    assert "Licence of the weights: CC0-1.0." in notice
    assert "small.safetensors, cut to 2 blocks" in notice
    document = sbom_of((folder / "sbom.cdx.json").read_bytes())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in document["components"]}
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text("utf-8").splitlines())
    for name, part in parts.items():
        if part["type"] == "file":
            assert part["hashes"] == [{"alg": "SHA-256", "content": sums[name]}]
    assert parts.keys() >= {"model.onnx", "weights.bin", "bundle.json", "LICENSE", "NOTICE", "onnxruntime"}
    assert ("numpy" in parts) == (target == "rpi4")
    assert document["metadata"]["component"]["type"] == "machine-learning-model"


def test_the_bill_of_materials_is_valid(bundle: Bundle, tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    folder = bundle("rpi4")
    write_artifact(folder, load("rpi4"), tmp_path)
    text = (folder / "sbom.cdx.json").read_text("utf-8")
    try:
        found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except Exception as error:  # noqa: BLE001 - of the library, where its own extra is missing
        pytest.skip(f"needs the validator's own packages: {error}")
    assert found is None


@pytest.mark.parametrize("target", ["rpi4", "wearos"])
def test_two_builds_give_the_same_bytes(bundle: Bundle, tmp_path: Path, target: str) -> None:
    folder = bundle(target)
    twin = folder.parent.parent / "twin" / folder.name
    twin.parent.mkdir()
    subprocess.run(["cp", "-r", str(folder), str(twin)], check=True)  # noqa: S603, S607
    entries = [write_artifact(f, load(target), tmp_path / str(n)) for n, f in enumerate((folder, twin))]
    assert entries[0] == entries[1]
    first, second = (tmp_path / str(n) / entries[0].name for n in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_requirements_are_exact_and_sorted() -> None:
    lines = requirements(load("rpi4")).splitlines()
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", line) for line in lines)
    assert f"onnxruntime=={load('rpi4').onnxruntime.tested}" in lines


def test_the_index_tells_what_lies_beside_it(bundle: Bundle, tmp_path: Path) -> None:
    import hashlib  # noqa: PLC0415

    entries = [written(bundle, target, tmp_path) for target in ("wearos", "rpi4")]
    for entry in entries:
        update_index(tmp_path, entry)
    assert read_index(tmp_path) == sorted(entries, key=lambda entry: entry.target)
    for entry in read_index(tmp_path):
        data = (tmp_path / entry.name).read_bytes()
        assert (entry.bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert (entry.depth, entry.precision, entry.verified) == (2, "int4", "reference")
        assert entry.fidelity is not None
        assert entry.footprint["memory"]["total"] > entry.footprint["storage"]


def test_an_artifact_takes_the_place_of_its_targets_last_one(bundle: Bundle, tmp_path: Path) -> None:
    entry = written(bundle, "rpi4", tmp_path)
    update_index(tmp_path, replace(entry, depth=5, name="other.tar.gz"))
    update_index(tmp_path, entry)
    assert read_index(tmp_path) == [entry]


def test_a_folder_without_an_index_lists_nothing(tmp_path: Path) -> None:
    assert read_index(tmp_path) == []
