"""The selection rule, slices and saved files against upstream's, value for value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from exporter.checkpoint import Checkpoint, save
from exporter.config import LadderConfig
from exporter.ladder import plan_slice, selection_order, slice_ladder
from tests.parity.ladders import GEOMETRIES

if TYPE_CHECKING:
    from pathlib import Path

    from exporter.ladder import Ladder
    from tests.parity.ladders import Geometry, Samples
    from tests.parity.upstream import Params, Upstream

pytestmark = pytest.mark.parity

DEEP, *_, LEGACY = GEOMETRIES
"""The deepest ladder, and the one whose head widths are not stated."""


def resolved(fields: dict[str, Any]) -> dict[str, Any]:
    """Configuration fields with the head widths that a 0 stands for."""
    derived = fields["d_model"] // fields["num_heads"]
    widths = {name: fields[name] or derived for name in ("qk_head_dim", "v_head_dim")}
    return {**fields, **widths}


def fields_of(config: LadderConfig) -> dict[str, Any]:
    """Fields of one of our configurations, as upstream names and writes them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in config.to_json().items()}


def assert_same_ladder(upstream: Upstream, ladder: Ladder, config: Any, params: Params) -> None:  # noqa: ANN401
    """Check that a ladder of ours is upstream's, in every field and every bit of every tensor."""
    assert fields_of(ladder.config) == resolved(upstream.fields(config))
    assert ladder.layout.keys() == params.keys()
    for name, value in params.items():
        assert ladder.layout[name].shape == value.shape, name
        assert np.array_equal(ladder.read(name), value), name


@pytest.mark.parametrize("num_layers", [*range(2, 34), 64, 100])
def test_blocks_join_in_upstreams_order(upstream: Upstream, num_layers: int) -> None:
    assert selection_order(num_layers) == upstream.order(num_layers)
    config = LadderConfig(num_layers=num_layers, engram_layers=(), global_layers=())
    for depth in range(2, num_layers + 1):
        assert plan_slice(config, depth).blocks == upstream.kept(num_layers, depth)


def test_defaults_are_upstreams(upstream: Upstream) -> None:
    assert fields_of(LadderConfig()) == upstream.defaults()


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.name)
def test_a_saved_ladder_opens_unchanged(upstream: Upstream, samples: Samples, geometry: Geometry) -> None:
    sample = samples[geometry]
    assert_same_ladder(upstream, Checkpoint(sample.path), sample.config, sample.params)


@pytest.mark.parametrize("depth", range(2, 13))
def test_every_slice_is_upstreams(upstream: Upstream, samples: Samples, depth: int) -> None:
    sample = samples[DEEP]
    config, params = upstream.slice(sample.config, sample.params, depth)
    assert_same_ladder(upstream, slice_ladder(Checkpoint(sample.path), depth), config, params)


def test_slices_of_slices_are_upstreams(upstream: Upstream, samples: Samples, tmp_path: Path) -> None:
    """Taking turns: upstream slices and saves, we slice and save, upstream slices again."""
    sample = samples[DEEP]
    config, params = upstream.slice(sample.config, sample.params, 10)
    upstream.save(tmp_path / "10.safetensors", config, params)
    ours = slice_ladder(Checkpoint(tmp_path / "10.safetensors"), 7)
    save(ours, tmp_path / "7.safetensors")
    config, params = upstream.slice(*upstream.load(tmp_path / "7.safetensors"), 4)
    assert_same_ladder(upstream, slice_ladder(Checkpoint(sample.path), 4), config, params)


@pytest.mark.parametrize("geometry", [DEEP, LEGACY], ids=lambda geometry: geometry.name)
def test_upstream_reads_what_we_save(
    upstream: Upstream, samples: Samples, tmp_path: Path, geometry: Geometry
) -> None:
    path = tmp_path / "saved.safetensors"
    save(slice_ladder(Checkpoint(samples[geometry].path), 5), path, step=7, run={"note": "parity"})
    assert_same_ladder(upstream, Checkpoint(path), *upstream.load(path))


def test_half_precision_reads_alike(upstream: Upstream, samples: Samples, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    save(Checkpoint(samples[DEEP].path), path, dtype=np.float16)
    assert_same_ladder(upstream, Checkpoint(path), *upstream.load(path))


def test_a_checkpoint_without_step_or_run_opens(upstream: Upstream, samples: Samples, tmp_path: Path) -> None:
    """Upstream's writer puts an empty text where there is no step."""
    sample, path = samples[DEEP], tmp_path / "stepless.safetensors"
    upstream.save(path, sample.config, sample.params, step=None)
    checkpoint = Checkpoint(path)
    assert (checkpoint.step, checkpoint.run) == (0, {})


@pytest.mark.parametrize("key", sorted(LadderConfig().to_json()))
def test_a_missing_key_means_what_it_means_upstream(upstream: Upstream, key: str) -> None:
    saved = json.loads(json.dumps(LadderConfig(num_heads=8, engram_orders=(2, 4)).to_json()))
    del saved[key]
    theirs = resolved(upstream.fields(upstream.from_saved(saved)))
    assert fields_of(LadderConfig.from_json(saved)) == theirs


def test_an_unknown_key_is_ignored(upstream: Upstream) -> None:
    saved = {"num_layers": 20, "of_another_time": 3}
    theirs = resolved(upstream.fields(upstream.from_saved(saved)))
    assert fields_of(LadderConfig.from_json(saved)) == theirs
