"""Fixtures of the comparisons with upstream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.parity.ladders import Samples
from tests.parity.upstream import Upstream


@pytest.fixture(scope="session")
def upstream() -> Upstream:
    """Upstream, or a skip where it is missing."""
    pytest.importorskip("needle.model.architecture", reason="the upstream package is not installed")
    return Upstream()


@pytest.fixture(scope="session")
def samples(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Random ladders, saved by upstream, made when first asked for."""
    return Samples(upstream, tmp_path_factory.mktemp("ladders"))


@pytest.fixture(autouse=True)
def _single_threaded() -> Iterator[None]:
    """One thread and no gradients: the ladders are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
