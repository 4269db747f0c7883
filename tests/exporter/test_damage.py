"""What verification is worth: graphs and weights that were damaged are refused.

Each damage names the check that meets it. A witness knows some logits to the bound of the precision, so
that it meets gross damage at four bits, and nearly any in float32.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import DTypeLike, NDArray

from exporter.errors import VerificationError
from exporter.ladder import SlicedLadder
from exporter.verify import Report, check_witness, verify_live
from tests.helpers import Built, build, small_ladder

Edit = Callable[["Damaged"], None]

_DTYPES = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.INT32: np.int32,
}


class Damaged:
    """A copy of a bundle's graphs and weights, to be changed."""

    def __init__(self, folder: Path, graph: str = "model.onnx") -> None:
        """Load a graph of the folder without its weights."""
        self.folder, self.path = folder, folder / graph
        self.model = onnx.load(self.path, load_external_data=False)

    def nodes(self, kind: str) -> list[onnx.NodeProto]:
        """Nodes of a kind, in order."""
        return [node for node in self.model.graph.node if node.op_type == kind]

    def attribute(self, node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
        """An attribute, to be changed in place."""
        found: onnx.AttributeProto = next(a for a in node.attribute if a.name == name)
        return found

    def weights(self, name: str) -> NDArray[Any]:
        """The values of an initialiser, mapped for writing."""
        tensor = next(t for t in self.model.graph.initializer if t.name == name)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        dtype: DTypeLike = _DTYPES[tensor.data_type]
        return np.memmap(
            self.folder / entries["location"], dtype, "r+", int(entries["offset"]), tuple(tensor.dims)
        )

    def reread(self, name: str, other: str) -> None:
        """Make an initialiser take the place of another wherever it is read."""
        for node in self.model.graph.node:
            for place, value in enumerate(node.input):
                if value == name:
                    node.input[place] = other

    def save(self) -> None:
        """Write the graph."""
        onnx.save(self.model, self.path)


@dataclass(frozen=True)
class Damage:
    """What is done, at which precision, and who notices."""

    edit: Edit
    precision: str
    check: str
    """Of the report; part of the error's text."""
    witness: bool = True
    """Whether the bundle's own witness shows it, too."""
    graph: str = "model.onnx"


def _swap(values: NDArray[Any], a: Any, b: Any) -> None:  # noqa: ANN401 - any index
    values[a], values[b] = values[b].copy(), values[a].copy()


def _lanes_swapped(bundle: Damaged) -> None:
    _swap(bundle.weights("trunk.blocks.2.lanes.mix.bias"), 0, 1)


def _window_longer(bundle: Damaged) -> None:
    bundle.attribute(bundle.nodes("GroupQueryAttention")[0], "local_window_size").i += 1


def _window_gone(bundle: Damaged) -> None:
    bundle.attribute(bundle.nodes("GroupQueryAttention")[0], "local_window_size").i = -1


def _tap_zero(bundle: Damaged) -> None:
    bundle.weights("trunk.blocks.1.attention.taps.value")[2] = 0


def _engram_tap_zero(bundle: Damaged) -> None:
    bundle.weights("trunk.sites.0.taps.value")[3] = 0


def _table_rows_rolled(bundle: Damaged) -> None:
    codes = bundle.weights("trunk.sites.0.table.codes")
    codes[:61] = np.roll(codes[:61], 1, 0)


def _blocks_swapped(bundle: Damaged) -> None:
    codes = bundle.weights("trunk.blocks.3.attention.out.codes")
    _swap(codes, (slice(None), 0), (slice(None), 1))


def _nibbles_swapped(bundle: Damaged) -> None:
    codes = bundle.weights("trunk.blocks.0.attention.project.codes")
    codes[:] = (codes >> 4) | (codes << 4)


def _factor_transposed(bundle: Damaged) -> None:
    factor = bundle.weights("trunk.blocks.3.mlp.w2a.value")
    factor[:] = factor.T.copy()


def _permutations_exchanged(bundle: Damaged) -> None:
    first = bundle.weights("trunk.first_order")
    second = bundle.weights("trunk.second_order")
    values = first.copy()
    first[:], second[:] = second.copy(), values


def _scales_larger(bundle: Damaged) -> None:
    bundle.weights("trunk.blocks.4.attention.project.scales")[:] *= np.float16(1.02)


def _scale_negated(bundle: Damaged) -> None:
    bundle.weights("trunk.embedding.scales")[7] *= np.float16(-1)


def _attention_scaled_by_values(bundle: Damaged) -> None:
    bundle.attribute(bundle.nodes("GroupQueryAttention")[3], "scale").f = 10**-0.5


def _epsilon_larger(bundle: Damaged) -> None:
    for node in bundle.nodes("SimplifiedLayerNormalization"):
        bundle.attribute(node, "epsilon").f = 1e-4


def _rounds_fewer(bundle: Damaged) -> None:
    # The last ten rounds of one block are taken out; of the last block only the columns' sums matter.
    inside = [node for node in bundle.nodes("LpNormalization") if node.name.startswith("blocks.1.")]
    first, last = inside[19], inside[-1]
    for node in bundle.model.graph.node:
        for place, value in enumerate(node.input):
            if value == last.output[0]:
                node.input[place] = first.input[0]


def _caches_exchanged(bundle: Damaged) -> None:
    for value in bundle.model.graph.output:
        kind = value.name.rpartition(".")[2]
        if value.name.startswith("present.1."):
            value.name = f"present.1.{'value' if kind == 'key' else 'key'}"
    names = {"present.1.key": "present.1.value", "present.1.value": "present.1.key"}
    for node in bundle.model.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]


