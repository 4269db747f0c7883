"""The table and the picture of a run's loss."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from golden.pocket.curve import Point, draw, read_csv, thin, write_csv

if TYPE_CHECKING:
    from pathlib import Path

_LINES = [
    json.dumps({"step": 10, "seconds": 5.0, "recent_nats": 2.0, "rungs": [[2, 4.0], [8, 3.0]]}),
    json.dumps({"step": 20, "seconds": 9.0, "recent_nats": 1.0, "rungs": [[4, 2.0], [9, 1.5]]}),
    json.dumps({"step": 30, "seconds": 13.0, "recent_nats": 0.5, "rungs": []}),
]
_POINTS = [Point(20, 9.0, 1.5, 3.0, 3.0, 1.5), Point(30, 13.0, 0.5, None, None, None)]


def test_windows_are_averaged_by_depth() -> None:
    assert thin(_LINES, 20) == _POINTS


def test_steps_repeated_after_a_resume_count_once() -> None:
    stale = json.dumps({"step": 30, "seconds": 12.0, "recent_nats": 9.0, "rungs": [[2, 9.0]]})
    assert thin([*_LINES[:2], stale, *_LINES[2:]], 20) == _POINTS


def test_table_is_read_back(tmp_path: Path) -> None:
    write_csv(tmp_path / "loss.csv", _POINTS)
    assert read_csv(tmp_path / "loss.csv") == _POINTS


def test_picture_depends_on_the_losses_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for points in (_POINTS, _POINTS, _POINTS[:1]):
        draw({"ladder": points}, tmp_path / "loss.svg")
        pictures.append((tmp_path / "loss.svg").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]
