"""Blocks of codes and scales."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from onnx import TensorProto, helper

from exporter.errors import PrecisionError
from exporter.quantize import (
    NEAREST,
    SEARCH,
    Blocks,
    dequantise,
    joined,
    pack,
    packed_width,
    quantise,
    unpack,
)

BITS = st.sampled_from((2, 4, 8))
BLOCKS = st.sampled_from((16, 32, 64))

TINIEST = 2.0**-24
"""The smallest step of float16, in which a scale near zero is rounded."""


@st.composite
def matrices(draw: st.DrawFn) -> NDArray[np.float32]:
    """Matrices of any shape, with outliers, ties and zeros."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 150)))
    values = draw(arrays.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32)))
    factor = draw(st.sampled_from((1e-6, 1e-3, 1.0, 100.0)))
    return np.asarray(values * np.float32(factor), np.float32)


@given(st.data(), BITS)
def test_packing_is_undone_by_unpacking(data: st.DataObject, bits: int) -> None:
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5), st.sampled_from((16, 32))))
    codes = data.draw(arrays.arrays(np.uint8, shape, elements=st.integers(0, 2**bits - 1)))
    packed = pack(codes, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == (*shape[:-1], shape[-1] * bits // 8)
    assert np.array_equal(unpack(packed, bits), codes)


def test_the_earlier_code_is_in_the_lower_nibble() -> None:
    assert pack(np.array([[1, 15, 0, 8]], np.uint8), 4).tolist() == [[0xF1, 0x80]]
    assert unpack(np.array([[0xF1, 0x80]], np.uint8), 4).tolist() == [[1, 15, 0, 8]]


@settings(deadline=None)
@given(matrices(), BITS, BLOCKS)
def test_no_value_moves_by_more_than_half_a_step(matrix: NDArray[np.float32], bits: int, block: int) -> None:
    quantised = quantise(matrix, bits, block)
    back = dequantise(quantised, bits, matrix.shape[1])
    assert back.shape == matrix.shape
    scales = np.repeat(quantised.scales.astype(np.float64), block, axis=1)[:, : matrix.shape[1]]
    ends = np.sort(np.stack([scales * -(2 ** (bits - 1)), scales * (2 ** (bits - 1) - 1)]), axis=0)
    clipped = np.clip(matrix.astype(np.float64), ends[0], ends[1])
    allowed = np.abs(scales) / 2 + np.abs(matrix - clipped) + 1e-6 * np.abs(matrix)
    assert (np.abs(back - matrix) <= allowed + 1e-12).all()


@settings(deadline=None)
@given(matrices(), BITS, BLOCKS)
def test_clipping_costs_half_a_step_and_the_scales_rounding(
    matrix: NDArray[np.float32], bits: int, block: int
) -> None:
    quantised = quantise(matrix, bits, block)
    scales = np.repeat(np.abs(quantised.scales.astype(np.float64)), block, axis=1)[:, : matrix.shape[1]]
    # The side with a code less ends half a step before a value as great as the extreme.
    step = scales + (2 ** (bits - 1)) * np.maximum(scales * 2.0**-11, TINIEST / 2)
    assert (np.abs(dequantise(quantised, bits, matrix.shape[1]) - matrix) <= 1.001 * step).all()


@settings(deadline=None)
@given(matrices(), st.sampled_from((4, 8)), BLOCKS)
def test_what_was_quantised_is_quantised_to_itself(
    matrix: NDArray[np.float32], bits: int, block: int
) -> None:
    once = quantise(matrix, bits, block)
    again = quantise(dequantise(once, bits, matrix.shape[1]), bits, block)
    # Below its normal numbers float16 rounds a scale too coarsely for the extreme to keep its code.
    fine = np.abs(once.scales.astype(np.float32)) >= 2.0**-14
    assert np.array_equal(again.scales[fine], once.scales[fine])
    assert np.array_equal(again.codes[fine], once.codes[fine])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_value_of_greatest_magnitude_gets_code_0(bits: int, sign: int) -> None:
    matrix = np.linspace(-0.5, 0.4, 32, dtype=np.float32)[None] * sign
    matrix[0, 5] = 1.0 * sign
    quantised = quantise(matrix, bits, 32)
    codes = unpack(quantised.codes, bits)
    assert codes[0, 0, 5] == 0
    assert float(quantised.scales[0, 0]) == -sign / 2 ** (bits - 1)
    assert dequantise(quantised, bits, 32)[0, 5] == sign


@pytest.mark.parametrize("bits", [4, 8])
def test_every_code_is_reached(bits: int) -> None:
    codes = np.arange(2**bits)
    matrix = (codes - 2 ** (bits - 1)).astype(np.float32)[None]
    quantised = quantise(matrix, bits, 2**bits)
    assert unpack(quantised.codes, bits)[0, 0].tolist() == codes.tolist()
    assert float(quantised.scales[0, 0]) == 1.0
    assert np.array_equal(dequantise(quantised, bits, 2**bits), matrix)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_block_of_zeros_stays_zeros(bits: int) -> None:
    matrix = np.zeros((2, 64), np.float32)
    matrix[0, 40] = 1.0
    quantised = quantise(matrix, bits, 32)
    assert quantised.scales.tolist()[1] == [0.0, 0.0]
    assert unpack(quantised.codes, bits)[1].tolist() == [[2 ** (bits - 1)] * 32] * 2
    assert not dequantise(quantised, bits, 64)[1].any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [1, 31, 33, 64, 70])
def test_a_ragged_row_is_padded_with_the_code_of_zero(bits: int, columns: int) -> None:
    matrix = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    quantised = quantise(matrix, bits, 32)
    count = -(-columns // 32)
    assert quantised.codes.shape == (3, count, 32 * bits // 8)
    assert quantised.scales.shape == (3, count)
    codes = unpack(quantised.codes, bits).reshape(3, -1)
    assert (codes[:, columns:] == 2 ** (bits - 1)).all()
    assert np.abs(dequantise(quantised, bits, columns) - matrix).max() < 3 / 2 ** (bits - 1)


def test_blocks_do_not_know_each_other() -> None:
    matrix = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    whole = quantise(matrix, 4, 32)
    for block in range(4):
        alone = quantise(np.ascontiguousarray(matrix[:, 32 * block : 32 * block + 32]), 4, 32)
        assert np.array_equal(whole.codes[:, block], alone.codes[:, 0])
        assert np.array_equal(whole.scales[:, block], alone.scales[:, 0])


def test_a_great_matrix_is_quantised_like_its_rows() -> None:
    # More than is worked on at a time, and no multiple of it.
    matrix = np.random.default_rng(1).standard_normal((1531, 96)).astype(np.float32)
    whole = quantise(matrix, 8, 64)
    for row in (0, 681, 682, 683, 1365, 1530):
        alone = quantise(matrix[row : row + 1], 8, 64)
        assert np.array_equal(whole.codes[row], alone.codes[0])
        assert np.array_equal(whole.scales[row], alone.scales[0])


@pytest.mark.parametrize(("bits", "great"), [(4, 65520 * 8), (8, 65520 * 128), (4, 3e38)])
def test_a_scale_beyond_float16_is_an_error(bits: int, great: float) -> None:
    matrix = np.full((1, 32), 1.0, np.float32)
    matrix[0, 3] = great
    with pytest.raises(PrecisionError, match="needs a quantisation scale beyond float16") as caught:
        quantise(matrix, bits, 32)
    assert f"{float(np.float32(great)):.3g}" in str(caught.value)
    assert "--precision fp32" in str(caught.value)
    assert caught.value.exit_code == 6


def test_a_scale_just_within_float16_is_none() -> None:
    matrix = np.full((1, 32), 65504.0 * 8, np.float32)
    assert np.array_equal(dequantise(quantise(matrix, 4, 32), 4, 32), matrix)


def run(
    node: str, blocks: Blocks, bits: int, block: int, x: NDArray[np.generic], columns: int
) -> NDArray[np.float32]:
    """Run one operator of ONNX Runtime on blocks, with zero points where they have some."""
    rows = blocks.codes.shape[0]
    codes = blocks.codes if node == "MatMulNBits" else blocks.codes.reshape(rows, -1)
    scales = blocks.scales.astype(np.float32)
    if node == "MatMulNBits":
        options = {"K": columns, "N": rows, "accuracy_level": 1}
        inputs = ["x", "codes", "scales"]
    else:
        options = {"gather_axis": 0, "quantize_axis": 1}
        inputs = ["codes", "x", "scales"]
    fed = {"x": x, "codes": codes, "scales": scales}
    if blocks.zeros is not None:
        fed["zeros"] = blocks.zeros
        inputs.append("zeros")
    kind = TensorProto.FLOAT if x.dtype == np.float32 else TensorProto.INT64
    made = helper.make_node(
        node, inputs, ["y"], domain="com.microsoft", bits=bits, block_size=block, **options
    )
    graph = helper.make_graph(
        [made],
        "one",
        [
            helper.make_tensor_value_info("x", kind, x.shape),
            helper.make_tensor_value_info("codes", TensorProto.UINT8, codes.shape),
            helper.make_tensor_value_info("scales", TensorProto.FLOAT, scales.shape),
            *(
                [helper.make_tensor_value_info("zeros", TensorProto.UINT8, blocks.zeros.shape)]
                if blocks.zeros is not None
                else []
            ),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, fed)[0])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "block"), [(64, 32), (70, 32), (96, 64), (16, 16), (33, 16)])
def test_the_runtime_multiplies_with_what_dequantising_gives(bits: int, columns: int, block: int) -> None:
    random = np.random.default_rng(columns)
    matrix = random.standard_normal((24, columns)).astype(np.float32)
    x = random.standard_normal((5, columns)).astype(np.float32)
    blocks = quantise(matrix, bits, block)
    expected = x @ dequantise(blocks, bits, columns).T
    np.testing.assert_allclose(run("MatMulNBits", blocks, bits, block, x, columns), expected, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "block"), [(64, 32), (96, 32), (64, 64), (16, 16)])
