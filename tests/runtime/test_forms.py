"""The forms of several depths that the exporter writes: rungs that share their weights, and idle blocks."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from exporter.bundle import describe, write_sums
from exporter.checkpoint import Checkpoint
from exporter.export import SHIPPED
from exporter.forms import Elastic, Form, Shared, Static
from exporter.ladder import Ladder, keep_blocks, slice_ladder
from exporter.precision import PRECISIONS, plan_precision
from golden.pocket.data import examples
from golden.pocket.tokenizer import TOKENIZER_PATH
from runtime_py import Asking, Climb, Model, Speculation
from runtime_py.errors import (
    DamagedFileError,
    ForeignStateError,
    InputError,
    NotABundleError,
    UnknownBlocksError,
    UnknownDepthError,
)
from runtime_py.prompt import TURN_END, render_prefix, render_query
from runtime_py.tools import read_tools
from tests.runtime.bundles import USUAL, change, random_ids, random_ladder
from tests.runtime.test_rollback import bits

BLOCKS = 6
FIELDS = {**USUAL, "num_layers": BLOCKS, "engram_layers": (1, 3, 5), "global_layers": (2, 5)}
DEPTHS = (2, 3, 6)
FORMS = ("shared", "elastic")
PROMPTS = [random_ids(5 + seed % 30, seed) for seed in range(60)]
FIXED = Speculation(depth=2, most=4, adapt=False)


def write(folder: Path, base: Ladder, kind: str, depths: tuple[int, ...], precision: str = "fp32") -> Path:
    """Write a bundle of several depths without the verification that an export makes."""
    folder.mkdir(parents=True)
    deepest = slice_ladder(base, depths[-1])
    others = tuple(slice_ladder(base, depth) for depth in depths[:-1])
    forms: dict[str, Form] = {
        "elastic": Elastic(deepest),
        "shared": Shared(deepest, others),
        "static": Static(deepest),
    }
    form = forms[kind]
    form.build(
        folder, plan_precision(deepest.config, deepest.layout, PRECISIONS[precision]), all_logits=False
    )
    shutil.copyfile(TOKENIZER_PATH, folder / "tokenizer.json")
    about = {"name": kind, "target": {"onnxruntime": {"floor": "1.24.1"}}, "tokenizer": "tokenizer.json"}
    describe(folder, {**about, "configuration": deepest.config.to_json(), **form.describe(all_logits=False)})
    write_sums(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """A model of each form."""
    folder = tmp_path_factory.mktemp("forms")
    return {
        kind: Model.load(write(folder / kind, random_ladder(FIELDS), kind, DEPTHS), threads=1)
        for kind in FORMS
    }


@pytest.fixture(scope="module", params=FORMS)
def several(models: dict[str, Model], request: pytest.FixtureRequest) -> Model:
    """A model of one of the forms."""
    return models[request.param]


@pytest.fixture(scope="module")
def statics(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Model]:
    """A model of each slice on its own."""
    folder, base = tmp_path_factory.mktemp("statics"), random_ladder(FIELDS)
    return {
        depth: Model.load(write(folder / f"d{depth}", base, "static", (depth,)), threads=1)
        for depth in DEPTHS
    }


def test_depths(models: dict[str, Model]) -> None:
    assert models["shared"].depths == DEPTHS
    assert models["elastic"].depths == tuple(range(2, BLOCKS + 1))


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_depth_is_the_slice_on_its_own(several: Model, statics: dict[int, Model], depth: int) -> None:
    """Past every window, whatever the chunks, its memory and its confidence included."""
    ids = [token or 1 for token in random_ids(150)]
    state, alone = several.state(depth=depth), statics[depth].state()
    assert state.nbytes == alone.nbytes
    for start, stop in itertools.pairwise([0, 40, 41, 42, 70, 130, 150]):
        found = several.prefill(state, ids[start:stop])
        expected = statics[depth].prefill(alone, ids[start:stop])
        assert np.abs(found - expected).max() < 1e-4 * expected.std()
    expected_score = statics[depth].confidence(alone)
    assert several.confidence(state) == pytest.approx(expected_score, abs=1e-5)
    assert several.confidence(ids, depth=depth) == pytest.approx(expected_score, abs=1e-5)


SET = (0, 1, 4, 5)
"""Not the ladder's own four of six."""


def test_a_set_of_blocks_is_the_slice_on_its_own(models: dict[str, Model], tmp_path: Path) -> None:
    kept, base = models["elastic"], random_ladder(FIELDS)
    assert slice_ladder(base, len(SET)).plan.blocks != SET
    written = write(tmp_path / "kept", keep_blocks(base, SET), "static", (len(SET),))
    static = Model.load(written, threads=1)
    ids = [token or 1 for token in random_ids(150)]
    state, alone, rung = kept.state(blocks=SET), static.state(), kept.state(depth=len(SET))
    assert (state.depth, state.nbytes) == (len(SET), alone.nbytes)
    found, expected = kept.prefill(state, ids), static.prefill(alone, ids)
    assert np.abs(found - expected).max() < 1e-4 * expected.std()
    assert np.abs(kept.prefill(rung, ids) - expected).max() > 1e-2 * expected.std()
    assert kept.confidence(state) == pytest.approx(static.confidence(alone), abs=1e-5)


