"""Commands and files of the test bed's steps."""

from __future__ import annotations

__all__ = ["call", "replacing", "sha256", "step"]

import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from targets.emulation.errors import BedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LAST_LINES = 6
_LOOK = "see what it says, and run it again, which goes on from here"


def call(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    error: type[BedError] = BedError,
    remedy: str = _LOOK,
) -> str:
    """Run a command of a step; its standard output.

    Args:
        name: The step.
        command: Program and arguments.
        folder: Where to run it.
        error: What to raise if it fails.
        remedy: What to do then.
    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(  # noqa: S603 - the bed's own commands
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-_LAST_LINES:]
        fault = f"{command[0]} ended with status {done.returncode} and said: {' / '.join(said)}"
        raise error(name, fault, remedy)
    return done.stdout


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name the step in which a file could not be read or written.

    Raises:
        BedError: An operating system's error came out of the context.
    """
    try:
        yield
    except OSError as error:
        remedy = "make room or choose another folder, and run it again, which goes on from here"
        raise BedError(name, str(error), remedy) from error


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target`` that takes its place when the context ends well."""
    beside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    yield beside
    shutil.rmtree(target, ignore_errors=True)
    beside.rename(target)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
