"""Exported graphs against the reference, and what the report says of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporter import verify
from exporter.compare import ACTIVATIONS, ARITHMETIC, FIDELITY, HEADS, Bound
from exporter.errors import VerificationError
from exporter.verify import (
    Report,
    check_witness,
    has_reference,
    passages_of,
    verify_live,
    verify_stored,
)
from golden.cases import oracle
from golden.cases.stored import StoredCase
from tests.helpers import (
    Built,
    build,
    geometry,
    oracle_ladder,
    reference_heads,
    reference_logits,
    small_ladder,
)

EVERY = tuple(range(2, 21))
DEPTHS = {
    # In a short run, and in a long one.
    ("tiny", "fp16"): ((4,), (4, 20)),
    ("tiny", "int8"): ((3,), EVERY),
    ("tiny", "int4"): ((2, 5), EVERY),
    ("wide", "int8"): ((), (2, 5, 8, 13, 20)),
    ("wide", "int4"): ((3,), EVERY),
}

CASES = [
    pytest.param(name, precision, depth, marks=() if depth in short else pytest.mark.slow)
    for (name, precision), (short, long) in DEPTHS.items()
    for depth in long
]


@pytest.mark.parametrize(("name", "precision", "depth"), CASES)
def test_every_depth_keeps_its_bounds(name: str, precision: str, depth: int, tmp_path: Path) -> None:
    built = build(tmp_path, oracle_ladder(name), precision, depth=depth)
    report = verify_live(tmp_path, built.ladder, built.plan)
    assert report.against == "reference"
    bounds = {"arithmetic": ARITHMETIC, "activations": ACTIVATIONS, "fidelity": FIDELITY[precision]}
    if precision == "fp16":
        del bounds["activations"]
    assert report.bounds == bounds
    for what, runs in report.comparisons.items():
        assert list(runs) == ["prefill", "chunks", "steps"]
        for comparison in runs.values():
            assert comparison.within(bounds[what])
            # No choice is overturned where the margin is above the bound.
            assert comparison.overturned == 0
            assert comparison.top1 == 1 - comparison.near_ties / comparison.positions
    for graphs in report.heads.values():
        assert set(graphs["score.onnx"]) == {"confidence", "embedding", "router"}
        assert set(graphs["readout.onnx"]) == {"confidence"}
    assert max(max(found.values()) for found in report.heads["arithmetic"].values()) <= HEADS["fp32"]


def test_float32_is_compared_once(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=2)
    report = verify_live(tmp_path, built.ladder, built.plan)
    assert set(report.comparisons) == {"arithmetic", "fidelity"}
    assert report.comparisons["arithmetic"] == report.comparisons["fidelity"]
    assert report.comparisons["fidelity"]["steps"].positions == len(passages_of(built.config)[0].tokens)


def test_verifying_leaves_nothing_behind(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), "int4", depth=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    verify_live(tmp_path, built.ladder, built.plan)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_report_is_json(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), "int8", depth=2)
    told = json.loads(json.dumps(verify_live(tmp_path, built.ladder, built.plan).to_json()))
    assert (told["status"], told["against"]) == ("verified", "reference")
    assert set(told["comparisons"]) == set(told["bounds"]) == {"arithmetic", "activations", "fidelity"}
    assert told["bounds"]["fidelity"] == {
        "difference": FIDELITY["int8"].difference,
        "kl": FIDELITY["int8"].kl,
    }
    assert told["heads"]["fidelity"]["score.onnx"].keys() == {"confidence", "embedding", "router"}
    (entry,) = told["witness"]
    reference = reference_logits(built.ladder, entry["tokens"])
    for position in entry["positions"]:
        known = reference[position["token"]]
        assert position["ids"] == [int(i) for i in np.argsort(-known, kind="stable")[:8]]
        np.testing.assert_allclose(position["logits"], known[position["ids"]], rtol=1e-5)
    assert entry["spread"] == pytest.approx(reference.std(), rel=1e-5)


def test_an_unverified_report_says_so() -> None:
    told = Report(None).to_json()
    assert (told["status"], told["against"], told["witness"]) == ("unverified", None, [])


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_witness_is_checked_without_the_reference(precision: str, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), precision, depth=3)
    report = verify_live(tmp_path, built.ladder, built.plan)
    witness = json.loads(json.dumps(report.witness))
    worst = check_witness(built.model, built.config, precision, witness)
    # A witness has the best logits of some positions, a comparison all; their spreads differ a little.
    assert 0 < worst <= 1.1 * report.comparisons["fidelity"]["chunks"].difference + 1e-5


def test_a_witness_of_another_ladder_fails(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=3)
    witness = verify_live(tmp_path, built.ladder, built.plan).witness
    folder = tmp_path / "other"
    folder.mkdir()
    other = build(folder, small_ladder("small", heads=("router",)), "fp16", depth=3)
    with pytest.raises(VerificationError) as caught:
        check_witness(other.model, other.config, "fp32", witness)
    assert "on the bundle's own witness its logits differ" in str(caught.value)
    assert "and fp32 may differ by 0.0001. Export the bundle again." in str(caught.value)


@pytest.mark.parametrize("places", [1, None])
def test_a_witness_does_not_pass_over_nan(
    places: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path, small_ladder(), depth=3)
    witness = verify_live(tmp_path, built.ladder, built.plan).witness
    run = verify.run_passages

    def broken(*args: object) -> verify.Runs:
        runs = run(*args)  # type: ignore[arg-type]
        for logits in runs["chunks"][0].values():
            logits[:places] = np.nan
        return runs

    chosen = [
        {
            **witness[0],
            "positions": [{**p, "ids": [0, 1], "logits": [0.0, 0.0]} for p in witness[0]["positions"]],
        }
    ]
    monkeypatch.setattr(verify, "run_passages", broken)
    with pytest.raises(VerificationError, match="differ from the reference's by nan"):
        check_witness(built.model, built.config, "int4", chosen)


@pytest.mark.parametrize(
    ("what", "bound"), [("FIDELITY", {"fp16": Bound(1e-9, 1.0)}), ("ARITHMETIC", Bound(1e-12, 1.0))]
)
def test_a_bound_that_is_exceeded_names_the_check(
    what: str, bound: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path, small_ladder(), "fp16", depth=2)
    monkeypatch.setattr(verify, what, bound)
    with pytest.raises(VerificationError) as caught:
        verify_live(tmp_path, built.ladder, built.plan)
    message = str(caught.value)
    assert f"run as prefill, fails the {what.lower()} check" in message
    assert "of their spread (bound 1e-" in message
    assert "Nothing was written; try a finer --precision" in message
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_a_head_out_of_bounds_is_named(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path, small_ladder(), precision, depth=2)
    monkeypatch.setattr(verify, "HEADS", {"fp32": 1e-4, precision: 1e-9})
    with pytest.raises(
        VerificationError, match=r"score.onnx fails the fidelity check: its confidence differs"
    ) as caught:
        verify_live(tmp_path, built.ladder, built.plan)
    assert "(bound 1e-09)" in str(caught.value)


def test_a_ladder_without_heads_is_verified_by_its_logits(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder("small", heads=()), depth=2)
    report = verify_live(tmp_path, built.ladder, built.plan)
    assert report.heads == {}
    assert report.comparisons["fidelity"]["steps"].positions > 20


# Against what was stored, where there is no PyTorch.


def stored(built: Built, *, wrong: float = 0.0) -> StoredCase:
    """A case as the reference gives it, with one logit moved."""
    tokens = passages_of(built.config)[0].tokens
    logits = reference_logits(built.ladder, tokens)
    positions = (0, 5, len(tokens) - 1)
    chosen = logits[list(positions)].copy()
    chosen[1, 3] += wrong
    return StoredCase(tokens, positions, chosen, reference_heads(built.ladder, tokens))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_stored_case_verifies(precision: str, tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), precision, depth=3)
    report = verify_stored(tmp_path, built.config, precision, stored(built))
    assert report.against == "stored cases"
    assert {way: found.positions for way, found in report.comparisons["fidelity"].items()} == {
        "prefill": 1,
        "chunks": 2,
        "steps": 3,
    }
    assert [p["token"] for p in report.witness[0]["positions"]] == [0, len(report.witness[0]["tokens"]) - 1]
    assert check_witness(built.model, built.config, precision, report.witness) > 0


def test_a_stored_case_that_disagrees_fails(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=3)
    with pytest.raises(VerificationError, match="run as steps, fails the fidelity check"):
        verify_stored(tmp_path, built.config, "fp32", stored(built, wrong=0.05))


def test_a_stored_head_that_disagrees_fails(tmp_path: Path) -> None:
    built = build(tmp_path, small_ladder(), depth=3)
    case = stored(built)
    moved = {head: outputs + 0.01 * (head == "router") for head, outputs in case.heads.items()}
    with pytest.raises(VerificationError, match=r"score\.onnx fails the fidelity check: its router differs"):
        verify_stored(tmp_path, built.config, "fp32", replace(case, heads=moved))


def test_upstreams_logits_are_a_stored_case(tmp_path: Path) -> None:
    case = oracle("tiny")
    built = build(tmp_path, oracle_ladder("tiny"), "int8", depth=4)
    tokens = tuple(int(i) for i in case.tokens[0])
    of_upstream = StoredCase(tokens, tuple(range(len(tokens))), case.logits(4)[0], case.heads(4))
    report = verify_stored(tmp_path, built.config, "int8", of_upstream)
    assert report.comparisons["fidelity"]["steps"].positions == 40
    assert set(report.heads["fidelity"]) == {"score.onnx", "readout.onnx"}


def test_the_reference_needs_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_reference()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not has_reference()


def test_the_bos_id_starts_every_prompt() -> None:
    assert passages_of(geometry())[0].tokens[0] == 2
