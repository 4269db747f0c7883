"""What the files of a bundle look like: operators, inputs and outputs, spans of the weights file."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from exporter.config import LadderConfig
from exporter.graph import state_contract
from exporter.graph.attention import cache_width
from exporter.graph.constants import constant_bytes
from exporter.precision import PRECISIONS, Scheme
from exporter.verify import READOUT, SCORE
from golden.synthetic import SyntheticLadder
from tests.helpers import Built, build, geometry, oracle_ladder, small_ladder

QUANTISED = ("int8", "int4")

CONTRACTS = (
    "small",
    "no taps",
    "five taps",
    "no engrams",
    "no globals",
    "no window",
    "order 1 alone",
    "keys wider than values",
)
"""Geometries whose states differ."""

MEDIUM = LadderConfig(
    vocab_size=2048,
    d_model=256,
    num_heads=4,
    num_kv_heads=2,
    num_layers=3,
    engram_slots=1024,
    engram_layers=(1, 2),
    global_layers=(2,),
    sliding_window=64,
    embedding_dim=64,
)
"""Large enough that its weights are most of its bytes."""


@pytest.fixture(scope="module", params=list(PRECISIONS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Tiny at depth 3 in every precision."""
    precision: str = request.param
    return build(tmp_path_factory.mktemp(precision), oracle_ladder("tiny"), precision, depth=3)


def graph_of(path: Path) -> onnx.ModelProto:
    """A graph without its weights."""
    return onnx.load(path, load_external_data=False)


def graphs_of(built: Built) -> dict[str, onnx.ModelProto]:
    return {path.name: graph_of(path) for path in sorted(built.folder.glob("*.onnx"))}


def spans_of(model: onnx.ModelProto) -> dict[str, tuple[str, int, int]]:
    """Location, offset and length of every initialiser outside the file."""
    spans = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            spans[tensor.name] = (entries["location"], int(entries["offset"]), int(entries["length"]))
    return spans


def attributes_of(node: onnx.NodeProto) -> dict[str, int]:
    return {attribute.name: attribute.i for attribute in node.attribute}


def nodes_of(model: onnx.ModelProto, kind: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == kind]


_LOSING = {"Expand", "Pad", "Reshape", "Slice"}
"""Operators behind which ONNX Runtime does not know how long the axis of tokens is."""


def test_every_graph_is_of_the_opset_that_old_runtimes_read(built: Built) -> None:
    for model in graphs_of(built).values():
        assert model.ir_version == 10
        assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21, "com.microsoft": 1}


def test_a_ladder_with_all_heads_has_three_graphs(built: Built) -> None:
    assert list(graphs_of(built)) == ["model.onnx", "readout.onnx", "score.onnx"]


def test_all_weights_are_in_one_file_beside(built: Built) -> None:
    size = (built.folder / "weights.bin").stat().st_size
    for model in graphs_of(built).values():
        spans = spans_of(model)
        # What is in the graph itself are shapes and the like.
        inside = [t for t in model.graph.initializer if t.name not in spans]
        assert sum(tensor.ByteSize() for tensor in inside) < 20_000
        for location, offset, length in spans.values():
            assert location == "weights.bin"
            assert 0 <= offset <= offset + length <= size
    assert not [path for path in built.folder.iterdir() if path.suffix not in {".onnx", ".bin"}]


def test_spans_overlap_only_where_they_are_the_same(built: Built) -> None:
    spans = {span for model in graphs_of(built).values() for span in spans_of(model).values()}
    end = 0
    for _, offset, length in sorted(spans, key=lambda span: (span[1], span[2])):
        assert offset >= end
        end = offset + length
    assert end == built.file.size


def test_the_scoring_graph_shares_the_weights_of_the_decoding_graph(built: Built) -> None:
    graphs = graphs_of(built)
    decode, score = (set(spans_of(graphs[name]).values()) for name in ("model.onnx", SCORE))
    own = sum(length for _, _, length in score - decode)
    assert own < 0.2 * sum(length for _, _, length in score)
    readout = set(spans_of(graphs[READOUT]).values())
    assert sum(length for _, _, length in readout - score) == 0


