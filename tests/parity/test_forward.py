"""The reference against upstream: logits, cells and heads of random ladders of every shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from exporter.checkpoint import Checkpoint
from exporter.ladder import Ladder, slice_ladder
from golden.reference import Weights, forward, head_outputs
from tests.parity.ladders import GEOMETRIES, Geometry, Samples
from tests.parity.upstream import Floats, Ids, Outputs, Upstream

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5
"""Largest difference for values that spread by 3, the spread of the stored cases' logits."""

_SPREAD = 3.0


def reference_outputs(ladder: Ladder, tokens: Ids) -> Outputs:
    """What :meth:`Upstream.forward` gives, from the reference."""
    weights, ids = Weights(ladder), torch.from_numpy(tokens)
    out = {
        "logits": forward(weights, ids).logits,
        "cells": forward(weights, ids, mask_padding=True).cells,
        **head_outputs(weights, ids),
    }
    return {name: value.numpy() for name, value in out.items()}


def assert_close(name: str, ours: Floats, theirs: Floats) -> float:
    """Check that two arrays differ by rounding only; return the largest difference."""
    assert ours.shape == theirs.shape, name
    assert np.isfinite(theirs).all(), name
    allowed = TOLERANCE * max(1.0, float(theirs.std()) / _SPREAD)
    largest = float(np.abs(ours - theirs).max())
    assert largest <= allowed, f"{name}: {largest:.2e} apart, {allowed:.2e} allowed"
    return largest


CASES = [(geometry, depth) for geometry in GEOMETRIES for depth in (None, *geometry.depths)]


@pytest.mark.parametrize(("geometry", "depth"), CASES, ids=lambda value: getattr(value, "name", value))
def test_every_shape_computes_what_upstream_computes(
    upstream: Upstream,
    samples: Samples,
    geometry: Geometry,
    depth: int | None,
) -> None:
    """Both sides read, slice and run the same file on their own."""
    sample, tokens = samples[geometry], samples[geometry].tokens()
    config, params = upstream.load(sample.path)
    ladder: Ladder = Checkpoint(sample.path)
    if depth is not None:
        config, params = upstream.slice(config, params, depth)
        ladder = slice_ladder(ladder, depth)
    theirs = upstream.forward(config, params, tokens)
    ours = reference_outputs(ladder, tokens)

    assert ours.keys() == theirs.keys()
    assert theirs["logits"].std() > 0.5, "the sample is too quiet to show a difference"
    # A padding position's own cells mean nothing, and nobody reads them.
    seen = tokens != sample.config.pad_token_id
    for outputs in (ours, theirs):
        outputs["cells"] = outputs["cells"][seen]
    for name in theirs:
        assert_close(name, ours[name], theirs[name])


def test_the_heads_entry_points_are_what_is_compared_above(upstream: Upstream, samples: Samples) -> None:
    """The methods that upstream's own programs call add nothing to what the wrapper does."""
    sample = samples[GEOMETRIES[-1]]
    tokens = sample.tokens()
    named = upstream.entry_points(sample.config, sample.params, tokens)
    ours = reference_outputs(Checkpoint(sample.path), tokens)
    for head, value in named.items():
        assert_close(head, ours[head], value)


def test_a_ladder_with_one_head_only(upstream: Upstream, samples: Samples, tmp_path: Path) -> None:
    """Whole heads may be absent."""
    sample = samples[GEOMETRIES[2]]
    params = {n: v for n, v in sample.params.items() if not n.startswith(("embedding_head", "router_head"))}
    upstream.save(tmp_path / "one.safetensors", sample.config, params)
    ladder = Checkpoint(tmp_path / "one.safetensors")
    assert Weights(ladder).heads == ("confidence",)
    ours = reference_outputs(ladder, sample.tokens())
    full = reference_outputs(Checkpoint(sample.path), sample.tokens())
    assert np.array_equal(ours["confidence"], full["confidence"])
