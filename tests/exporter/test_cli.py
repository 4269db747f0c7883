"""The command line: what it prints where, and the exit code of every failure."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import save_file

import targets
from exporter import export as module
from exporter import forms
from exporter.bundle import files_of, write_sums
from exporter.checkpoint import Checkpoint
from exporter.inspect import inspect
from exporter.layout import PROJECTIONS
from exporter.precision import PRECISIONS
from exporter.verify import MODEL
from exporter.weights import WeightFile
from golden.cases import adapter_case, oracle
from tests.exporter.bad import BAD, BROKEN_NUMBERS
from tests.helpers import write_checkpoint

Run = Callable[..., Result]


def assert_refused(result: Result, code: int, *texts: str) -> None:
    """One line of error, no traceback, nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr


def assert_nothing_in(folder: Path) -> None:
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_was_exported_is_verified(precision: str, run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run(
        "export", "--checkpoint", checkpoint, "--depth", 2, "--precision", precision, "--output", tmp_path
    )
    assert result.exit_code == 0, result.output
    path = tmp_path / f"small-d2-host-{precision}"
    # The path comes last, so that a script can take it.
    assert result.stdout == f"{path}\n"
    assert "verified against the reference: logits within " in result.stderr
    assert (path / MODEL).exists()
    checked = run("verify", path)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.startswith(f"{path}: files intact; logits within ")


def test_how_to_quantise_is_the_users_choice(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run(
        *("--checkpoint", checkpoint, "--depth", 2, "--precision", "int4", "--require-verified"),
        *("--quantiser", "rtn", "--block", 16, "--zero-points", "--output", tmp_path),
    )
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "small-d2-host-int4" / "bundle.json").read_text("utf-8"))["precision"]
    scheme = {key: told["scheme"][key] for key in ("quantiser", "block", "zero_points")}
    assert scheme == {"quantiser": "rtn", "block": 16, "zero_points": True}
    assert "int4 block 16 with zero points" in told["storage"]


