"""Makes this folder's data from upstream's numbers: ``python -m golden.cases.make FOLDER``.

Ladders and adapter are copied byte for byte. Arrays are packed again, all of ``tiny``'s and a
choice of ``wide``'s depths, so that the folder stays small; every value kept is kept exactly.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

__all__ = ["COPIED", "PACKED", "main"]

COPIED = ("tiny.safetensors", "wide.safetensors", "tiny_adapter.safetensors")
PACKED = ("tiny_logits.npz", "wide_logits.npz", "tiny_adapter_logits.npz")

_WIDE_DEPTHS = (2, 3, 5, 8, 13, 19, 20)


def _wanted(file: str, name: str) -> bool:
    depth = name.removeprefix("logits_")
    return not (file.startswith("wide") and depth.isdigit()) or int(depth) in _WIDE_DEPTHS


def main(source: Path, target: Path) -> None:
    """Copy and pack.

    Args:
        source: folder that holds every file of :data:`COPIED` and :data:`PACKED`.
        target: folder to write to.
    """
    for file in COPIED:
        shutil.copyfile(source / file, target / file)
    for file in PACKED:
        with np.load(source / file, allow_pickle=False) as archive:
            kept = {name: archive[name] for name in archive.files if _wanted(file, name)}
        np.savez_compressed(target / file, **kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).resolve().parent)
