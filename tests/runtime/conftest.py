"""Bundles of random ladders, and the models that run them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime_py import Model
from tests.runtime.bundles import GEOMETRIES, make_bundle, make_rungs

LONG = 400
"""A call of this size takes a whole test's tokens at once, without letting go of anything."""


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Bundles by geometry, made when first asked for; not to be changed."""
    folder = tmp_path_factory.mktemp("bundles")
    made: dict[str, Path] = {}

    def get(geometry: str) -> Path:
        if geometry not in made:
            made[geometry] = make_bundle(folder / geometry.replace(" ", "-"), GEOMETRIES[geometry])
        return made[geometry]

    return get


@pytest.fixture(scope="session")
def bundle(bundles: Callable[[str], Path]) -> Path:
    """The usual bundle; not to be changed."""
    return bundles("usual")


@pytest.fixture
def own_bundle(bundle: Path, tmp_path: Path) -> Path:
    """A copy of the usual bundle, to be damaged."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def model(bundle: Path) -> Model:
    """The usual model, which prefills in small chunks so that every kind of chunking happens."""
    return Model.load(bundle, threads=1, chunk=9)


@pytest.fixture(scope="session")
def whole(bundle: Path) -> Model:
    """The same bundle, prefilled in one call."""
    return Model.load(bundle, threads=1, chunk=LONG)


@pytest.fixture(scope="session")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of four blocks that runs at 2, 3 and 4, and gives the logits of every position."""
    return Model.load(make_rungs(tmp_path_factory.mktemp("ladder") / "ladder", (2, 3, 4)), threads=1)
