"""Valid documents, changed in one place."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import targets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PACKAGE", "Document", "Write", "changed", "document_of", "toml"]

Document: TypeAlias = "dict[str, Any]"
Write: TypeAlias = "Callable[[Callable[[Document], Document]], Path]"

PACKAGE = Path(targets.__file__).parent


def toml(document: Document) -> str:
    """Write a document of plain values as TOML, with inline tables below the top level."""

    def inline(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(inline, value)) + "]"
        # JSON's numbers, texts and truth values are TOML's.
        return json.dumps(value)

    return "".join(f"{key} = {inline(value)}\n" for key, value in document.items())


def document_of(name: str) -> Document:
    """Parse one of the project's own profiles."""
    return tomllib.loads((PACKAGE / f"{name}.toml").read_text(encoding="utf-8"))


def changed(document: Document, key: str, value: object) -> Document:
    """Return a copy with the value at a dotted key replaced, or the key removed for None."""
    copied = copy.deepcopy(document)
    *path, last = key.split(".")
    table: Any = copied
    for step in path:
        table = table[int(step)] if step.isdigit() else table.setdefault(step, {})
    if value is None:
        del table[last]
    else:
        table[int(last) if last.isdigit() else last] = value
    return copied
