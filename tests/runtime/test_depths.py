"""Depths: one model at several, each with states of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exporter.ladder import slice_ladder
from runtime_py import Model
from runtime_py.errors import ForeignStateError, InputError, NotABundleError, UnknownDepthError
from tests.runtime.bundles import USUAL, change, random_ids, random_ladder

PROMPT = random_ids(30)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_depth_is_the_slice_of_that_depth(ladder: Model, depth: int) -> None:
    torch = pytest.importorskip("torch", reason="runs the reference")
    from golden.reference import Weights, forward  # noqa: PLC0415 - needs torch

    with torch.no_grad():
        out = forward(Weights(slice_ladder(random_ladder(USUAL), depth)), torch.tensor([PROMPT]))
    expected = out.logits[0, -1].numpy()
    state = ladder.state(depth=depth)
    assert state.depth == depth
    assert np.abs(ladder.prefill(state, PROMPT) - expected).max() < 1e-4 * expected.std()


def test_the_deepest_is_the_usual_one(ladder: Model) -> None:
    assert ladder.depths == (2, 3, 4)
    assert ladder.state().depth == 4
    assert ladder.generate(PROMPT, max_tokens=3).run().ids == (
        ladder.generate(PROMPT, depth=4, max_tokens=3).run().ids
    )


def test_depths_answer_differently(ladder: Model) -> None:
    logits = [ladder.prefill(ladder.state(depth=depth), PROMPT) for depth in ladder.depths]
    assert np.abs(logits[0] - logits[1]).max() > 0.01 * logits[0].std()
    assert np.abs(logits[1] - logits[2]).max() > 0.01 * logits[0].std()


def test_a_bundle_of_one_depth(model: Model) -> None:
    assert model.depths == (4,)
    assert model.state(depth=4).depth == 4


@pytest.mark.parametrize("depth", [0, 1, 5, -1, True])
def test_an_unknown_depth(ladder: Model, depth: int) -> None:
    with pytest.raises(
        UnknownDepthError, match=rf"ladder: does not run at depth {depth} \(it has: 2, 3, 4\)"
    ):
        ladder.state(depth=depth)
    with pytest.raises(UnknownDepthError):
        ladder.generate(PROMPT, depth=depth)
    with pytest.raises(UnknownDepthError):
        ladder.call("go", [], depth=depth)


def test_a_states_depth_is_its_own(ladder: Model) -> None:
    state = ladder.state(depth=2)
    ladder.prefill(state, PROMPT)
    assert ladder.generate([5], state, max_tokens=2).run().state.depth == 2
    with pytest.raises(InputError, match="depth is 3, and the state given runs at 2"):
        ladder.generate([5], state, depth=3)


def test_a_saved_state_comes_back_at_its_depth(ladder: Model, model: Model, tmp_path: Path) -> None:
    for depth in ladder.depths:
        state = ladder.state(depth=depth)
        ladder.prefill(state, PROMPT)
        state.save(tmp_path / "state")
        again = ladder.load_state(tmp_path / "state")
        assert again.depth == depth
        assert (ladder.step(again, 7) == ladder.step(state, 7)).all()
        with pytest.raises(ForeignStateError):
            model.load_state(tmp_path / "state")


def test_confidence_is_the_depths_own(ladder: Model) -> None:
    scores = set()
    for depth in ladder.depths:
        state = ladder.state(depth=depth)
        ladder.prefill(state, PROMPT)
        scores.add(ladder.confidence(state))
        assert ladder.confidence(PROMPT, depth=depth) == pytest.approx(ladder.confidence(state), abs=1e-5)
    assert len(scores) == 3
    assert ladder.confidence(PROMPT) == ladder.confidence(PROMPT, depth=4)


def test_a_depth_that_the_description_garbles(ladder: Model, tmp_path: Path) -> None:
    import shutil  # noqa: PLC0415 - one test

    folder = Path(shutil.copytree(ladder.bundle.folder, tmp_path / "copy"))
    change(folder, lambda description: description["rungs"]["2"].pop("decode"))
    with pytest.raises(NotABundleError, match="lacks or garbles"):
        Model.load(folder, verify=False)


def test_a_rungs_state_of_another_graph(ladder: Model, tmp_path: Path) -> None:
    """The contract of a rung is compared with its graph when the rung is first asked for."""
    import shutil  # noqa: PLC0415 - one test

    folder = Path(shutil.copytree(ladder.bundle.folder, tmp_path / "copy"))

    def swap(description: dict[str, dict[str, dict[str, object]]]) -> None:
        rungs = description["rungs"]
        rungs["2"]["decode"], rungs["3"]["decode"] = rungs["3"]["decode"], rungs["2"]["decode"]

    change(folder, swap)
    swapped = Model.load(folder, verify=False, threads=1)
    state = swapped.state(depth=2)
    swapped.prefill(state, PROMPT)
    # What the damage does: the numbers of another depth, which the test above would see.
    deeper = ladder.prefill(ladder.state(depth=3), PROMPT)
    assert np.abs(swapped.prefill(swapped.state(depth=2), PROMPT) - deeper).max() < 1e-6
