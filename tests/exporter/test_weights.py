"""The file of weights beside the graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from exporter.weights import WeightFile

FLOAT, BYTE = ir.DataType.FLOAT, ir.DataType.UINT8


def values(count: int, seed: int = 0) -> Callable[[], NDArray[np.float32]]:
    return lambda: np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def test_a_tensor_is_what_lies_at_its_span(tmp_path: Path) -> None:
    with WeightFile(tmp_path / "w.bin") as file:
        first = file.tensor("a", FLOAT, (3, 5), values(15))
        second = file.tensor("b", BYTE, (7,), lambda: np.arange(7, dtype=np.uint8))
    data = (tmp_path / "w.bin").read_bytes()
    for tensor, expected in ((first, values(15)().tobytes()), (second, bytes(range(7)))):
        assert tensor.location == "w.bin"
        assert tensor.offset is not None
        assert tensor.length == len(expected)
        assert data[tensor.offset : tensor.offset + tensor.length] == expected
    assert np.array_equal(first.numpy(), values(15)().reshape(3, 5))


def test_a_name_is_stored_once(tmp_path: Path) -> None:
    def never() -> NDArray[np.float32]:
        pytest.fail("the data is in the file already")

    with WeightFile(tmp_path / "w.bin") as file:
        first = file.tensor("a", FLOAT, (4, 6), values(24))
        size = file.size
        again = file.tensor("a", FLOAT, (24,), never)
        assert file.size == size
    assert (again.offset, again.length) == (first.offset, first.length)
    assert list(again.shape) == [24]


def test_another_number_of_bytes_is_another_tensor(tmp_path: Path) -> None:
    with WeightFile(tmp_path / "w.bin") as file:
        file.tensor("a", FLOAT, (4,), values(4))
        with pytest.raises(ValueError, match=r"a: 16 bytes are stored, and .*takes 20"):
            file.tensor("a", FLOAT, (5,), values(5))


def test_data_is_written_row_by_row_whatever_its_strides(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    with WeightFile(tmp_path / "w.bin") as file:
        tensor = file.tensor("a", FLOAT, (4, 3), lambda: matrix.T)
    assert np.array_equal(tensor.numpy(), matrix.T)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=6))
def test_sizes_gaps_and_digest_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "w.bin"
    with WeightFile(path) as file:
        tensors = [file.tensor(str(i), FLOAT, (n,), values(n, i)) for i, n in enumerate(counts)]
    data = path.read_bytes()
    assert file.size == len(data)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert file.size - file.padding == 4 * sum(counts)
    for count, tensor in zip(counts, tensors, strict=True):
        assert tensor.offset is not None
        # A page where it is large enough to be mapped, a cache line otherwise.
        assert tensor.offset % (4096 if 4 * count >= 65536 else 64) == 0


def test_the_file_is_closed_when_its_context_ends(tmp_path: Path) -> None:
    with WeightFile(tmp_path / "w.bin") as file:
        pass
    with pytest.raises(ValueError, match="closed file"):
        file.tensor("a", FLOAT, (1,), values(1))
