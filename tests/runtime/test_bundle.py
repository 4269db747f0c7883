"""Loading: what a bundle must be, and which file is wrong where it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

import runtime_py
from runtime_py import Model
from runtime_py.bundle import Bundle
from runtime_py.errors import (
    BundleVersionError,
    DamagedFileError,
    InputError,
    NotABundleError,
    RuntimeFloorError,
)
from tests.runtime.bundles import change

PACKAGE = Path(runtime_py.__file__).parent


@pytest.mark.parametrize("name", ["model.onnx", "score.onnx", "weights.bin", "tokenizer.json"])
def test_names_an_altered_file(own_bundle: Path, name: str) -> None:
    data = bytearray((own_bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (own_bundle / name).write_bytes(data)
    with pytest.raises(DamagedFileError, match=f"{name}: is not the file that was exported"):
        Model.load(own_bundle)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["model.onnx", "score.onnx", "weights.bin", "tokenizer.json", "SHA256SUMS"])
def test_names_a_missing_file(own_bundle: Path, name: str, *, verify: bool) -> None:
    (own_bundle / name).unlink()
    with pytest.raises(DamagedFileError, match=name):
        Model.load(own_bundle, verify=verify)


def test_sums_can_be_skipped(own_bundle: Path) -> None:
    path = own_bundle / "tokenizer.json"
    path.write_text(path.read_text("utf-8") + "\n", encoding="utf-8")
    assert Model.load(own_bundle, verify=False).encode("a")


def test_other_files_are_nothing_to_it(own_bundle: Path) -> None:
    (own_bundle / "notes.txt").write_text("bought in May")
    Model.load(own_bundle)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_unknown_version(own_bundle: Path, version: object) -> None:
    change(own_bundle, lambda description: description.update(bundle_version=version))
    with pytest.raises(BundleVersionError, match=f"bundle_version is {version!r}, and this runtime reads 1"):
        Model.load(own_bundle, verify=False)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("configuration"),
        lambda d: d["configuration"].pop("vocab_size"),
        lambda d: d["configuration"].update(max_seq_len="many"),
        lambda d: d["graphs"]["decode"].pop("states"),
        lambda d: d["graphs"]["decode"]["states"][0].update(size=3),
        lambda d: d["graphs"]["decode"]["states"][0].pop("shape"),
        lambda d: d.update(target=7),
        lambda d: d["target"]["onnxruntime"].update(floor="new"),
        lambda d: d.update(tokens={"begin": 3}),
    ],
)
def test_a_description_that_lacks_something(own_bundle: Path, spoil: Callable[[Any], object]) -> None:
    change(own_bundle, spoil)
    with pytest.raises(NotABundleError, match=r"bundle\.json: lacks or garbles"):
        Model.load(own_bundle, verify=False)


@pytest.mark.parametrize("text", ["", "[1]", "{", "7"])
def test_no_description(own_bundle: Path, text: str) -> None:
    (own_bundle / "bundle.json").write_text(text, encoding="utf-8")
    with pytest.raises((NotABundleError, BundleVersionError)):
        Model.load(own_bundle, verify=False)


def test_no_bundle_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError, match="Give the folder that the exporter wrote"):
        Model.load(tmp_path)
    (tmp_path / "bundle.tar.gz").write_bytes(b"")
    with pytest.raises(NotABundleError, match="Unpack the bundle"):
        Model.load(tmp_path / "bundle.tar.gz")


def test_a_contract_that_is_another_graphs(own_bundle: Path) -> None:
    change(own_bundle, lambda description: description["graphs"]["decode"]["states"].pop())
    with pytest.raises(NotABundleError, match="other inputs than its contract: past_pool"):
        Model.load(own_bundle, verify=False)


@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_a_truncated_file_is_named_without_sums_too(own_bundle: Path, name: str) -> None:
    data = (own_bundle / name).read_bytes()
    (own_bundle / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(NotABundleError, match=r"model\.onnx: onnxruntime .* cannot load it"):
        Model.load(own_bundle, verify=False)


@pytest.mark.parametrize("floor", ["99.0.0", "1.999"])
def test_a_runtime_that_is_too_old(own_bundle: Path, floor: str) -> None:
    change(own_bundle, lambda description: description["target"]["onnxruntime"].update(floor=floor))
    with pytest.raises(RuntimeFloorError, match=f"needs onnxruntime {floor} or newer"):
        Model.load(own_bundle, verify=False)


@pytest.mark.parametrize("version", ["1.24.1", "1.24.1.dev3", "1.100.0+cpu", "2.0.0rc1"])
def test_versions_are_compared_by_number(bundle: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", version)
    Bundle.load(bundle)


def test_a_state_belongs_to_weights_and_graph_alone(bundle: Path, own_bundle: Path) -> None:
    change(own_bundle, lambda description: description.update(name="renamed"))
    assert Bundle.load(own_bundle, verify=False).identity == Bundle.load(bundle).identity


def test_chunk_must_be_positive(bundle: Path) -> None:
    with pytest.raises(InputError, match="chunk is 0"):
        Model.load(bundle, chunk=0)


def test_imports_nothing_but_numpy_and_onnxruntime() -> None:
    script = (
        "import sys; before = set(sys.modules); import numpy, onnxruntime; known = set(sys.modules)\n"
        "import runtime_py, runtime_py.cli\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - known}\n"
        "print(sorted(new - sys.stdlib_module_names - {'numpy', 'onnxruntime'}))"
    )
    done = subprocess.run(  # noqa: S603 - this very program
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert done.stdout.strip() == "['runtime_py']"


def test_runs_from_inside_a_bundle(own_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, own_bundle / "runtime_py", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tools.json").write_text('[{"name": "lamp", "parameters": {}}]')
    done = subprocess.run(  # noqa: S603 - this very program
        [
            sys.executable,
            "-m",
            "runtime_py",
            ".",
            "light on",
            "--tools",
            str(tmp_path / "tools.json"),
            "--no-constrain",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=own_bundle,
        # Nothing but what lies in the bundle.
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    # The random ladder's answer holds no calls.
    assert done.returncode == 7, done.stderr
    assert done.stdout == "[]\n"
