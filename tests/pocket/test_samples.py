"""The files of encoded examples that ship with the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import golden.pocket
from golden.pocket.samples import FILES, lines

FOLDER = Path(golden.pocket.__file__).parent


@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_a_file_is_what_its_command_writes(name: str, count: int) -> None:
    assert (FOLDER / name).read_text("utf-8").splitlines() == list(lines(name, count))


def test_nothing_is_calibrated_on_that_is_asked() -> None:
    files = [(FOLDER / name).read_text("utf-8").splitlines() for name in FILES]
    prompts = [{tuple(e["tokens"][: e["prompt"]]) for e in map(json.loads, file)} for file in files]
    assert not prompts[0] & prompts[1]
