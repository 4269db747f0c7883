"""Folding LoRA adapters into a ladder, before it is sliced."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exporter.checkpoint import open_safetensors
from exporter.errors import (
    AdapterMismatchError,
    ForeignAdapterError,
    NotFiniteError,
    ZeroAdapterWarning,
)
from exporter.ladder import Array, Ladder
from exporter.layout import PROJECTIONS, TensorSpec

__all__ = ["Adapter", "FoldedLadder", "fold"]

_PREFIX = "lora/"
_SHOWN = 5


class Adapter:
    """A LoRA adapter in a safetensors file: pairs A [L, in, r], B [L, r, out] under ``lora/<path>/``.

    Attributes:
        path: the file.
        scale: alpha / rank, already divided.
        base: the base it was trained on, as its trainer wrote it; information only.
        targets: names of the base's tensors that it changes, sorted.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open an adapter.

        Raises:
            PickleRefusedError: the file is a pickle.
            ForeignFileError: it is no safetensors file.
            ForeignAdapterError: it is no adapter, or one of another model family.
        """
        self.path = Path(path)
        self._file = open_safetensors(self.path, "LoRA adapter")
        metadata = {key: self._decode(key, text) for key, text in (self._file.metadata() or {}).items()}
        names = set(self._file.keys())
        if metadata.get("languages") is not None or "rows" in names:
            message = (
                f"{self.path}: this adapter belongs to another model family (languages: "
                f"{metadata.get('languages')!r}). Give an adapter that was trained on a ladder."
            )
            raise ForeignAdapterError(message)
        stems = {name[len(_PREFIX) : -2] for name in names if name.startswith(_PREFIX)}
        if not stems or names != {f"{_PREFIX}{stem}/{side}" for stem in stems for side in "AB"}:
            odd = sorted(n for n in names if not n.startswith(_PREFIX) or n[-2:] not in {"/A", "/B"})
            message = (
                f"{self.path}: not a LoRA adapter, which holds pairs lora/<path>/A and lora/<path>/B"
                f"{f' (found {odd[0]!r})' if odd else ''}. A checkpoint is given as --checkpoint."
            )
            raise ForeignAdapterError(message)
        scale = metadata.get("scale")
        if not isinstance(scale, int | float) or isinstance(scale, bool) or not math.isfinite(scale):
            message = (
                f"{self.path}: metadata entry 'scale' is {scale!r}, and should be alpha / rank, a number."
            )
            raise ForeignAdapterError(message)
        self.scale = float(scale)
        self.base: Any = metadata.get("base")
        self.targets = tuple(sorted(stems))

    def _decode(self, key: str, text: str) -> Any:  # noqa: ANN401
        try:
            return json.loads(text)
        except ValueError:
            return text if key == "base" else None

    def pair(self, target: str) -> tuple[Array, Array]:
        """A [L, in, r] and B [L, r, out] of a target, float32.

        Raises:
            NotFiniteError: a value is NaN or infinite.
        """
        sides = []
        for side in "AB":
            values = np.asarray(self._file.get_tensor(f"{_PREFIX}{target}/{side}"), dtype=np.float32)
            if not np.isfinite(values).all():
                message = (
                    f"{self.path}: tensor '{_PREFIX}{target}/{side}' holds NaN or infinity. Use an adapter "
                    "from before its training diverged."
                )
                raise NotFiniteError(message)
            sides.append(values)
        return sides[0], sides[1]

    def shapes(self, target: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a target's A and B."""
        a, b = (self._file.get_slice(f"{_PREFIX}{target}/{side}").get_shape() for side in "AB")
        return tuple(a), tuple(b)


class FoldedLadder(Ladder):
    """A ladder with adapters folded in: ``W + scale * A @ B``, one after another."""

    def __init__(self, parent: Ladder, adapters: Iterable[Adapter], *, keep_confidence: bool) -> None:
        """Check the adapters against ``parent`` and read them.

        Args:
            parent: the base, not sliced.
            adapters: in the order to fold them in.
            keep_confidence: keep the confidence head, which was not trained with the adapters.

        Raises:
            AdapterMismatchError: an adapter's names or shapes do not fit the base.
            NotFiniteError: an adapter holds NaN or infinity.
        """
        self.parent, self.config = parent, parent.config
        self.layout: dict[str, TensorSpec] = {
            name: spec
            for name, spec in parent.layout.items()
            if keep_confidence or not name.startswith("confidence_head/")
        }
        self._pairs: dict[str, list[tuple[float, Array, Array]]] = {}
        for adapter in adapters:
            _check(adapter, parent)
            pairs = {target: adapter.pair(target) for target in adapter.targets}
            if not any(np.any(a) and np.any(b) for a, b in pairs.values()):
                message = f"{adapter.path}: every A or B is zero, so this adapter changes nothing."
                warnings.warn(message, ZeroAdapterWarning, stacklevel=3)
            for target, (a, b) in pairs.items():
                self._pairs.setdefault(target, []).append((adapter.scale, a, b))

    def read(self, name: str, row: int | None = None) -> Array:
        """Read a tensor, or one row of its leading axis, with the adapters folded in."""
        values = self.parent.read(name, row)
        for scale, a, b in self._pairs.get(name, []):
            delta = a @ b if row is None else a[row] @ b[row]
            values = values + np.float32(scale) * delta
        return values

    def gather(self, name: str, row: int, indices: Sequence[int]) -> Array:
        """Read chosen rows of an engram table, which no adapter changes."""
        return self.parent.gather(name, row, indices)


def fold(ladder: Ladder, paths: Iterable[str | os.PathLike[str]], *, keep_confidence: bool = False) -> Ladder:
    """Fold adapters from files into a ladder; with none, the ladder itself.

    Raises:
        AdapterError: an adapter cannot be used, or belongs to another base.
        CheckpointError: an adapter's file cannot be read, or holds NaN.
    """
    adapters = [Adapter(path) for path in paths]
    return FoldedLadder(ladder, adapters, keep_confidence=keep_confidence) if adapters else ladder


def _check(adapter: Adapter, base: Ladder) -> None:
    """Refuse an adapter whose names or shapes do not fit."""
    problems = []
    for target in adapter.targets:
        if target not in PROJECTIONS or target not in base.layout:
            problems.append(f"{target!r} is no projection of this base")
            continue
        blocks, inputs, outputs = base.layout[target].shape
        a, b = adapter.shapes(target)
        rank = a[-1] if a else 0
        if a != (blocks, inputs, rank) or b != (blocks, rank, outputs):
            problems.append(
                f"{target!r}: A {list(a)} and B {list(b)} do not make {[blocks, inputs, outputs]}"
            )
    if problems:
        shown = "; ".join(problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        message = (
            f"{adapter.path}: this adapter was trained on another base (it names {adapter.base!r}): "
            f"{shown}{more}. Give the checkpoint that it was trained on."
        )
        raise AdapterMismatchError(message)
