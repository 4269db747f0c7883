"""Graphs in ONNX Runtime against upstream's numbers and the reference, however they are run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from exporter.config import LadderConfig
from exporter.ladder import Array
from exporter.precision import Scheme, StoredLadder
from exporter.session import GraphSession
from exporter.verify import READOUT, Passage, passages_of, run_heads, run_passages, run_sizes, verify_live
from golden.cases import oracle
from tests.helpers import (
    GEOMETRIES,
    Built,
    build,
    geometry,
    oracle_ladder,
    reference_heads,
    reference_logits,
    small_ladder,
)

CLOSE = 1e-4
"""Of the logits' spread."""

LENGTH = 21

SOME_DEPTHS = (2, 3, 8, 15)
ALL_DEPTHS = [d if d in SOME_DEPTHS else pytest.param(d, marks=pytest.mark.slow) for d in range(2, 21)]

FOUR_BITS = (
    "small",
    "blocks alone",
    "seven blocks, two lanes",
    "three lanes, width 40 of 64",
    "fewer logits than ids, another pad id",
    "all queries on one key",
    "orders 2, 3, 4 over a width they do not divide",
    "many ids",
    "heads of other sizes",
)
"""Geometries whose kernels and tables fill blocks differently."""

EXACT_INT4 = Scheme("int4", 4, 32, 1)
"""Four bits, multiplied in float32."""


