"""Long runs: what is resident after a while stays that."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

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


def apart(run: Callable[[Path], int], model: Model) -> int:
    """What a run gives in a process of its own, whose memory no other test has used and left."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run, model.bundle.folder).result()


def one_state(folder: Path) -> int:
    """Growth in bytes over 20,000 tokens, the first 200 not counted."""
    model = Model.load(folder, threads=1)
    state, ids = model.state(20_000, window=64), random_ids(20_000)
    model.prefill(state, ids[:10])
    state.pin()
    for token in ids[10:200]:
        model.step(state, token)
    settled = resident()
    for token in ids[200:]:
        model.step(state, token)
    assert state.position == 20_000
    return resident() - settled


def sessions(folder: Path) -> int:
    """Growth in bytes over 500 states of one model, the first 100 not counted."""
    model, settled = Model.load(folder, threads=1), 0
    for session in range(500):
        state = model.state()
        model.generate(random_ids(40, session), state, max_tokens=10).run()
        if session == 100:
            del state
            settled = resident()
    return resident() - settled


def loads(folder: Path) -> int:
    """Growth in bytes over 100 models loaded one after the other, the first 30 not counted."""
    settled = 0
    for time in range(100):
        fresh = Model.load(folder, threads=1)
        fresh.prefill(fresh.state(), random_ids(20))
        fresh.confidence([2, 5, 6])
        del fresh
        if time == 30:
            settled = resident()
    return resident() - settled


def leaks(folder: Path) -> int:
    """The same with a state left behind every time, which has to show."""
    model, kept = Model.load(folder, threads=1), []
    settled = resident()
    for session in range(500):
        kept.append(model.state())
        model.generate(random_ids(40, session), kept[-1], max_tokens=2).run()
    return resident() - settled


def test_one_state_over_20_000_tokens(model: Model) -> None:
    assert apart(one_state, model) < _ALLOWED


def test_500_sessions_of_one_model(model: Model) -> None:
    assert apart(sessions, model) < _ALLOWED


def test_100_times_loaded(model: Model) -> None:
    """Bundles loaded one after the other leave nothing behind."""
    assert apart(loads, model) < 4 * _ALLOWED


def test_states_left_behind_show(model: Model) -> None:
    assert apart(leaks, model) > 4 * _ALLOWED
