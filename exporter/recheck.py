"""Checking a bundle again, wherever it has got to: its sums, and its graph on the witness it carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.artifacts.reader import read_archive
from exporter.bundle import check_sums
from exporter.config import LadderConfig
from exporter.errors import NotABundleError
from exporter.session import Graph
from exporter.verify import check_witness

__all__ = ["recheck"]


def recheck(bundle: Path) -> float | None:
    """Check a bundle.

    Args:
        bundle: a folder, or an archive that holds one, which is checked without being unpacked.

    Returns:
        The greatest difference from the reference's logits, in units of their spread; None where the bundle
        was exported unverified and carries no witness.

    Raises:
        BundleError: it is no bundle, or a file of it is missing, extra or altered.
        VerificationError: the difference exceeds the precision's bound.
    """
    graph: Path | Graph
    try:
        if bundle.is_dir():
            description: Mapping[str, Any] = check_sums(bundle)
            graph = bundle / description["graphs"]["decode"]["file"]
        else:
            archive = read_archive(bundle)
            description = archive.description
            graph = archive.graph(description["graphs"]["decode"]["file"])
        verification, scheme = description["verification"], description["precision"]["scheme"]["name"]
        if verification["status"] != "verified":
            return None
        config = LadderConfig.from_json(description["configuration"])
        return check_witness(graph, config, scheme, verification["witness"])
    except (LookupError, TypeError, AttributeError) as error:
        message = (
            f"{bundle}: its description lacks or garbles what a check needs ({error!r}). Export it again."
        )
        raise NotABundleError(message) from error
