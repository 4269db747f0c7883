"""The installed ONNX Runtime computes what the profiles promise of their floor.

`nox -s lowest` runs this with the floor itself. Each test is one operator whose meaning or being
changed between versions, so that a runtime that disagrees is told by name and not by odd logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

MICROSOFT = "com.microsoft"
BLOCK = 32
PROFILE = targets.load("host").onnxruntime


def run(
    nodes: list[NodeProto],
    feeds: Mapping[str, Array],
    constants: Mapping[str, Array],
    dtype: int = TensorProto.FLOAT,
) -> Array:
    """Run nodes that make one output, ``y``, with the opset and IR version of the profiles."""
    graph = helper.make_graph(
        nodes,
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", PROFILE.opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=PROFILE.ir_version)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(["y"], dict(feeds))[0]
    return result


def quantised(bits: int, rows: int = 48, columns: int = 128) -> tuple[Array, Array, Array]:
    """Return a table as bytes [rows, columns * bits / 8], its scales and its values.

    The zero point is the middle of the range, as both operators take it where none is given.
    """
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (rows, columns), dtype=np.uint8)
    scales = rng.uniform(0.5, 1.5, (rows, columns // BLOCK)).astype(np.float32)
    values = (codes.astype(np.float32) - 2 ** (bits - 1)) * np.repeat(scales, BLOCK, axis=1)
    packed = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    return packed, scales, values


def attended(positions: int, past: int, window: int) -> Array:
    """Return how many positions each new one sees, by a GroupQueryAttention with equal scores.

    Every key is zero, so the weights are equal; the values are one-hot in their position, so that a
    row of the output is 1 / n at each of the n positions seen.
    """
    total, width = past + positions, 64
    values = np.eye(total, width, dtype=np.float32)
    flat = np.zeros((1, positions, width), np.float32)
    feeds = {
        "q": flat,
        "k": flat,
        "v": values[None, past:],
        "past_k": np.zeros((1, 1, past, width), np.float32),
        "past_v": values[None, None, :past],
        "last": np.array([total - 1], np.int32),
        "total": np.array(total, np.int32),
    }
    node = helper.make_node(
        "GroupQueryAttention",
        list(feeds),
        ["y", "present_k", "present_v"],
        domain=MICROSOFT,
        num_heads=1,
        kv_num_heads=1,
        local_window_size=window,
    )
    counts: Array = np.count_nonzero(run([node], feeds, {})[0], axis=1)
    return counts


@pytest.mark.parametrize(("positions", "past"), [(12, 0), (5, 7), (5, 2), (1, 11), (1, 0)], ids=str)
def test_a_window_holds_as_many_positions_as_it_says(positions: int, past: int) -> None:
    seen = [min(4, past + position + 1) for position in range(positions)]
    assert attended(positions, past, window=4).tolist() == seen


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("level", "bound"), [(1, 1e-5), (4, 2e-2)])
def test_a_quantised_product_takes_the_middle_for_zero(bits: int, level: int, bound: float) -> None:
    packed, scales, values = quantised(bits)
    rows, columns = values.shape
    x = np.random.default_rng(0).standard_normal((1, 5, columns)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "weight", "scales"],
        ["y"],
        domain=MICROSOFT,
        K=columns,
        N=rows,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=level,
    )
    weight = packed.reshape(rows, columns // BLOCK, -1)
    y = run([node], {"x": x}, {"weight": weight, "scales": scales})
    expected = x @ values.T
    assert np.sqrt(np.mean((y - expected) ** 2) / np.mean(expected**2)) < bound


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_table_takes_the_middle_for_zero(bits: int) -> None:
    packed, scales, values = quantised(bits)
    ids = np.array([[3, 47, 0, 3]])
    node = helper.make_node(
        "GatherBlockQuantized",
        ["table", "ids", "scales"],
        ["y"],
        domain=MICROSOFT,
        bits=bits,
        block_size=BLOCK,
        gather_axis=0,
        quantize_axis=1,
    )
    y = run([node], {"ids": ids}, {"table": packed, "scales": scales})
    np.testing.assert_array_equal(y, values[ids])


@pytest.mark.parametrize("axis", [-1, -2])
def test_half_a_sinkhorn_round_is_one_node(axis: int) -> None:
    x = np.random.default_rng(0).uniform(0.1, 2, (1, 3, 4, 4)).astype(np.float32)
    y = run([helper.make_node("LpNormalization", ["x"], ["y"], axis=axis, p=1)], {"x": x}, {})
    np.testing.assert_allclose(y, x / x.sum(axis, keepdims=True), rtol=1e-6)


def test_hashing_in_32_bits_wraps() -> None:
    ids = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    constants = {
        "prime": np.array(16777619, np.uint32),
        "shift": np.array(15, np.uint32),
        "slots": np.array(18432, np.uint32),
    }
    nodes = [
        helper.make_node("Mul", ["ids", "prime"], ["product"]),
        helper.make_node("BitShift", ["product", "shift"], ["high"], direction="RIGHT"),
        helper.make_node("BitwiseXor", ["product", "high"], ["hash"]),
        helper.make_node("Mod", ["hash", "slots"], ["y"]),
    ]
    y = run(nodes, {"ids": ids}, constants, TensorProto.UINT32)
    products = [int(number) * 16777619 % 2**32 for number in ids]
    assert y.tolist() == [(product ^ product >> 15) % 18432 for product in products]