def test_the_embedding_is_stored_once(built: Built) -> None:
    model, storage = graph_of(built.model), built.plan.storage["embedding/embedding"]
    spans = {name: span for name, span in spans_of(model).items() if name.startswith("trunk.embedding.")}
    # Gathered by id and multiplied with, from the same bytes.
    assert sum(length for _, _, length in set(spans.values())) == built.plan.nbytes("embedding/embedding")
    readers = [node.op_type for node in model.graph.node if set(node.input) & spans.keys()]
    if storage.block:
        shared = [name for name, span in spans.items() if list(spans.values()).count(span) == 2]
        assert len(shared) == 2
        used = [node.op_type for node in model.graph.node if set(node.input) & set(shared)]
        assert used == ["GatherBlockQuantized", "MatMulNBits"]
    elif storage.half:
        assert readers == ["Gather", "Cast"]
    else:
        assert readers == ["Gather", "Gemm"]


def test_the_tables_are_as_narrow_as_the_precision(built: Built) -> None:
    spans = spans_of(graph_of(built.model))
    for site in range(len(built.config.engram_layers)):
        name = f"engrams_{site}/embedding"
        taken = {span for key, span in spans.items() if key.startswith(f"trunk.sites.{site}.table.")}
        assert sum(length for _, _, length in taken) == built.plan.nbytes(name)
        share = built.plan.nbytes(name) / built.ladder.layout[name].size
        assert share <= {"fp32": 4, "fp16": 2, "int8": 1.13, "int4": 0.57}[built.plan.scheme.name]


def test_every_product_of_blocks_states_its_accuracy(built: Built) -> None:
    scheme = built.plan.scheme
    for model in graphs_of(built).values():
        products = nodes_of(model, "MatMulNBits")
        assert bool(products) == bool(scheme.block)
        for node in products:
            attributes = attributes_of(node)
            assert node.domain == "com.microsoft"
            assert attributes.keys() == {"K", "N", "bits", "block_size", "accuracy_level"}
            assert attributes["accuracy_level"] == 4
            head = node.name.split(".")[0] in {"heads", "pooling"} or "readout" in node.name
            bits = max(scheme.bits, 8) if head else scheme.bits
            assert (attributes["bits"], attributes["block_size"]) == (bits, scheme.block)
        for node in nodes_of(model, "GatherBlockQuantized"):
            attributes = attributes_of(node)
            assert attributes.keys() == {"bits", "block_size", "gather_axis", "quantize_axis"}
            head = node.name.split(".")[0] in {"heads", "pooling"}
            bits = max(scheme.bits, 8) if head else scheme.bits
            assert (attributes["bits"], attributes["quantize_axis"]) == (bits, 1)


@pytest.mark.parametrize("level", [0, 1, 4])
def test_the_accuracy_is_the_schemes(level: int, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), Scheme("int4", 4, 16, level), depth=2)
    for model in graphs_of(built).values():
        levels = {attributes_of(node)["accuracy_level"] for node in nodes_of(model, "MatMulNBits")}
        assert levels == {level}


@pytest.mark.parametrize("precision", QUANTISED)
def test_everything_that_is_multiplied_with_is_quantised(precision: str, tmp_path: Path) -> None:
    built = build(tmp_path, oracle_ladder("tiny"), precision, depth=3)
    shapes = Counter(
        (attributes_of(node)["K"], attributes_of(node)["N"])
        for node in nodes_of(graph_of(built.model), "MatMulNBits")
    )
    config = built.config
    width, lanes = config.d_model, config.mhc_lanes
    assert shapes == Counter(
        {
            (width, config.qkv_width + config.o_width): 3,
            (config.o_width, width): 3,
            (lanes * width, 2 * lanes + lanes * lanes): 3,
            (width, 2 * width): len(config.engram_layers),
            (width, config.vocab_size): 1,
        }
    )


@pytest.mark.parametrize("name", CONTRACTS)
def test_inputs_and_outputs_are_the_contract(name: str, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(name, heads=("confidence",)), depth=2)
    config, model = built.config, graph_of(built.model)
    contract = state_contract(config, ["confidence"])
    kinds = {config.window(block) == 0 for block in range(2)}
    cached = [text for kind, text in ((True, "cached_global"), (False, "cached_local")) if kind in kinds]
    inputs = [value.name for value in model.graph.input]
    assert inputs == ["input_ids", "position", *cached, *(state.past for state in contract)]
    outputs = [value.name for value in model.graph.output]
    assert outputs == ["logits", *(state.present for state in contract)]
    for values, part in ((model.graph.input, "past"), (model.graph.output, "present")):
        known = {value.name: value.type.tensor_type for value in values}
        for state in contract:
            declared = known[getattr(state, part)]
            numpy_type = onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
            assert numpy_type == np.dtype(state.dtype)
            extents = [dim.dim_param or dim.dim_value for dim in declared.shape.dim]
            assert len(extents) == len(state.shape)
            for axis, (extent, stated) in enumerate(zip(extents, state.shape, strict=True)):
                if axis == state.grows:
                    assert extent == f"{part}_{'local' if state.window else 'global'}_positions"
                else:
                    assert extent == stated


