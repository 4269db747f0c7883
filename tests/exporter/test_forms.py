"""The forms of a bundle: chosen blocks, and rungs that share their weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from click.testing import Result

from exporter.bundle import check_sums, write_sums
from exporter.errors import BlocksError, DepthError, TamperedBundleError, VerificationError
from exporter.forms import Elastic, Shared, Static
from exporter.ladder import keep_blocks, plan_blocks, plan_slice, selection_order, slice_ladder
from exporter.passages import run_sizes
from exporter.precision import PRECISIONS, plan_precision
from exporter.recheck import recheck
from exporter.session import GraphSession
from exporter.weights import WeightFile
from tests.helpers import build, geometry, small_ladder

Run = Callable[..., Result]

TOKENS = tuple(range(2, 22))


def test_a_rung_is_the_slice_of_its_blocks() -> None:
    config = geometry(num_layers=9)
    for depth in range(2, 10):
        assert plan_slice(config, depth) == plan_blocks(config, sorted(selection_order(9)[:depth]))


def test_a_plan_of_blocks_beyond_the_ladder() -> None:
    plan = plan_blocks(geometry(num_layers=9), (0, 1, 3, 8))
    assert (plan.depth, plan.parent_depth, plan.lanes) == (4, 9, (0, 1, 2, 3))
    assert plan.sites == (0, 1)
    assert plan.engram_layers == (1, 2)
    assert plan.head_rows == (0, 1, 2, 4, 9)
    # 0 8 4 2 6 1 3 5 7, in numbers of the slice.
    assert plan.ladder_order == (0, 3, 1, 2)


@pytest.mark.parametrize("blocks", [(), (0,), (0, 3), (1, 4), (0, 2, 2, 4), (0, 3, 2, 4), (0, 5), (-1, 0, 4)])
def test_a_set_that_no_slice_keeps(blocks: tuple[int, ...]) -> None:
    with pytest.raises(BlocksError, match="from 0 to 4"):
        plan_blocks(geometry(), blocks)


def test_slices_of_slices_say_where_values_come_from() -> None:
    ladder = small_ladder()
    once = keep_blocks(ladder, (0, 1, 3, 4))
    twice, direct = keep_blocks(once, (0, 2, 3)), keep_blocks(ladder, (0, 3, 4))
    for name in ("stack/mhc_a_pre", "stack/layers/block/attn_gate"):
        assert [twice.address(name, row) for row in range(3)] == [
            direct.address(name, row) for row in range(3)
        ]
    assert twice.address("engrams_0/taps") == "engrams_1/taps" == direct.address("engrams_0/taps")
    gain = "router_head/gain"
    assert twice.address(gain) != once.address(gain)
    assert once.address("embedding/embedding") == "embedding/embedding"


class Rungs(NamedTuple):
    """A shared bundle, without its description."""

    folder: Path
    form: Shared
    precision: str
    file: WeightFile


@pytest.fixture(scope="module", params=["fp32", "int4"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rungs:
    """Rungs 2, 3 and 5 of the small ladder."""
    deepest = slice_ladder(small_ladder(), 5)
    form = Shared(deepest, (slice_ladder(deepest, 2), slice_ladder(deepest, 3)))
    plan = plan_precision(deepest.config, deepest.layout, PRECISIONS[request.param])
    folder = tmp_path_factory.mktemp("shared")
    return Rungs(folder, form, request.param, form.build(folder, plan, all_logits=False))


def test_a_rung_over_shared_weights_is_its_static_slice(shared: Rungs, tmp_path: Path) -> None:
    sizes = run_sizes(len(TOKENS))["chunks"]
    for rung in shared.form.others:
        own = tmp_path / str(rung.plan.depth)
        own.mkdir()
        static = build(own, small_ladder(), shared.precision, depth=rung.plan.depth)
        got = (
            GraphSession(shared.folder / f"model-d{rung.plan.depth}.onnx", rung.config)
            .run(TOKENS, sizes)
            .logits
        )
        for token, logits in static.runs(TOKENS, sizes).items():
            np.testing.assert_allclose(got[token], logits, rtol=0, atol=1e-6)


def test_a_further_rung_adds_heads_rows_and_nothing_else(shared: Rungs, tmp_path: Path) -> None:
    folder, form, precision, file = shared
    alone = build(tmp_path, small_ladder(), precision, depth=5)
    added = (file.size - file.padding) - (alone.file.size - alone.file.padding)
    probes = sum(4 * rung.plan.depth * 4 * rung.config.d_model for rung in form.others)
    assert 0 < added < 3 * probes
    spans = {
        (entry.value, index)
        for index, name in enumerate(("model.onnx", "model-d2.onnx"))
        for tensor in onnx.load(folder / name, load_external_data=False).graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    }
    first, second = ({offset for offset, i in spans if i == index} for index in (0, 1))
    assert len(second - first) < 0.2 * len(second)


def test_the_description_lists_the_rungs(shared: Rungs) -> None:
    told = shared.form.describe(all_logits=False)
    assert told["graphs"]["decode"]["file"] == "model.onnx"
    assert told["graphs"]["score"]["file"] == "score.onnx"
    assert told["rungs"].keys() == {"2", "3"}
    rung = told["rungs"]["3"]
    assert rung["blocks"] == [0, 2, 4]
    assert rung["decode"]["file"] == "model-d3.onnx"
    assert rung["decode"]["logits"] == "kept"
    assert rung["readout"] == {"file": "readout-d3.onnx", "outputs": ["confidence"]}
    assert "score" not in rung
    assert "weights" not in rung


def test_names_of_bundles() -> None:
    ladder = small_ladder()
    deepest = slice_ladder(ladder, 4)
    assert Static(deepest).name == "d4"
    assert Static(keep_blocks(ladder, (0, 1, 4))).name == "b0-1-4"
    assert Static(keep_blocks(ladder, (0, 2, 4))).name == "d3"
    assert Elastic(deepest).name == "elastic-d4"
    assert Elastic(slice_ladder(ladder, 5)).name == "elastic"
    assert Shared(deepest, (slice_ladder(deepest, 2),)).name == "d2-4"


def test_rungs_are_exported_verified_and_checked_again(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depths", "4,2", "--output", tmp_path)
    assert result.exit_code == 0, result.output
    bundle = tmp_path / "small-d2-4-host-fp32"
    told = check_sums(bundle)
    assert set(told["verification"]["comparisons"]["arithmetic"]) == {
        f"depth {depth}: {way}" for depth in (2, 4) for way in ("prefill", "chunks", "steps")
    }
    assert recheck(bundle) is not None
    (bundle / "model-d2.onnx").unlink()
    with pytest.raises(TamperedBundleError, match=r"model-d2\.onnx"):
        recheck(bundle)


def test_a_witness_knows_every_rung(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    assert run("--checkpoint", checkpoint, "--depths", "2,4", "--output", tmp_path).exit_code == 0
    bundle = tmp_path / "small-d2-4-host-fp32"
    model = onnx.load(bundle / "model-d2.onnx", load_external_data=False)
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    next(attribute for attribute in node.attribute if attribute.name == "scale").f *= 1.5
    onnx.save(model, bundle / "model-d2.onnx")
    write_sums(bundle)
    with pytest.raises(VerificationError, match="witness"):
        recheck(bundle)


def test_an_elastic_bundle_is_exported_and_checked_again(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--elastic", "--depth", 4, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    bundle = tmp_path / "small-elastic-d4-host-fp32"
    told = json.loads((bundle / "bundle.json").read_text("utf-8"))
    assert told["elastic"]["depths"]["2"] == [0, 3]
    assert recheck(bundle) is not None


def test_chosen_blocks_are_exported(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--blocks", "0,1,4", "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert check_sums(tmp_path / "small-b0-1-4-host-fp32")["slice"]["blocks"] == [0, 1, 4]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--depth", 3, "--blocks", "0,4"),
        ("--depths", "2,3", "--blocks", "0,4"),
        ("--depths", "2,3", "--elastic"),
    ],
)
def test_what_contradicts_itself_is_refused(options: tuple[str | int, ...], run: Run, tmp_path: Path) -> None:
    result = run("export", *options, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "--depths" in result.output
    assert not (tmp_path / "out").exists()


def test_depths_that_are_no_rungs(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("--checkpoint", checkpoint, "--depths", "2,9", "--output", tmp_path)
    assert result.exit_code == DepthError.exit_code
    result = run("--checkpoint", checkpoint, "--blocks", "0,2", "--output", tmp_path)
    assert result.exit_code == BlocksError.exit_code
    assert "both of these among them" in result.output
