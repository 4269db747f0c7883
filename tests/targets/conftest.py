"""A writer of changed profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.targets.documents import document_of, toml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.targets.documents import Document, Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a changed copy of a valid profile and return its path."""

    def write_changed(change: Callable[[Document], Document]) -> Path:
        path = tmp_path / "profile.toml"
        path.write_text(toml(change(document_of("rpi4"))), encoding="utf-8")
        return path

    return write_changed
