"""Logits of the shipped checkpoint that the reference gave, for verifying where it cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILE", "StoredCase", "stored_case"]

FILE = Path(__file__).resolve().parent / "pocket_logits.npz"


@dataclass(frozen=True)
class StoredCase:
    """One slice of the shipped checkpoint on a golden prompt."""

    tokens: tuple[int, ...]
    """The prompt, longer than the sliding window."""
    positions: tuple[int, ...]
    """Numbers of the tokens whose logits are stored; the last one is among them."""
    logits: NDArray[np.float32]
    """[positions, V]."""
    heads: Mapping[str, NDArray[np.float32]]
    """Outputs [1, n] of the probe heads, for the whole prompt."""


@lru_cache(maxsize=1)
def _arrays() -> dict[str, NDArray[np.float32]]:
    if not FILE.exists():
        return {}
    with np.load(FILE, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def stored_case(fingerprint: str) -> StoredCase | None:
    """The case of a ladder, by its fingerprint; None where none is stored."""
    arrays = _arrays()
    if f"logits/{fingerprint}" not in arrays:
        return None
    tokens, positions = (tuple(int(i) for i in arrays[name]) for name in ("tokens", "positions"))
    prefix = f"heads/{fingerprint}/"
    heads = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return StoredCase(tokens, positions, arrays[f"logits/{fingerprint}"], heads)