def test_the_runtime_gathers_what_dequantising_gives(bits: int, columns: int, block: int) -> None:
    matrix = np.random.default_rng(columns).standard_normal((24, columns)).astype(np.float32)
    blocks, ids = quantise(matrix, bits, block), np.array([3, 0, 23, 3], np.int64)
    got = run("GatherBlockQuantized", blocks, bits, block, ids, columns)
    assert np.array_equal(got, dequantise(blocks, bits, columns)[ids])


# With zero points.


@pytest.mark.parametrize("method", [NEAREST, SEARCH])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("columns", "block"), [(64, 32), (70, 32), (96, 32), (64, 16), (128, 128)])
def test_the_runtime_multiplies_with_zero_points(bits: int, columns: int, block: int, method: str) -> None:
    random = np.random.default_rng(columns)
    matrix = random.standard_normal((24, columns)).astype(np.float32) + 0.7
    x = random.standard_normal((5, columns)).astype(np.float32)
    blocks = quantise(matrix, bits, block, method=method, zero_points=True)
    expected = x @ dequantise(blocks, bits, columns).T
    got = run("MatMulNBits", blocks, bits, block, x, columns)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    # Zero points that nobody reads would be seen.
    ignored = x @ dequantise(Blocks(blocks.codes, blocks.scales), bits, columns).T
    assert np.abs(got - ignored).max() > 0.1


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "block"), [(64, 32), (128, 32), (64, 16)])
def test_the_runtime_gathers_with_zero_points(bits: int, columns: int, block: int) -> None:
    matrix = np.random.default_rng(columns).random((24, columns)).astype(np.float32)
    blocks = quantise(matrix, bits, block, method=SEARCH, zero_points=True)
    ids = np.array([3, 0, 23, 3], np.int64)
    got = run("GatherBlockQuantized", blocks, bits, block, ids, columns)
    assert np.array_equal(got, dequantise(blocks, bits, columns)[ids])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_zero_point_halves_the_step_of_what_has_one_sign(bits: int) -> None:
    matrix = np.random.default_rng(0).uniform(0, 1, (64, 64)).astype(np.float32)
    errors = [
        np.square(dequantise(quantise(matrix, bits, 32, zero_points=points), bits, 64) - matrix).sum()
        for points in (False, True)
    ]
    assert errors[1] < 0.35 * errors[0]


