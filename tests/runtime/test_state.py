"""States: however the tokens come, the logits are those of one prefill."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime_py import Model, State
from runtime_py.errors import (
    BusyStateError,
    ContextFullError,
    ForeignStateError,
    InputError,
    PromptTooLongError,
    RewindError,
    StateError,
    StateFileError,
    TokenIdError,
)
from runtime_py.session import Binding
from tests.runtime.bundles import GEOMETRIES, USUAL, WINDOW, make_bundle, random_ids, random_ladder

LENGTH = 10 * WINDOW
"""Far past the window, and past the local caches: they let go of rows several times."""
CONTEXT = 3 * LENGTH


def close(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Equal but for the order of sums."""
    return bool(np.abs(a - b).max() < 1e-4 * b.std())


def chunks(sizes: Sequence[int], ids: Sequence[int]) -> list[list[int]]:
    """``ids`` in pieces of ``sizes``, taken again and again."""
    pieces, done = list[list[int]](), 0
    while done < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(list(ids[done : done + size]))
        done += size
    return pieces


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("sizes", [[1], [40], [1, 7, 2, 19, 5]])
def test_chunks_are_one_prefill(
    bundles: Callable[[str], Path], geometry: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A margin of nothing lets go of rows as early as can be.
    monkeypatch.setattr("runtime_py.state._MARGIN", 0)
    ids = random_ids(LENGTH)
    once = Model.load(bundles(geometry), chunk=LENGTH, threads=1)
    expected = once.prefill(once.state(CONTEXT), ids)
    model = Model.load(bundles(geometry), chunk=8, threads=1)
    state = model.state(CONTEXT)
    for piece in chunks(sizes, ids):
        logits = model.prefill(state, piece)
    assert close(logits, expected)
    assert state.position == LENGTH
    assert list(state.ids) == ids


def test_logits_of_every_position(tmp_path: Path, whole: Model) -> None:
    model = Model.load(make_bundle(tmp_path / "all", all_logits=True), chunk=7, threads=1)
    ids = random_ids(20)
    assert close(model.prefill(model.state(), ids), whole.prefill(whole.state(), ids))


Operation = tuple[str, int]
operations = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 30)),
        st.tuples(st.just("step"), st.integers(1, 20)),
        st.tuples(st.just("rewind"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["fork", "reload", "reset"]), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(operations)
def test_any_history_is_one_prefill(
    model: Model, whole: Model, tmp_path_factory: pytest.TempPathFactory, history: list[Operation]
) -> None:
    file = tmp_path_factory.getbasetemp() / "state.npz"
    state, ids = model.state(CONTEXT), list[int]()
    for number, (what, count) in enumerate(history):
        if what in {"feed", "step"}:
            new = random_ids(count, number)[: state.room]
            for piece in [new] if what == "feed" else [[token] for token in new]:
                model.prefill(state, piece)
            ids += new
        elif what == "rewind":
            taken = min(count, state.rewindable)
            state.rewind(taken)
            ids = ids[: len(ids) - taken]
        elif what == "fork":
            other, state = state, state.fork()
            # What happens to the one is nothing to the other.
            if other.room:
                model.step(other, 7)
        elif what == "reload":
            state.save(file)
            state = model.load_state(file, CONTEXT)
        else:
            state.reset()
            ids = []
        assert list(state.ids) == ids
    last = [*ids, 5]
    assert close(model.step(state, 5), whole.prefill(whole.state(CONTEXT), last))


def test_rewinds_the_margin_after_any_number_of_steps(model: Model, whole: Model) -> None:
    state, ids = model.state(CONTEXT), random_ids(2 * LENGTH)
    for token in ids:
        model.step(state, token)
    assert state.rewindable >= 32
    state.rewind(32)
    assert close(model.step(state, 3), whole.prefill(whole.state(CONTEXT), [*ids[:-32], 3]))


def test_memory_of_local_caches_does_not_grow(bundles: Callable[[str], Path]) -> None:
    model = Model.load(bundles("no global block"), chunk=9, threads=1)
    assert model.state(1000).nbytes == model.state(100_000).nbytes
    state = model.state(CONTEXT)
    for piece in chunks([9], random_ids(CONTEXT)):
        model.prefill(state, piece)
        assert state.rows["cached_local"] < 2 * WINDOW + 80


@pytest.mark.parametrize("count", [-1, 11, 500])
def test_cannot_rewind_further_than_it_went(model: Model, count: int) -> None:
    state = model.state()
    model.prefill(state, random_ids(10))
    with pytest.raises(RewindError, match=f"{count} tokens cannot be taken back: 10 of 10 can"):
        state.rewind(count)
    assert state.position == 10


def test_cannot_rewind_what_a_window_let_go(model: Model) -> None:
    state = model.state(CONTEXT)
    for piece in chunks([9], random_ids(2 * LENGTH)):
        model.prefill(state, piece)
    with pytest.raises(RewindError, match="Fork the state"):
        state.rewind(2 * LENGTH)


# --- served window


def served_reference(
    ids: Sequence[int], window: int, pinned: int, monkeypatch: pytest.MonkeyPatch
) -> NDArray[np.float32]:
    """Logits after ``ids`` where every block sees only a window and what is pinned."""
    torch = pytest.importorskip("torch", reason="runs the reference")
    from golden.reference import Weights, attention, forward  # noqa: PLC0415 - needs torch

    visible = attention._visible  # noqa: SLF001 - the reference serves no windows itself

    def served(own: int, queries: Any, keys: int) -> Any:  # noqa: ANN401 - torch is not always here
        distance = queries[:, None] - torch.arange(keys)[None, :]
        kept = (distance < window) | (torch.arange(keys)[None, :] < pinned)
        return visible(own, queries, keys) & kept

    monkeypatch.setattr(attention, "_visible", served)
    with torch.no_grad():
        out = forward(Weights(random_ladder(USUAL)), torch.tensor([list(ids)]))
    return np.asarray(out.logits[0, -1].numpy())


@pytest.mark.parametrize(("window", "pinned"), [(8, 0), (10, 6), (16, 0), (16, 30), (40, 5), (300, 4)])
def test_served_window_is_the_references(
    model: Model, monkeypatch: pytest.MonkeyPatch, window: int, pinned: int
) -> None:
    ids = random_ids(90)
    state = model.state(CONTEXT, window=window)
    state.pin(pinned)
    model.prefill(state, ids[:70])
    state = state.fork()
    for token in ids[70:]:
        logits = model.step(state, token)
    assert close(logits, served_reference(ids, window, pinned, monkeypatch))
    assert state.rows["cached_global"] <= pinned + window


def test_served_window_defaults_to_the_checkpoints_word(tmp_path: Path) -> None:
    fields = {**GEOMETRIES["usual"], "kv_window": 9}
    model = Model.load(make_bundle(tmp_path / "served", fields), threads=1)
    assert model.state().window == 9
    assert model.state(window=0).window == 0


def test_a_prefix_cannot_be_pinned_once_some_of_it_is_gone(model: Model) -> None:
    state = model.state(window=5)
    model.prefill(state, random_ids(20))
    with pytest.raises(StateError, match="Pin a prefix before its prefill"):
        state.pin()


def test_a_served_state_survives_its_file(model: Model, tmp_path: Path) -> None:
    state = model.state(window=8)
    model.prefill(state, random_ids(6))
    state.pin()
    model.prefill(state, random_ids(40, 1))
    state.save(tmp_path / "state")
    again = model.load_state(tmp_path / "state")
    assert (again.window, again.pinned) == (8, 6)
    for token in random_ids(20, 2):
        a, b = model.step(state, token), model.step(again, token)
    assert (a == b).all()


# --- what must not be


@pytest.mark.parametrize("ids", [[1024], [-1], [5, 1 << 40], [], [[1, 2]], [1.5], ["a"], 7])
def test_refuses_what_are_no_ids(model: Model, ids: list[int]) -> None:
    state = model.state()
    with pytest.raises(TokenIdError, match=r"vocabulary|list of token ids"):
        model.prefill(state, ids)
    assert state.position == 0


def test_takes_the_ends_of_the_vocabulary(model: Model) -> None:
    state = model.state()
    model.prefill(state, np.array([0, 1023], np.uint16))
    assert list(state.ids) == [0, 1023]


def test_a_prompt_longer_than_the_context(model: Model) -> None:
    state = model.state(10)
    model.prefill(state, random_ids(4))
    with pytest.raises(PromptTooLongError, match="7 tokens do not fit: 6 of the context's 10 are left"):
        model.prefill(state, random_ids(7))
    model.prefill(state, random_ids(6))
    with pytest.raises(ContextFullError, match="context of 10 tokens is full"):
        model.step(state, 1)
    assert state.position == 10


def test_another_bundles_state(model: Model, bundles: Callable[[str], Path], tmp_path: Path) -> None:
    other = Model.load(bundles("bare"), threads=1)
    state = other.state()
    with pytest.raises(ForeignStateError, match="another bundle than usual"):
        model.prefill(state, [5])
    other.prefill(state, [5])
    state.save(tmp_path / "state.npz")
    with pytest.raises(ForeignStateError, match=r"state\.npz belongs to another bundle"):
        model.load_state(tmp_path / "state.npz")


def test_the_same_bundle_loaded_twice_shares_states(model: Model, whole: Model) -> None:
    state = whole.state()
    model.prefill(state, [5, 6])
    assert state.position == 2


@pytest.mark.parametrize(("context", "window"), [(0, 0), (-1, 0), (4, -1)])
def test_impossible_sizes(model: Model, context: int, window: int) -> None:
    with pytest.raises(InputError, match="give 1 or more"):
        model.state(context, window=window)


def test_two_threads_on_one_state(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    state, inside, leave = model.state(), threading.Event(), threading.Event()
    run = Binding.run

    def slow(self: Binding, ids: NDArray[np.int64], position: int, kept: int = 1) -> NDArray[np.float32]:
        inside.set()
        leave.wait(10)
        return run(self, ids, position, kept)

    monkeypatch.setattr(Binding, "run", slow)
    thread = threading.Thread(target=model.prefill, args=(state, [5]))
    thread.start()
    assert inside.wait(10)
    for use in (lambda: model.step(state, 6), state.fork, state.reset, lambda: state.rewind(1)):
        with pytest.raises(BusyStateError, match="a fork"):
            use()
    leave.set()
    thread.join()
    assert list(state.ids) == [5]
    model.step(state, 6)


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("failing", [0, 1, 5])
def test_a_failed_prefill_changes_nothing(
    model: Model, monkeypatch: pytest.MonkeyPatch, window: int, failing: int
) -> None:
    state = model.state(CONTEXT, window=window)
    for token in random_ids(LENGTH):
        model.step(state, token)
    untouched, before = state.fork(), state.ids
    run, calls = Binding.run, iter(range(100))

    def breaking(self: Binding, ids: NDArray[np.int64], position: int, kept: int = 1) -> NDArray[np.float32]:
        logits = run(self, ids, position, kept)
        if next(calls) == failing:
            raise MemoryError
        return logits

    monkeypatch.setattr(Binding, "run", breaking)
    with pytest.raises(MemoryError):
        model.prefill(state, random_ids(150, 1))
    monkeypatch.setattr(Binding, "run", run)
    assert list(state.ids) == list(before)
    # The undone calls leave other rounding at most, where they computed the same again.
    assert (model.prefill(state, [3, 4]) == model.prefill(untouched, [3, 4])).all()


def test_a_failed_step_changes_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    state, untouched = model.state(), model.state()
    for each in (state, untouched):
        model.prefill(each, random_ids(30))

    def breaking(self: Binding, ids: NDArray[np.int64], position: int, kept: int = 1) -> NDArray[np.float32]:
        run(self, ids, position, kept)
        raise MemoryError

    run = Binding.run
    monkeypatch.setattr(Binding, "run", breaking)
    with pytest.raises(MemoryError):
        model.step(state, 9)
    monkeypatch.setattr(Binding, "run", run)
    assert (model.step(state, 8) == model.step(untouched, 8)).all()


def test_a_failed_rewind_changes_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    state = model.state()
    model.prefill(state, random_ids(50))
    run = Binding.run
    monkeypatch.setattr(Binding, "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        state.rewind(3)
    monkeypatch.setattr(Binding, "run", run)
    assert state.position == 50
    untouched = model.state()
    model.prefill(untouched, random_ids(50))
    assert close(model.step(state, 8), model.step(untouched, 8))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nothing", b"not a state at all"])
def test_a_file_that_holds_no_state(model: Model, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "state").write_bytes(damage)
    with pytest.raises(StateFileError, match="Prefill again"):
        model.load_state(tmp_path / "state")


def test_a_truncated_or_garbled_state(model: Model, tmp_path: Path) -> None:
    state = model.state()
    model.prefill(state, random_ids(30))
    state.save(tmp_path / "state")
    data = (tmp_path / "state").read_bytes()
    for damaged in (
        data[: len(data) // 2],
        data.replace(b"rows/", b"sows/"),
        data[:2000] + bytes(200) + data[2200:],
    ):
        (tmp_path / "state").write_bytes(damaged)
        with pytest.raises(StateFileError):
            model.load_state(tmp_path / "state")


def test_a_pickle_is_not_run(model: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "state.npz", about=np.array([{"state_version": 1}], dtype=object))
    with pytest.raises(StateFileError):
        model.load_state(tmp_path / "state.npz")


def test_a_state_that_the_context_cannot_hold(model: Model, tmp_path: Path) -> None:
    state = model.state()
    model.prefill(state, random_ids(30))
    state.save(tmp_path / "state")
    with pytest.raises(StateFileError, match="holds 30 tokens, and context is 20"):
        model.load_state(tmp_path / "state", 20)


def test_a_state_that_cannot_be_written(model: Model, tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="cannot be written"):
        model.state().save(tmp_path / "nowhere" / "state")


def test_saving_replaces_as_one_step(model: Model, tmp_path: Path) -> None:
    state: State = model.state()
    model.prefill(state, [5])
    state.save(tmp_path / "state")
    model.prefill(state, [6])
    state.save(tmp_path / "state")
    assert list(model.load_state(tmp_path / "state").ids) == [5, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
