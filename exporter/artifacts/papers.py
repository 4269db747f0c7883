"""Licence, notice and bill of materials, inside every bundle that is handed on."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Final

from exporter.errors import OutputError

__all__ = ["LICENCE", "NOTICE", "licence_text", "notice"]

LICENCE, NOTICE = "LICENSE", "NOTICE"
_DISTRIBUTION: Final = "needle-ladder-export"
_CHECKOUT = Path(__file__).resolve().parent.parent.parent


def licence_text() -> bytes:
    """The licence of the exporter and of the runtime, from the checkout or the installed package.

    Raises:
        OutputError: there is neither.
    """
    if (_CHECKOUT / LICENCE).is_file():
        return (_CHECKOUT / LICENCE).read_bytes()
    try:
        installed = [path for path in files(_DISTRIBUTION) or [] if path.name == LICENCE]
    except PackageNotFoundError:
        installed = []
    if not installed:
        message = f"{LICENCE} of {_DISTRIBUTION} is not there to be shipped. Install it, or use a checkout."
        raise OutputError(message)
    return Path(str(installed[0].locate())).read_bytes()


def notice(description: Mapping[str, Any]) -> str:
    """What whoever receives a bundle should know of its parts.

    Args:
        description: the bundle's ``bundle.json``.
    """
    source, licence = description["source"], description["licence"]
    weights = licence["weights"] or "none that the checkpoint states; ask whoever trained it"
    adapters = ", ".join(adapter["name"] for adapter in source["adapters"]) or "none"
    return (
        f"{description['name']}\n\n"
        f"Graphs, runtime and this package's own files: made by {_DISTRIBUTION}\n"
        f"{description['versions']['exporter']}, licence {licence['exporter']} (see {LICENCE}).\n\n"
        f"Weights and tokenizer: from the checkpoint {source['name']}, cut to "
        f"{description['slice']['depth']} blocks and\n"
        f"stored in {description['precision']['scheme']['name']}; adapters folded: {adapters}.\n"
        f"Licence of the weights: {weights}.\n\n"
        f"Not part of the bundle, and under licences of its own: ONNX Runtime "
        f"{description['target']['onnxruntime']['floor']} or newer (MIT)\n"
        "and what the runtime uses beside it (sbom.cdx.json lists it).\n"
    )
