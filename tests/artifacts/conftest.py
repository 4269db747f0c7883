"""Verified bundles of a small ladder, to be made into artifacts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from exporter.checkpoint import save
from exporter.export import Export, export
from tests.helpers import small_ladder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small ladder of 5 blocks in a file."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("checkpoint") / "small.safetensors"
    save(small_ladder(), path, run={"licence": "CC0-1.0"})
    return path


@pytest.fixture(scope="session")
def _exported(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> dict[str, Path]:
    output = tmp_path_factory.mktemp("bundles")
    return {
        target: export(Export(checkpoint=checkpoint, depth=2, target=target, output=output)).path
        for target in ("rpi4", "wearos")
    }


@pytest.fixture
def bundle(tmp_path: Path, _exported: dict[str, Path]) -> Callable[[str], Path]:
    """A copy of the bundle for a target, which may be changed."""

    def copy(target: str) -> Path:
        source = _exported[target]
        return Path(shutil.copytree(source, tmp_path / "source" / source.name))

    return copy
