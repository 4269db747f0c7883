"""From a checkpoint to a bundle that was run and compared, or to nothing at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike
from safetensors.numpy import save_file

from exporter import export as module
from exporter import forms
from exporter.bundle import check_sums, files_of
from exporter.checkpoint import Checkpoint, save
from exporter.errors import (
    AdapterMismatchError,
    DepthError,
    NotFiniteError,
    OutputError,
    OutputExistsError,
    PrecisionError,
    ReferenceUnavailableError,
    TargetError,
    TokenizerError,
    VerificationError,
    ZeroAdapterWarning,
)
from exporter.export import Export, export, load_target, scheme_of
from exporter.forms import Static
from exporter.graph import state_contract
from exporter.ladder import fingerprint, plan_slice, slice_ladder
from exporter.layout import PROJECTIONS
from exporter.lora import fold
from exporter.precision import PRECISIONS, PrecisionPlan
from exporter.verify import Report, check_witness, passages_of
from exporter.weights import WeightFile
from golden.cases import adapter_case, oracle, stored
from golden.cases.stored import StoredCase
from tests.helpers import (
    MemoryLadder,
    oracle_ladder,
    reference_heads,
    reference_logits,
    small_ladder,
    tensors_of,
    write_checkpoint,
)

GRAPHS = {"model.onnx", "score.onnx", "readout.onnx", "weights.bin"}
PAPERS = {"bundle.json", "SHA256SUMS"}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a bundle outside its runtime."""
    return {name: (folder / name).read_bytes() for name in files_of(folder) if "/" not in name}


