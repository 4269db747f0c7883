"""Which tensor is stored how, in how many bytes, and what that makes of its values."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import LadderConfig
from exporter.errors import PrecisionError
from exporter.ladder import slice_ladder
from exporter.layout import PROJECTIONS, Axis, Part, layout
from exporter.precision import (
    PRECISIONS,
    PrecisionPlan,
    Role,
    Scheme,
    Storage,
    StoredLadder,
    plan_precision,
    role_of,
    to_half,
)
from golden.synthetic import SyntheticLadder
from tests.helpers import GEOMETRIES, MemoryLadder, geometry, loaded, oracle_ladder, small_ladder, tensors_of

NAMES = tuple(PRECISIONS)
FULL = LadderConfig()


def plan_of(config: LadderConfig, precision: str) -> PrecisionPlan:
    return plan_precision(config, layout(config), PRECISIONS[precision])


ROLES = {
    "embedding/embedding": Role.TIED,
    "engrams_2/embedding": Role.TABLE,
    "engrams_2/key_proj/kernel": Role.MATMUL,
    "engrams_2/value_proj/kernel": Role.MATMUL,
    "engrams_2/taps": Role.SMALL,
    "stack/mhc_phi_pre": Role.MATMUL,
    "stack/mhc_phi_post": Role.MATMUL,
    "stack/mhc_phi_res": Role.MATMUL,
    "stack/mhc_b_res": Role.SMALL,
    "stack/final_norm/scale": Role.SMALL,
    **dict.fromkeys(PROJECTIONS, Role.MATMUL),
    "stack/layers/block/self_attn/q_taps": Role.SMALL,
    "stack/layers/block/hadamard_mlp/w1a": Role.SMALL,
    "stack/layers/block/hadamard_mlp/cond_v": Role.SMALL,
    "confidence_head/probes": Role.TABLE,
    "confidence_head/query": Role.SMALL,
    "confidence_head/proj/kernel": Role.MATMUL,
    "confidence_head/proj/bias": Role.SMALL,
    "embedding_head/proj/kernel": Role.MATMUL,
}


@pytest.mark.parametrize(("name", "role"), ROLES.items())
def test_the_role_of_a_tensor(name: str, role: Role) -> None:
    assert role_of(layout(FULL)[name]) is role


def test_float32_stores_everything_as_it_is() -> None:
    plan = plan_of(FULL, "fp32")
    assert set(plan.storage.values()) == {Storage(32)}
    assert plan.total == 4 * 127_849_765
    assert not plan.integer_arithmetic


def test_float16_keeps_what_is_small_in_float32() -> None:
    plan = plan_of(FULL, "fp16")
    kept = {name for name, storage in plan.storage.items() if storage == Storage(32)}
    assert {"stack/mhc_a_pre", "stack/mhc_b_res", "stack/layers/block/attn_gate"} <= kept
    assert {storage.bits for storage in plan.storage.values()} == {16, 32}
    # Nothing to win: all that is kept is less than a ten-thousandth.
    assert sum(plan.nbytes(name) for name in kept) < plan.total / 10_000
    assert not plan.integer_arithmetic


@pytest.mark.parametrize(("precision", "bits", "block"), [("int8", 8, 64), ("int4", 4, 32)])
def test_every_kernel_and_table_is_quantised(precision: str, bits: int, block: int) -> None:
    plan = plan_of(FULL, precision)
    for name, spec in plan.specs.items():
        if role_of(spec) is not Role.SMALL:
            finest = 8 if spec.part is Part.HEADS else bits
            assert plan.storage[name] == Storage(finest, block, 4)
        else:
            assert not plan.storage[name].block
    assert plan.integer_arithmetic


@pytest.mark.parametrize(("precision", "most"), [("fp16", 2.001), ("int8", 1.06), ("int4", 0.61)])
def test_the_full_size_takes_little_more_than_its_bits(precision: str, most: float) -> None:
    assert plan_of(FULL, precision).total < most * 127_849_765


def test_bytes_of_a_storage_by_hand() -> None:
    assert Storage(32).nbytes(3, 5) == 60
    assert Storage(16).nbytes(3, 5) == 30
    assert Storage(8, 64, 4).nbytes(3, 64) == 3 * (64 + 2)
    assert Storage(4, 32, 4).nbytes(3, 64) == 3 * 2 * (16 + 2)
    assert Storage(4, 32, 4).nbytes(3, 65) == 3 * 3 * (16 + 2)
    assert Storage(4, 32, 4, zero_points=True).nbytes(3, 65) == 3 * (3 * (16 + 2) + 2)
    assert Storage(8, 32, 4, zero_points=True).nbytes(3, 65) == 3 * (3 * (32 + 2) + 3)
    assert Storage(2, 64, 4, zero_points=True).nbytes(3, 65) == 3 * (2 * (16 + 2) + 1)


def test_blocks_of_a_kernel_run_along_its_inputs() -> None:
    config = geometry(d_model=40)
    plan = plan_of(config, "int4")
    # [5, 40, 24]: 5 x 24 columns of 40 inputs, in two blocks of 32.
    assert plan.nbytes(PROJECTIONS[0]) == 5 * 24 * 2 * 18
    # [5, 40, 40] for out_proj's 40 outputs of 40 inputs.
    assert plan.nbytes(PROJECTIONS[4]) == 5 * 40 * 2 * 18


@pytest.mark.parametrize(
    ("width", "block"), [(32, 32), (48, 16), (96, 32), (16, 16), (40, 0), (8, 0), (24, 0)]
)
def test_a_table_takes_a_block_that_divides_its_width(width: int, block: int) -> None:
    config = geometry(d_model=width, engram_heads=1, engram_orders=(2,), num_heads=4)
    storage = plan_of(config, "int4").storage
    expected = Storage(4, block, 4) if block else Storage(16)
    assert storage["engrams_0/embedding"] == expected
    assert storage["embedding/embedding"] == expected


def test_a_scheme_sets_block_and_accuracy() -> None:
    plan = plan_precision(FULL, layout(FULL), Scheme("int4", 4, 128, 1))
    assert plan.storage["embedding/embedding"] == Storage(4, 128, 1)
    assert plan.storage[PROJECTIONS[0]] == Storage(4, 128, 1)
    assert not plan.integer_arithmetic


def test_a_table_goes_without_zero_points_that_would_end_within_a_byte() -> None:
    scheme = replace(PRECISIONS["int4"], zero_points=True)
    even, odd = (
        plan_precision(config, layout(config), scheme).storage
        for config in (geometry(d_model=64, engram_heads=1), geometry(d_model=96, engram_heads=1))
    )
    assert even["embedding/embedding"].zero_points
    assert not odd["embedding/embedding"].zero_points
    assert odd[PROJECTIONS[0]].zero_points


@pytest.mark.parametrize("precision", NAMES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_tensor_has_a_storage_that_fits(name: str, precision: str) -> None:
    plan = plan_of(geometry(name), precision)
    assert plan.storage.keys() == plan.specs.keys()
    assert plan.total == sum(plan.nbytes(tensor) for tensor in plan.specs)
    for tensor, spec in plan.specs.items():
        assert plan.nbytes(tensor) > 0
        storage = plan.storage[tensor]
        if role_of(spec) in {Role.TABLE, Role.TIED} and storage.block:
            assert spec.shape[-1] % storage.block == 0
        if not storage.block:
            assert plan.nbytes(tensor) == spec.size * storage.bits // 8


@pytest.mark.parametrize("precision", NAMES)
def test_a_plan_is_told_by_kind(precision: str) -> None:
    plan = plan_of(FULL, precision)
    told = json.loads(json.dumps(plan.to_json()))
    assert told["scheme"]["name"] == precision
    assert told["bytes"] == plan.total
    kinds = told["storage"]
    assert sum(kind["bytes"] for kind in kinds.values()) == plan.total
    assert sum(kind["values"] for kind in kinds.values()) == 127_849_765
    assert sum(kind["tensors"] for kind in kinds.values()) == len(plan.specs)
    labels = {"fp32": {"float32"}, "fp16": {"float16", "float32"}}
    labels |= {
        "int8": {"int8 block 64", *labels["fp16"]},
        "int4": {"int4 block 32", "int8 block 32", *labels["fp16"]},
    }
    assert set(kinds) == labels[precision]


def test_bytes_add_up_by_part() -> None:
    plan = plan_of(FULL, "int4")
    tables = sum(plan.nbytes(n) for n, s in plan.specs.items() if s.part is Part.ENGRAM_TABLES)
    assert tables == 5 * 6 * 18432 * 4 * (16 + 2)
    assert 0.5 < tables / plan.total < 0.7


# What the storage makes of the values.


@pytest.mark.parametrize("precision", NAMES)
@pytest.mark.parametrize("name", ["small", "three lanes, width 40 of 64", "many ids"])
def test_a_row_is_the_row_of_the_whole(name: str, precision: str) -> None:
    ladder = small_ladder(name)
    stored = StoredLadder(ladder, plan_precision(ladder.config, ladder.layout, PRECISIONS[precision]))
    for tensor, spec in stored.layout.items():
        whole = stored.read(tensor)
        assert whole.shape == spec.shape
        assert whole.dtype == np.float32
        # Without a leading axis of blocks, sites or head rows nothing reads a row.
        rows = spec.shape[0] if spec.axis in {Axis.BLOCKS, Axis.ROWS_0} and spec.shape else 0
        for row in range(rows):
            assert np.array_equal(stored.read(tensor, row), whole[row])


@pytest.mark.parametrize("precision", NAMES)
def test_gathered_rows_are_rows_of_the_whole(precision: str) -> None:
    ladder = small_ladder()
    stored = StoredLadder(ladder, plan_precision(ladder.config, ladder.layout, PRECISIONS[precision]))
    table, indices = stored.read("engrams_1/embedding"), [60, 2, 2, 0]
    for row in range(len(table)):
        assert np.array_equal(stored.gather("engrams_1/embedding", row, indices), table[row][indices])


def test_float32_changes_nothing() -> None:
    ladder = small_ladder()
    stored = StoredLadder(ladder, plan_precision(ladder.config, ladder.layout, PRECISIONS["fp32"]))
    assert all(np.array_equal(stored.read(name), values) for name, values in ladder.tensors.items())


def test_float16_rounds_to_the_nearest() -> None:
    ladder = small_ladder()
    plan = plan_precision(ladder.config, ladder.layout, PRECISIONS["fp16"])
    stored = StoredLadder(ladder, plan)
    for name, values in ladder.tensors.items():
        halved = values.astype(np.float16).astype(np.float32)
        assert np.array_equal(stored.read(name), halved if plan.storage[name].half else values)


@pytest.mark.parametrize(("precision", "worst"), [("int8", 0.01), ("int4", 0.16)])
def test_quantising_costs_a_share_of_the_greatest_value(precision: str, worst: float) -> None:
    ladder = oracle_ladder("tiny")
    plan = plan_precision(ladder.config, ladder.layout, PRECISIONS[precision])
    stored = StoredLadder(ladder, plan)
    for name, values in ladder.tensors.items():
        error = np.abs(stored.read(name) - values).max()
        assert error <= worst * np.abs(values).max()
        assert (error > 0) == (plan.storage[name].bits < 32)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(NAMES), st.integers(2, 5), st.integers(0, 3))
def test_storing_and_slicing_commute(precision: str, depth: int, seed: int) -> None:
    ladder = loaded(SyntheticLadder(geometry(), seed=seed))
    scheme = PRECISIONS[precision]
    sliced = slice_ladder(ladder, depth)
    first = StoredLadder(sliced, plan_precision(sliced.config, sliced.layout, scheme))
    then = slice_ladder(StoredLadder(ladder, plan_precision(ladder.config, ladder.layout, scheme)), depth)
    for name in first.layout:
        # A head's gains grow with the depth, and from some depth on are worth storing in 16 bits.
        if not name.endswith(("_head/gain", "_head/row_bias")):
            assert np.array_equal(first.read(name), then.read(name))


@given(st.floats(-65504, 65504, width=32))
def test_a_float16_is_within_half_a_unit(value: float) -> None:
    half = float(to_half("x", np.array([value], np.float32))[0])
    assert abs(half - value) <= max(abs(value) * 2.0**-11, 2.0**-25)


@pytest.mark.parametrize("value", [65520.0, -1e6, 3e38])
def test_a_value_beyond_float16_is_an_error(value: float) -> None:
    with pytest.raises(PrecisionError) as caught:
        to_half("stack/final_norm/scale", np.array([1.0, value], np.float32))
    magnitude = f"{abs(float(np.float32(value))):.3g}"
    assert str(caught.value) == (
        f"tensor 'stack/final_norm/scale' holds a value of magnitude {magnitude}, beyond float16: export "
        "with --precision fp32."
    )


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_an_overflow_is_met_where_the_tensor_is_read(precision: str) -> None:
    tensors = tensors_of(small_ladder())
    tensors["stack/layers/block/hadamard_mlp/d3"][2, 4] = 1e5
    ladder = MemoryLadder(geometry(), tensors)
    stored = StoredLadder(ladder, plan_precision(ladder.config, ladder.layout, PRECISIONS[precision]))
    stored.read("stack/layers/block/hadamard_mlp/d3", 1)
    with pytest.raises(PrecisionError, match=re.escape("hadamard_mlp/d3' holds a value of magnitude 1e+05")):
        stored.read("stack/layers/block/hadamard_mlp/d3")