def test_the_contract_of_a_small_ladder() -> None:
    config = geometry()
    states = {state.past: state for state in state_contract(config)}
    assert len(states) == 5 * 3 + 2 + 1
    key = states["past_key_values.0.key"]
    assert (key.present, key.shape, key.grows, key.window) == ("present.0.key", (1, 2, 0, 16), 2, 7)
    assert states["past_key_values.2.value"].window == 0
    assert states["past_taps.4"].shape == (2, 1, config.qkv_width)
    assert states["past_engram.1"].shape == (9, 1, 32)
    assert (states["past_ids"].shape, states["past_ids"].dtype) == ((1, 2), "int64")
    assert states["past_ids"].to_json()["shape"] == [1, 2]


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("no taps", "past_taps"),
        ("one tap, a window of one", "past_taps"),
        ("no engrams", "past_engram"),
        ("no engrams", "past_ids"),
        ("order 1 alone", "past_ids"),
    ],
)
def test_states_that_a_ladder_does_not_need_are_not_there(name: str, absent: str) -> None:
    assert not [state for state in state_contract(geometry(name)) if state.past.startswith(absent)]


@pytest.mark.parametrize(
    ("qk", "v", "width"), [(48, 64, 64), (6, 10, 16), (14, 4, 16), (8, 8, 8), (50, 20, 56)]
)
def test_one_cache_width_holds_keys_and_values(qk: int, v: int, width: int) -> None:
    assert cache_width(geometry(qk_head_dim=qk, v_head_dim=v)) == width


def test_only_a_local_block_has_a_window_in_its_operator(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=5)
    windows = [
        attributes_of(node)["local_window_size"]
        for node in nodes_of(graph_of(built.model), "GroupQueryAttention")
    ]
    assert windows == [7, 7, -1, 7, -1]


def test_twenty_rounds_of_sinkhorn_are_in_every_block(built: Built) -> None:
    model = graph_of(built.model)
    # A softmax is the first half round.
    assert len(nodes_of(model, "LpNormalization")) == 39 * built.config.num_layers


def test_every_node_says_where_it_is_and_is_used(built: Built) -> None:
    for model in graphs_of(built).values():
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
        assert any(name.startswith("blocks.2.") for name in names) or model.graph.name == "ladder_readout"
        used = {value for node in model.graph.node for value in node.input}
        used |= {value.name for value in model.graph.output}
        for node in model.graph.node:
            assert set(node.output) & used
        assert {tensor.name for tensor in model.graph.initializer} <= used
        # Names and shapes of values are most of a small graph's bytes: only those are told that get lost.
        told = {value.name for value in model.graph.value_info}
        told -= {tensor.name for tensor in model.graph.initializer}
        assert told <= {node.output[0] for node in model.graph.node if node.op_type in _LOSING}
        assert all(re.fullmatch(r"v\d+", name) for name in told)


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_the_same_ladder_gives_the_same_bytes(precision: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "another place"]
    for folder in folders:
        folder.mkdir()
        build(folder, small_ladder(), precision, depth=3)
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == sorted(path.name for path in folders[1].iterdir())
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_file_is_as_large_as_its_plan_predicts(precision: str, tmp_path: Path) -> None:
    built = build(tmp_path, SyntheticLadder(MEDIUM), precision)
    predicted = built.plan.total + constant_bytes(MEDIUM, score=True)
    written = (tmp_path / "weights.bin").stat().st_size
    assert written == built.file.size
    # Padding to pages is no weight; beside files of megabytes it is little.
    assert abs(written - built.file.padding - predicted) <= 0.005 * predicted
    assert abs(written - predicted) <= 0.02 * predicted


@pytest.mark.parametrize("graph", ["model.onnx", SCORE])
def test_no_block_loses_a_shape(graph: str, built: Built) -> None:
    """A runtime that reuses no buffer of unknown shape loads in the square of their number."""
    proto = onnx.load(built.folder / graph, load_external_data=False).graph
    told = {value.name for value in (*proto.value_info, *proto.output)}
    constant = {tensor.name for tensor in proto.initializer}
    losing = [
        node
        for node in proto.node
        if node.op_type in _LOSING
        and node.name.startswith(("blocks.", "sites."))
        and not set(node.input) <= constant
    ]
    assert losing
    assert not [node.name for node in losing if node.output[0] not in told]
