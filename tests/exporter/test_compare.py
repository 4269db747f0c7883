"""How far apart logits are, and the verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from exporter.compare import ACTIVATIONS, ARITHMETIC, FIDELITY, HEADS, Bound, compare
from exporter.precision import MIXED, PRECISIONS

BOUND = Bound(0.1, 1e-2)

Floats = NDArray[np.float32]


def logits(*rows: tuple[float, ...]) -> Floats:
    return np.array(rows, np.float32)


REFERENCE = logits((4.0, 1.0, 0.0), (0.0, 2.0, 1.9), (-1.0, -2.0, 3.0))


def test_equal_logits_differ_by_nothing() -> None:
    found = compare(REFERENCE, REFERENCE.copy(), BOUND)
    assert (found.positions, found.difference, found.kl, found.top1) == (3, 0.0, 0.0, 1.0)
    assert (found.near_ties, found.overturned) == (0, 0)
    assert found.spread == pytest.approx(float(REFERENCE.std()))
    assert found.within(Bound(0.0, 0.0))


def test_the_greatest_difference_is_in_units_of_the_spread() -> None:
    moved = REFERENCE.copy()
    moved[2, 1] += 0.5
    moved[0, 0] -= 0.2
    found = compare(moved, REFERENCE, BOUND)
    assert found.difference == pytest.approx(0.5 / REFERENCE.std(), rel=1e-6)
    assert compare(10 * moved, 10 * REFERENCE, BOUND).difference == pytest.approx(found.difference, rel=1e-6)


def test_the_divergence_is_that_of_the_distributions() -> None:
    got = logits((0.0, 1.0), (0.0, 0.0))
    reference = logits((1.0, 0.0), (0.0, 0.0))
    p = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    expected = float((p * np.log(p / p[::-1])).sum()) / 2
    assert compare(got, reference, BOUND).kl == pytest.approx(expected, rel=1e-6)


def test_a_shift_of_all_logits_is_no_divergence() -> None:
    found = compare(REFERENCE + 7, REFERENCE, BOUND)
    assert found.kl == pytest.approx(0, abs=1e-9)
    assert found.difference > 1
    assert not found.within(BOUND)


def test_a_near_tie_may_fall_either_way() -> None:
    # Row 1's best two are 0.1 apart, less than twice the bound of 0.1 x 1.9.
    moved = REFERENCE.copy()
    moved[1] = (0.0, 1.94, 1.96)
    found = compare(moved, REFERENCE, BOUND)
    assert (found.near_ties, found.overturned) == (1, 0)
    assert found.top1 == pytest.approx(2 / 3)
    assert found.within(BOUND)


def test_a_clear_choice_may_not_be_overturned() -> None:
    moved = REFERENCE.copy()
    moved[1] = (0.0, 1.94, 1.96)
    narrow = Bound(0.02, 1e-2)
    found = compare(moved, REFERENCE, narrow)
    assert (found.near_ties, found.overturned) == (0, 1)
    assert not found.within(Bound(10.0, 10.0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("everywhere", [True, False])
def test_what_is_no_number_fails(value: float, *, everywhere: bool) -> None:
    broken = REFERENCE.copy()
    if everywhere:
        broken[:] = value
    else:
        broken[1, 0] = value
    with np.errstate(invalid="ignore"):
        found = compare(broken, REFERENCE, Bound(1e9, 1e9))
    assert not found.within(Bound(1e9, 1e9))


@pytest.mark.parametrize(("difference", "kl"), [(0.05, 1.0), (1.0, 1e-9)])
def test_each_bound_counts(difference: float, kl: float) -> None:
    moved = REFERENCE.copy()
    moved[0, 2] += 0.3
    found = compare(moved, REFERENCE, Bound(difference, kl))
    assert found.within(Bound(1.0, 1.0))
    assert not found.within(Bound(difference, kl))


@given(
    arrays.arrays(np.float32, (5, 7), elements=st.floats(-9, 9, width=32)),
    arrays.arrays(np.float32, (5, 7), elements=st.floats(-0.125, 0.125, width=32)),
)
def test_logits_within_the_bound_overturn_nothing(reference: Floats, noise: Floats) -> None:
    reference[0, 0] += 10  # so that there is a spread
    found = compare(reference + noise, reference, Bound(1.0, 1.0))
    exact = compare(reference + noise, reference, Bound(found.difference, 1.0))
    assert exact.overturned == 0
    assert exact.near_ties == round((1 - exact.top1) * 5)
    assert 0 <= exact.kl < 1


def test_a_comparison_is_written_without_its_noise() -> None:
    moved = REFERENCE.copy()
    moved[2, 1] += 0.123456
    told = json.loads(json.dumps(compare(moved, REFERENCE, BOUND).to_json()))
    assert set(told) == {"positions", "spread", "difference", "kl", "top1", "near_ties", "overturned"}
    assert told["difference"] == float(f"{told['difference']:.3g}")
    assert told["positions"] == 3


def test_every_precision_has_bounds_that_grow_as_it_gets_coarser() -> None:
    assert set(FIDELITY) == set(HEADS) == {*PRECISIONS, MIXED}
    assert (FIDELITY[MIXED], HEADS[MIXED]) == (FIDELITY["int4"], HEADS["int4"])
    order = ["fp32", "fp16", "int8", "int4"]
    assert sorted(PRECISIONS, key=lambda name: FIDELITY[name].difference) == order
    assert sorted(PRECISIONS, key=lambda name: FIDELITY[name].kl) == order
    assert sorted(PRECISIONS, key=lambda name: HEADS[name]) == order
    assert FIDELITY["fp32"] == ARITHMETIC
    assert ARITHMETIC.difference == 1e-4
    assert ACTIVATIONS.difference < FIDELITY["int8"].difference
