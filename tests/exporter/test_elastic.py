"""Graphs whose blocks may stand idle: equal to the slice of those that run, refused where they are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporter.errors import VerificationError
from exporter.forms import Elastic
from exporter.graph import state_contract
from exporter.graph.contract import present_of
from exporter.ladder import SlicedLadder, keep_blocks, plan_slice, slice_ladder
from exporter.passages import MODEL, Passage, graphs_in, run_heads, run_sizes
from exporter.precision import PRECISIONS, PrecisionPlan, StoredLadder, plan_precision
from exporter.session import GraphSession, open_session
from golden.synthetic import SyntheticLadder
from tests.helpers import MemoryLadder, build, geometry, loaded, reference_heads, reference_logits

BLOCKS = 12
TOKENS = tuple(int(i) for i in np.random.default_rng(3).integers(1, 67, 24))
"""More than three windows of 7."""


@pytest.fixture(scope="module")
def ladder() -> MemoryLadder:
    """Twelve small blocks, three lanes, sites and global blocks all over."""
    sites, seeing = (1, 3, 4, 8, 11), (2, 5, 8, 11)
    config = geometry(num_layers=BLOCKS, engram_layers=sites, global_layers=seeing, mhc_lanes=3)
    return loaded(SyntheticLadder(config, seed=5))


class Bundle(NamedTuple):
    """The graphs of an elastic bundle, and what it holds."""

    folder: Path
    form: Elastic
    plan: PrecisionPlan
    sessions: dict[str, ort.InferenceSession]

    def logits(self, sliced: SlicedLadder) -> dict[int, Any]:
        """Logits [V] of a slice at the ends of uneven chunks, by number of the token."""
        session = GraphSession(self.sessions[MODEL], sliced.config, sliced.plan)
        return dict(session.run(TOKENS, run_sizes(len(TOKENS))["chunks"]).logits)


def make(folder: Path, ladder: MemoryLadder, precision: str) -> Bundle:
    form = Elastic(slice_ladder(ladder, BLOCKS))
    plan = plan_precision(ladder.config, form.ladder.layout, PRECISIONS[precision])
    form.build(folder, plan, all_logits=False)
    sessions = {name: open_session(path, threads=1) for name, path in graphs_in(folder).items()}
    return Bundle(folder, form, plan, sessions)


@pytest.fixture(scope="module")
def bundle(ladder: MemoryLadder, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """In float32."""
    return make(tmp_path_factory.mktemp("elastic"), ladder, "fp32")


@pytest.fixture(scope="module")
def headless(ladder: MemoryLadder, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same without probe heads, whose rows a runtime would count before any number is compared."""
    tensors = {name: value for name, value in ladder.tensors.items() if "_head/" not in name}
    return make(tmp_path_factory.mktemp("headless"), MemoryLadder(ladder.config, tensors), "fp32")