def _caches_of_another_block(bundle: Damaged) -> None:
    names = {
        f"past_key_values.{a}.{k}": f"past_key_values.{b}.{k}"
        for a, b in ((0, 1), (1, 0))
        for k in ("key", "value")
    }
    for node in bundle.model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]


def _history_forgotten(bundle: Damaged) -> None:
    bundle.reread("past_engram.0", "past_engram.1")


def _rotation_backwards(bundle: Damaged) -> None:
    # Cosine and sine exchanged.
    rotary = bundle.nodes("RotaryEmbedding")[0]
    rotary.input[2], rotary.input[3] = rotary.input[3], rotary.input[2]


def _hash_shift(bundle: Damaged) -> None:
    shift = bundle.nodes("BitShift")[0]
    consumer = next(
        n for n in bundle.model.graph.node if shift.output[0] in n.input and n.op_type == "BitwiseXor"
    )
    for node in bundle.model.graph.node:
        node.input[:] = [consumer.input[0] if value == consumer.output[0] else value for value in node.input]


def _not_a_number(bundle: Damaged) -> None:
    bundle.weights("final_norm.value")[3] = np.nan


def _probes_rolled(bundle: Damaged) -> None:
    probes = bundle.weights("heads.0.probes.table.rows")
    probes[:] = np.roll(probes, 4, 0)


def _query_zero(bundle: Damaged) -> None:
    bundle.weights("heads.0.readout.query.value")[:] = 0


def _sharper_readout(bundle: Damaged) -> None:
    # The weights stay as they are, since the scoring graph reads them, too.
    bundle.attribute(bundle.nodes("FusedMatMul")[0], "alpha").f *= 2


