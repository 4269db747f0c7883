"""The n-gram hash inside a graph: bit-exact for every id."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from exporter.config import LadderConfig
from exporter.graph.builder import describe, finish, new_builder
from exporter.graph.engram import hash_ngrams
from golden.reference.engram import ngram_rows
from tests.helpers import geometry

CONFIGS = {
    "needle 3": LadderConfig(),
    "orders 2, 3, 4": geometry(d_model=96, engram_orders=(2, 3, 4), engram_heads=2, engram_slots=65_537),
    "orders 1 and 2": geometry(engram_orders=(1, 2), engram_heads=3, engram_seed_heads=7),
    "order 1 alone": geometry(engram_orders=(1,), engram_heads=1, engram_slots=2**31 - 1),
    "orders in another order": geometry(engram_orders=(3, 1), engram_heads=1),
    "one slot": geometry(engram_slots=1),
}

IDS = (
    st.integers(0, 2**31 - 1)
    | st.integers(0, 16383)
    | st.sampled_from((0, 1, 2, 255, 256, 65_535, 65_536, 70_000, 2**24, 2**31 - 1, 2**31, 2**32 - 1))
)


@lru_cache(maxsize=8)
def session_of(name: str) -> ort.InferenceSession:
    """A graph that hashes and does nothing else."""
    builder = new_builder("hash")
    ids = builder.input("ids", ir.DataType.INT64, ["count"])
    rows = hash_ngrams(builder.op, CONFIGS[name], ids)
    builder.add_output(rows, "rows")
    describe(rows, ir.DataType.INT64, ["tokens", CONFIGS[name].num_tables])
    model = ir.to_proto(finish(builder))
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def in_graph(name: str, ids: list[int]) -> NDArray[np.int64]:
    return np.asarray(session_of(name).run(["rows"], {"ids": np.array(ids, np.int64)})[0])


def in_python(config: LadderConfig, ids: list[int]) -> list[list[int]]:
    """Rows in tables laid end to end, in integers that never overflow."""
    rows = []
    for end in range(config.max_order - 1, len(ids)):
        row, table = [], 0
        for number, order in enumerate(config.engram_orders):
            for head in range(config.tables_per_order):
                acc = 0x9E3779B9 * (number * config.seed_stride + head + 1) % 2**32
                for back in range(order):
                    acc = (acc ^ ids[end - back]) * 0x01000193 % 2**32
                row.append((acc ^ acc // 2**15) % config.engram_slots + table * config.engram_slots)
                table += 1
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=40, deadline=None)
@given(st.lists(IDS, min_size=4, max_size=20))
def test_rows_are_those_of_pythons_integers(name: str, ids: list[int]) -> None:
    assert in_graph(name, ids).tolist() == in_python(CONFIGS[name], ids)


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_are_those_of_the_reference(name: str) -> None:
    config = CONFIGS[name]
    ids = np.random.default_rng(1).integers(0, 2**31, 3000)
    offsets = np.arange(config.num_tables) * config.engram_slots
    expected = ngram_rows(config, torch.from_numpy(ids[None]))[0].numpy()
    assert np.array_equal(in_graph(name, ids.tolist()) - offsets, expected)


def test_every_id_of_a_vocabulary_of_65536_and_more() -> None:
    ids = list(range(65_000, 66_200))
    assert in_graph("needle 3", ids).tolist() == in_python(CONFIGS["needle 3"], ids)


def test_rows_spread_over_the_slots() -> None:
    ids = np.random.default_rng(2).integers(0, 16384, 20_000)
    rows = in_graph("needle 3", ids.tolist()) % 18432
    for table in rows.T:
        assert len(np.unique(table)) > 10_000
    # Two hash heads agree about a row as rarely as chance has it.
    assert (rows[:, 0] == rows[:, 1]).mean() < 0.001
