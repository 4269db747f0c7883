"""Training an adapter for new tools, and what the shipped one does at several depths."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors import safe_open

from exporter.checkpoint import Checkpoint, save
from exporter.ladder import slice_ladder
from exporter.layout import PROJECTIONS
from exporter.lora import Adapter, fold
from golden.pocket.adapt import (
    ADAPTER,
    AdapterRecipe,
    adapter_batch,
    fold_in,
    save_adapter,
    start,
    train_adapter,
)
from golden.pocket.data import NEW_TOOLS
from golden.pocket.evaluate import CHECKPOINT, evaluate, held_out
from golden.pocket.init import POCKET, initial_tensors
from golden.reference import TensorLadder, Weights

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from exporter.ladder import Ladder

_TINY = replace(
    POCKET,
    d_model=32,
    num_heads=2,
    num_kv_heads=1,
    num_layers=4,
    qk_head_dim=8,
    v_head_dim=16,
    embedding_dim=8,
    engram_slots=32,
    engram_layers=(1, 3),
    global_layers=(1, 3),
    sliding_window=16,
)
_RECIPE = AdapterRecipe(rank=2, alpha=4.0, steps=3, batch=2)


def _base() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {name: t + 0.1 * torch.randn(t.shape) for name, t in initial_tensors(_TINY).items()}


def test_an_adapter_starts_as_nothing() -> None:
    base = _base()
    folded = fold_in(base, start(_TINY, base, _RECIPE), _RECIPE.scale)
    assert all(torch.equal(folded[name], base[name]) for name in base)


def test_training_changes_the_adapter_and_leaves_the_base() -> None:
    base = _base()
    before = {name: t.clone() for name, t in base.items()}
    pairs = train_adapter(_TINY, base, _RECIPE)
    assert set(pairs) == set(PROJECTIONS)
    assert all(b.abs().max() > 0 for _, b in pairs.values())
    assert all(torch.equal(base[name], before[name]) for name in base)
    assert not any(t.requires_grad for t in base.values())


def test_the_exporter_folds_what_was_trained(tmp_path: Path) -> None:
    base = _base()
    save(Weights(TensorLadder(_TINY, base)).ladder, tmp_path / "base.safetensors")
    pairs = train_adapter(_TINY, base, _RECIPE)
    save_adapter(pairs, tmp_path / "adapter.safetensors", _RECIPE, "base.safetensors")
    folded = fold(Checkpoint(tmp_path / "base.safetensors"), [tmp_path / "adapter.safetensors"])
    expected = fold_in(base, pairs, _RECIPE.scale)
    for name in folded.layout:
        np.testing.assert_allclose(folded.read(name), expected[name].numpy(), rtol=1e-5, atol=1e-6)
        changed = not np.array_equal(folded.read(name), base[name].numpy())
        assert changed == (name in PROJECTIONS), name


def test_an_adapter_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    save_adapter(start(_TINY, _base(), _RECIPE), path, _RECIPE, "base.safetensors")
    adapter = Adapter(path)
    assert (adapter.scale, adapter.base) == (2.0, "base.safetensors")
    assert adapter.shapes(PROJECTIONS[0]) == ((4, 32, 2), (4, 2, 16))
    with safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["rank"]) == 2


def test_some_steps_replay_known_commands() -> None:
    recipe = AdapterRecipe(steps=40, replay=0.5, batch=2)
    new, known = (
        [adapter_batch(replace(recipe, replay=share), step).tokens for step in range(6)] for share in (0, 1)
    )
    mixed = [adapter_batch(recipe, step).tokens for step in range(6)]
    kinds = {torch.equal(m, n) for m, n in zip(mixed, new, strict=True)}
    assert kinds == {True, False}
    assert all(torch.equal(m, n) or torch.equal(m, k) for m, n, k in zip(mixed, new, known, strict=True))


def test_shipped_adapter_is_small() -> None:
    assert ADAPTER.stat().st_size < 400_000


@pytest.mark.slow
@pytest.mark.parametrize("depth", [20, 8, 6])
def test_shipped_adapter_lifts_every_depth(depth: int) -> None:
    asked = held_out(40, 2, NEW_TOOLS)
    plain, adapted = (
        evaluate(
            _tensors(slice_ladder(fold(Checkpoint(CHECKPOINT), paths, keep_confidence=True), depth)), asked
        )
        for paths in ([], [ADAPTER])
    )
    assert adapted.bits_per_byte < 0.5 * plain.bits_per_byte
    assert adapted.exact > plain.exact + 0.1


def _tensors(ladder: Ladder) -> Weights:
    """A ladder read once, as float32 tensors."""
    tensors = {name: torch.from_numpy(ladder.read(name)) for name in ladder.layout}
    return Weights(TensorLadder(ladder.config, tensors))
