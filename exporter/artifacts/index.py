"""The list of artifacts in a folder, for people who fetch them and for programs that do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["INDEX", "Entry", "read_index", "update_index"]

INDEX: Final = "index.json"


@dataclass(frozen=True)
class Entry:
    """One artifact."""

    name: str
    """Of its file, beside the index."""
    target: str
    depth: int
    precision: str
    bytes: int
    sha256: str
    verified: str | None
    """Against what its numbers were verified, or None."""
    fidelity: float | None
    """Greatest difference of its logits from the checkpoint's, in units of their spread."""
    footprint: dict[str, Any]
    """Bytes that it takes on the device, as predicted."""


def read_index(folder: Path) -> list[Entry]:
    """The artifacts listed in a folder; none where there is no index."""
    path = folder / INDEX
    if not path.exists():
        return []
    return [Entry(**entry) for entry in json.loads(path.read_text("utf-8"))["artifacts"]]


def update_index(folder: Path, entry: Entry) -> Path:
    """Put an artifact into a folder's index, in the place of an earlier one of its target.

    Returns:
        The index.
    """
    others = [known for known in read_index(folder) if known.target != entry.target]
    entries = sorted([*others, entry], key=lambda known: known.target)
    path, beside = folder / INDEX, folder / f".{INDEX}.part"
    text = json.dumps({"artifacts": [asdict(known) for known in entries]}, indent=1)
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)
    return path