@pytest.fixture(scope="module", params=["int8", "int4"])
def rounded(
    request: pytest.FixtureRequest, ladder: MemoryLadder, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """In few bits."""
    return make(tmp_path_factory.mktemp(request.param), ladder, request.param)


def sets(count: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Different sets of blocks with both ends, of all sizes."""
    rng, found = np.random.default_rng(seed), set[tuple[int, ...]]()
    while len(found) < count:
        inner = np.flatnonzero(rng.random(BLOCKS - 2) < rng.random()) + 1
        blocks = (0, *(int(block) for block in inner), BLOCKS - 1)
        if blocks not in found:
            found.add(blocks)
            yield blocks


def assert_is_the_slice(bundle: Bundle, sliced: SlicedLadder) -> None:
    """Logits and heads are the reference's."""
    expected, outputs = reference_logits(sliced, TOKENS), reference_heads(sliced, TOKENS)
    for token, logits in bundle.logits(sliced).items():
        blocks = str(sliced.plan.blocks)
        np.testing.assert_allclose(logits, expected[token], rtol=0, atol=1e-5, err_msg=blocks)
    for _, heads in run_heads(bundle.sessions, sliced.config, Passage(TOKENS), sliced.plan):
        for head, value in heads.items():
            np.testing.assert_allclose(value, outputs[head], rtol=0, atol=1e-5)


def test_every_depth_is_the_references(bundle: Bundle, ladder: MemoryLadder) -> None:
    for depth in range(2, BLOCKS + 1):
        assert_is_the_slice(bundle, slice_ladder(ladder, depth))


def test_sets_beyond_the_ladder_are_the_references(bundle: Bundle, ladder: MemoryLadder) -> None:
    for blocks in sets(12, seed=1):
        assert_is_the_slice(bundle, keep_blocks(ladder, blocks))


@pytest.mark.slow
def test_two_hundred_sets_are_the_references(bundle: Bundle, ladder: MemoryLadder) -> None:
    for blocks in sets(200, seed=2):
        assert_is_the_slice(bundle, keep_blocks(ladder, blocks))


@pytest.mark.parametrize("depth", [2, 7, BLOCKS])
def test_in_few_bits_it_gives_what_the_static_slice_gives(
    rounded: Bundle, ladder: MemoryLadder, depth: int, tmp_path: Path
) -> None:
    static = build(tmp_path, ladder, rounded.plan.scheme, depth=depth)
    expected = static.runs(TOKENS, run_sizes(len(TOKENS))["chunks"])
    for token, logits in rounded.logits(slice_ladder(ladder, depth)).items():
        np.testing.assert_array_equal(logits, expected[token])


def values_of(path: Path) -> dict[str, bytes]:
    """Bytes of every weight of a graph, by name, those within branches too."""
    model, found = onnx.load(path, load_external_data=False), dict[str, bytes]()

    def visit(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                start, length = int(entries["offset"]), int(entries["length"])
                with (path.parent / entries["location"]).open("rb") as file:
                    file.seek(start)
                    found[tensor.name] = file.read(length)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    visit(attribute.g)

    visit(model.graph)
    return found


def test_its_weights_are_bit_for_bit_the_static_slices(
    rounded: Bundle, ladder: MemoryLadder, tmp_path: Path
) -> None:
    static = build(tmp_path, ladder, rounded.plan.scheme, depth=5)
    plan = plan_slice(ladder.config, 5)
    mine, theirs = values_of(rounded.folder / MODEL), values_of(static.model)
    compared = 0
    for name, value in theirs.items():
        parts = name.split(".")
        if parts[:2] == ["trunk", "blocks"]:
            parts[2] = str(plan.blocks[int(parts[2])])
        elif parts[:2] == ["trunk", "sites"]:
            parts[2] = str(plan.sites[int(parts[2])])
        if name.endswith("lanes.mix.bias") or name.startswith(("pooling", "confidence")):
            continue  # the own lane's is chosen while it runs; a head's rows are those of all blocks
        assert mine[".".join(parts)] == value, name
        compared += 1
    assert compared > 100


def test_it_is_hardly_larger_than_the_static_file(
    rounded: Bundle, ladder: MemoryLadder, tmp_path: Path
) -> None:
    static = build(tmp_path, ladder, rounded.plan.scheme, depth=BLOCKS)
    weights = [(folder / "weights.bin").stat().st_size for folder in (rounded.folder, static.folder)]
    assert weights[0] <= 1.03 * weights[1]


def test_an_idle_block_needs_no_memory_and_gives_its_state_back(bundle: Bundle, ladder: MemoryLadder) -> None:
    plan, session = plan_slice(ladder.config, 3), bundle.sessions[MODEL]
    contract = state_contract(ladder.config, ["confidence"])
    feeds: dict[str, Any] = {
        state.past: np.full(state.shape_for(len(plan.blocks)), state.fill, state.dtype) for state in contract
    }
    feeds |= {name: np.zeros(1, np.int64) for name in ("position", "cached_global", "cached_local")}
    active = np.isin(np.arange(BLOCKS), plan.blocks)
    feeds |= {"input_ids": np.array([TOKENS]), "active_blocks": active, "logits_kept": np.array([2])}
    names = [output.name for output in session.get_outputs()]
    present = dict(zip(names, session.run(names, feeds), strict=True))
    assert present["logits"].shape == (1, 2, ladder.config.logits_width)
    for state in contract:
        if state.grows is not None:
            assert state.block is not None
            filled = len(TOKENS) if active[state.block] else 0
            assert present[state.present].shape[state.grows] == filled
        elif state.rows is not None:
            assert present[state.present].shape[state.rows] == 4


def test_one_call_gives_as_many_logits_as_are_asked_for(bundle: Bundle, ladder: MemoryLadder) -> None:
    shapes = {value.name: value.shape for value in bundle.sessions[MODEL].get_outputs()}
    assert shapes["logits"] == [1, "kept", ladder.config.logits_width]


def test_the_description_says_which_blocks_make_a_depth(bundle: Bundle, ladder: MemoryLadder) -> None:
    told = bundle.form.describe(all_logits=False)
    assert told["elastic"]["input"] == "active_blocks"
    assert told["elastic"]["blocks"] == BLOCKS
    assert told["elastic"]["depths"]["5"] == list(plan_slice(ladder.config, 5).blocks)
    assert told["elastic"]["depths"].keys() == {str(depth) for depth in range(2, BLOCKS + 1)}
    for depth, blocks in told["elastic"]["depths"].items():
        assert blocks == sorted(told["elastic"]["order"][: int(depth)])
    states = {state["past"]: state["block"] for state in told["graphs"]["decode"]["states"]}
    assert states["past_key_values.7.key"] == 7
    assert states["past_engram.3"] == 8
    assert states["past_ids"] is None


def test_a_state_has_one_name_on_either_side() -> None:
    for state in state_contract(geometry(), ["confidence"]):
        assert present_of(state.past) == state.present


def test_it_is_verified_on_rungs_and_on_other_sets(rounded: Bundle) -> None:
    report = rounded.form.verify(rounded.folder, rounded.plan)
    ran = {way.split(":")[0] for way in report.comparisons["arithmetic"]}
    assert {"depth 2", "depth 7", f"depth {BLOCKS}"} <= ran
    assert sum(way.startswith("blocks") for way in ran) == 2
    assert report.comparisons.keys() == {"arithmetic", "activations", "fidelity"}
    assert all("blocks" in entry for entry in report.witness)


# What was done to a graph, and what notices.

Edit = Callable[[onnx.GraphProto], None]


def branches(graph: onnx.GraphProto, block: int) -> tuple[onnx.NodeProto, onnx.GraphProto]:
    """The If around a block, and what it does where that is idle."""
    node = next(n for n in graph.node if n.op_type == "If" and f"present.{block}.key" in n.output)
    return node, next(a.g for a in node.attribute if a.name == "else_branch")


def _lanes_by_block_number(graph: onnx.GraphProto) -> None:
    ones = onnx.numpy_helper.from_array(np.ones(BLOCKS, np.int64), "ones")
    graph.initializer.append(ones)
    next(node for node in graph.node if node.op_type == "CumSum").input[0] = "ones"


def _lanes_of_one_more(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "CumSum")
    next(a for a in node.attribute if a.name == "exclusive").i = 0


def _idle(block: int, state: str) -> Edit:
    def touch(graph: onnx.GraphProto) -> None:
        _, idle = branches(graph, block)
        next(node for node in idle.node if node.input[0] == state).op_type = "Neg"

    return touch


def _stream(graph: onnx.GraphProto) -> None:
    _, idle = branches(graph, 6)
    next(node for node in idle.node if not node.input[0].startswith("past_")).op_type = "Relu"


def _never_idle(block: int) -> Edit:
    def switch(graph: onnx.GraphProto) -> None:
        node, _ = branches(graph, block)
        split = next(n for n in graph.node if n.op_type == "Split" and n.input[0] == "active_blocks")
        node.input[0] = split.output[0]

    return switch


def _never_running(graph: onnx.GraphProto) -> None:
    node, idle = branches(graph, 4)
    copy = onnx.GraphProto()
    copy.CopyFrom(idle)
    for inner, output in zip(copy.node, copy.output, strict=True):
        inner.output[0] = output.name = f"{output.name}.copy"
    next(a for a in node.attribute if a.name == "then_branch").g.CopyFrom(copy)


DAMAGES: dict[str, tuple[Edit, str]] = {
    "a lane is not renumbered": (_lanes_by_block_number, "arithmetic"),
    "a lane counts its own block": (_lanes_of_one_more, "arithmetic"),
    "the stream passes an idle block changed": (_stream, "arithmetic"),
    "an idle block's taps are touched": (_idle(6, "past_taps.6"), "stands idle"),
    "an idle block's cache is touched": (_idle(10, "past_key_values.10.value"), "stands idle"),
    "an idle block's engram history is touched": (_idle(3, "past_engram.1"), "stands idle"),
    "a block with an engram site stays on": (_never_idle(3), "fails to run"),
    "a block stays off": (_never_running, "arithmetic"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_graph_is_refused(name: str, headless: Bundle, tmp_path: Path) -> None:
    edit, check = DAMAGES[name]
    shutil.copytree(headless.folder, tmp_path, dirs_exist_ok=True)
    model = onnx.load(tmp_path / MODEL, load_external_data=False)
    edit(model.graph)
    onnx.save(model, tmp_path / MODEL)
    with pytest.raises(VerificationError, match=check):
        headless.form.verify(tmp_path, headless.plan)


def test_a_graph_of_other_lanes_is_right_where_all_blocks_run(
    bundle: Bundle, ladder: MemoryLadder, tmp_path: Path
) -> None:
    """Why verification runs other depths than the deepest."""
    shutil.copytree(bundle.folder, tmp_path, dirs_exist_ok=True)
    model = onnx.load(tmp_path / MODEL, load_external_data=False)
    _lanes_by_block_number(model.graph)
    onnx.save(model, tmp_path / MODEL)
    damaged = bundle._replace(sessions={MODEL: open_session(tmp_path / MODEL)})
    whole = slice_ladder(ladder, BLOCKS)
    expected = reference_logits(whole, TOKENS)
    for token, logits in damaged.logits(whole).items():
        np.testing.assert_allclose(logits, expected[token], rtol=0, atol=1e-5)


def test_stored_weights_are_what_a_slice_of_it_is_compared_with(
    rounded: Bundle, ladder: MemoryLadder
) -> None:
    """Rounding and slicing change places without a difference."""
    sliced = keep_blocks(ladder, (0, 3, 8, BLOCKS - 1))
    own = plan_precision(sliced.config, sliced.layout, rounded.plan.scheme)
    one, other = StoredLadder(sliced, own), SlicedLadder(StoredLadder(ladder, rounded.plan), sliced.plan)
    for name in one.layout:
        if "_head/" in name:
            continue  # where there are few rows, what is small stays float32
        np.testing.assert_array_equal(one.read(name), other.read(name), err_msg=name)
