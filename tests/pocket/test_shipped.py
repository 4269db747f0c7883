"""The shipped checkpoint: complete, small, and what its README says."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from safetensors import safe_open

import golden.pocket
from exporter.checkpoint import Checkpoint
from exporter.config import LadderConfig
from exporter.layout import layout
from exporter.precision import PRECISIONS, RECOVERED
from exporter.recovered import read_recovered
from golden.pocket.curve import read_csv

_FOLDER = Path(golden.pocket.__file__).parent
_SHIPPED = _FOLDER / "pocket.safetensors"


def test_file_is_below_six_megabytes() -> None:
    assert _SHIPPED.stat().st_size < 6_000_000


def test_recovered_weights_are_of_this_checkpoint_and_small() -> None:
    path = _SHIPPED.with_name("pocket.int4.safetensors")
    assert path.stat().st_size < 1_500_000
    ladder, scheme = Checkpoint(_SHIPPED), replace(PRECISIONS["int4"], quantiser=RECOVERED)
    plan = read_recovered(path, ladder, scheme)
    assert plan.known
    assert plan.tuned


def test_every_tensor_is_there_in_float16() -> None:
    checkpoint = Checkpoint(_SHIPPED)
    assert checkpoint.layout.keys() == layout(checkpoint.config).keys()
    assert set(checkpoint.dtypes.values()) == {"F16"}


def test_every_tensor_is_finite() -> None:
    checkpoint = Checkpoint(_SHIPPED)
    for name in checkpoint.layout:
        assert np.isfinite(checkpoint.read(name)).all(), name


def test_every_configuration_field_is_written() -> None:
    with safe_open(_SHIPPED, framework="numpy") as file:
        saved = json.loads(file.metadata()["config"])
    assert saved.keys() == {field.name for field in fields(LadderConfig)}


def test_run_is_recorded() -> None:
    checkpoint = Checkpoint(_SHIPPED)
    recipe = checkpoint.run["recipe"]
    assert recipe["seed"] == 0
    assert checkpoint.step == recipe["steps"]
    assert len(recipe["start"]) == 64
    assert checkpoint.run["head_accuracy"].keys() == {"confidence", "embedding", "router"}


def test_loss_is_kept_beside_the_ladder() -> None:
    points = read_csv(_FOLDER / "loss.csv")
    assert points[-1].step == Checkpoint(_SHIPPED).step
    assert points[-1].full < points[-1].shallow < points[0].shallow  # type: ignore[operator]
    assert (_FOLDER / "loss.svg").stat().st_size < 200_000
