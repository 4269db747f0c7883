"""Parts of the reference against plain mathematics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from exporter.config import LadderConfig
from golden.reference import Weights
from golden.reference.attention import rotate
from golden.reference.engram import history_rows, ngram_rows
from golden.reference.lanes import lane_mix, sinkhorn
from golden.reference.monarch import monarch_mlp, permutations
from golden.reference.norms import rms, zcrms
from tests.helpers import geometry, small_ladder
from tests.reference.damages import hash_rows

ORDERS = ((2, 3), (1, 2), (2, 3, 4), (1,), (3,))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12),
    st.sampled_from(ORDERS),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(1, 20_000),
)
def test_rows_are_those_of_pythons_integers(
    ids: list[int], orders: tuple[int, ...], heads: int, stride: int, slots: int
) -> None:
    config = geometry(
        d_model=64, engram_orders=orders, engram_heads=heads, engram_seed_heads=stride, engram_slots=slots
    )
    tokens = torch.tensor([[0] * (config.max_order - 1) + ids])
    rows = ngram_rows(config, tokens)
    assert rows.tolist() == hash_rows(config, tokens).tolist()
    assert rows.shape == (1, len(ids), config.num_tables)
    assert 0 <= int(rows.min()) <= int(rows.max()) < slots


def test_a_hash_by_hand() -> None:
    config = geometry(d_model=64, engram_orders=(2,), engram_heads=1, engram_slots=1000)
    acc = 0x9E3779B9
    acc = (acc ^ 7) * 0x01000193 % 2**32
    acc = (acc ^ 5) * 0x01000193 % 2**32
    expected = (acc ^ (acc >> 15)) % 1000
    assert ngram_rows(config, torch.tensor([[5, 7]])).tolist() == [[[expected]]]


@pytest.mark.parametrize("orders", ORDERS)
def test_the_engram_taps_reach_three_times_the_longest_order(orders: tuple[int, ...]) -> None:
    assert history_rows(geometry(engram_orders=orders)) == 3 * max(orders)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_sinkhorn_ends_with_columns_that_sum_to_one(lanes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = sinkhorn(torch.randn(3, lanes, lanes, generator=generator))
    torch.testing.assert_close(matrix.sum(-2), torch.ones(3, lanes))
    torch.testing.assert_close(matrix.sum(-1), torch.ones(3, lanes), atol=0.05, rtol=0)
    assert bool((matrix > 0).all())


def test_sinkhorn_has_not_converged_where_lanes_are_far_apart() -> None:
    matrix = sinkhorn(torch.tensor([[0.0, 20.0], [0.0, 0.0]]))
    torch.testing.assert_close(matrix.sum(-2), torch.ones(2))
    assert float((matrix.sum(-1) - 1).abs().max()) > 1e-3


@pytest.mark.parametrize("block", range(5))
def test_a_block_prefers_the_lane_of_its_number(block: int) -> None:
    ladder = small_ladder()
    lanes = ladder.config.mhc_lanes
    mix = lane_mix(Weights(ladder), block, torch.zeros(1, 1, lanes, ladder.config.d_model))
    # A stream of zeros leaves the biases alone.
    own = [1.0 if lane == block % lanes else 0.0 for lane in range(lanes)]
    for lane, mine in enumerate(own):
        pre = ladder.tensors["stack/mhc_b_pre"][block, lane] + 8 * mine - 4
        post = ladder.tensors["stack/mhc_b_post"][block, lane] - 4 * (1 - mine)
        assert float(mix.pre[0, 0, lane]) == pytest.approx(1 / (1 + math.exp(-pre)), rel=1e-5)
        assert float(mix.post[0, 0, lane]) == pytest.approx(2 / (1 + math.exp(-post)), rel=1e-5)


def test_norms() -> None:
    x = torch.tensor([[3.0, -4.0], [0.0, 0.0], [1e-3, 1e-3]])
    expected = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(rms(x), expected)
    torch.testing.assert_close(zcrms(x, torch.tensor([0.5, -1.0])), expected * torch.tensor([1.5, 0.0]))


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_rotated_product_knows_the_distance_alone(i: int, j: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(i + j)
    q, k = (torch.randn(1, 1, 1, 12, generator=generator, dtype=torch.float64) for _ in range(2))

    def product(a: int, b: int) -> float:
        turned = rotate(q, torch.tensor([a]), 1e5) * rotate(k, torch.tensor([b]), 1e5)
        return float(turned.sum())

    # Angles are computed in float32, which at 6000 knows some 5e-4.
    assert product(i, j) == pytest.approx(product(i + shift, j + shift), abs=2e-2)


def test_rotation_turns_pairs_of_both_halves() -> None:
    x = torch.zeros(1, 1, 1, 8)
    x[..., 1] = 1.0
    turned = rotate(x, torch.tensor([3]), 10000.0)[0, 0, 0]
    angle = 3 * 10000.0 ** (-2 * 1 / 8)
    expected = torch.zeros(8)
    expected[1], expected[5] = math.cos(angle), math.sin(angle)
    torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize("width", [8, 64, 1024])
def test_permutations_are_those_of_numpy(width: int) -> None:
    first, second = permutations(width, halves=False)
    assert first.tolist() == np.random.RandomState(11).permutation(width).tolist()
    assert second.tolist() == np.random.RandomState(13).permutation(width).tolist()


def test_half_permutations_stay_in_their_half() -> None:
    for permutation in permutations(64, halves=True):
        assert sorted(permutation[:32].tolist()) == list(range(32))
        assert sorted(permutation[32:].tolist()) == list(range(32, 64))


@pytest.mark.parametrize("name", ["small", "three lanes, width 40 of 64", "half permutations", "many ids"])
def test_the_mlp_is_a_product_of_dense_matrices(name: str) -> None:
    ladder, block = small_ladder(name), 1
    config = ladder.config
    width, padded = config.d_model, config.monarch_width
    p = {
        key.rpartition("/")[2]: torch.from_numpy(ladder.read(key, block)).double()
        for key in ladder.layout
        if "/hadamard_mlp/" in key
    }
    orders = [np.asarray(o) for o in permutations(padded, halves=bool(config.ladder_widths))]
    matrices = [torch.kron(p[f"w{i}a"], p[f"w{i}b"]) for i in (1, 2, 3)]
    u = torch.from_numpy(np.random.default_rng(1).standard_normal((6, width)))
    gain = torch.from_numpy(ladder.read("stack/layers/block/pre_hada_norm/scale", block))
    m = (1 + gain) * u / torch.sqrt((u * u).mean(-1, keepdim=True) + 1e-6)
    c = 1 + torch.softmax(m @ p["cond_v"], -1) @ p["cond_u"]
    z = torch.cat([m, torch.zeros(6, padded - width)], -1)
    z = ((p["d1"] * z) @ matrices[0])[:, orders[0]]
    z = silu(p["d2"] * c * z + p["b2"])
    z = (z @ matrices[1])[:, orders[1]]
    z = p["d4"] * ((p["d3"] * z) @ matrices[2])
    got = monarch_mlp(Weights(ladder), block, u.float()[None])[0]
    torch.testing.assert_close(got.double(), z[:, :width], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("width", "shape"),
    [(768, (32, 32)), (128, (8, 16)), (96, (8, 16)), (64, (8, 8)), (1024, (32, 32)), (1025, (32, 64))],
)
def test_the_monarch_shape_is_that_of_the_next_power_of_two(width: int, shape: tuple[int, int]) -> None:
    assert LadderConfig(d_model=width).monarch_shape == shape
