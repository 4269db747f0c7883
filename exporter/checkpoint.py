"""Ladder checkpoints in safetensors files, format version 2: opened lazily, saved completely.

Only the file's header is read on opening; a tensor, or a single block's row of it, is read when asked
for. Nothing here ever unpickles.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from exporter.config import LadderConfig
from exporter.errors import (
    ConfigError,
    ForeignFileError,
    MissingTensorError,
    PickleRefusedError,
    UnexpectedTensorError,
    WrongShapeError,
)
from exporter.ladder import Array, Ladder
from exporter.layout import TensorSpec, head_of, layout

__all__ = ["FORMAT_VERSION", "Checkpoint", "open_safetensors", "save"]

FORMAT_VERSION = "2"
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_IGNORED_PREFIXES = ("mtp_", "ab_scales")
"""Parts of training that no forward pass reads."""

_RESIDENT = 1 << 24
"""Values read before the file is mapped anew."""

_PICKLE_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


class Checkpoint(Ladder):
    """A ladder in a safetensors file.

    Attributes:
        path: the file.
        config: its validated configuration.
        layout: the tensors it holds, by name (those that only training reads are ignored).
        dtypes: safetensors dtype of each tensor, ``F32``, ``F16`` or ``BF16``.
        step: training step, as stored; 0 where absent.
        run: the trainer's own notes, as stored.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a checkpoint and check its header against its configuration.

        Args:
            path: a safetensors file of format version 2.

        Raises:
            PickleRefusedError: the file is a pickle.
            ForeignFileError: it is truncated, not safetensors, or of another format version.
            ConfigError: the configuration is missing or impossible.
            MissingTensorError: a tensor is missing.
            UnexpectedTensorError: there is a tensor too many.
            WrongShapeError: a shape or dtype disagrees.
        """
        self.path = Path(path)
        self._file = open_safetensors(self.path, "ladder checkpoint")
        metadata = self._file.metadata() or {}
        version = metadata.get("format_version")
        if version != FORMAT_VERSION:
            message = (
                f"{self.path}: format_version is {version!r}, and this exporter reads {FORMAT_VERSION!r}. "
                "Save the checkpoint with a current trainer."
            )
            raise ForeignFileError(message)
        self.config = LadderConfig.from_json(self._json(metadata, "config"))
        self.step = self._step(metadata)
        self.run: Any = self._json(metadata, "run", {})
        self._read = 0
        slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118
        self.dtypes = {name: part.get_dtype() for name, part in slices.items()}
        self.layout = self._check({name: tuple(part.get_shape()) for name, part in slices.items()})

    def _json(self, metadata: Mapping[str, str], key: str, default: object = None) -> Any:  # noqa: ANN401
        # Upstream's writer stores a step that there is not as an empty text.
        if default is not None and not metadata.get(key):
            return default
        try:
            value = json.loads(metadata[key])
        except (KeyError, ValueError) as error:
            message = f"{self.path}: metadata entry {key!r} is {metadata.get(key)!r}, and should be JSON."
            raise ConfigError(message) from error
        if key == "config" and not isinstance(value, dict):
            message = f"{self.path}: metadata entry 'config' is {value!r}, and should be a JSON object."
            raise ConfigError(message)
        return value

    def _step(self, metadata: Mapping[str, str]) -> int:
        step = self._json(metadata, "step", 0)
        if step is not None and not (isinstance(step, int | float) and math.isfinite(step)):
            message = f"{self.path}: metadata entry 'step' is {step!r}, and should be a number, or null."
            raise ConfigError(message)
        return int(step or 0)

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorSpec]:
        present = {name for name in shapes if not name.startswith(_IGNORED_PREFIXES)}
        heads = {head for name in present if (head := head_of(name))}
        expected = layout(self.config, heads)
        missing = sorted(n for n, s in expected.items() if n not in present and not s.optional)
        if missing:
            message = (
                f"{self.path}: {len(missing)} tensors are missing that the configuration asks for, the first "
                f"{missing[0]!r}. Is the file complete, and the configuration its own?"
            )
            raise MissingTensorError(message)
        if extra := sorted(present - expected.keys()):
            message = (
                f"{self.path}: {len(extra)} tensors have no place in this configuration, the first "
                f"{extra[0]!r}. "
                "Is it a checkpoint of another model family?"
            )
            raise UnexpectedTensorError(message)
        specs = {name: spec for name, spec in expected.items() if name in present}
        for name, spec in specs.items():
            self._check_tensor(spec, shapes[name])
        return specs

    def _check_tensor(self, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        name = spec.name
        if shape != spec.shape:
            message = (
                f"{self.path}: tensor {name!r} has shape {list(shape)}, and the configuration asks for "
                f"{list(spec.shape)}. Correct the configuration, or save the checkpoint again."
            )
            raise WrongShapeError(message)
        if self.dtypes[name] not in _DTYPES:
            message = (
                f"{self.path}: tensor {name!r} has dtype {self.dtypes[name]}, and a checkpoint stores "
                f"{', '.join(_DTYPES)}. Convert it first."
            )
            raise WrongShapeError(message)

    def read(self, name: str, row: int | None = None) -> Array:
        """Read a tensor, or one row of its leading axis, upcast to float32."""
        shape = self.layout[name].shape
        self._account(math.prod(shape if row is None else shape[1:]))
        if not shape:
            return np.asarray(self._file.get_tensor(name), dtype=np.float32)
        part = self._file.get_slice(name)
        values = part[:] if row is None else part[row]
        return np.ascontiguousarray(values, dtype=np.float32).reshape(shape if row is None else shape[1:])

    def gather(self, name: str, row: int, indices: Sequence[int]) -> Array:
        """Read chosen rows of an engram table, and nothing else of it."""
        part = self._file.get_slice(name)
        unique, places = np.unique(np.asarray(indices), return_inverse=True)
        rows = [np.asarray(part[row, int(index)], dtype=np.float32) for index in unique]
        return np.stack(rows)[places]

    def _account(self, values: int) -> None:
        """Map the file anew now and then: pages once read would otherwise stay resident to the end."""
        self._read += values
        if self._read > _RESIDENT:
            self._file, self._read = open_safetensors(self.path, "ladder checkpoint"), 0


def open_safetensors(path: Path, kind: str) -> Any:  # noqa: ANN401 - safetensors ships no type for it
    """Open a safetensors file lazily for NumPy.

    Args:
        path: the file.
        kind: what it should be, for the message.

    Raises:
        PickleRefusedError: the file is a pickle or a zip of pickles.
        ForeignFileError: it is missing, truncated, or not safetensors.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic.startswith(_PICKLE_MAGIC):
            message = (
                f"{path}: this is a pickle, which can run code when it is read, and it is never read here. "
                "Save it as safetensors from the program that wrote it."
            )
            raise PickleRefusedError(message)
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        message = (
            f"{path}: cannot be read as a {kind} ({error}). Give a complete .safetensors file; "
            "if it was downloaded, compare its size with the source and download it again."
        )
        raise ForeignFileError(message) from error


def save(
    ladder: Ladder,
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike = np.float32,
    step: int = 0,
    run: Mapping[str, Any] | None = None,
) -> None:
    """Save a ladder as a checkpoint, every configuration field written.

    Args:
        ladder: what to save; read completely.
        path: where; replaced atomically.
        dtype: float32, float16 or ml_dtypes.bfloat16, for every tensor.
        step: training step to record.
        run: notes to record.
    """
    target = Path(path)
    tensors = {name: np.asarray(ladder.read(name), dtype=dtype, order="C") for name in ladder.layout}
    metadata = {
        "format_version": FORMAT_VERSION,
        "config": json.dumps(ladder.config.to_json()),
        "step": json.dumps(step),
        "run": json.dumps(dict(run or {})),
    }
    beside = target.with_name(f".{target.name}.part")
    try:
        save_file(tensors, beside, metadata=metadata)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
