"""Recovered weights of a whole ladder in a file: codes, tuned scales and tuned gains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from exporter.checkpoint import open_safetensors
from exporter.errors import ForeignRecoveryError, RecoveryError, RecoveryMismatchError
from exporter.ladder import Array, Ladder, fingerprint
from exporter.layout import Axis, Part, TensorSpec
from exporter.precision import Key, PrecisionPlan, Scheme, plan_precision, to_half
from exporter.quantize import Blocks

__all__ = ["is_tuned", "keys_of", "path_beside", "read_recovered", "recovered_beside", "save_recovered"]

_VERSION = "1"


def path_beside(checkpoint: Path, precision: str) -> Path:
    """Where the recovered weights of a checkpoint are looked for."""
    return checkpoint.with_name(f"{checkpoint.stem}.{precision}{checkpoint.suffix}")


def recovered_beside(checkpoint: Path, precision: str, given: Path | None) -> Path:
    """The file to read: the one given, else ``pocket.int4.safetensors`` beside ``pocket.safetensors``.

    Raises:
        RecoveryError: there is none.
    """
    path = given or path_beside(checkpoint, precision)
    if not path.exists():
        message = (
            f"{path}: there are no recovered weights there. Make them with: python -m exporter recover "
            f"--checkpoint {checkpoint} --precision {precision}; or give the file with --recovered."
        )
        raise RecoveryError(message)
    return path


def keys_of(name: str, spec: TensorSpec) -> list[Key]:
    """A tensor by the rows of its leading axis where these are blocks of the ladder, or whole."""
    return [(name, row) for row in range(spec.shape[0])] if spec.axis is Axis.BLOCKS else [(name, None)]


def is_tuned(plan: PrecisionPlan, spec: TensorSpec) -> bool:
    """Whether recovery may change a tensor: what is quantised, and gains of norms; nothing of probe heads."""
    return spec.part is not Part.HEADS and (bool(plan.storage[spec.name].block) or spec.part is Part.NORMS)


def save_recovered(path: Path, ladder: Ladder, plan: PrecisionPlan, recipe: Mapping[str, Any]) -> None:
    """Write what a plan knows of a whole ladder.

    Args:
        path: where.
        ladder: as it was before it was quantised.
        plan: that knows every tensor of :func:`is_tuned`.
        recipe: how it was found.
    """
    tensors: dict[str, NDArray[Any]] = {}
    for name, spec in plan.specs.items():
        if not is_tuned(plan, spec):
            continue
        keys = keys_of(name, spec)
        if not plan.storage[name].block:
            values = np.stack([plan.tuned[key] for key in keys]).reshape(spec.shape)
            tensors[name] = to_half(name, values) if plan.storage[name].half else values
            continue
        for kind in _kinds(plan, name):
            tensors[f"{name}.{kind}"] = np.stack([getattr(plan.known[key], kind) for key in keys])
    metadata = {
        "recovered": _VERSION,
        "scheme": json.dumps(plan.scheme.to_json()),
        "ladder_sha256": fingerprint(ladder),
        "recipe": json.dumps(dict(recipe)),
        "tensors_sha256": _digest(tensors),
    }
    save_file(tensors, path, metadata=metadata)


def read_recovered(path: Path, ladder: Ladder, scheme: Scheme) -> PrecisionPlan:
    """Read a plan of a whole ladder that knows what recovery found.

    Args:
        path: of the file.
        ladder: whole, adapters folded.
        scheme: to export in.

    Raises:
        CheckpointError: the file cannot be read at all.
        ForeignRecoveryError: it holds something else.
        RecoveryMismatchError: it is of another ladder, or another way to store it.
    """
    file = open_safetensors(path, "file of recovered weights")
    metadata = file.metadata() or {}
    try:
        stored = {_VERSION: Scheme}[metadata["recovered"]](**json.loads(metadata["scheme"]))
        identity = metadata["ladder_sha256"]
    except (ValueError, LookupError, TypeError) as error:
        message = (
            f"{path}: holds no recovered weights of version {_VERSION} ({error!r}). Make them with: "
            "python -m exporter recover."
        )
        raise ForeignRecoveryError(message) from error
    _require_alike(path, stored, scheme)
    if identity != fingerprint(ladder):
        message = (
            f"{path}: was made for another ladder, of SHA-256 {identity[:12]}... Give the file of this "
            "checkpoint (no adapter may be folded in), or make one with: python -m exporter recover."
        )
        raise RecoveryMismatchError(message)
    plan = plan_precision(ladder.config, ladder.layout, scheme)
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    if metadata.get("tensors_sha256") != _digest(tensors):
        message = (
            f"{path}: is damaged: its tensors are not those that were written. Make it anew with: "
            "python -m exporter recover."
        )
        raise ForeignRecoveryError(message)
    return _knowing(plan, tensors)


def _require_alike(path: Path, stored: Scheme, wanted: Scheme) -> None:
    for field in ("bits", "block", "zero_points"):
        is_, asked = getattr(stored, field), getattr(wanted, field)
        if is_ != asked:
            message = (
                f"{path}: has {field} {is_}, and {asked} is asked for. Ask for {stored.name} with --block "
                f"{stored.block}{' --zero-points' if stored.zero_points else ''}, or give another file with "
                "--recovered."
            )
            raise RecoveryMismatchError(message)


def _kinds(plan: PrecisionPlan, name: str) -> list[str]:
    """What a file has of a quantised tensor."""
    return ["codes", "scales", *(["zeros"] if plan.storage[name].zero_points else [])]


def _digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        digest.update(f"{name}{values.dtype}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _knowing(plan: PrecisionPlan, tensors: Mapping[str, NDArray[Any]]) -> PrecisionPlan:
    """A plan of a whole ladder that knows what a file holds."""
    known: dict[Key, Blocks] = {}
    tuned: dict[Key, Array] = {}
    for name, spec in plan.specs.items():
        if not is_tuned(plan, spec):
            continue
        keys = keys_of(name, spec)
        if plan.storage[name].block:
            parts = [tensors[f"{name}.{kind}"] for kind in _kinds(plan, name)]
            known |= {
                key: Blocks(*matrix) for key, matrix in zip(keys, zip(*parts, strict=True), strict=True)
            }
        else:
            values = tensors[name].astype(np.float32)
            tuned |= zip(keys, values if spec.axis is Axis.BLOCKS else [values], strict=True)
    return replace(plan, known=known, tuned=tuned)
