"""Choosing tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime_py.errors import SamplingError
from runtime_py.sampling import Sampler, Sampling

some_logits = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40).map(
    lambda values: np.array(values, np.float32)
)


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


def chosen(logits: NDArray[np.float32], sampling: Sampling, count: int = 60) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.choose(logits) for _ in range(count)]


@given(some_logits)
def test_greedy_is_the_first_of_the_likeliest(logits: NDArray[np.float32]) -> None:
    assert Sampler(Sampling()).choose(logits) == int(np.flatnonzero(logits == logits.max())[0])


@given(some_logits, st.integers(1, 50))
def test_top_k(logits: NDArray[np.float32], top_k: int) -> None:
    least = np.sort(logits)[::-1][:top_k][-1]
    ids = chosen(logits, Sampling(temperature=3, top_k=top_k, seed=1))
    assert logits[ids].min() >= least
    assert len(set(ids)) <= top_k


@given(some_logits, st.floats(0.01, 1))
def test_top_p(logits: NDArray[np.float32], top_p: float) -> None:
    spread = probabilities(logits)
    for token in set(chosen(logits, Sampling(temperature=3, top_p=top_p, seed=1))):
        assert spread[logits > logits[token]].sum() < top_p + 1e-9


@given(some_logits, st.floats(0, 1))
def test_min_p(logits: NDArray[np.float32], min_p: float) -> None:
    spread = probabilities(logits)
    ids = chosen(logits, Sampling(temperature=3, min_p=min_p, seed=1))
    assert spread[ids].min() >= min_p * spread.max() * (1 - 1e-9)


@given(some_logits, st.integers(0, 2**32))
def test_a_seed_chooses_the_same(logits: NDArray[np.float32], seed: int) -> None:
    sampling = Sampling(temperature=1, seed=seed)
    assert chosen(logits, sampling, 10) == chosen(logits, sampling, 10)


def test_another_seed_chooses_otherwise() -> None:
    logits = np.zeros(1000, np.float32)
    assert chosen(logits, Sampling(temperature=1, seed=1), 10) != chosen(
        logits, Sampling(temperature=1, seed=2), 10
    )
    assert chosen(logits, Sampling(temperature=1), 10) != chosen(logits, Sampling(temperature=1), 10)


@pytest.mark.parametrize("temperature", [0.5, 1, 2])
def test_frequencies_are_the_probabilities(temperature: float) -> None:
    logits = np.array([0, 1, 2, -1], np.float32)
    ids = chosen(logits, Sampling(temperature=temperature, seed=5), 20_000)
    expected = probabilities(logits / np.float32(temperature))
    assert np.abs(np.bincount(ids, minlength=4) / 20_000 - expected).max() < 0.015


@given(some_logits, st.data(), st.sampled_from([0.0, 1.0, 5.0]))
def test_only_what_is_allowed(logits: NDArray[np.float32], data: st.DataObject, temperature: float) -> None:
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits))))
    allowed[data.draw(st.integers(0, len(logits) - 1))] = True
    sampler = Sampler(Sampling(temperature=temperature, top_p=0.5, seed=1))
    assert allowed[sampler.choose(logits, allowed)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 2),
        ("seed", -1),
    ],
)
def test_refuses_what_no_sampling_can_be(name: str, value: float) -> None:
    with pytest.raises(SamplingError, match=f"{name} is {value!r}: give a value"):
        Sampling(**{name: value})  # type: ignore[arg-type]