DAMAGES = {
    "two lanes' biases swapped": Damage(_lanes_swapped, "fp32", "arithmetic"),
    "a window one longer": Damage(_window_longer, "fp32", "arithmetic"),
    "a window gone": Damage(_window_gone, "int4", "arithmetic", witness=False),
    "a tap zero": Damage(_tap_zero, "fp32", "arithmetic"),
    "an engram tap zero": Damage(_engram_tap_zero, "fp32", "arithmetic"),
    "rows of a table rolled": Damage(_table_rows_rolled, "int4", "arithmetic", witness=False),
    "blocks of a kernel swapped": Damage(_blocks_swapped, "int4", "arithmetic", witness=False),
    "nibbles swapped": Damage(_nibbles_swapped, "int4", "arithmetic", witness=False),
    "a Monarch factor transposed": Damage(_factor_transposed, "fp32", "arithmetic"),
    "permutations exchanged": Damage(_permutations_exchanged, "fp32", "arithmetic"),
    "scales two per cent larger": Damage(_scales_larger, "int4", "arithmetic", witness=False),
    "a scale of the wrong sign": Damage(_scale_negated, "int4", "arithmetic"),
    "attention scaled by the value width": Damage(_attention_scaled_by_values, "fp32", "arithmetic"),
    "norms with epsilon 1e-4": Damage(_epsilon_larger, "fp32", "arithmetic"),
    "ten Sinkhorn rounds": Damage(_rounds_fewer, "fp32", "arithmetic"),
    "key and value caches exchanged": Damage(_caches_exchanged, "fp32", "run as chunks"),
    "caches of another block": Damage(_caches_of_another_block, "fp32", "run as chunks"),
    "histories of another site": Damage(_history_forgotten, "fp32", "run as chunks"),
    "rotation backwards": Damage(_rotation_backwards, "fp32", "arithmetic"),
    "hash without its last shift": Damage(_hash_shift, "fp32", "arithmetic"),
    "no number in a norm": Damage(_not_a_number, "fp32", "arithmetic"),
    # Rounding activations to int8 makes some number of what is none: only the float twin shows it.
    "no number in a norm, at four bits": Damage(_not_a_number, "int4", "arithmetic", witness=False),
    # A witness knows logits alone.
    "probes rolled": Damage(_probes_rolled, "fp32", "score.onnx fails", witness=False, graph="score.onnx"),
    "a query of zeros": Damage(_query_zero, "fp32", "score.onnx fails", witness=False, graph="score.onnx"),
    "a readout twice as sharp": Damage(
        _sharper_readout, "fp32", "readout.onnx fails", witness=False, graph="readout.onnx"
    ),
}

Sound = dict[str, tuple[Built, Report]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """The small ladder in float32 and four bits, undamaged, with its report."""
    made: Sound = {}
    for precision in ("fp32", "int4"):
        built = build(tmp_path_factory.mktemp(precision), small_ladder(), precision, depth=5)
        made[precision] = built, verify_live(built.folder, built.ladder, built.plan)
    return made


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_bundle_is_refused(name: str, sound: Sound, tmp_path: Path) -> None:
    damage = DAMAGES[name]
    built, report = sound[damage.precision]
    assert isinstance(built.ladder, SlicedLadder)
    folder = tmp_path / "damaged"
    shutil.copytree(built.folder, folder)
    bundle = Damaged(folder, damage.graph)
    damage.edit(bundle)
    bundle.save()
    with pytest.raises(VerificationError) as caught:
        verify_live(folder, built.ladder, built.plan)
    assert damage.check in str(caught.value)
    if damage.witness:
        with pytest.raises(VerificationError, match="on the bundle's own witness"):
            check_witness(folder / "model.onnx", built.config, damage.precision, report.witness)
    else:
        check_witness(folder / "model.onnx", built.config, damage.precision, report.witness)


def test_a_copy_without_damage_is_accepted(sound: Sound, tmp_path: Path) -> None:
    built, report = sound["int4"]
    folder = tmp_path / "copy"
    shutil.copytree(built.folder, folder)
    for graph in ("model.onnx", "score.onnx", "readout.onnx"):
        Damaged(folder, graph).save()
    again = verify_live(folder, built.ladder, built.plan)
    assert again.comparisons == report.comparisons
    check_witness(folder / "model.onnx", built.config, "int4", report.witness)