def assert_nothing_in(folder: Path) -> None:
    """No file, no folder, hidden or not."""
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tiny_in_every_precision(precision: str, tmp_path: Path) -> None:
    case = oracle("tiny")
    request = Export(checkpoint=case.checkpoint, depth=4, precision=precision, output=tmp_path)
    result = export(request)
    assert result.path == tmp_path / f"tiny-d4-host-{precision}"
    assert [path.name for path in tmp_path.iterdir()] == [result.path.name]
    assert set(contents(result.path)) == GRAPHS | PAPERS
    assert result.report.against == "reference"
    assert abs(result.written_bytes - result.predicted_bytes) <= 0.02 * result.predicted_bytes

    told = check_sums(result.path)
    sliced = slice_ladder(oracle_ladder("tiny"), 4)
    assert told["name"] == result.path.name
    assert told["source"] == {
        "name": "tiny.safetensors",
        "bytes": case.checkpoint.stat().st_size,
        "step": 0,
        "adapters": [],
        "recovered": None,
        "slice_sha256": fingerprint(sliced),
    }
    assert told["configuration"] == sliced.config.to_json()
    assert told["slice"] == plan_slice(oracle_ladder("tiny").config, 4).to_json()
    assert told["precision"]["scheme"]["name"] == precision
    assert told["target"]["name"] == "host"
    assert told["graphs"]["weights"] == "weights.bin"
    states = [state.to_json() for state in state_contract(sliced.config, ["confidence"])]
    assert told["graphs"]["decode"] == {"file": "model.onnx", "logits": "last", "states": states}
    assert told["graphs"]["score"]["outputs"] == ["confidence", "embedding", "router"]
    assert told["verification"]["status"] == "verified"
    assert told["licence"] == {"exporter": "Apache-2.0", "weights": None}
    assert {"onnx", "onnxruntime", "onnxscript", "numpy", "exporter"} <= told["versions"].keys()
    witness = told["verification"]["witness"]
    assert check_witness(result.path / "model.onnx", sliced.config, precision, witness) >= 0


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the small ladder."""
    output = tmp_path_factory.mktemp("exported")
    return export(Export(checkpoint=checkpoint, depth=2, precision="int4", output=output)).path


def test_two_runs_give_the_same_bytes_in_any_folder(exported: Path, checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "another" / "folder"
    again = export(Export(checkpoint=checkpoint, depth=2, precision="int4", output=output)).path
    assert contents(again) == contents(exported)
    assert files_of(again) == files_of(exported)


def test_two_runs_give_the_same_archive(checkpoint: Path, tmp_path: Path) -> None:
    archives = [
        export(Export(checkpoint=checkpoint, depth=2, archive=True, output=tmp_path / place)).path
        for place in ("one", "two")
    ]
    assert archives[0].name == "small-d2-host-fp32.tar.gz"
    assert archives[0].read_bytes() == archives[1].read_bytes()
    assert [path.name for path in archives[0].parent.iterdir()] == [archives[0].name]


def test_a_bundle_says_nothing_of_the_machine(exported: Path, checkpoint: Path) -> None:
    text = (exported / "bundle.json").read_text("utf-8")
    assert str(checkpoint.parent) not in text
    assert str(exported.parent) not in text
    assert os.uname().nodename not in text


def test_step_and_licence_are_the_trainers(exported: Path) -> None:
    told = json.loads((exported / "bundle.json").read_text("utf-8"))
    assert told["source"]["step"] == 40
    assert told["licence"]["weights"] == "CC0-1.0"


def test_progress_is_told(checkpoint: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    export(Export(checkpoint=checkpoint, depth=2, precision="int8", output=tmp_path), steps.append)
    assert steps == ["reading the slice", "building graphs and int8 weights", "verifying"]


def test_all_logits_are_on_request(checkpoint: Path, tmp_path: Path) -> None:
    result = export(Export(checkpoint=checkpoint, depth=2, all_logits=True, output=tmp_path))
    assert check_sums(result.path)["graphs"]["decode"]["logits"] == "all"


@pytest.mark.parametrize("target", ["wearos", "rpi4", "host"])
def test_the_precision_is_the_targets_where_none_is_asked_for(target: str) -> None:
    profile = load_target(target)
    scheme = scheme_of(profile, None)
    assert scheme.name == profile.precision.default
    layout = profile.precision.quantisation(scheme.name)
    if layout is not None:
        assert (scheme.block, scheme.accuracy_level) == (layout.block_size, layout.accuracy_level)


def test_a_slice_never_reads_what_it_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_slice(oracle_ladder("tiny").config, 6).blocks == (0, 4, 6, 9, 14, 19)
    reads: set[tuple[str, int | None]] = set()
    read, gather = Checkpoint.read, Checkpoint.gather

    def spied_read(self: Checkpoint, name: str, row: int | None = None) -> Any:  # noqa: ANN401
        reads.add((name, row))
        return read(self, name, row)

    def spied_gather(self: Checkpoint, name: str, row: int, indices: Any) -> Any:  # noqa: ANN401
        reads.add((name, None))
        return gather(self, name, row, indices)

    monkeypatch.setattr(Checkpoint, "read", spied_read)
    monkeypatch.setattr(Checkpoint, "gather", spied_gather)
    export(Export(checkpoint=oracle("tiny").checkpoint, depth=6, output=tmp_path))
    for name, row in reads:
        if name.startswith("engrams_"):
            assert name.startswith("engrams_4/")
        elif name.startswith("stack/") and "final_norm" not in name:
            assert row in {0, 4, 6, 9, 14, 19}
        elif name.endswith(("_head/probes", "_head/gain")):
            assert row in {0, 1, 5, 7, 10, 15, 20}
    assert {name for name, _ in reads} >= {"embedding/embedding", *PROJECTIONS}


def test_dropped_tensors_may_hold_anything(tmp_path: Path) -> None:
    def poison(tensors: dict[str, Any]) -> None:
        dropped = [block for block in range(20) if block not in {0, 4, 6, 9, 14, 19}]
        for name, values in tensors.items():
            if name.startswith("engrams_") and not name.startswith("engrams_4/"):
                values[...] = np.nan
            elif name.startswith("stack/") and "final_norm" not in name:
                values[dropped] = np.nan

    path = write_checkpoint(tmp_path / "tiny.safetensors", oracle_ladder("tiny"), change=poison)
    result = export(Export(checkpoint=path, depth=6, output=tmp_path / "out"))
    clean = slice_ladder(oracle_ladder("tiny"), 6)
    assert check_sums(result.path)["source"]["slice_sha256"] == fingerprint(clean)
    with pytest.raises(NotFiniteError, match="values that are NaN or infinite"):
        export(Export(checkpoint=path, depth=7, output=tmp_path / "deeper"))
    assert_nothing_in(tmp_path / "deeper")


def test_a_saved_slice_is_exported_as_the_slice_that_it_was(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save(slice_ladder(small_ladder(), 4), path, step=40, run={"licence": "CC0-1.0"})
    direct = export(Export(checkpoint=checkpoint, depth=3, output=tmp_path / "direct")).path
    nested = export(Export(checkpoint=path, depth=3, output=tmp_path / "nested")).path
    for name in GRAPHS:
        assert (direct / name).read_bytes() == (nested / name).read_bytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_checkpoint_of_16_bits_is_exported(dtype: DTypeLike, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    save(small_ladder(), path, dtype=dtype)
    result = export(Export(checkpoint=path, depth=2, output=tmp_path / "out"))
    identity = check_sums(result.path)["source"]["slice_sha256"]
    assert identity == fingerprint(slice_ladder(Checkpoint(path), 2))


# Adapters.


def test_an_adapter_is_folded_and_named(tmp_path: Path) -> None:
    case = adapter_case()
    request = Export(checkpoint=case.base, depth=3, adapters=(case.adapter,), output=tmp_path)
    result = export(request)
    told = check_sums(result.path)
    digest = hashlib.sha256(case.adapter.read_bytes()).hexdigest()
    assert told["source"]["adapters"] == [{"name": "tiny_adapter.safetensors", "sha256": digest}]
    assert told["graphs"]["score"]["outputs"] == ["embedding", "router"]
    assert "readout.onnx" not in contents(result.path)
    folded = slice_ladder(fold(oracle_ladder("tiny"), [case.adapter]), 3)
    assert told["source"]["slice_sha256"] == fingerprint(folded)


def test_the_confidence_head_is_kept_on_request(tmp_path: Path) -> None:
    case = adapter_case()
    request = Export(
        checkpoint=case.base, depth=2, adapters=(case.adapter,), keep_confidence=True, output=tmp_path
    )
    told = check_sums(export(request).path)
    assert told["graphs"]["score"]["outputs"] == ["confidence", "embedding", "router"]


def test_adapters_fold_in_the_order_given(checkpoint: Path, tmp_path: Path) -> None:
    paths = []
    for number, seed in enumerate((3, 8)):
        random, target = np.random.default_rng(seed), PROJECTIONS[0]
        pair = {
            f"lora/{target}/A": random.standard_normal((5, 32, 2)).astype(np.float32),
            f"lora/{target}/B": random.standard_normal((5, 2, 24)).astype(np.float32),
        }
        paths.append(tmp_path / f"{number}.safetensors")
        save_file(pair, paths[-1], {"scale": "0.1"})
    request = Export(checkpoint=checkpoint, depth=2, adapters=tuple(paths), output=tmp_path / "out")
    told = check_sums(export(request).path)
    assert [entry["name"] for entry in told["source"]["adapters"]] == ["0.safetensors", "1.safetensors"]
    assert told["source"]["slice_sha256"] == fingerprint(slice_ladder(fold(small_ladder(), paths), 2))


def test_a_zero_adapter_is_warned_of_and_exported(checkpoint: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "zero.safetensors", PROJECTIONS[1]
    pair = {
        f"lora/{target}/A": np.ones((5, 32, 2), np.float32),
        f"lora/{target}/B": np.zeros((5, 2, 12), np.float32),
    }
    save_file(pair, path, {"scale": "1.0"})
    with pytest.warns(ZeroAdapterWarning, match="this adapter changes nothing"):
        result = export(Export(checkpoint=checkpoint, depth=2, adapters=(path,), output=tmp_path / "out"))
    assert result.path.exists()


def test_an_adapter_of_another_base_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    request = Export(
        checkpoint=checkpoint, depth=2, adapters=(adapter_case().adapter,), output=tmp_path / "out"
    )
    with pytest.raises(AdapterMismatchError, match="this adapter was trained on another base"):
        export(request)
    assert_nothing_in(tmp_path / "out")


# Tokenizers.


def test_a_tokenizer_is_shipped(checkpoint: Path, tokenizer: Path, tmp_path: Path) -> None:
    request = Export(checkpoint=checkpoint, depth=2, tokenizer=tokenizer, output=tmp_path / "out")
    path = export(request).path
    assert (path / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert check_sums(path)["tokenizer"] == "tokenizer.json"


def test_the_tokenizer_beside_the_checkpoint_is_the_default(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    path = write_checkpoint(tmp_path / "c" / "c.safetensors")
    tokenizer.rename(tmp_path / "c" / "tokenizer.json")
    told = export(Export(checkpoint=path, depth=2, output=tmp_path / "out")).path
    assert (told / "tokenizer.json").exists()


def test_no_tokenizer_is_said_to_be_none(exported: Path) -> None:
    assert check_sums(exported)["tokenizer"] is None
    assert not (exported / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read as a tokenizer.json"),
        ("{", "cannot be read as a tokenizer.json"),
        ("[]", "cannot be read as a tokenizer.json"),
        ('{"model": {"vocab": {}}, "added_tokens": []}', "cannot be read as a tokenizer.json"),
        ('{"model": {"vocab": {"a": 1}}}', "cannot be read as a tokenizer.json"),
        (
            '{"model": {"vocab": {"a": 67}}, "added_tokens": []}',
            "has a piece with id 67, and the checkpoint's vocabulary ends at 66",
        ),
        (
            '{"model": {"vocab": {"a": 1}}, "added_tokens": [{"id": 900}]}',
            "has a piece with id 900, and the checkpoint's vocabulary ends at 66",
        ),
    ],
)
def test_a_tokenizer_that_does_not_go_with_it_is_refused(
    content: str | None, text: str, checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError) as caught:
        export(Export(checkpoint=checkpoint, depth=2, tokenizer=path, output=tmp_path / "out"))
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert "--tokenizer" in str(caught.value)
    assert caught.value.exit_code == 3
    assert_nothing_in(tmp_path / "out")


# What cannot be done.


@pytest.mark.parametrize("depth", [-1, 0, 1, 6, 20])
def test_a_depth_off_the_ladder(depth: int, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(DepthError, match=f"depth {depth} is not on this ladder: choose one from 2 to 5"):
        export(Export(checkpoint=checkpoint, depth=depth, output=tmp_path / "out"))
    assert_nothing_in(tmp_path / "out")


@pytest.mark.parametrize("name", ["toaster", "rpi-4", "/nowhere/mine.toml"])
def test_an_unknown_target(name: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        export(Export(checkpoint=checkpoint, depth=2, target=name, output=tmp_path / "out"))
    assert name in str(caught.value)
    assert caught.value.exit_code == 10
    assert_nothing_in(tmp_path / "out")


def _profile(path: Path, old: str, new: str) -> Path:
    text = Path("targets/host.toml").resolve()
    source = text if text.exists() else Path(module.__file__).parents[1] / "targets" / "host.toml"
    content = source.read_text("utf-8")
    assert old in content
    path.write_text(
        content.replace(old, new).replace('name = "host"', f'name = "{path.stem}"'), encoding="utf-8"
    )
    return path


def test_a_profile_of_ones_own(checkpoint: Path, tmp_path: Path) -> None:
    path = _profile(tmp_path / "mine.toml", 'default = "fp32"', 'default = "int8"')
    result = export(Export(checkpoint=checkpoint, depth=2, target=str(path), output=tmp_path / "out"))
    assert result.path.name == "small-d2-mine-int8"


def test_a_precision_that_the_target_does_not_take(checkpoint: Path, tmp_path: Path) -> None:
    path = _profile(tmp_path / "mine.toml", '["fp32", "fp16", "int8", "int4"]', '["fp32", "int8", "int4"]')
    request = Export(
        checkpoint=checkpoint, depth=2, target=str(path), precision="fp16", output=tmp_path / "out"
    )
    with pytest.raises(PrecisionError) as caught:
        export(request)
    assert str(caught.value) == (
        "precision 'fp16' is not one that target 'mine' takes: choose fp32, int8, int4."
    )
    assert_nothing_in(tmp_path / "out")


@pytest.mark.parametrize("precision", ["int3", "FP32", "bfloat16"])
def test_an_unknown_precision(precision: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(PrecisionError, match=f"precision '{precision}' is not one that target 'host' takes"):
        export(Export(checkpoint=checkpoint, depth=2, precision=precision, output=tmp_path / "out"))
    assert_nothing_in(tmp_path / "out")


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_a_value_beyond_float16_leaves_nothing(precision: str, tmp_path: Path) -> None:
    def grow(tensors: dict[str, Any]) -> None:
        tensors["stack/final_norm/scale"][3] = 1e6

    path = write_checkpoint(tmp_path / "c.safetensors", change=grow)
    with pytest.raises(PrecisionError, match=r"'stack/final_norm/scale' holds a value of magnitude 1e.06"):
        export(Export(checkpoint=path, depth=2, precision=precision, output=tmp_path / "out"))
    assert_nothing_in(tmp_path / "out")


def test_a_slice_beyond_its_bounds_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, tensors = Static.build, tensors_of(small_ladder())
    tensors["stack/mhc_b_pre"][0] *= np.float32(1.1)
    other = slice_ladder(MemoryLadder(small_ladder().config, tensors), 2)

    def damaged(form: Static, folder: Path, plan: PrecisionPlan, *, all_logits: bool) -> WeightFile:
        return built(replace(form, ladder=other), folder, plan, all_logits=all_logits)

    monkeypatch.setattr(Static, "build", damaged)
    with pytest.raises(VerificationError, match="fails the arithmetic check") as caught:
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path / "out"))
    assert caught.value.exit_code == 7
    assert_nothing_in(tmp_path / "out")


def test_a_ladder_whose_numbers_overflow_is_not_called_verified(tmp_path: Path) -> None:
    # Finite weights, and logits that are none: there is nothing to agree with.
    def grow(tensors: dict[str, Any]) -> None:
        tensors["stack/layers/block/hadamard_mlp/d1"][:] = 3e38
        tensors["stack/layers/block/hadamard_mlp/d3"][:] = 3e38

    path = write_checkpoint(tmp_path / "c.safetensors", change=grow)
    with pytest.raises(VerificationError, match="the reference's own logits are NaN or infinite"):
        export(Export(checkpoint=path, depth=2, output=tmp_path / "out"))
    assert_nothing_in(tmp_path / "out")


# Places that cannot be written.


def test_an_existing_bundle_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    old = tmp_path / "small-d2-host-fp32"
    old.mkdir()
    (old / "mine").write_text("precious", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"exists already, and is kept\. Give --force"):
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path))
    assert [path.name for path in tmp_path.rglob("*")] == ["small-d2-host-fp32", "mine"]
    export(Export(checkpoint=checkpoint, depth=2, output=tmp_path, force=True))
    assert set(contents(old)) == GRAPHS | PAPERS
    assert [path.name for path in tmp_path.iterdir()] == [old.name]


def test_an_existing_bundle_survives_a_failing_force(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "small-d2-host-fp32"
    old.mkdir()
    (old / "mine").write_text("precious", encoding="utf-8")

    def refuse(*_: object) -> Report:
        raise VerificationError("no")

    monkeypatch.setattr(Static, "verify", refuse)
    with pytest.raises(VerificationError):
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path, force=True))
    assert [path.name for path in tmp_path.rglob("*")] == ["small-d2-host-fp32", "mine"]


@pytest.mark.parametrize("inner", ["", "deeper"])
def test_a_file_in_the_place_of_the_folder(inner: str, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(OutputError, match=r"cannot be written .*Choose another place with --output"):
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path / "file" / inner))
    assert (tmp_path / "file").read_text("utf-8") == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(OutputError, match="Permission denied"):
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path / "locked"))


@pytest.mark.parametrize("after", [0, 3, 40])
def test_a_disk_that_gets_full_leaves_nothing(
    after: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = WeightFile._write  # noqa: SLF001

    def full(self: WeightFile, data: bytes | memoryview) -> None:
        written.append(data)
        if len(written) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(WeightFile, "_write", full)
    with pytest.raises(OutputError) as caught:
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path / "out"))
    output = tmp_path / "out" / "small-d2-host-fp32"
    assert str(caught.value) == (
        f"{output}: the disk is full. Free space there, or choose another place with --output."
    )
    assert caught.value.exit_code == 8
    assert_nothing_in(tmp_path / "out")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where one may be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)  # noqa: S603, S607


@pytest.mark.parametrize("archive", [False, True])
def test_a_small_disk_is_really_full(*, archive: bool, small_disk: Path) -> None:
    request = Export(checkpoint=oracle("tiny").checkpoint, depth=6, output=small_disk, archive=archive)
    with pytest.raises(OutputError, match=r"the disk is full\. Free space there"):
        export(request)
    assert_nothing_in(small_disk)


# Without the reference.


def _no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (module, forms):
        monkeypatch.setattr(user, "has_reference", lambda: False)


def test_an_export_without_pytorch_is_marked_unverified(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_reference(monkeypatch)
    result = export(Export(checkpoint=checkpoint, depth=2, output=tmp_path))
    assert result.report.against is None
    verification = check_sums(result.path)["verification"]
    assert (verification["status"], verification["against"], verification["witness"]) == (
        "unverified",
        None,
        [],
    )


def test_an_unverified_export_is_refused_on_request(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_reference(monkeypatch)
    with pytest.raises(
        ReferenceUnavailableError, match="there is no PyTorch here to run the reference"
    ) as caught:
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path / "out", require_verified=True))
    assert caught.value.exit_code == 7
    assert_nothing_in(tmp_path / "out")


def _case() -> StoredCase:
    sliced = slice_ladder(small_ladder(), 2)
    tokens = passages_of(sliced.config)[0].tokens
    logits = reference_logits(sliced, tokens)
    return StoredCase(tokens, tuple(range(len(tokens))), logits, reference_heads(sliced, tokens))


def test_a_stored_case_stands_in_for_the_reference(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_reference(monkeypatch)
    case, identity = _case(), fingerprint(slice_ladder(small_ladder(), 2))
    monkeypatch.setattr(stored, "stored_case", {identity: case}.get)
    result = export(Export(checkpoint=checkpoint, depth=2, output=tmp_path, require_verified=True))
    assert result.report.against == "stored cases"
    assert check_sums(result.path)["verification"]["status"] == "verified"
    other = export(Export(checkpoint=checkpoint, depth=3, output=tmp_path))
    assert other.report.against is None


def test_a_stored_case_that_disagrees_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_reference(monkeypatch)
    case = _case()
    case.logits[4, 5] += 1
    monkeypatch.setattr(stored, "stored_case", lambda _: case)
    with pytest.raises(VerificationError, match="fails the fidelity check"):
        export(Export(checkpoint=checkpoint, depth=2, output=tmp_path / "out"))
    assert_nothing_in(tmp_path / "out")


def _in_a_process_of_its_own(program: str) -> subprocess.CompletedProcess[str]:
    root = Path(module.__file__).parents[1]
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root
    )


def test_no_export_needs_pytorch(checkpoint: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from exporter.cli import main
main(["--checkpoint", {str(checkpoint)!r}, "--depth", "2", "--output", {str(tmp_path / "out")!r}])
"""
    found = _in_a_process_of_its_own(program)
    assert found.returncode == 0, found.stderr
    assert "UNVERIFIED" in found.stderr
    assert found.stdout == f"{tmp_path / 'out' / 'small-d2-host-fp32'}\n"


def test_a_failing_export_ends_with_its_own_code(tmp_path: Path) -> None:
    # However far the import of PyTorch beside it has got.
    def poison(tensors: dict[str, Any]) -> None:
        tensors["stack/final_norm/scale"][0] = np.nan

    path = write_checkpoint(tmp_path / "c.safetensors", change=poison)
    program = f"""
from exporter.cli import main
main(["--checkpoint", {str(path)!r}, "--depth", "2", "--output", {str(tmp_path / "out")!r}])
"""
    found = _in_a_process_of_its_own(program)
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr.startswith("error: tensor 'stack/final_norm/scale' holds 1 values that are NaN")
    assert_nothing_in(tmp_path / "out")


def test_the_ladder_in_memory_was_not_changed_by_all_this(checkpoint: Path) -> None:
    saved = Checkpoint(checkpoint)
    for name, values in tensors_of(small_ladder()).items():
        assert np.array_equal(saved.read(name), values)
