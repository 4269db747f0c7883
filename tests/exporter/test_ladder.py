"""The selection rule, plans as data, and slices of slices."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import LadderConfig
from exporter.errors import DepthError, NotFiniteError
from exporter.ladder import SlicedLadder, fingerprint, plan_slice, selection_order, slice_ladder
from exporter.layout import Axis, layout
from golden.cases import NAMES, oracle
from golden.synthetic import SyntheticLadder
from tests.helpers import MemoryLadder, geometry, loaded, oracle_ladder, small_ladder, tensors_of

NEEDLE_3 = (0, 19, 9, 14, 4, 6, 11, 16, 2, 7, 12, 17, 1, 3, 5, 8, 10, 13, 15, 18)


def by_scanning(layers: int) -> list[int]:
    """The rule, told again: mark blocks on a line and look for the longest stretch of unmarked ones."""
    marks = ["x" if block in {0, layers - 1} else "." for block in range(layers)]
    order = [block for block in (0, layers - 1) if layers > 1 or block == 0][:layers]
    while "." in marks:
        longest = max(len(run) for run in re.findall(r"\.+", "".join(marks)))
        found = re.search(rf"(?<!\.)\.{{{longest}}}(?!\.)", "".join(marks))
        assert found is not None
        middle = (found.start() - 1 + found.end()) // 2
        marks[middle] = "x"
        order.append(middle)
    return order


def test_the_order_of_20_blocks() -> None:
    assert selection_order(20) == NEEDLE_3


@pytest.mark.parametrize("layers", range(1, 65))
def test_the_rule_told_again(layers: int) -> None:
    assert list(selection_order(layers)) == by_scanning(layers)


@settings(max_examples=40)
@given(st.integers(1, 400))
def test_every_block_joins_once_and_the_ends_first(layers: int) -> None:
    order = selection_order(layers)
    assert sorted(order) == list(range(layers))
    assert order[:2] == (0, layers - 1)[:layers]


@settings(max_examples=40)
@given(st.integers(3, 200), st.data())
def test_each_block_halves_the_leftmost_of_the_widest_gaps(layers: int, data: st.DataObject) -> None:
    order = selection_order(layers)
    step = data.draw(st.integers(2, layers - 1))
    chosen = sorted(order[:step])
    gaps = [b - a for a, b in itertools.pairwise(chosen)]
    left = chosen[gaps.index(max(gaps))]
    assert order[step] == left + max(gaps) // 2


@settings(max_examples=40)
@given(st.integers(2, 200), st.data())
def test_no_gap_of_a_depth_is_much_wider_than_another(layers: int, data: st.DataObject) -> None:
    chosen = sorted(selection_order(layers)[: data.draw(st.integers(2, layers))])
    gaps = [b - a for a, b in itertools.pairwise(chosen)]
    assert max(gaps) <= 2 * min(gaps) + 1


def test_a_ladder_without_blocks_has_no_order() -> None:
    with pytest.raises(ValueError, match="a ladder has at least one block, not 0"):
        selection_order(0)


def test_the_plan_of_needle_3_at_depth_6() -> None:
    plan = plan_slice(LadderConfig(), 6)
    assert plan.blocks == (0, 4, 6, 9, 14, 19)
    assert plan.lanes == (0, 1, 2, 3, 0, 1)
    assert plan.sites == (4,)
    assert plan.engram_layers == (5,)
    assert plan.global_layers == (1, 3, 4, 5)
    assert plan.head_rows == (0, 1, 5, 7, 10, 15, 20)
    assert plan.ladder_order == (0, 5, 3, 4, 1, 2)
    assert json.loads(json.dumps(plan.to_json()))["blocks"] == [0, 4, 6, 9, 14, 19]


@st.composite
def configurations(draw: st.DrawFn) -> LadderConfig:
    """Configurations that differ in what a plan looks at."""
    layers = draw(st.integers(2, 30))
    blocks = st.sets(st.integers(0, layers - 1))
    order: tuple[int, ...] = ()
    if draw(st.booleans()):
        inner = draw(st.permutations(range(1, layers - 1)))
        order = (*draw(st.permutations((0, layers - 1))), *inner)
    return LadderConfig(
        num_layers=layers,
        mhc_lanes=draw(st.integers(1, 5)),
        engram_layers=tuple(sorted(draw(blocks))),
        global_layers=tuple(draw(st.permutations(sorted(draw(blocks))))),
        ladder_order=order,
    )


@st.composite
def rungs(draw: st.DrawFn, count: int = 1) -> tuple[LadderConfig, list[int]]:
    """A configuration and depths of it, descending."""
    config = draw(configurations())
    depths = [draw(st.integers(2, config.num_layers)) for _ in range(count)]
    return config, sorted(depths, reverse=True)


@given(rungs())
def test_a_plan_says_what_is_kept(chosen: tuple[LadderConfig, list[int]]) -> None:
    config, (depth,) = chosen
    plan = plan_slice(config, depth)
    order = config.ladder_order or selection_order(config.num_layers)
    assert plan.blocks == tuple(sorted(order[:depth]))
    assert [plan.blocks[number] for number in plan.ladder_order] == list(order[:depth])
    assert plan.lanes == tuple(number % config.mhc_lanes for number in range(depth))
    assert plan.head_rows == (0, *(block + 1 for block in plan.blocks))
    kept_sites = [config.engram_layers[site] for site in plan.sites]
    assert kept_sites == [block for block in config.engram_layers if block in plan.blocks]
    assert [plan.blocks[number] for number in plan.engram_layers] == kept_sites
    assert {plan.blocks[n] for n in plan.global_layers} == set(config.global_layers) & set(plan.blocks)
    assert plan.global_layers == tuple(sorted(plan.global_layers))


@given(rungs(count=2))
def test_the_plan_of_a_slice_composes_to_the_direct_plan(chosen: tuple[LadderConfig, list[int]]) -> None:
    config, (outer, inner) = chosen
    first = plan_slice(config, outer)
    middle = SlicedLadder(_Nothing(config), first).config
    second, direct = plan_slice(middle, inner), plan_slice(config, inner)
    assert tuple(first.blocks[block] for block in second.blocks) == direct.blocks
    assert tuple(first.sites[site] for site in second.sites) == direct.sites
    for part in ("lanes", "engram_layers", "global_layers", "ladder_order"):
        assert getattr(second, part) == getattr(direct, part)
    assert SlicedLadder(_Nothing(middle), second).config == SlicedLadder(_Nothing(config), direct).config


class _Nothing(MemoryLadder):
    """A ladder of a configuration alone."""

    def __init__(self, config: LadderConfig) -> None:
        """Have no tensors."""
        super().__init__(config, {})


@given(rungs())
def test_full_depth_keeps_everything(chosen: tuple[LadderConfig, list[int]]) -> None:
    config, _ = chosen
    plan = plan_slice(config, config.num_layers)
    assert plan.blocks == tuple(range(config.num_layers))
    assert plan.engram_layers == config.engram_layers
    assert plan.global_layers == tuple(sorted(config.global_layers))


@pytest.mark.parametrize("depth", [-3, 0, 1, 6, 100])
def test_a_depth_off_the_ladder_is_told_the_rungs(depth: int) -> None:
    with pytest.raises(DepthError) as caught:
        plan_slice(geometry(), depth)
    assert str(caught.value) == f"depth {depth} is not on this ladder: choose one from 2 to 5."
    assert caught.value.exit_code == 4


# Both ends, one block of two of every kind, lanes that change their number.
NINE = geometry(
    "small", num_layers=9, d_model=16, engram_layers=(0, 2, 5, 8), global_layers=(4, 7), mhc_lanes=3
)


@pytest.fixture(scope="module")
def nine() -> MemoryLadder:
    """A ladder of nine blocks."""
    return loaded(SyntheticLadder(NINE, seed=9))


@pytest.mark.parametrize("outer", range(2, 10))
def test_a_slice_of_a_slice_is_the_direct_slice(outer: int, nine: MemoryLadder) -> None:
    middle = slice_ladder(nine, outer)
    for inner in range(2, outer + 1):
        nested, direct = slice_ladder(middle, inner), slice_ladder(nine, inner)
        assert nested.config == direct.config
        assert list(nested.layout.items()) == list(direct.layout.items())
        for name in direct.layout:
            assert np.array_equal(nested.read(name), direct.read(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("outer", "inner"), [(16, 8), (19, 2), (13, 12)])
def test_a_slice_of_an_oracle_slice_is_the_direct_slice(name: str, outer: int, inner: int) -> None:
    ladder = oracle_ladder(name)
    nested = slice_ladder(slice_ladder(ladder, outer), inner)
    assert fingerprint(nested) == fingerprint(slice_ladder(ladder, inner))


def test_slicing_takes_rows_by_hand(nine: MemoryLadder) -> None:
    sliced = slice_ladder(nine, 4)
    assert sliced.plan.blocks == (0, 2, 4, 8)
    assert sliced.plan.sites == (0, 1, 3)
    t = nine.tensors
    pairs = {
        "stack/mhc_phi_res": t["stack/mhc_phi_res"][[0, 2, 4, 8]],
        "stack/layers/block/attn_gate": t["stack/layers/block/attn_gate"][[0, 2, 4, 8]],
        "engrams_2/taps": t["engrams_3/taps"],
        "router_head/probes": t["router_head/probes"][[0, 1, 3, 5, 9]],
        "router_head/row_bias": t["router_head/row_bias"][:, [0, 1, 3, 5, 9]],
        "router_head/proj/kernel": t["router_head/proj/kernel"],
        "embedding/embedding": t["embedding/embedding"],
    }
    for name, expected in pairs.items():
        assert np.array_equal(sliced.read(name), expected)
    assert "engrams_3/taps" not in sliced.layout


@pytest.mark.parametrize("depth", [2, 5, 9])
def test_a_row_of_a_slice_is_the_row_of_its_whole(depth: int, nine: MemoryLadder) -> None:
    sliced = slice_ladder(nine, depth)
    for name, spec in sliced.layout.items():
        for row in range(spec.shape[0]) if spec.shape else ():
            assert np.array_equal(sliced.read(name, row), sliced.read(name)[row])


def test_a_slices_layout_is_that_of_its_configuration(nine: MemoryLadder) -> None:
    for depth in range(2, 10):
        sliced = slice_ladder(nine, depth)
        assert sliced.layout == {n: s for n, s in layout(sliced.config).items() if not s.optional}
        for name, spec in sliced.layout.items():
            assert sliced.read(name).shape == spec.shape


def test_the_stored_order_wins(nine: MemoryLadder) -> None:
    order = (8, 0, 1, 7, 2, 6, 3, 5, 4)
    ladder = MemoryLadder(geometry("small", **{**_fields(NINE), "ladder_order": order}), nine.tensors)
    assert slice_ladder(ladder, 4).plan.blocks == (0, 1, 7, 8)
    assert slice_ladder(ladder, 4).config.ladder_order == (3, 0, 1, 2)
    assert slice_ladder(slice_ladder(ladder, 6), 3).plan.blocks == (0, 1, 5)
    assert slice_ladder(nine, 4).plan.blocks == (0, 2, 4, 8)


def _fields(config: LadderConfig) -> dict[str, Any]:
    return {key: getattr(config, key) for key in config.to_json()}


def test_a_slice_of_depth_16_would_be_cut_wrongly_by_the_rule() -> None:
    # Why an order is stored: the rule on 16 blocks is not the parent's order on them.
    config = LadderConfig()
    sliced = SlicedLadder(_Nothing(config), plan_slice(config, 16)).config
    assert sliced.ladder_order != selection_order(16)


@pytest.mark.parametrize("name", NAMES)
def test_the_oracles_order_is_what_a_plan_follows(name: str) -> None:
    order = oracle(name).ladder_order
    for depth in range(2, 21):
        assert plan_slice(oracle_ladder(name).config, depth).blocks == tuple(sorted(order[:depth]))


# What makes two ladders the same.


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_fingerprint_sees_every_value(data: st.DataObject) -> None:
    ladder = small_ladder()
    name = data.draw(st.sampled_from(sorted(ladder.layout)))
    place = data.draw(st.integers(0, max(0, ladder.layout[name].size - 1)))
    tensors = tensors_of(ladder)
    flat = tensors[name].reshape(-1)
    flat[place] = np.nextafter(flat[place], np.float32(np.inf))
    tensors[name] = flat.reshape(tensors[name].shape)
    assert fingerprint(MemoryLadder(ladder.config, tensors)) != fingerprint(ladder)


def test_a_fingerprint_is_of_values_not_of_their_storage() -> None:
    halves = {name: values.astype(np.float16) for name, values in small_ladder().tensors.items()}
    wide = {name: values.astype(np.float32) for name, values in halves.items()}
    config = geometry()
    assert fingerprint(MemoryLadder(config, halves)) == fingerprint(MemoryLadder(config, wide))
    assert fingerprint(MemoryLadder(config, wide)) != fingerprint(small_ladder())


def test_a_fingerprint_is_that_of_the_full_slice() -> None:
    ladder = small_ladder()
    assert fingerprint(slice_ladder(ladder, 5)) == fingerprint(ladder)
    assert len({fingerprint(slice_ladder(ladder, depth)) for depth in range(2, 6)}) == 4


def test_a_fingerprint_knows_names() -> None:
    tensors = tensors_of(small_ladder())
    norms = "stack/layers/block/ZCRMSNorm_0/scale", "stack/layers/block/pre_hada_norm/scale"
    tensors[norms[0]], tensors[norms[1]] = tensors[norms[1]], tensors[norms[0]]
    assert fingerprint(MemoryLadder(geometry(), tensors)) != fingerprint(small_ladder())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["embedding/embedding", "stack/mhc_a_pre", "confidence_head/row_bias"])
def test_a_fingerprint_refuses_what_is_no_number(name: str, value: float) -> None:
    tensors = tensors_of(small_ladder())
    tensors[name].reshape(-1)[:2] = value
    with pytest.raises(NotFiniteError, match=f"tensor '{name}' holds . values that are NaN or infinite"):
        fingerprint(MemoryLadder(geometry(), tensors))


def test_great_numbers_are_numbers() -> None:
    tensors = tensors_of(small_ladder())
    tensors["embedding/embedding"][:] = 3e38
    assert len(fingerprint(MemoryLadder(geometry(), tensors))) == 64


def test_every_axis_is_sliced_somewhere(nine: MemoryLadder) -> None:
    assert {spec.axis for spec in nine.layout.values()} == set(Axis)