def test_zero_points_are_packed_row_by_row() -> None:
    matrix = np.concatenate([np.full((1, 96), 15.0), np.full((1, 96), -15.0)]).astype(np.float32)
    blocks = quantise(matrix, 4, 32, zero_points=True)
    assert blocks.zeros is not None
    assert blocks.zeros.shape == (2, packed_width(3, 4)) == (2, 2)
    assert blocks.zeros.tolist() == [[0, 0], [0xFF, 0x0F]]
    assert np.array_equal(dequantise(blocks, 4, 96), matrix)


def test_joined_matrices_are_the_matrix_of_their_rows() -> None:
    matrix = np.random.default_rng(3).standard_normal((9, 70)).astype(np.float32)
    whole = quantise(matrix, 4, 32, method=SEARCH, zero_points=True)
    parts = joined(
        [quantise(part, 4, 32, method=SEARCH, zero_points=True) for part in (matrix[:4], matrix[4:])]
    )
    assert whole.zeros is not None
    assert parts.zeros is not None
    for a, b in ((whole.codes, parts.codes), (whole.scales, parts.scales), (whole.zeros, parts.zeros)):
        assert np.array_equal(a, b)


# The search.


@pytest.mark.parametrize("method", [NEAREST, SEARCH])
@pytest.mark.parametrize("zero_points", [False, True])
def test_weights_too_small_for_an_inverse_are_zero(method: str, *, zero_points: bool) -> None:
    matrix = np.full((1, 32), 1.4e-43, np.float32)
    made = quantise(matrix, 4, 32, method=method, zero_points=zero_points)
    assert not dequantise(made, 4, 32).any()