def test_a_state_of_a_set_of_blocks_is_kept_apart(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["elastic"]
    state = model.state(blocks=SET)
    model.prefill(state, random_ids(9))
    state.save(tmp_path / "state.npz")
    again = model.load_state(tmp_path / "state.npz")
    assert (again.identity, again.position) == (state.identity, 9)
    assert model.state(depth=len(SET)).identity != state.identity
    assert model.state(blocks=range(BLOCKS)).identity == model.state().identity
    assert model.state(blocks=(0, BLOCKS - 1)).identity == model.state(depth=2).identity
    with pytest.raises(ForeignStateError):
        Model.load(model.bundle.folder, threads=1).load_state(tmp_path / "state.npz")
    with pytest.raises(InputError, match="no rung"):
        model.conversation([], prefix=state)


@pytest.mark.parametrize("blocks", [(0,), (1, 5), (0, 2), (0, 5, 6), (0, 0, 5), ()])
def test_blocks_that_cannot_run(blocks: tuple[int, ...], models: dict[str, Model]) -> None:
    with pytest.raises(UnknownBlocksError, match="with both ends"):
        models["elastic"].state(blocks=blocks)


def test_blocks_of_a_bundle_that_is_not_told_them(models: dict[str, Model]) -> None:
    with pytest.raises(UnknownBlocksError, match="--elastic"):
        models["shared"].state(blocks=SET)
    with pytest.raises(InputError, match="one of them"):
        models["elastic"].state(depth=2, blocks=SET)


def test_one_session_for_all_depths(models: dict[str, Model]) -> None:
    """One copy of the weights, whatever depths are used."""
    elastic, shared = models["elastic"]._rungs, models["shared"]._rungs  # noqa: SLF001 - what is loaded
    assert len({id(elastic[depth].decoder.session) for depth in elastic.depths}) == 1
    assert len({id(shared[depth].decoder.session) for depth in shared.depths}) == len(DEPTHS)


@pytest.mark.parametrize("draft", [FIXED, 2])
def test_drafted_answers_are_the_same(several: Model, draft: int | Speculation) -> None:
    drafted = 0
    for prompt in PROMPTS:
        alone = several.generate(prompt, max_tokens=20).run()
        together = several.generate(prompt, max_tokens=20, draft=draft).run()
        assert (together.ids, together.finish_reason) == (alone.ids, alone.finish_reason)
        drafted += together.usage.drafted_tokens
    assert drafted


@pytest.mark.parametrize("depth", DEPTHS)
def test_goes_back_bit_for_bit(several: Model, depth: int) -> None:
    state = several.state(depth=depth)
    several.prefill(state, random_ids(70))
    was, mark = bits(state), state.mark()
    state.verify(random_ids(9, 1), 9)
    state.go_back(mark)
    assert bits(state) == was


def test_states_of_depths_stay_apart(several: Model, tmp_path: Path) -> None:
    for depth in DEPTHS:
        state = several.state(depth=depth)
        several.prefill(state, random_ids(30))
        state.save(tmp_path / "state")
        again = several.load_state(tmp_path / "state")
        assert again.depth == depth
        assert bits(again) == bits(state)


def test_climbs(several: Model) -> None:
    tools = [{"name": "lamp", "parameters": {"on": {"type": "boolean"}}}]
    climb = Climb(depths=DEPTHS, threshold=1, by="probability")
    answer = several.call("go", tools, depth=climb, asking=Asking(max_tokens=40))
    assert [attempt.depth for attempt in answer.attempts] == list(DEPTHS)
    assert answer.ids == several.call("go", tools, asking=Asking(max_tokens=40)).ids
    with pytest.raises(UnknownDepthError):
        several.call("go", tools, depth=7)


def test_a_rung_whose_graph_is_missing(models: dict[str, Model], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models["shared"].bundle.folder, tmp_path / "copy"))
    (folder / "model-d2.onnx").unlink()
    for verify in (True, False):
        with pytest.raises(DamagedFileError, match=r"model-d2\.onnx: is missing"):
            Model.load(folder, verify=verify)


def test_an_order_that_is_garbled(models: dict[str, Model], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models["elastic"].bundle.folder, tmp_path / "copy"))
    change(folder, lambda description: description["elastic"].pop("order"))
    with pytest.raises(NotABundleError, match="lacks or garbles"):
        Model.load(folder, verify=False)


def test_a_wrong_order_shows(models: dict[str, Model], statics: dict[int, Model], tmp_path: Path) -> None:
    """Damage: another set of blocks than the ladder's."""
    folder = Path(shutil.copytree(models["elastic"].bundle.folder, tmp_path / "copy"))
    change(folder, lambda description: description["elastic"].update(order=[0, 5, 4, 3, 2, 1]))
    wrong, ids = Model.load(folder, verify=False, threads=1), random_ids(40)
    found = wrong.prefill(wrong.state(depth=3), ids)
    expected = statics[3].prefill(statics[3].state(), ids)
    assert np.abs(found - expected).max() > 0.01 * expected.std()


# --- the shipped ladder


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_drafted_answers_of_the_shipped_ladder_are_the_same(tmp_path: Path, precision: str) -> None:
    """int4 rounds activations to 8 bits inside its products; its answers have to be the same all the same."""
    folder = write(tmp_path / precision, Checkpoint(SHIPPED), "shared", (4, 20), precision)
    model, drafted, accepted = Model.load(folder, threads=1), 0, 0
    for number, example in enumerate(itertools.islice(examples("test", 7), 100)):
        tools = read_tools(example.tools)
        prompt = render_prefix(tools) + render_query(example.query)

        def answer(draft: Speculation | None, text: str = prompt) -> list[int]:
            generation = model.generate(text, max_tokens=80, stop_pieces=(TURN_END,), draft=draft).run()
            nonlocal drafted, accepted
            drafted += generation.usage.drafted_tokens
            accepted += generation.usage.accepted_tokens
            return generation.ids

        adapt = bool(number % 2)
        assert answer(Speculation(depth=4, most=5, adapt=adapt)) == answer(None), example.query
    # Drafts fell as well, and were taken back.
    assert drafted - 20 > accepted > 1000
