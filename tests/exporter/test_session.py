"""Driving a graph: chunks, states, the float twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from exporter.graph.contract import LOWEST
from exporter.precision import StoredLadder
from exporter.session import GraphSession, float_arithmetic
from tests.helpers import Built, build, reference_logits, small_ladder

TOKENS = [5, 9, 11, 5, 9, 40, 2, 66, 1, 30, 31, 32]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The small ladder at depth 3: a local block, two global ones, no engram site."""
    return build(tmp_path_factory.mktemp("small"), small_ladder(), depth=3)


@pytest.fixture(scope="module")
def session(built: Built) -> GraphSession:
    """A session of it."""
    return GraphSession(built.model, built.config)


def test_the_first_states_are_empty(session: GraphSession) -> None:
    states = session.start()
    assert [state.past for state in session.contract] == list(states)
    for state in session.contract:
        assert states[state.past].shape == state.shape
        assert states[state.past].dtype == np.dtype(state.dtype)
        # The greatest score so far starts below every score, all else at nothing.
        assert (states[state.past] == (LOWEST if state.past.endswith(".max") else 0)).all()


def test_a_windowed_cache_is_cut_and_a_global_one_is_not(session: GraphSession) -> None:
    states = session.run(TOKENS, [4, 8]).states
    held = {state.past: states[state.past].shape[2] for state in session.contract if state.grows == 2}
    assert held == {
        f"past_key_values.{block}.{kind}": 6 if block == 0 else 12
        for block in range(3)
        for kind in ("key", "value")
    }


def test_states_carry_a_sequence_on(session: GraphSession, built: Built) -> None:
    first = session.run(TOKENS[:7], [3, 4])
    second = session.run(TOKENS[7:], [1, 4], first.states, position=7)
    expected = reference_logits(built.ladder, TOKENS)
    for token, logits in second.logits.items():
        np.testing.assert_allclose(logits, expected[7 + token], atol=1e-4)


def test_states_that_are_not_given_start_empty(session: GraphSession) -> None:
    given = {name: value for name, value in session.start().items() if "key_values" in name}
    got = session.run(TOKENS, [12], given).logits[11]
    assert np.array_equal(got, session.run(TOKENS, [12]).logits[11])


def test_a_run_changes_no_state_that_it_was_given(session: GraphSession) -> None:
    states = session.run(TOKENS[:5], [5]).states
    before = {name: value.copy() for name, value in states.items()}
    session.run(TOKENS[5:], [7], states, position=5)
    assert all(np.array_equal(before[name], value) for name, value in states.items())


def test_a_wrong_position_shows(session: GraphSession) -> None:
    states = session.run(TOKENS[:7], [7]).states
    right = session.run([3], [1], states, position=7).logits[0]
    wrong = session.run([3], [1], states, position=8).logits[0]
    assert np.abs(right - wrong).max() > 1e-3


def test_the_float_twin_multiplies_the_same_bytes_in_float32(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), "int4", depth=2)
    twin = tmp_path / "twin.onnx"
    before = built.model.read_bytes()
    float_arithmetic(built.model, twin)
    assert built.model.read_bytes() == before
    levels = {
        path: [
            attribute.i
            for node in onnx.load(path, load_external_data=False).graph.node
            if node.op_type == "MatMulNBits"
            for attribute in node.attribute
            if attribute.name == "accuracy_level"
        ]
        for path in (built.model, twin)
    }
    assert set(levels[built.model]) == {4}
    assert levels[twin] == [1] * len(levels[built.model])
    expected = reference_logits(StoredLadder(built.ladder, built.plan), TOKENS)
    exact = GraphSession(twin, built.config).run(TOKENS, [12]).logits[11]
    rounded = built.runs(TOKENS, [12])[11]
    assert np.abs(exact - expected[11]).max() < 1e-4 * expected.std()
    assert np.abs(rounded - expected[11]).max() > np.abs(exact - expected[11]).max()
