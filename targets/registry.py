"""Finding profiles: by name among the project's own, or by path."""

from __future__ import annotations

__all__ = ["load", "names"]

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from targets.document import from_document
from targets.errors import BadProfileError, UnknownTargetError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from targets.profile import Target

SUFFIX = ".toml"


def names() -> tuple[str, ...]:
    """Return the names of the project's own profiles, sorted."""
    entries = (entry.name for entry in files("targets").iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in entries if name.endswith(SUFFIX)))


def load(name_or_path: str | Path) -> Target:
    """Read and validate a profile.

    Args:
        name_or_path: One of :func:`names`, or the path of a ``.toml`` file. A text is taken for a
            path if it ends in ``.toml``; a path is relative to the current directory.

    Raises:
        UnknownTargetError: There is no such profile, or no such file.
        BadProfileError: The file is no TOML, or a key or value of it is wrong.
        InconsistentProfileError: Values of the file exclude each other.
    """
    asked = str(name_or_path)
    if isinstance(name_or_path, Path) or asked.endswith(SUFFIX):
        path = Path(name_or_path)
        if not path.is_file():
            raise UnknownTargetError(asked, names(), is_path=True)
        return _read(path, asked)
    if asked not in names():
        raise UnknownTargetError(asked, names())
    return _read(files("targets") / (asked + SUFFIX), f"targets/{asked}{SUFFIX}")


def _read(source: Traversable, file: str) -> Target:
    """Parse and validate one file."""
    try:
        document = tomllib.loads(source.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadProfileError(file, "", f"is no TOML: {error}", "correct the syntax") from error
    return from_document(document, file)
