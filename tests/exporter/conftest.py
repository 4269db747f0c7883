"""A checkpoint file of the small ladder, and a way to call the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from exporter.checkpoint import save
from exporter.cli import main
from tests.helpers import small_ladder


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small ladder of 5 blocks in a file."""
    path = tmp_path_factory.mktemp("checkpoint") / "small.safetensors"
    save(small_ladder(), path, step=40, run={"licence": "CC0-1.0"})
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer.json that goes with the small ladder's 67 ids."""
    path = tmp_path / "made.json"
    document = {
        "model": {"vocab": {f"t{i}": i for i in range(4, 60)}},
        "added_tokens": [{"id": i, "content": f"<{i}>"} for i in range(4)],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture
def run() -> Callable[..., Result]:
    """Call the command line; its arguments may be paths."""

    def call(*arguments: str | Path | int) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="exporter")

    return call
