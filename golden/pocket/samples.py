"""Encoded examples to calibrate and to measure with: ``python -m golden.pocket.samples``.

Written beside the checkpoint, where the exporter looks for them: ``calibration.jsonl`` from the training
split (under a seed of its own) and ``held_out.jsonl`` from the test split, the first that
``golden.pocket.evaluate`` asks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golden.pocket.batches import encode
from golden.pocket.data import Example, examples
from golden.pocket.evaluate import held_out
from golden.pocket.prompt import render_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FILES", "lines"]

_CALIBRATION_SEED = 20_000_003
_HELD_OUT, _CALIBRATION = "held_out.jsonl", "calibration.jsonl"
FILES = {_CALIBRATION: 96, _HELD_OUT: 400}
"""Examples in each file."""


def lines(name: str, count: int) -> Iterator[str]:
    """Yield the lines of one of :data:`FILES`."""
    if name == _HELD_OUT:
        drawn: Iterable[Example] = held_out(count)
    else:
        # A query without a drawn value ("pause the music") may be in both splits.
        asked = {(example.query, str(example.tools)) for example in held_out(FILES[_HELD_OUT])}
        stream = examples("train", _CALIBRATION_SEED)
        drawn = (example for example in stream if (example.query, str(example.tools)) not in asked)
    for example in itertools.islice(drawn, count):
        tokens, prompt = encode(example)
        size = len(render_answer(example.calls).encode())
        yield json.dumps({"tokens": tokens, "prompt": prompt, "bytes": size}, separators=(",", ":"))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument(
        "--calibration", type=int, default=FILES[_CALIBRATION], help="examples of that kind (default: 96)"
    )
    options = parser.parse_args()
    for name, count in {**FILES, _CALIBRATION: options.calibration}.items():
        path = options.out / name
        path.write_text("".join(f"{line}\n" for line in lines(name, count)), encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
