"""Checkpoint files: read lazily, saved completely, refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import DTypeLike
from safetensors import safe_open

from exporter import checkpoint as module
from exporter.checkpoint import Checkpoint, save
from exporter.errors import ConfigError
from exporter.ladder import fingerprint, slice_ladder
from golden.cases import NAMES, oracle
from tests.exporter.bad import BAD, BROKEN_NUMBERS, Bad
from tests.helpers import (
    GEOMETRIES,
    MemoryLadder,
    Tensors,
    geometry,
    heads_of,
    small_ladder,
    tensors_of,
    write_checkpoint,
)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    bad: Bad = BAD[name]
    path = bad.make(tmp_path / "bad.safetensors")
    with pytest.raises(bad.error) as caught:
        Checkpoint(path)
    assert type(caught.value) is bad.error
    assert str(path) in str(caught.value) or bad.error is ConfigError
    for text in bad.texts:
        assert text in str(caught.value)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", BROKEN_NUMBERS)
def test_numbers_are_looked_at_when_a_ladder_is_identified(name: str, tmp_path: Path) -> None:
    bad = BROKEN_NUMBERS[name]
    ladder = Checkpoint(bad.make(tmp_path / "bad.safetensors"))
    with pytest.raises(bad.error) as caught:
        fingerprint(ladder)
    for text in bad.texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_an_upstream_file(name: str) -> None:
    opened = Checkpoint(oracle(name).checkpoint)
    assert opened.config.num_layers == 20
    assert set(opened.dtypes.values()) == {"F32"}
    assert (opened.step, opened.run) == (0, {"note": "random, perturbed"})
    with safe_open(oracle(name).checkpoint, "numpy") as file:
        for tensor in file.keys():  # noqa: SIM118 - a file of safetensors is no mapping
            assert np.array_equal(opened.read(tensor), file.get_tensor(tensor))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_was_saved_is_read_back_as_float32(dtype: DTypeLike, tmp_path: Path) -> None:
    ladder, path = small_ladder(), tmp_path / "saved.safetensors"
    save(ladder, path, dtype=dtype, step=12, run={"note": "x", "seed": 4})
    opened = Checkpoint(path)
    assert (opened.config, opened.step, opened.run) == (ladder.config, 12, {"note": "x", "seed": 4})
    assert opened.layout == ladder.layout
    code = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[np.dtype(dtype).name]
    assert set(opened.dtypes.values()) == {code}
    for name, values in ladder.tensors.items():
        read = opened.read(name)
        assert read.dtype == np.float32
        assert np.array_equal(read, values.astype(dtype).astype(np.float32))


def test_dtypes_may_be_mixed(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["embedding/embedding"] = tensors["embedding/embedding"].astype(np.float16)
        tensors["stack/mhc_a_pre"] = tensors["stack/mhc_a_pre"].astype(ml_dtypes.bfloat16)

    opened = Checkpoint(write_checkpoint(tmp_path / "mixed.safetensors", change=change))
    assert opened.dtypes["embedding/embedding"] == "F16"
    assert opened.dtypes["stack/mhc_a_pre"] == "BF16"
    assert opened.read("stack/mhc_a_pre", 2).dtype == np.float32


@pytest.mark.parametrize("name", ["small", "many ids", "blocks alone"])
def test_a_row_is_the_row_of_the_whole(name: str, tmp_path: Path) -> None:
    opened = Checkpoint(write_checkpoint(tmp_path / "c.safetensors", small_ladder(name)))
    for tensor, spec in opened.layout.items():
        whole = opened.read(tensor)
        assert whole.shape == spec.shape
        for row in range(min(spec.shape[0], 6)) if spec.shape else ():
            part = opened.read(tensor, row)
            assert part.shape == spec.shape[1:]
            assert np.array_equal(part, whole[row])


def test_gathered_rows_are_rows_of_the_whole(tmp_path: Path) -> None:
    ladder = MemoryLadder(geometry(ladder_order=(0, 4, 3, 2, 1)), small_ladder().tensors)
    opened = Checkpoint(write_checkpoint(tmp_path / "c.safetensors", ladder))
    table, indices = opened.read("engrams_1/embedding", 1), [7, 0, 60, 7, 7, 31]
    assert np.array_equal(opened.gather("engrams_1/embedding", 1, indices), table[indices])
    sliced = slice_ladder(opened, 3)
    assert sliced.plan.sites == (1,)
    assert np.array_equal(sliced.gather("engrams_0/embedding", 1, indices), table[indices])


def test_a_file_larger_than_what_stays_mapped_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RESIDENT", 100)
    ladder = small_ladder()
    opened = Checkpoint(write_checkpoint(tmp_path / "c.safetensors"))
    for name, values in ladder.tensors.items():
        assert np.array_equal(opened.read(name), values)


def test_opening_reads_the_header_alone(tmp_path: Path) -> None:
    # Every value is replaced by NaN: nothing but the header may matter.
    path = write_checkpoint(tmp_path / "c.safetensors", change=_all_nan)
    assert Checkpoint(path).config == geometry()


def _all_nan(tensors: Tensors) -> None:
    for values in tensors.values():
        values[...] = np.nan


def test_a_slice_never_reads_what_it_drops(tmp_path: Path) -> None:
    plan = slice_ladder(small_ladder(), 3).plan
    assert (plan.blocks, plan.sites) == ((0, 2, 4), ())

    def poison(tensors: Tensors) -> None:
        for name, values in tensors.items():
            if name.startswith("engrams_"):
                values[...] = np.nan
            elif name.endswith(("_head/probes", "_head/gain")):
                values[[2, 4]] = np.nan
            elif name.startswith("stack/") and "final_norm" not in name:
                values[[1, 3]] = np.nan

    path = write_checkpoint(tmp_path / "c.safetensors", change=poison)
    assert fingerprint(slice_ladder(Checkpoint(path), 3)) == fingerprint(slice_ladder(small_ladder(), 3))


def test_training_leftovers_are_ignored(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["mtp_0/proj/kernel"] = np.zeros((3, 3), np.float64)
        tensors["mtp_head"] = np.zeros(2, np.int32)

    opened = Checkpoint(write_checkpoint(tmp_path / "c.safetensors", change=change))
    assert not [name for name in opened.layout if name.startswith("mtp_")]
    assert fingerprint(opened) == fingerprint(small_ladder())


@pytest.mark.parametrize("heads", [(), ("confidence",), ("embedding", "router")])
def test_whole_heads_may_be_absent(heads: tuple[str, ...], tmp_path: Path) -> None:
    ladder = small_ladder("small", heads=heads)
    assert heads_of(Checkpoint(write_checkpoint(tmp_path / "c.safetensors", ladder))) == list(heads)


def test_the_routers_calibration_may_be_present(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["router_head/calibration"] = np.array([0.9, 0.0, 0.6], np.float32)

    opened = Checkpoint(write_checkpoint(tmp_path / "c.safetensors", change=change))
    assert opened.read("router_head/calibration").tolist() == pytest.approx([0.9, 0.0, 0.6])


def test_step_and_notes_may_be_absent(tmp_path: Path) -> None:
    opened = Checkpoint(write_checkpoint(tmp_path / "c.safetensors", metadata={"step": None, "run": None}))
    assert (opened.step, opened.run) == (0, {})
    opened = Checkpoint(write_checkpoint(tmp_path / "d.safetensors", metadata={"step": "null"}))
    assert opened.step == 0


@pytest.mark.parametrize("key", ["step", "run"])
def test_step_and_notes_are_json(key: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "c.safetensors", metadata={key: "{"})
    with pytest.raises(ConfigError, match=f"metadata entry '{key}' is '{{', and should be JSON"):
        Checkpoint(path)


@pytest.mark.parametrize("step", ['"many"', "[3]", "{}", "NaN"])
def test_a_step_is_a_number(step: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "c.safetensors", metadata={"step": step})
    with pytest.raises(ConfigError, match=r"metadata entry 'step' is .*, and should be a number, or null"):
        Checkpoint(path)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry_is_saved_and_opened(name: str, tmp_path: Path) -> None:
    ladder, path = small_ladder(name), tmp_path / "saved.safetensors"
    save(ladder, path)
    opened = Checkpoint(path)
    assert opened.config == ladder.config
    assert fingerprint(opened) == fingerprint(ladder)


@pytest.mark.parametrize("depth", [2, 4])
def test_a_saved_slice_is_a_ladder_that_can_be_sliced_again(depth: int, tmp_path: Path) -> None:
    sliced = slice_ladder(small_ladder("seven blocks, two lanes"), 5)
    path = tmp_path / "slice.safetensors"
    save(sliced, path)
    opened = Checkpoint(path)
    assert opened.config == sliced.config
    again, direct = slice_ladder(opened, depth), slice_ladder(small_ladder("seven blocks, two lanes"), depth)
    assert again.config == direct.config
    assert tensors_equal(tensors_of(again), tensors_of(direct))


def tensors_equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_saved_file_holds_every_configuration_field(tmp_path: Path) -> None:
    path = tmp_path / "saved.safetensors"
    save(small_ladder(), path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["format_version"] == "2"
    assert json.loads(metadata["config"]) == geometry().to_json()


def test_the_same_ladder_is_saved_as_the_same_tensors(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(2)]
    for path in paths:
        save(small_ladder(), path, step=3)
    assert paths[0].stat().st_size == paths[1].stat().st_size
    assert fingerprint(Checkpoint(paths[0])) == fingerprint(Checkpoint(paths[1]))


def test_a_save_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "saved.safetensors"
    save(small_ladder(), path)
    before = path.read_bytes()

    def half(tensors: Tensors, target: Path, **_: object) -> None:
        safetensors.numpy.save_file({"x": next(iter(tensors.values()))}, target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", half)
    with pytest.raises(OSError, match="No space left"):
        save(small_ladder("no taps"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_ladder_that_cannot_be_read_leaves_no_file(tmp_path: Path) -> None:
    ladder = MemoryLadder(geometry(), small_ladder().tensors)
    del ladder.tensors["stack/mhc_a_res"]
    with pytest.raises(KeyError):
        save(ladder, tmp_path / "saved.safetensors")
    assert not list(tmp_path.iterdir())
