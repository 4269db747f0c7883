"""Going back: bit for bit, whatever was fed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime_py import Model, State
from runtime_py.carry import Carry
from runtime_py.errors import RewindError
from tests.runtime.bundles import GEOMETRIES, WINDOW, random_ids

CONTEXT = 300


def bits(state: State) -> dict[str, bytes]:
    """Everything that a state remembers: taps, engram history, pooling, last ids; every row in a window."""
    found = {"position": bytes([state.pinned]), "ids": state.ids.tobytes()}
    found["carry"] = state._carry.take().tobytes()  # noqa: SLF001 - what is compared is nobody else's business
    for name, caches in state._caches.items():  # noqa: SLF001
        # A window may hold more rows than it shows: how many depends on when it last let go of some.
        reach = max(0, state.position - caches.window + 1) if caches.window else 0
        shown = caches.positions[: caches.filled] >= reach
        found[f"{name} positions"] = caches.positions[: caches.filled][shown].tobytes()
        for state_name, rows in caches.rows().items():
            found[state_name] = rows[:, :, shown].tobytes()
    return found


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("before", [0, 1, WINDOW - 1, 5 * WINDOW, 150])
def test_goes_back_bit_for_bit(bundles: Callable[[str], Path], geometry: str, before: int) -> None:
    model = Model.load(bundles(geometry), threads=1)
    state = model.state(CONTEXT)
    if before:
        model.prefill(state, random_ids(before))
    was, mark = bits(state), state.mark()
    untouched = state.fork()
    for number in range(4):
        # Refused drafts, one after the other, as speculation has them.
        state.verify(random_ids(9, 7 + number), 1)
        state.go_back(mark)
        assert bits(state) == was
    ids = random_ids(20, 3)
    assert (model.prefill(state, ids) == model.prefill(untouched, ids)).all()
    assert bits(state) == bits(untouched)


def test_a_carry_left_behind_shows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: taps, history and pooling of the refused tokens stay."""
    state = model.state(CONTEXT)
    model.prefill(state, random_ids(40))
    was, mark = bits(state), state.mark()
    state.verify(random_ids(9, 7), 1)
    monkeypatch.setattr(Carry, "put", lambda *_: None)
    state.go_back(mark)
    assert bits(state) != was


def test_rows_left_behind_show(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: rows of the refused tokens stay in the windows."""
    state = model.state(CONTEXT)
    model.prefill(state, random_ids(40))
    was, mark = bits(state), state.mark()
    state.verify(random_ids(9, 7), 1)
    monkeypatch.setattr("runtime_py.caches.Caches.truncate", lambda *_: None)
    state.go_back(mark)
    assert bits(state) != was


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("sizes", [[1], [1, 3, 1, 1, 7], [24], [5, 1]])
def test_rewinds_bit_for_bit(bundles: Callable[[str], Path], geometry: str, sizes: list[int]) -> None:
    """Back to every position at which the state once stood."""
    model = Model.load(bundles(geometry), threads=1)
    state = model.state(CONTEXT)
    stood = [(0, bits(state))]
    ids = random_ids(90)
    for number in range(90):
        size = sizes[number % len(sizes)]
        if state.position + size > 60:
            break
        model.prefill(state, ids[state.position : state.position + size])
        stood.append((state.position, bits(state)))
    for position, was in reversed(stood):
        again = state.fork()
        again.rewind(state.position - position)
        assert bits(again) == was


def test_rewinds_again_and_again(model: Model) -> None:
    state = model.state(CONTEXT)
    model.prefill(state, random_ids(20))
    for token in random_ids(40, 1):
        model.step(state, token)
    fork = state.fork()
    fork.rewind(7)
    was = bits(fork)
    for _ in range(3):
        state.rewind(7)
        assert bits(state) == was
        for token in random_ids(7, 2):
            model.step(state, token)


def test_a_mark_that_is_gone(model: Model) -> None:
    state = model.state(CONTEXT)
    model.prefill(state, random_ids(10))
    mark = state.mark()
    for token in random_ids(150, 1):
        model.step(state, token)
    with pytest.raises(RewindError, match="the mark at position 10 is no part of the state at 160"):
        state.go_back(mark)
    assert state.position == 160


def test_a_mark_that_lies_ahead(model: Model) -> None:
    state = model.state(CONTEXT)
    model.prefill(state, random_ids(10))
    mark = state.mark()
    state.rewind(5)
    with pytest.raises(RewindError, match="position 10 is no part of the state at 5"):
        state.go_back(mark)


def test_a_mark_of_other_tokens(model: Model) -> None:
    state = model.state(CONTEXT)
    model.prefill(state, random_ids(10))
    mark = state.mark()
    state.reset()
    model.prefill(state, random_ids(20, 1))
    with pytest.raises(RewindError):
        state.go_back(mark)
    assert np.array_equal(state.ids, random_ids(20, 1))