def test_export_is_the_default_command(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--depth", 2, "--checkpoint", checkpoint, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'small-d2-host-fp32'}\n"


def test_a_target_brings_its_precision(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--depth", 2, "--checkpoint", checkpoint, "--target", "rpi4", "--output", tmp_path)
    assert result.stdout == f"{tmp_path / 'small-d2-rpi4-int4'}\n"


def test_progress_is_silent_where_stderr_is_no_terminal(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--depth", 2, "--checkpoint", checkpoint, "--output", tmp_path)
    assert "..." not in result.stderr


def test_the_module_runs(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "exporter", "inspect", str(checkpoint), "--json"]
    root = Path(module.__file__).parents[1]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)  # noqa: S603
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["file"] == "small.safetensors"


# What is refused.


@pytest.mark.parametrize("name", [*BAD, *BROKEN_NUMBERS])
def test_a_bad_checkpoint(name: str, run: Run, tmp_path: Path) -> None:
    bad = {**BAD, **BROKEN_NUMBERS}[name]
    path = bad.make(tmp_path / "bad.safetensors")
    result = run("--checkpoint", path, "--depth", 5, "--output", tmp_path / "out")
    assert_refused(result, 3, *bad.texts)
    assert_nothing_in(tmp_path / "out")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", BAD)
def test_inspect_refuses_a_bad_checkpoint(name: str, run: Run, tmp_path: Path) -> None:
    assert_refused(run("inspect", BAD[name].make(tmp_path / "bad.safetensors")), 3, *BAD[name].texts)


@pytest.mark.parametrize("depth", [-1, 0, 1, 6, 99])
def test_a_depth_off_the_ladder(depth: int, run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depth", depth, "--output", tmp_path / "out")
    assert_refused(result, 4, f"error: depth {depth} is not on this ladder: choose one from 2 to 5.")
    assert_nothing_in(tmp_path / "out")
    assert_refused(run("inspect", checkpoint, "--depth", depth), 4, "choose one from 2 to 5")


@pytest.mark.parametrize(
    "arguments", [["--depths", "2,x"], ["--depth", "six"], ["--depth", "2.5"], ["--depth", "2", "--made-up"]]
)
def test_wrong_usage_is_clicks_own(arguments: list[str], run: Run, tmp_path: Path) -> None:
    result = run("--output", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert_nothing_in(tmp_path / "out")


def test_no_argument_asks_for_a_depth(run: Run) -> None:
    result = run()
    assert result.exit_code == 2
    assert "say what to export with one of --depth, --depths and --blocks" in result.stderr


@pytest.mark.parametrize("name", ["toaster", "rpi-4"])
def test_an_unknown_target(name: str, run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depth", 2, "--target", name, "--output", tmp_path / "out")
    assert_refused(result, 10, repr(name), ", ".join(targets.names()))
    assert_nothing_in(tmp_path / "out")
    assert_refused(run("targets", name), 10, repr(name))


def test_a_broken_profile(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("name = 3", encoding="utf-8")
    result = run("--checkpoint", checkpoint, "--depth", 2, "--target", path, "--output", tmp_path / "out")
    assert_refused(result, 10, str(path))
    assert_nothing_in(tmp_path / "out")


def test_an_unknown_precision(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run(
        "--checkpoint", checkpoint, "--depth", 2, "--precision", "int3", "--output", tmp_path / "out"
    )
    assert_refused(
        result, 6, "precision 'int3' is not one that target 'host' takes: choose fp32, fp16, int8, int4."
    )
    assert_nothing_in(tmp_path / "out")


def test_a_value_beyond_float16(run: Run, tmp_path: Path) -> None:
    def grow(tensors: dict[str, Any]) -> None:
        tensors["stack/final_norm/scale"][3] = 1e6

    path = write_checkpoint(tmp_path / "c.safetensors", change=grow)
    result = run("--checkpoint", path, "--depth", 2, "--precision", "fp16", "--output", tmp_path / "out")
    assert_refused(result, 6, "beyond float16: export with --precision fp32")
    assert_nothing_in(tmp_path / "out")


def test_an_adapter_of_another_base(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    adapter = adapter_case().adapter
    result = run("--checkpoint", checkpoint, "--depth", 2, "--lora", adapter, "--output", tmp_path / "out")
    assert_refused(result, 5, str(adapter), "trained on another base", "A [20, 64, 4]", "make [5, 32, 24]")
    assert_nothing_in(tmp_path / "out")


def test_a_checkpoint_given_as_adapter(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depth", 2, "--lora", checkpoint, "--output", tmp_path / "out")
    assert_refused(result, 5, "not a LoRA adapter", "A checkpoint is given as --checkpoint.")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_adapter_that_diverged(value: float, run: Run, checkpoint: Path, tmp_path: Path) -> None:
    target, path = PROJECTIONS[0], tmp_path / "a.safetensors"
    pair = {
        f"lora/{target}/A": np.ones((5, 32, 1), np.float32),
        f"lora/{target}/B": np.ones((5, 1, 24), np.float32),
    }
    pair[f"lora/{target}/B"][2, 0, 3] = value
    save_file(pair, path, {"scale": "1.0"})
    result = run("--checkpoint", checkpoint, "--depth", 2, "--lora", path, "--output", tmp_path / "out")
    assert_refused(result, 3, "holds NaN or infinity. Use an adapter from before its training diverged.")
    assert_nothing_in(tmp_path / "out")


def test_a_zero_adapter_is_a_line_on_stderr(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    target, path = PROJECTIONS[0], tmp_path / "a.safetensors"
    pair = {
        f"lora/{target}/A": np.ones((5, 32, 1), np.float32),
        f"lora/{target}/B": np.zeros((5, 1, 24), np.float32),
    }
    save_file(pair, path, {"scale": "1.0"})
    result = run("--checkpoint", checkpoint, "--depth", 2, "--lora", path, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(
        f"warning: {path}: every A or B is zero, so this adapter changes nothing.\n"
    )


def test_a_foreign_tokenizer(run: Run, checkpoint: Path, tokenizer: Path, tmp_path: Path) -> None:
    tokenizer.write_text('{"model": {"vocab": {"a": 500}}, "added_tokens": []}', encoding="utf-8")
    result = run(
        "--checkpoint", checkpoint, "--depth", 2, "--tokenizer", tokenizer, "--output", tmp_path / "out"
    )
    assert_refused(result, 3, "has a piece with id 500")
    assert_nothing_in(tmp_path / "out")


def test_a_file_in_the_place_of_the_output(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for output in (tmp_path / "file", tmp_path / "file" / "deeper"):
        result = run("--checkpoint", checkpoint, "--depth", 2, "--output", output)
        assert_refused(result, 8, "cannot be written", "Choose another place with --output.")
    assert (tmp_path / "file").read_text("utf-8") == "mine"


def test_a_full_disk(run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(WeightFile, "_write", full)
    result = run("--checkpoint", checkpoint, "--depth", 2, "--output", tmp_path / "out")
    assert_refused(result, 8, "the disk is full. Free space there, or choose another place with --output.")
    assert_nothing_in(tmp_path / "out")


def test_an_existing_bundle_is_kept_unless_forced(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "small-d2-host-fp32"
    path.mkdir()
    (path / "mine").write_text("precious", encoding="utf-8")
    arguments = ("--checkpoint", checkpoint, "--depth", 2, "--output", tmp_path)
    assert_refused(run(*arguments), 8, f"{path}: exists already, and is kept. Give --force to replace it")
    assert (path / "mine").read_text("utf-8") == "precious"
    assert run(*arguments, "--force").exit_code == 0
    assert not (path / "mine").exists()
    assert run("verify", path).exit_code == 0


# Without the reference.


def test_an_unverified_export_says_so(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in (module, forms):
        monkeypatch.setattr(user, "has_reference", lambda: False)
    result = run("--checkpoint", checkpoint, "--depth", 2, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert "UNVERIFIED: there is no PyTorch here to run the reference" in result.stderr
    assert "Install the extra 'verify' and export again." in result.stderr
    checked = run("verify", tmp_path / "small-d2-host-fp32")
    assert checked.exit_code == 0
    assert "its numbers were never verified, and carry no witness" in checked.stdout
    refused = run(
        "--checkpoint", checkpoint, "--depth", 3, "--output", tmp_path / "out", "--require-verified"
    )
    assert_refused(refused, 7, "Install the extra 'verify', or drop --require-verified.")
    assert_nothing_in(tmp_path / "out")


# Bundles.


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the small ladder, not to be changed."""
    output = tmp_path_factory.mktemp("made")
    return module.export(module.Export(checkpoint=checkpoint, depth=2, output=output)).path


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / made.name
    for name in files_of(made):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((made / name).read_bytes())
    return copy


@pytest.mark.parametrize("name", ["weights.bin", "model.onnx", "score.onnx", "bundle.json"])
def test_verify_names_the_file_that_was_altered(name: str, run: Run, bundle: Path) -> None:
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(data)
    result = run("verify", bundle)
    assert result.exit_code == 9
    # A description that is no JSON any more is no bundle's.
    assert f"{bundle / name}: differs from it" in result.stderr or name == "bundle.json"


def test_verify_names_what_is_missing_and_what_is_extra(run: Run, bundle: Path) -> None:
    (bundle / "extra.bin").write_bytes(b"x")
    assert_refused(run("verify", bundle), 9, f"{bundle / 'extra.bin'}: is not listed in it (SHA256SUMS)")
    (bundle / "extra.bin").unlink()
    (bundle / "weights.bin").unlink()
    assert_refused(run("verify", bundle), 9, f"{bundle / 'weights.bin'}: is missing (SHA256SUMS)")


def test_verify_runs_the_graph_where_the_sums_were_made_to_fit(run: Run, bundle: Path) -> None:
    told = json.loads((bundle / "bundle.json").read_text("utf-8"))
    told["verification"]["witness"][0]["positions"][0]["logits"][0] += 1.0
    (bundle / "bundle.json").write_text(json.dumps(told), encoding="utf-8")
    (bundle / "SHA256SUMS").unlink()
    write_sums(bundle)
    assert_refused(run("verify", bundle), 7, "on the bundle's own witness its logits differ")


@pytest.mark.parametrize("kind", ["nothing", "a file", "an empty folder"])
def test_verify_refuses_what_is_no_bundle(kind: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "given"
    if kind == "a file":
        path.write_text("no bundle", encoding="utf-8")
    elif kind == "an empty folder":
        path.mkdir()
    assert_refused(run("verify", path), 9, str(path))


def test_an_archive_is_written_and_verified(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depth", 2, "--archive", "--output", tmp_path)
    path = tmp_path / "small-d2-host-fp32.tar.gz"
    assert result.stdout == f"{path}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    checked = run("verify", path)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.startswith(f"{path}: files intact")
    path.write_bytes(path.read_bytes()[:-100])
    assert run("verify", path).exit_code == 9


# Telling.


def test_inspect_tells_a_checkpoint(run: Run) -> None:
    result = run("inspect", oracle("tiny").checkpoint, "--depth", 6)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "tiny.safetensors: 20 blocks, width 64, vocabulary 256, F32, heads: confidence, embedding, router"
    )
    assert "  sliding_window       8" in lines
    assert "  global_layers        4 9 14 19" in lines
    assert "  ladder_order         -" in lines
    assert "slice to depth 6" in lines
    assert "  blocks               0 4 6 9 14 19" in lines
    rows = [line for line in lines if line.split() and line.split()[0].isdigit()]
    assert [int(row.split()[0]) for row in rows] == list(range(2, 21))


def test_inspect_as_json_is_what_there_is(run: Run) -> None:
    path = oracle("wide").checkpoint
    result = run("inspect", path, "--json", "--depth", 3)
    told = json.loads(result.stdout)
    assert told == inspect(Checkpoint(path), 3)
    assert told["heads"] == ["confidence", "embedding", "router"]
    assert told["dtypes"] == ["F32"]
    assert told["slice"]["blocks"] == [0, 9, 19]
    assert "slice" not in json.loads(run("inspect", path, "--json").stdout)
    opened = Checkpoint(path)
    assert told["parameters"]["20"]["total"] == sum(spec.size for spec in opened.layout.values())
    for counts in told["parameters"].values():
        assert counts["total"] == sum(count for part, count in counts.items() if part != "total")


def test_inspect_reads_no_tensor(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path / "c.safetensors")
    monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("a tensor was read"))
    assert run("inspect", path, "--depth", 3).exit_code == 0


def test_targets_are_listed(run: Run) -> None:
    result = run("targets")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(targets.names())


@pytest.mark.parametrize("name", targets.names())
def test_a_target_is_shown(name: str, run: Run) -> None:
    result = run("targets", name)
    profile = targets.load(name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name}: {profile.description}\n")
    for text in (profile.onnxruntime.floor, profile.precision.default, profile.archive):
        assert text in result.stdout


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_commands_and_exit_codes(option: str, run: Run) -> None:
    result = run(option)
    assert result.exit_code == 0
    told = " ".join(result.stdout.split())
    for text in (
        "Exit codes: 2 usage, 3 checkpoint, 4 depth",
        "7 verification",
        "export",
        "inspect",
        "targets",
    ):
        assert text in told


@pytest.mark.parametrize("command", ["export", "inspect", "verify", "targets"])
def test_every_command_has_help(command: str, run: Run) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: exporter {command}")


def test_the_version_is_that_of_the_package(run: Run) -> None:
    try:
        installed = version("needle-ladder-export")
    except PackageNotFoundError:
        pytest.skip("the package is not installed")
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"exporter, version {installed}\n"


@pytest.mark.parametrize("missing", ["graphs", "verification", "precision", "configuration"])
def test_a_description_that_lacks_a_part_is_no_bundle(
    missing: str, checkpoint: Path, run: Callable[..., Result], tmp_path: Path
) -> None:
    exported = run("--checkpoint", checkpoint, "--depth", 2, "--output", tmp_path)
    bundle = Path(exported.stdout.strip().splitlines()[-1])
    path = bundle / "bundle.json"
    description = json.loads(path.read_text("utf-8"))
    del description[missing]
    path.write_text(json.dumps(description), encoding="utf-8")
    (bundle / "SHA256SUMS").unlink()
    write_sums(bundle)
    verified = run("verify", bundle)
    assert verified.exit_code == 9
    assert f"lacks or garbles what a check needs (KeyError('{missing}'))" in verified.stderr
