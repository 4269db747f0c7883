"""Records the shipped checkpoint's logits at every depth: ``python -m golden.cases.record``.

An export is compared with them where PyTorch is missing. The prompt is a held-out command with its
answer, longer than the sliding window; the positions are the ends of the chunks that verification runs.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exporter.checkpoint import Checkpoint
from exporter.export import SHIPPED
from exporter.ladder import fingerprint, slice_ladder
from exporter.verify import run_sizes
from golden.cases.stored import FILE
from golden.pocket.batches import encode
from golden.pocket.evaluate import held_out
from golden.reference import live

__all__ = ["main", "record"]

_BEYOND = 24
"""Tokens that the prompt is longer than the window, at least."""

_TRIED = 64


def prompt(window: int) -> list[int]:
    """Ids of the first held-out command, with its answer, that outruns the window."""
    encoded = (encode(example)[0] for example in held_out(_TRIED))
    return next(ids for ids in encoded if len(ids) >= window + _BEYOND)


def record(checkpoint: Path) -> dict[str, NDArray[np.generic]]:
    """Tokens, positions, and by fingerprint the logits and head outputs of every slice of a checkpoint."""
    ladder = Checkpoint(checkpoint)
    tokens = prompt(ladder.config.sliding_window)
    positions = [end - 1 for end in itertools.accumulate(run_sizes(len(tokens))["chunks"])]
    arrays: dict[str, NDArray[np.generic]] = {
        "tokens": np.array(tokens, np.int64),
        "positions": np.array(positions, np.int64),
    }
    for depth in range(2, ladder.config.num_layers + 1):
        sliced = slice_ladder(ladder, depth)
        identity, outputs = fingerprint(sliced), live.run(sliced, tokens)
        arrays[f"logits/{identity}"] = outputs.logits[positions]
        arrays |= {f"heads/{identity}/{head}": value for head, value in outputs.heads.items()}
    return arrays


def main() -> None:
    """Write the file beside this module."""
    np.savez_compressed(FILE, allow_pickle=False, **record(SHIPPED))


if __name__ == "__main__":
    main()
