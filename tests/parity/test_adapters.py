"""Folded LoRA adapters against upstream's fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from exporter.checkpoint import Checkpoint
from exporter.ladder import slice_ladder
from exporter.layout import PROJECTIONS
from exporter.lora import fold
from tests.parity.ladders import GEOMETRIES, adapter_factors
from tests.parity.test_forward import assert_close, reference_outputs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.parity.ladders import Samples
    from tests.parity.upstream import Upstream

pytestmark = pytest.mark.parity

SCALE = 1.7
_ULPS = 3e-7
"""Rounding of a product of a few terms near 1."""


def test_upstream_trains_the_projections_that_we_fold(upstream: Upstream, samples: Samples) -> None:
    for geometry in GEOMETRIES:
        assert sorted(upstream.adapter_targets(samples[geometry].params)) == sorted(PROJECTIONS)


@pytest.mark.parametrize("targets", [PROJECTIONS, PROJECTIONS[1:2], PROJECTIONS[3:]], ids=len)
def test_folded_tensors_are_upstreams(
    upstream: Upstream, samples: Samples, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    sample, path = samples[GEOMETRIES[0]], tmp_path / "adapter.safetensors"
    factors = adapter_factors(sample.params, list(targets), rank=3, seed=len(targets))
    upstream.save_adapter(path, factors, SCALE)
    folded = fold(Checkpoint(sample.path), [path], keep_confidence=True)
    theirs = upstream.fold(sample.params, path)
    assert folded.layout.keys() == theirs.keys()
    for name, value in theirs.items():
        ours = folded.read(name)
        if name in targets:
            assert np.abs(value - sample.params[name]).max() > 0.1, "the adapter changes next to nothing"
            np.testing.assert_allclose(ours, value, rtol=_ULPS, atol=_ULPS)
            np.testing.assert_allclose(folded.read(name, 4), value[4], rtol=_ULPS, atol=_ULPS)
        else:
            assert np.array_equal(ours, value), name


def test_a_folded_slice_computes_what_upstream_computes(
    upstream: Upstream, samples: Samples, tmp_path: Path
) -> None:
    sample, path = samples[GEOMETRIES[5]], tmp_path / "adapter.safetensors"
    upstream.save_adapter(path, adapter_factors(sample.params, list(PROJECTIONS), 4, seed=9), SCALE)
    config, params = upstream.slice(sample.config, upstream.fold(sample.params, path), 5)
    theirs = upstream.forward(config, params, sample.tokens())
    folded = fold(Checkpoint(sample.path), [path], keep_confidence=True)
    ours = reference_outputs(slice_ladder(folded, 5), sample.tokens())
    assert_close("logits", ours["logits"], theirs["logits"])
    assert_close("router", ours["router"], theirs["router"])
