"""Widths chosen per tensor under a budget."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporter.budget import Quantising
from exporter.compare import ARITHMETIC
from exporter.errors import BudgetError, PrecisionError, ReferenceUnavailableError
from exporter.examples import Example
from exporter.export import Export, build, export
from exporter.footprint import weights_bytes
from exporter.ladder import Ladder
from exporter.layout import EMBEDDING, PROJECTIONS, Part
from exporter.mixed import Option, cheapest, mixed_plan, parse_bytes
from exporter.precision import PRECISIONS, PrecisionPlan, StoredLadder, plan_precision
from exporter.session import GraphSession, float_arithmetic
from tests.helpers import reference_logits, small_ladder, write_checkpoint

ASKED = [Example((2, *range(first, first + 12)), 5, 7) for first in (5, 17, 30, 44)]
INT4 = PRECISIONS["int4"]
TOKENS = (2, 9, 31, 9, 31, 9, 5, 64, 1, 17, 9, 31)


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    return small_ladder()


def uniform(ladder: Ladder, precision: str) -> PrecisionPlan:
    return plan_precision(ladder.config, ladder.layout, PRECISIONS[precision])


def test_the_cheapest_choice_is_that_of_trying_all() -> None:
    random = np.random.default_rng(0)
    options = {
        f"group {n}": [Option(b, b * int(size), float(random.random()) / b**2) for b in (2, 4, 8)]
        for n, size in enumerate(random.integers(50, 900, 6))
    }
    for room in (3_000, 6_000, 12_000, 30_000):
        fitting = [c for c in itertools.product(*options.values()) if sum(o.nbytes for o in c) <= room]
        best = min((sum(o.cost for o in c) for c in fitting), default=None)
        found = cheapest(options, room)
        if best is None:
            assert found is None
            continue
        assert found is not None
        chosen = [next(o for o in options[group] if o.bits == bits) for group, bits in found.items()]
        assert sum(o.nbytes for o in chosen) <= room
        # Bytes are rounded up to a 4096th of the room.
        assert sum(o.cost for o in chosen) <= 1.02 * best
    assert cheapest(options, 0) is None


def test_the_file_keeps_to_the_budget_and_uses_it(ladder: Ladder, tmp_path: Path) -> None:
    four, eight = (weights_bytes(ladder, uniform(ladder, name)) for name in ("int4", "int8"))
    for number, budget in enumerate((four, (four + eight) // 2)):
        plan = mixed_plan(ladder, INT4, budget, ASKED)
        folder = tmp_path / str(number)
        folder.mkdir()
        _, file = build(folder, ladder, plan)
        assert file.size == weights_bytes(ladder, plan) <= budget
        assert file.size > 0.8 * budget
    assert {plan.storage[name].bits for name in PROJECTIONS} <= {4, 8}


def test_what_costs_most_gets_the_bits(ladder: Ladder) -> None:
    plan = mixed_plan(ladder, INT4, weights_bytes(ladder, uniform(ladder, "int4")), ASKED)
    bits = {name: storage.bits for name, storage in plan.storage.items() if storage.block}
    assert len(set(bits.values())) > 1
    # One operator multiplies with these.
    assert len({bits[name] for name in PROJECTIONS[:-1]}) == 1
    assert bits[EMBEDDING] > 2
    assert all(bits[n] == 8 for n, spec in ladder.layout.items() if spec.part is Part.HEADS and n in bits)


def test_two_bits_are_multiplied_and_gathered_as_stored(ladder: Ladder, tmp_path: Path) -> None:
    # Everything in two bits but what GatherBlockQuantized would have to read.
    whole, least = (
        uniform(ladder, "int4"),
        plan_precision(ladder.config, ladder.layout, replace(INT4, bits=2)),
    )
    kept = {EMBEDDING, *(n for n, spec in ladder.layout.items() if spec.part is Part.HEADS)}
    storage = {n: (whole if n in kept else least).storage[n] for n in whole.storage}
    plan = replace(least, storage=storage)
    assert storage["engrams_0/embedding"].bits == storage[PROJECTIONS[0]].bits == 2
    build(tmp_path, ladder, plan)
    twin = tmp_path / "twin.onnx"
    float_arithmetic(tmp_path / "model.onnx", twin)
    got = GraphSession(twin, ladder.config).run(TOKENS, [5, 7]).logits
    expected = reference_logits(StoredLadder(ladder, plan), TOKENS)
    for token, logits in got.items():
        assert np.abs(logits - expected[token]).max() < ARITHMETIC.difference * expected.std()
    # Tables read in four bits' values would be seen.
    other = reference_logits(StoredLadder(ladder, whole), TOKENS)
    assert np.abs(other[-1] - expected[-1]).max() > 100 * ARITHMETIC.difference * expected.std()


def test_a_mixed_export_is_calibrated_and_verified(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "small.safetensors")
    lines = [json.dumps(example._asdict()) for example in ASKED]
    (tmp_path / "calibration.jsonl").write_text("\n".join(lines), "utf-8")
    request = Export(
        checkpoint=checkpoint,
        depth=3,
        precision="mixed",
        budget=60_000,
        quantising=Quantising("gptq"),
        require_verified=True,
        output=tmp_path / "out",
    )
    result = export(request)
    assert result.path.name == "small-d3-host-mixed"
    assert (result.path / "weights.bin").stat().st_size <= 60_000
    told = json.loads((result.path / "bundle.json").read_text("utf-8"))["precision"]["scheme"]
    assert (told["name"], told["quantiser"]) == ("mixed", "gptq")
    assert set(result.report.comparisons) == {"arithmetic", "activations", "fidelity"}


def test_rungs_that_take_more_than_the_budget_are_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "small.safetensors")
    lines = [json.dumps(example._asdict()) for example in ASKED]
    (tmp_path / "calibration.jsonl").write_text("\n".join(lines), "utf-8")
    request = Export(
        checkpoint=checkpoint, depths=(2, 3, 4), precision="mixed", budget=66_000, output=tmp_path / "out"
    )
    with pytest.raises(BudgetError, match="rungs beside the deepest have tensors of their own"):
        export(request)
    assert not list((tmp_path / "out").iterdir())


def test_a_budget_that_nothing_fits_says_the_least(ladder: Ladder) -> None:
    with pytest.raises(BudgetError, match=r"do not fit 0\.01 MB: 0\.\d\d MB is the least"):
        mixed_plan(ladder, INT4, 10_000, ASKED)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "mixed"},
        {"precision": "int4", "budget": 10**6},
        {"precision": "mixed", "depth": "auto", "budget": 1},
    ],
)
def test_budget_and_mixed_go_together(options: dict[str, object], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "small.safetensors")
    with pytest.raises(PrecisionError, match="--budget"):
        export(Export(**{"checkpoint": checkpoint, "depth": 3, "output": tmp_path / "out", **options}))  # type: ignore[arg-type]


def test_without_pytorch_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, ladder: Ladder) -> None:
    monkeypatch.setattr("exporter.verify.has_reference", lambda: False)
    with pytest.raises(ReferenceUnavailableError, match="install the extra 'verify'"):
        mixed_plan(ladder, INT4, 10**6, ASKED)


@pytest.mark.parametrize(
    ("text", "size"), [("14MB", 14_000_000), ("1.5 MiB", 3 << 19), ("900kb", 900_000), ("77", 77), ("5B", 5)]
)
def test_a_size_in_words(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "14 apples", "-3MB", "0", "nanMB"])
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(PrecisionError, match="budget"):
        parse_bytes(text)