def some_tokens(config: LadderConfig, count: int = LENGTH) -> list[int]:
    """Ids of all the vocabulary, a stretch repeated, none of them padding."""
    ids = np.random.default_rng(count).integers(0, config.vocab_size, count)
    ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    ids[count // 2 : count // 2 + 4] = ids[1:5]
    return [int(i) for i in ids]


def assert_close(logits: Array, expected: Array) -> None:
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() <= CLOSE * expected.std()


def assert_runs_agree(built: Built, tokens: Sequence[int], expected: Array) -> None:
    """At once, in chunks and token by token, the logits are the expected ones."""
    session = GraphSession(built.model, built.config)
    for sizes in run_sizes(len(tokens)).values():
        got = session.run(tokens, sizes).logits
        assert list(got) == [int(end) - 1 for end in np.cumsum(sizes)]
        ends = list(got)
        assert np.abs(np.stack(list(got.values())) - expected[ends]).max() <= CLOSE * expected.std()


@pytest.mark.parametrize("depth", ALL_DEPTHS)
def test_tiny_gives_upstreams_numbers_at_every_depth(depth: int, tmp_path: Path) -> None:
    case = oracle("tiny")
    built = build(tmp_path, oracle_ladder("tiny"), depth=depth)
    tokens = case.tokens[0].tolist()
    assert len(tokens) > 4 * built.config.sliding_window
    assert_runs_agree(built, tokens, case.logits(depth)[0])
    if depth in case.head_depths:
        outputs, padded = (built.score(ids) for ids in (tokens, [*tokens, *[0] * 8]))
        for head, expected in case.heads(depth).items():
            np.testing.assert_allclose(outputs[head], expected, atol=2e-5)
            np.testing.assert_allclose(padded[head], expected, atol=2e-5)


@pytest.mark.parametrize("depth", [3, 8, pytest.param(20, marks=pytest.mark.slow)])
def test_wide_gives_upstreams_numbers(depth: int, tmp_path: Path) -> None:
    case = oracle("wide")
    built = build(tmp_path, oracle_ladder("wide"), depth=depth, all_logits=True)
    tokens = case.tokens[0].tolist()
    expected = case.logits(depth)[0]
    assert_runs_agree(built, tokens, expected)
    assert_close(built.prefill(tokens), expected)
    if depth in case.head_depths:
        for head, outputs in built.score(tokens).items():
            np.testing.assert_allclose(outputs, case.heads(depth)[head], atol=2e-5)


@pytest.mark.slow
def test_id_0_is_an_ordinary_token_to_the_decoding_graph(tmp_path: Path) -> None:
    case = oracle("tiny")
    built = build(tmp_path, oracle_ladder("tiny"), all_logits=True)
    tokens = case.tokens_with_padding[0].tolist()
    assert_close(built.prefill(tokens), case.logits_with_padding(masked=False)[0])
    np.testing.assert_allclose(built.score(tokens)["confidence"], case.confidence_with_padding, atol=2e-5)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry_equals_the_reference(name: str, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(name), all_logits=True)
    tokens = some_tokens(built.config)
    expected = reference_logits(built.ladder, tokens)
    assert expected.shape == (LENGTH, built.config.logits_width)
    assert_runs_agree(built, tokens, expected)
    assert_close(built.prefill(tokens), expected)
    heads, known = built.score(tokens), reference_heads(built.ladder, tokens)
    assert list(heads) == list(known) == ["confidence", "embedding", "router"]
    for head, outputs in heads.items():
        np.testing.assert_allclose(outputs, known[head], atol=1e-4)


@pytest.mark.parametrize("name", FOUR_BITS)
def test_a_geometry_of_four_bits_equals_the_reference_on_its_weights(name: str, tmp_path: Path) -> None:
    depth = max(2, geometry(name).num_layers - 3)
    built = build(tmp_path, small_ladder(name), EXACT_INT4, depth=depth)
    stored, tokens = StoredLadder(built.ladder, built.plan), some_tokens(built.config)
    assert_runs_agree(built, tokens, reference_logits(stored, tokens))
    known = reference_heads(stored, tokens)
    for head, outputs in built.score(tokens).items():
        np.testing.assert_allclose(outputs, known[head], atol=1e-4)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_depths_of_a_small_ladder(depth: int, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=depth)
    tokens = some_tokens(built.config)
    assert_runs_agree(built, tokens, reference_logits(built.ladder, tokens))


def test_a_long_window_is_crossed_from_the_middle_of_a_sequence(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder("a window crossed from its middle"), depth=3)
    report = verify_live(tmp_path, built.ladder, built.plan)
    assert [entry["position"] > 0 for entry in report.witness] == [False, True]
    crossing = report.witness[1]
    assert crossing["position"] < 150 < crossing["position"] + len(crossing["tokens"])


def test_a_step_far_out_equals_the_reference(tmp_path: Path) -> None:
    # Far past every window, in one prefill and one step.
    built = build(tmp_path, small_ladder("no globals"), depth=3)
    tokens = some_tokens(built.config, 300)
    expected = reference_logits(built.ladder, tokens)
    got = built.runs(tokens, [299, 1])
    assert_close(np.stack([got[298], got[299]]), expected[298:])


@pytest.mark.parametrize("name", ["small", "no taps", "no engrams", "fewer logits than ids, another pad id"])
def test_padding_is_hidden_from_the_heads(name: str, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(name), depth=3)
    pad = built.config.pad_token_id
    places = {"front": [0, 1], "middle": [5, 9, 10, 14], "behind": [19, 20]}
    places["everywhere"] = [place for where in places.values() for place in where]
    for where in places.values():
        tokens = some_tokens(built.config)
        for place in where:
            tokens[place] = pad
        known = reference_heads(built.ladder, tokens)
        for head, outputs in built.score(tokens).items():
            np.testing.assert_allclose(outputs, known[head], atol=1e-4)


def test_padding_would_be_seen(tmp_path: Path) -> None:
    # A guard of the test above: with another id in its place the outputs are others.
    built = build(tmp_path, small_ladder(), depth=2)
    tokens = some_tokens(built.config)
    padded = [*tokens[:5], 0, *tokens[6:]]
    for head, outputs in built.score(padded).items():
        assert np.abs(outputs - built.score(tokens)[head]).max() > 1e-3


@pytest.mark.parametrize("heads", [("confidence",), ("embedding", "router"), ()])
def test_only_the_heads_that_a_ladder_has_are_scored(heads: tuple[str, ...], tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder("small", heads=heads), depth=2)
    assert tuple(built.heads) == heads
    tokens = some_tokens(built.config)
    assert_runs_agree(built, tokens, reference_logits(built.ladder, tokens))
    if not heads:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "weights.bin"]
        return
    outputs = built.score(tokens)
    assert tuple(outputs) == heads
    for head, expected in reference_heads(built.ladder, tokens).items():
        np.testing.assert_allclose(outputs[head], expected, atol=1e-4)


