"""Checking a bundle again, wherever it has got to: its sums, and its graph on the witness it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter.artifacts.reader import read_archive
from exporter.bundle import check_sums
from exporter.config import LadderConfig
from exporter.errors import NotABundleError
from exporter.ladder import plan_blocks, sliced_config
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
    find: Callable[[str], Path | Graph]
    try:
        if bundle.is_dir():
            description: Mapping[str, Any] = check_sums(bundle)
            find = bundle.joinpath
        else:
            archive = read_archive(bundle)
            description, find = archive.description, archive.graph
        verification, scheme = description["verification"], description["precision"]["scheme"]["name"]
        if verification["status"] != "verified":
            return None
        config = LadderConfig.from_json(description["configuration"])
        differences = [
            check_witness(find(name), geometry, scheme, witness)
            for name, geometry, witness in _witnesses(description, config)
        ]
        return max(differences)
    except (LookupError, TypeError, AttributeError) as error:
        message = (
            f"{bundle}: its description lacks or garbles what a check needs ({error!r}). Export it again."
        )
        raise NotABundleError(message) from error


def _witnesses(
    description: Mapping[str, Any], config: LadderConfig
) -> Iterator[tuple[str, LadderConfig, list[Mapping[str, Any]]]]:
    """Each decoding graph's name, geometry and witness."""
    entries: list[Mapping[str, Any]] = description["verification"]["witness"]
    for depth, rung in description.get("rungs", {}).items():
        own: list[Mapping[str, Any]] = [
            {**entry, "blocks": None} for entry in entries if entry.get("blocks") == rung["blocks"]
        ]
        geometry = sliced_config(config, plan_blocks(config, rung["blocks"]))
        if not own:
            message = f"the rung of depth {depth} has no witness"
            raise LookupError(message)
        yield rung["decode"]["file"], geometry, own
    rungs = [rung["blocks"] for rung in description.get("rungs", {}).values()]
    rest = [entry for entry in entries if entry.get("blocks") not in rungs]
    yield description["graphs"]["decode"]["file"], config, rest
