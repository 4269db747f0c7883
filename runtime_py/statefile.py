"""States in files: a tools prefix is prefilled once, and read ever after."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import StateFileError

__all__ = ["SavedState", "read_state", "write_state"]

_VERSION: Final = 1

Rows = tuple[dict[str, NDArray[Any]], NDArray[np.int64], bool]
"""Filled rows by state, their positions, and whether they are an unbroken sequence."""


@dataclass(frozen=True)
class SavedState:
    """A state at rest."""

    identity: str
    window: int
    pinned: int
    ids: NDArray[np.int32]
    carry: NDArray[np.uint8]
    caches: dict[str, Rows]
    """By the input that says how many rows they hold."""


def write_state(path: Path, saved: SavedState) -> None:
    """Write a state beside ``path``, then put it in place.

    Raises:
        StateFileError: it cannot be written.
    """
    kinds = {name: {"states": list(rows), "ordered": o} for name, (rows, _, o) in saved.caches.items()}
    about = {
        "state_version": _VERSION,
        "identity": saved.identity,
        "window": saved.window,
        "pinned": saved.pinned,
        "caches": kinds,
    }
    arrays: dict[str, NDArray[Any]] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    arrays |= {"ids": saved.ids, "carry": saved.carry}
    for name, (rows, positions, _) in saved.caches.items():
        arrays |= {
            f"positions/{name}": positions,
            **{f"rows/{state}": array for state, array in rows.items()},
        }
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise StateFileError(f"{path}: cannot be written ({error}). Choose another place.") from error


def read_state(path: Path) -> SavedState:
    """Read a state; nothing in the file is run.

    Raises:
        StateFileError: it is no saved state of a known version, or damaged.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            if about["state_version"] != _VERSION:
                message = (
                    f"{path}: state_version is {about['state_version']!r}, and this runtime reads "
                    f"{_VERSION}. Prefill again, and save."
                )
                raise StateFileError(message)
            caches = {
                name: (
                    {state: file[f"rows/{state}"] for state in kind["states"]},
                    file[f"positions/{name}"],
                    bool(kind["ordered"]),
                )
                for name, kind in about["caches"].items()
            }
            ids, carry = file["ids"], file["carry"]
            return SavedState(
                str(about["identity"]), int(about["window"]), int(about["pinned"]), ids, carry, caches
            )
    except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise StateFileError(f"{path}: holds no saved state ({error}). Prefill again, and save.") from error
