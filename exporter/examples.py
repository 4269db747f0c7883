"""Encoded examples of a ladder's task: what is calibrated on, and what quality is measured on.

A file of them has a JSON object per line: ``tokens`` (ids, prompt and right answer together), ``prompt`` (how
many of them are given) and ``bytes`` (of the answer's text).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from exporter.config import LadderConfig
from exporter.errors import ExamplesError

__all__ = ["CALIBRATION", "HELD_OUT", "Example", "examples_beside", "read_examples"]

CALIBRATION, HELD_OUT = "calibration.jsonl", "held_out.jsonl"
"""Names that are looked for beside a checkpoint."""


class Example(NamedTuple):
    """One prompt with its right answer."""

    tokens: tuple[int, ...]
    prompt: int
    """How many of the tokens are given."""
    bytes: int
    """Of the answer's text."""


def examples_beside(checkpoint: Path, name: str, given: Path | None) -> Path:
    """The file to read: the one given, else the one of a name beside the checkpoint.

    Raises:
        ExamplesError: there is none.
    """
    path = given or checkpoint.with_name(name)
    if not path.exists():
        option = "--calibration" if name == CALIBRATION else "--examples"
        message = f"{path}: there are no examples there. Give a file of the checkpoint's own with {option}."
        raise ExamplesError(message)
    return path


def read_examples(path: Path, config: LadderConfig, count: int | None = None) -> list[Example]:
    """Read examples.

    Args:
        path: of the file.
        config: of the ladder that they are for.
        count: how many, from the start; None for all.

    Raises:
        ExamplesError: the file cannot be read, or holds what the ladder cannot be asked.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        message = f"{path}: cannot be read ({error}). Give a file of examples, a JSON object per line."
        raise ExamplesError(message) from error
    found = list(_parsed(path, lines[:count], config))
    if not found:
        message = f"{path}: holds no example. Give a file with a JSON object per line."
        raise ExamplesError(message)
    return found


def _parsed(path: Path, lines: list[str], config: LadderConfig) -> Iterator[Example]:
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            example = Example(tuple(entry["tokens"]), entry["prompt"], entry["bytes"])
            sound = (
                all(type(i) is int and 0 <= i < config.vocab_size for i in example.tokens)
                and 0 < example.prompt < len(example.tokens) <= config.max_seq_len
                and example.bytes > 0
            )
        except (ValueError, LookupError, TypeError) as error:
            message = f"{path}, line {number}: is no example ({error!r}). Write the file anew."
            raise ExamplesError(message) from error
        if not sound:
            message = (
                f"{path}, line {number}: does not suit the checkpoint: ids must be below "
                f"{config.vocab_size}, with an answer behind the prompt, {config.max_seq_len} at most. "
                "Give the file that was encoded for this checkpoint."
            )
            raise ExamplesError(message)
        yield example
