"""Scales and gains that were tuned for every depth at once, kept in a file and exported from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import Result
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from exporter.budget import Quantising
from exporter.checkpoint import Checkpoint
from exporter.errors import (
    ForeignRecoveryError,
    RecoveryMismatchError,
    ReferenceUnavailableError,
    VerificationError,
)
from exporter.examples import Example
from exporter.export import Export, build, export
from exporter.ladder import Ladder, slice_ladder
from exporter.layout import BLOCK, FINAL_NORM
from exporter.planning import Planning
from exporter.precision import PRECISIONS, PrecisionPlan, Scheme, StoredLadder, plan_precision
from exporter.quality import measure
from exporter.recover import recovered
from exporter.recovered import path_beside, read_recovered, save_recovered
from exporter.verify import verify_live
from golden.recovery import Recovery
from tests.helpers import Tensors, small_ladder, write_checkpoint

SEARCHED = replace(PRECISIONS["int4"], block=16)
SCHEME = replace(SEARCHED, quantiser="recovered")
QUERIES = f"{BLOCK}/self_attn/q_proj/kernel"
GAIN = f"{BLOCK}/post_attn_norm/scale"
ASKED = [Example((2, *range(first, first + 11 + first % 5)), 4, 9) for first in (5, 11, 17, 23, 30, 38, 44)]
"""What is tuned on."""

SHORT = Recovery(steps=30, batch=7, rate=5e-3, deep=3)


class Made(NamedTuple):
    """A checkpoint with its recovered weights."""

    checkpoint: Path
    file: Path
    before: PrecisionPlan
    after: PrecisionPlan


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("recovered")
    checkpoint = write_checkpoint(folder / "small.safetensors")
    lines = [json.dumps(example._asdict()) for example in ASKED]
    (folder / "calibration.jsonl").write_text("\n".join(lines), "utf-8")
    ladder, file = Checkpoint(checkpoint), folder / "small.int4.safetensors"
    before = plan_precision(ladder.config, ladder.layout, SEARCHED)
    after = recovered(before, ladder, ASKED, SHORT)
    save_recovered(file, ladder, after, SHORT.to_json())
    return Made(checkpoint, file, before, after)


def divergence(plan: PrecisionPlan, depth: int) -> float:
    def plans(ladder: Ladder) -> list[PrecisionPlan]:
        whole, own = (
            plan_precision(ladder.config, ladder.layout, scheme) for scheme in (PRECISIONS["fp32"], SEARCHED)
        )
        return [whole, own.inherited(plan, slice_ladder(small_ladder(), depth))]

    return measure(small_ladder(), [depth], plans, ASKED)[1].kl


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_every_depth_answers_more_like_float32(depth: int, made: Made) -> None:
    assert divergence(made.after, depth) < 0.8 * divergence(made.before, depth)


def test_codes_stay_and_heads_are_left_alone(made: Made) -> None:
    ladder, stored = small_ladder(), load_file(made.file)
    assert not any("_head/" in name for name in stored)
    for row in range(ladder.config.num_layers):
        found = made.before.quantise(QUERIES, np.ascontiguousarray(ladder.read(QUERIES, row).T), row)
        assert np.array_equal(stored[f"{QUERIES}.codes"][row], found.codes)
        assert not np.array_equal(stored[f"{QUERIES}.scales"][row], found.scales)
    table = ladder.read("engrams_1/embedding")
    found = made.before.quantise("engrams_1/embedding", table.reshape(-1, table.shape[-1]))
    assert np.array_equal(stored["engrams_1/embedding.codes"][0], found.codes)
    for name in (GAIN, FINAL_NORM):
        assert stored[name].dtype == np.float16
        assert not np.array_equal(stored[name], ladder.read(name).astype(np.float16))


@pytest.mark.parametrize("depth", [2, 4, 5])
def test_a_slice_is_stored_as_the_whole_ladder_is(depth: int, made: Made) -> None:
    ladder = Checkpoint(made.checkpoint)
    whole = StoredLadder(ladder, read_recovered(made.file, ladder, SCHEME))
    sliced = slice_ladder(ladder, depth)
    [plan] = Planning(made.checkpoint).informed(
        [plan_precision(sliced.config, sliced.layout, SCHEME)], sliced
    )
    own = StoredLadder(sliced, plan)
    then = slice_ladder(whole, depth)
    for name, spec in own.layout.items():
        if "_head/" not in name:
            assert np.array_equal(own.read(name), then.read(name)), name
            if spec.axis == "blocks":
                assert np.array_equal(own.read(name, depth - 1), then.read(name, depth - 1)), name
    indices = [4, 0, 4]
    for name in own.layout:
        if name.endswith("/embedding") and name.startswith("engrams_"):
            assert np.array_equal(own.gather(name, 1, indices), then.gather(name, 1, indices))


@pytest.mark.parametrize(
    "options",
    [{"depth": 4}, {"blocks": (0, 1, 4)}, {"depths": (3, 5)}, {"elastic": True}],
    ids=["a rung", "blocks", "rungs", "elastic"],
)
def test_every_form_is_exported_from_it_and_verified(
    options: dict[str, Any], made: Made, tmp_path: Path
) -> None:
    request = Export(
        checkpoint=made.checkpoint,
        **options,
        precision="int4",
        quantising=Quantising("recovered", 16),
        require_verified=True,
        output=tmp_path,
    )
    result = export(request)
    assert result.report.comparisons["arithmetic"]
    told = json.loads((result.path / "bundle.json").read_text("utf-8"))
    assert told["precision"]["scheme"]["quantiser"] == "recovered"
    file = path_beside(made.checkpoint, "int4")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert told["source"]["recovered"] == {"name": file.name, "sha256": digest}


# What is refused.


def changed(made: Made, folder: Path, change: Callable[[Tensors], object], **entries: str) -> Path:
    """A copy of the file with other contents."""
    tensors, file = load_file(made.file), folder / "changed.safetensors"
    change(tensors)
    with safe_open(made.file, framework="numpy") as whole:
        save_file(tensors, file, {**whole.metadata(), **entries})
    return file


def permute(tensors: Tensors) -> None:
    scales = tensors[f"{QUERIES}.scales"]
    scales[2] = scales[2, ::-1].copy()


@pytest.mark.parametrize(
    "change",
    [
        permute,
        lambda tensors: tensors.pop(FINAL_NORM),
        lambda tensors: tensors.update({GAIN: tensors[GAIN].astype(np.float32)}),
        lambda tensors: tensors.update({"more": tensors[GAIN]}),
    ],
    ids=["scales of other rows", "one missing", "another type", "one more"],
)
def test_damage_is_seen(change: Callable[[Tensors], object], made: Made, tmp_path: Path) -> None:
    with pytest.raises(ForeignRecoveryError, match="is damaged"):
        read_recovered(changed(made, tmp_path, change), Checkpoint(made.checkpoint), SCHEME)


def test_a_graph_of_other_scales_is_seen(made: Made, tmp_path: Path) -> None:
    ladder = small_ladder()
    build(tmp_path, ladder, made.after)
    verify_live(tmp_path, ladder, made.after)
    right = made.after.known[QUERIES, 2]
    wrong = replace(right, scales=np.ascontiguousarray(right.scales[::-1]))
    with pytest.raises(VerificationError, match="fails the arithmetic check"):
        verify_live(tmp_path, ladder, replace(made.after, known={**made.after.known, (QUERIES, 2): wrong}))
    tuned = dict(made.after.tuned)
    tuned[GAIN, 2] = tuned[GAIN, 2][::-1]
    with pytest.raises(VerificationError, match="fails the arithmetic check"):
        verify_live(tmp_path, ladder, replace(made.after, tuned=tuned))


def test_another_ladder_is_refused(made: Made, tmp_path: Path) -> None:
    def nudge(tensors: Tensors) -> None:
        tensors[FINAL_NORM][3] += 0.125

    other = Checkpoint(write_checkpoint(tmp_path / "other.safetensors", change=nudge))
    with pytest.raises(RecoveryMismatchError, match="another ladder") as caught:
        read_recovered(made.file, other, SCHEME)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (PRECISIONS["int8"], "has bits 4, and 8 is asked for. Ask for int4 with --block 16"),
        (PRECISIONS["int4"], "has block 16, and 32 is asked for"),
        (replace(SCHEME, zero_points=True), "has zero_points False, and True"),
    ],
)
def test_another_way_to_store_is_refused(scheme: Scheme, said: str, made: Made) -> None:
    with pytest.raises(RecoveryMismatchError, match=said):
        read_recovered(made.file, Checkpoint(made.checkpoint), scheme)


def test_a_file_of_something_else_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ForeignRecoveryError, match="holds no recovered weights"):
        read_recovered(made.checkpoint, Checkpoint(made.checkpoint), SCHEME)
    newer = changed(made, tmp_path, lambda _: None, recovered="2")
    with pytest.raises(ForeignRecoveryError, match="of version 1"):
        read_recovered(newer, Checkpoint(made.checkpoint), SCHEME)


def test_without_pytorch_nothing_is_recovered(monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    monkeypatch.setattr("exporter.verify.has_reference", lambda: False)
    with pytest.raises(ReferenceUnavailableError, match="install the extra 'verify'"):
        recovered(made.before, small_ladder(), ASKED, SHORT)


# The command line.


def test_what_is_recovered_is_exported_and_measured(
    run: Callable[..., Result], made: Made, tmp_path: Path
) -> None:
    given = ("--checkpoint", made.checkpoint, "--precision", "int4", "--block", 16)
    file = tmp_path / "again.safetensors"
    result = run("recover", *given, "--steps", 2, "--output", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}\n"), result.output
    kept = run("recover", *given, "--steps", 2, "--output", file)
    assert (kept.exit_code, "--force" in kept.stderr) == (8, True)
    first = load_file(file)
    assert file.stat().st_mode & 0o777 == 0o644
    assert run("recover", *given, "--steps", 2, "--output", file, "--force").exit_code == 0
    again = load_file(file)
    assert all(np.array_equal(again[name], values) for name, values in first.items())
    exported = ("--depth", 3, "--quantiser", "recovered", "--recovered", file)
    result = run("export", *given, *exported, "--output", tmp_path)
    assert result.exit_code == 0, result.output


def test_where_there_is_none_it_says_how_to_make_one(run: Callable[..., Result], checkpoint: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depth", 3, "--precision", "int4", "--quantiser", "recovered")
    assert result.exit_code == 6
    assert "small.int4.safetensors: there are no recovered weights there" in result.stderr
    assert "python -m exporter recover" in result.stderr


def test_there_is_nothing_to_recover_of_floats(run: Callable[..., Result], made: Made) -> None:
    for options in (("--precision", "fp16"), ("--quantiser", "recovered")):
        result = run("recover", "--checkpoint", made.checkpoint, *options)
        assert result.exit_code == 6
        assert "nothing to recover" in result.stderr


def test_mixed_widths_are_not_recovered(run: Callable[..., Result], made: Made) -> None:
    given = ("--checkpoint", made.checkpoint, "--depth", 3, "--precision", "mixed", "--budget", "1MB")
    result = run(*given, "--quantiser", "recovered")
    assert result.exit_code == 6
    assert "recovered weights have one width" in result.stderr
