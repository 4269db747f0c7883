"""The heads: scores of whole sequences, and scores that come with decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime_py import Model
from runtime_py.errors import InputError, MissingHeadError, TokenIdError
from runtime_py.heads import sigmoid
from tests.runtime.bundles import USUAL, change, make_bundle, random_ids, random_ladder


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def reference(head: str, ids: list[int]) -> NDArray[np.float32]:
    """A head's output of the in-framework model."""
    torch = pytest.importorskip("torch", reason="runs the reference")
    from golden.reference import Weights, head_outputs  # noqa: PLC0415 - needs torch

    with torch.no_grad():
        outputs = head_outputs(Weights(random_ladder(USUAL)), torch.tensor([ids]))
    return np.asarray(outputs[head][0].numpy())


@pytest.mark.parametrize("ids", [random_ids(60), [2, 0, 5, 0, 7, 9], [4]])
def test_confidence_is_the_references(model: Model, ids: list[int]) -> None:
    assert logit(model.confidence(ids)) == pytest.approx(reference("confidence", ids)[0], abs=1e-4)


def test_embeddings_and_routes_are_the_references(model: Model) -> None:
    ids = model.encode("turn on the light", bos=True)
    assert ids[0] == 2
    assert model.embed("turn on the light") == pytest.approx(reference("embedding", ids), abs=1e-5)
    assert model.route("turn on the light") == pytest.approx(reference("router", ids), abs=1e-4)
    assert np.linalg.norm(model.embed("é")) == pytest.approx(1, abs=1e-5)


def test_confidence_comes_with_decoding(model: Model) -> None:
    ids = [token or 1 for token in random_ids(100)]
    state = model.state()
    model.prefill(state, ids[:40])
    for token in ids[40:]:
        model.step(state, token)
        state = state.fork()
    assert model.is_pooled(state)
    assert model.confidence(state) == pytest.approx(model.confidence(ids), abs=1e-5)
    state.rewind(7)
    assert model.confidence(state) == pytest.approx(model.confidence(ids[:-7]), abs=1e-5)


def test_padding_is_masked_even_in_a_state(model: Model) -> None:
    ids = [2, 5, 0, 0, 9, 11]
    state = model.state()
    model.prefill(state, ids)
    assert not model.is_pooled(state)
    assert model.confidence(state) == model.confidence(ids)


def test_an_older_bundle_scores_in_a_second_pass(own_bundle: Path, model: Model) -> None:
    change(own_bundle, lambda description: description["graphs"].pop("readout"))
    older = Model.load(own_bundle, verify=False, threads=1)
    state = older.state()
    older.prefill(state, [2, 5, 6])
    assert not older.is_pooled(state)
    assert older.confidence(state) == pytest.approx(model.confidence([2, 5, 6]), abs=1e-6)


def test_says_which_head_is_missing(tmp_path: Path) -> None:
    model = Model.load(make_bundle(tmp_path / "router-only", heads=("router",)), threads=1)
    assert model.route("a").shape == (3,)
    with pytest.raises(MissingHeadError, match=r"router-only: has no embedding head \(it has: router\)"):
        model.embed("a")
    with pytest.raises(MissingHeadError, match="no confidence head"):
        model.confidence([5])


def test_a_bundle_without_heads(tmp_path: Path) -> None:
    model = Model.load(make_bundle(tmp_path / "headless", heads=()), threads=1)
    with pytest.raises(MissingHeadError, match="it has: none"):
        model.confidence([5])
    assert model.call("go", []).confidence is None


@pytest.mark.parametrize("ids", [[], [1024], [-1]])
def test_scores_no_impossible_ids(model: Model, ids: list[int]) -> None:
    with pytest.raises(TokenIdError):
        model.confidence(ids)


def test_offers_the_nearest_tools(model: Model) -> None:
    tools = [{"name": f"tool{n}", "description": "abc " * n, "parameters": {}} for n in range(12)]
    query = "abc abc"
    scores = [
        float(model.embed(f"{tool['name']}: {tool['description']}") @ model.embed(query)) for tool in tools
    ]
    best = sorted(range(12), key=lambda n: -scores[n])[:4]
    assert [tool.name for tool in model.nearest_tools(query, tools, 4)] == [f"tool{n}" for n in sorted(best)]
    assert len(model.nearest_tools(query, tools, 50)) == 12
    with pytest.raises(InputError, match="0 tools are asked for"):
        model.nearest_tools(query, tools, 0)


@pytest.mark.parametrize(("logit_", "expected"), [(0, 0.5), (1000, 1), (-1000, 0)])
def test_sigmoid(logit_: float, expected: float) -> None:
    assert sigmoid(logit_) == pytest.approx(expected)
