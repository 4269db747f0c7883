"""What the benchmarks share: the full-size random ladder."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.checkpoint import save
from exporter.config import LadderConfig
from golden.synthetic import SyntheticLadder


@pytest.fixture(scope="session")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random ladder of Needle 3's geometry, float32, 511 MB."""
    path = tmp_path_factory.mktemp("ladder") / "full.safetensors"
    save(SyntheticLadder(LadderConfig(dtype="float32")), path)
    return path
