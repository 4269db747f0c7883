"""Codes and scales that are found for given inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from exporter.budget import Quantising
from exporter.calibrate import calibrated
from exporter.errors import ExamplesError, ReferenceUnavailableError
from exporter.examples import Example, examples_beside, read_examples
from exporter.export import Export, export
from exporter.ladder import slice_ladder
from exporter.layout import BLOCK
from exporter.precision import PRECISIONS, StoredLadder, plan_precision
from exporter.quantize import SEARCH, Blocks, dequantise, quantise, quantise_for, unpack
from golden.reference.answers import input_moments
from tests.helpers import geometry, small_ladder, write_checkpoint

Matrix = NDArray[np.float32]
INT4 = PRECISIONS["int4"]


def drawn(seed: int, columns: int, rows: int = 48) -> tuple[Matrix, Matrix]:
    """A matrix, and the moment of inputs that lie near few directions."""
    random = np.random.default_rng(seed)
    spread = random.standard_normal((columns, columns // 4)) @ random.standard_normal((columns // 4, columns))
    inputs = random.standard_normal((500, columns)) @ (spread / columns + 0.1 * np.eye(columns))
    return random.standard_normal((rows, columns)).astype(np.float32), (inputs.T @ inputs / 500).astype(
        np.float32
    )


def error(matrix: Matrix, blocks: Blocks, bits: int, moment: Matrix) -> float:
    rest = (matrix - dequantise(blocks, bits, matrix.shape[1])).astype(np.float64)
    return float(np.einsum("rk,kl,rl->", rest, moment, rest))


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("bits", "columns", "block"), [(4, 64, 32), (4, 70, 32), (2, 64, 16), (8, 48, 64)])
def test_outputs_err_much_less(bits: int, columns: int, block: int, zero_points: bool) -> None:  # noqa: FBT001
    matrix, moment = drawn(columns, columns)
    plain = quantise(matrix, bits, block, method=SEARCH, zero_points=zero_points)
    found = quantise_for(matrix, moment, bits, block, zero_points=zero_points)
    assert (found.codes.shape, found.scales.shape) == (plain.codes.shape, plain.scales.shape)
    assert error(matrix, found, bits, moment) < 0.5 * error(matrix, plain, bits, moment)


def test_what_is_padded_has_the_code_of_zero() -> None:
    matrix, moment = drawn(3, 70)
    found = quantise_for(matrix, moment, 4, 32)
    assert (unpack(found.codes, 4).reshape(len(matrix), -1)[:, 70:] == 8).all()


@pytest.mark.parametrize("moment", [np.eye(64), np.zeros((64, 64)), np.ones((64, 64))])
def test_no_row_errs_more_than_the_search(moment: Matrix) -> None:
    matrix = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    damped = moment + 0.01 * np.trace(moment) / 64 * np.eye(64)
    plain, found = quantise(matrix, 4, 32, method=SEARCH), quantise_for(matrix, moment, 4, 32)
    for row in range(32):
        one = slice(row, row + 1)
        assert error(matrix[one], found.rows(one), 4, damped) <= 1.0001 * error(
            matrix[one], plain.rows(one), 4, damped
        )


def test_rows_do_not_know_each_other() -> None:
    matrix, moment = drawn(9, 64)
    whole, part = quantise_for(matrix, moment, 4, 32), quantise_for(matrix[7:9], moment, 4, 32)
    np.testing.assert_allclose(dequantise(whole, 4, 64)[7:9], dequantise(part, 4, 64), atol=1e-6)


# What the reference multiplies with.


def test_moments_are_those_of_the_inputs_without_padding() -> None:
    ladder = small_ladder()
    name, sequences = "stack/mhc_phi_pre", [[2, 5, 9, 11, 3], [2, 60], [2, 7, 7]]
    keys = {"lanes": (name, 0), "later": (name, 3), "logits": ("embedding/embedding", None)}
    moments = input_moments(ladder, keys, sequences)
    assert set(moments) == set(keys)
    embedded = ladder.read("embedding/embedding")[[i for ids in sequences for i in ids]] * np.sqrt(
        ladder.config.d_model
    )
    lanes = np.tile(embedded, ladder.config.mhc_lanes)
    normed = lanes / np.sqrt(np.square(lanes).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(moments["lanes"], normed.T @ normed / len(normed), rtol=1e-4, atol=1e-5)
    assert not np.allclose(moments["later"], moments["lanes"], atol=1e-2)


# A ladder.

ASKED = [Example((2, *range(first, first + 20)), 12, 5) for first in (5, 17, 30, 44)]


def test_what_was_calibrated_is_read_alike_in_every_way() -> None:
    ladder = slice_ladder(small_ladder(), 4)
    [plan] = calibrated([plan_precision(ladder.config, ladder.layout, INT4)], ladder, ASKED)
    assert (f"{BLOCK}/self_attn/q_proj/kernel", 3) in plan.known
    assert not any(name.startswith("confidence") for name, _ in plan.known)
    stored = StoredLadder(ladder, plan)
    plain = StoredLadder(ladder, replace(plan, known={}))
    for name, row in plan.known:
        whole = stored.read(name)
        assert not np.array_equal(whole, plain.read(name))
        if row is not None:
            assert np.array_equal(stored.read(name, row), whole[row])
    table = stored.read("engrams_0/embedding")
    assert np.array_equal(stored.read("engrams_0/embedding", 1), table[1])
    assert np.array_equal(stored.gather("engrams_0/embedding", 1, [4, 0, 4]), table[1][[4, 0, 4]])


@pytest.mark.parametrize(
    ("options", "zero_points"),
    [({"depth": 4}, False), ({"depth": 4}, True), ({"depths": (3, 5)}, False), ({"elastic": True}, False)],
)
def test_an_export_is_calibrated_and_verified(
    options: dict[str, Any],
    zero_points: bool,  # noqa: FBT001 - of the list above
    tmp_path: Path,
) -> None:
    checkpoint = write_checkpoint(tmp_path / "small.safetensors")
    lines = [json.dumps(example._asdict()) for example in ASKED]
    (tmp_path / "calibration.jsonl").write_text("\n".join(lines), "utf-8")
    request = Export(
        checkpoint=checkpoint,
        **options,
        precision="int4",
        quantising=Quantising("gptq", 16, zero_points),
        require_verified=True,
        output=tmp_path / "out",
    )
    result = export(request)
    assert "arithmetic" in " ".join(result.report.comparisons)
    told = json.loads((result.path / "bundle.json").read_text("utf-8"))["precision"]["scheme"]
    assert told["quantiser"] == "gptq"


def test_without_pytorch_nothing_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.verify.has_reference", lambda: False)
    ladder = small_ladder()
    with pytest.raises(ReferenceUnavailableError, match="install the extra 'verify'"):
        calibrated([plan_precision(ladder.config, ladder.layout, INT4)], ladder, ASKED)


# Files of examples.


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is no example"),
        ('{"tokens": [2, 3], "prompt": 1}', "line 2: is no example"),
        ('{"tokens": [2, 67], "prompt": 1, "bytes": 3}', "ids must be below 67"),
        ('{"tokens": [2, true], "prompt": 1, "bytes": 3}', "ids must be below 67"),
        ('{"tokens": [2, 3], "prompt": 2, "bytes": 3}', "an answer behind the prompt"),
        ('{"tokens": [2, 3], "prompt": 1, "bytes": 0}', "does not suit"),
    ],
)
def test_an_example_that_cannot_be_asked_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(f'{{"tokens": [2, 3], "prompt": 1, "bytes": 3}}\n{line}\n', "utf-8")
    with pytest.raises(ExamplesError, match=said) as caught:
        read_examples(path, geometry())
    assert caught.value.exit_code == 12
    assert read_examples(path, geometry(), 1) == [Example((2, 3), 1, 3)]


def test_missing_examples_are_missed(tmp_path: Path) -> None:
    with pytest.raises(ExamplesError, match="--calibration"):
        examples_beside(tmp_path / "x.safetensors", "calibration.jsonl", None)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ExamplesError, match="holds no example"):
        read_examples(tmp_path / "empty.jsonl", geometry())