@pytest.mark.parametrize("sizes", [[21], [1] * 21, [4, 1, 9, 7]])
def test_a_head_is_read_out_of_what_decoding_carried_along(sizes: list[int], tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=3)
    tokens = some_tokens(built.config)
    known = reference_heads(built.ladder, tokens)
    for graph, outputs in run_heads(_graphs(built), built.config, Passage(tuple(tokens))):
        for head, value in outputs.items():
            np.testing.assert_allclose(value, known[head], atol=1e-4, err_msg=graph)
    states = GraphSession(built.model, built.config).run(tokens, sizes).states
    pooled = [name for name in states if name.startswith("past_pool.confidence.")]
    assert len(pooled) == 3
    rows, probes = built.config.num_layers + 1, built.config.confidence_probes
    assert states["past_pool.confidence.denominator"].shape == (rows, probes)
    whole = GraphSession(built.model, built.config).run(tokens, [21]).states
    for name in pooled:
        np.testing.assert_allclose(states[name], whole[name], rtol=1e-3, atol=1e-3)


def _graphs(built: Built) -> dict[str, Path]:
    paths = {path.name: path for path in built.folder.glob("*.onnx")}
    assert READOUT in paths
    return paths


def test_a_single_token_is_a_sequence(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=3)
    assert_close(built.prefill([5]), reference_logits(built.ladder, [5]))
    outputs = built.score([5])
    for head, values in reference_heads(built.ladder, [5]).items():
        np.testing.assert_allclose(outputs[head], values, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_all_logits_are_the_last_ones_of_every_prefix(precision: str, tmp_path: Path) -> None:
    folders = [tmp_path / "last", tmp_path / "every"]
    for folder in folders:
        folder.mkdir()
    ladder = small_ladder("small", heads=())
    last = build(folders[0], ladder, precision, depth=2)
    every = build(folders[1], ladder, precision, depth=2, all_logits=True)
    tokens = some_tokens(last.config, 9)
    whole = every.prefill(tokens)
    for count in (1, 4, 9):
        alone = last.prefill(tokens[:count])
        assert alone.shape == (1, last.config.logits_width)
        np.testing.assert_allclose(alone[0], whole[count - 1], atol=1e-4)


def test_passages_are_run_in_every_way(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder("small", heads=()), depth=2)
    tokens = tuple(some_tokens(built.config, 12))
    runs = run_passages(built.model, built.config, [Passage(tokens), Passage(tokens[:5])])
    assert list(runs) == ["prefill", "chunks", "steps"]
    assert [list(rows) for rows in runs["prefill"]] == [[11], [4]]
    assert [list(rows) for rows in runs["chunks"]] == [[0, 7, 9, 11], [0, 4]]
    assert [list(rows) for rows in runs["steps"]] == [list(range(12)), list(range(5))]


@pytest.mark.parametrize("count", [1, 2, 10, 48, 49, 200])
def test_chunks_are_uneven_and_add_up(count: int) -> None:
    sizes = run_sizes(count)
    assert {way: sum(chunks) for way, chunks in sizes.items()} == dict.fromkeys(sizes, count)
    assert sizes["steps"] == [1] * count
    assert count < 10 or len(set(sizes["chunks"])) > 2


@pytest.mark.parametrize("name", GEOMETRIES)
def test_golden_prompts_outrun_the_window_and_hold_no_padding(name: str) -> None:
    config = geometry(name)
    passages = passages_of(config)
    assert passages == passages_of(config)
    assert passages[0].position == 0
    assert passages[-1].position + len(passages[-1].tokens) > config.sliding_window
    for passage in passages:
        assert config.pad_token_id not in passage.tokens
        assert all(0 <= token < config.vocab_size for token in passage.tokens)


def test_a_random_ladder_is_no_constant() -> None:
    # A guard of the tests here: logits that hardly depend on the tokens would agree all too easily.
    logits = reference_logits(small_ladder(), some_tokens(small_ladder().config))
    assert logits.std() > 0.5
    assert np.abs(np.diff(logits, axis=0)).max(-1).min() > 0.5