@settings(deadline=None)
@given(matrices(), BITS, BLOCKS, st.booleans())
def test_the_search_never_errs_more(
    matrix: NDArray[np.float32],
    bits: int,
    block: int,
    zero_points: bool,  # noqa: FBT001 - drawn
) -> None:
    columns = matrix.shape[1]
    nearest, searched = (
        np.linalg.norm(
            dequantise(
                quantise(matrix, bits, block, method=method, zero_points=zero_points), bits, columns
            ).astype(np.float64)
            - matrix
        )
        for method in (NEAREST, SEARCH)
    )
    # The scales as searched err less; rounding them to float16 moves what either method stores by up to
    # 2**-11 of it, or by half the least float16 for each step of a code, and errors add as norms do.
    stored = 2 * np.linalg.norm(matrix.astype(np.float64))
    moved = 2**-11 * stored + 2**bits * TINIEST * math.sqrt(matrix.size)
    assert searched <= nearest + 2 * moved


@pytest.mark.parametrize(
    ("bits", "zero_points", "share"), [(4, False, 0.91), (4, True, 0.95), (2, False, 0.88)]
)
def test_the_search_takes_some_off_the_error(bits: int, zero_points: bool, share: float) -> None:  # noqa: FBT001
    matrix = np.random.default_rng(5).standard_normal((256, 128)).astype(np.float32)
    errors = [
        np.square(
            dequantise(quantise(matrix, bits, 32, method=method, zero_points=zero_points), bits, 128) - matrix
        ).sum()
        for method in (NEAREST, SEARCH)
    ]
    assert errors[1] < share * errors[0]


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_search_leaves_zeros_alone(bits: int, zero_points: bool) -> None:  # noqa: FBT001
    matrix = np.zeros((2, 64), np.float32)
    matrix[0, 40] = -3.0
    blocks = quantise(matrix, bits, 32, method=SEARCH, zero_points=zero_points)
    # Zeros exactly, the other to float16's rounding of its scale.
    np.testing.assert_allclose(dequantise(blocks, bits, 64), matrix, rtol=1e-3, atol=0)
