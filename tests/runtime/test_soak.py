"""Long runs: what is resident after a while stays that."""

from __future__ import annotations

import gc

import pytest

from runtime_py import Model
from runtime_py.usage import resident_memory
from tests.runtime.bundles import random_ids

_ALLOWED = 2_000_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(resident_memory() is None, reason="the system does not say what is resident"),
]


def resident() -> int:
    gc.collect()
    found = resident_memory()
    assert found is not None
    return found


def test_one_state_over_20_000_tokens(model: Model) -> None:
    state = model.state(20_000, window=64)
    ids = random_ids(20_000)
    model.prefill(state, ids[:10])
    state.pin()
    for token in ids[10:200]:
        model.step(state, token)
    settled = resident()
    for token in ids[200:]:
        model.step(state, token)
    assert state.position == 20_000
    assert resident() - settled < _ALLOWED


def test_500_sessions_of_one_model(model: Model) -> None:
    settled = 0
    for session in range(500):
        state = model.state()
        model.generate(random_ids(40, session), state, max_tokens=10).run()
        if session == 100:
            del state
            settled = resident()
    assert resident() - settled < _ALLOWED


def test_100_times_loaded(model: Model) -> None:
    """Bundles loaded one after the other leave nothing behind."""
    settled = 0
    for time in range(100):
        fresh = Model.load(model.bundle.folder, threads=1)
        fresh.prefill(fresh.state(), random_ids(20))
        fresh.confidence([2, 5, 6])
        del fresh
        if time == 30:
            settled = resident()
    assert resident() - settled < 4 * _ALLOWED
