"""Checkpoint files that nothing may be exported from, and what is said of each."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file

from exporter.errors import (
    CheckpointError,
    ConfigError,
    ForeignFileError,
    MissingTensorError,
    NotFiniteError,
    PickleRefusedError,
    UnexpectedTensorError,
    WrongShapeError,
)
from tests.helpers import Tensors, geometry, write_checkpoint

__all__ = ["BAD", "BROKEN_NUMBERS", "Bad", "Bomb"]


class Bad(NamedTuple):
    """A bad file: who makes it, what is raised, and what the message says."""

    make: Callable[[Path], Path]
    error: type[CheckpointError]
    texts: tuple[str, ...]


class Bomb:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        """Remember which file."""
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Make unpickling call ``Path.touch``."""
        return Path.touch, (self.path,)


def _cut(share: float) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        data = write_checkpoint(path).read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        return path

    return make


def _content(data: bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return make


def _pickled(protocol: int) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_bytes(pickle.dumps(Bomb(path.with_name("exploded")), protocol))
        return path

    return make


def _saved_by_torch(path: Path) -> Path:
    torch.save({"embedding/embedding": torch.zeros(2), "bomb": Bomb(path.with_name("exploded"))}, path)
    return path


def _foreign(path: Path) -> Path:
    save_file({"model.embed_tokens.weight": np.zeros((4, 4), np.float32)}, path)
    return path


def _without_config(path: Path) -> Path:
    return write_checkpoint(path, metadata={"config": None})


def _metadata(**entries: str | None) -> Callable[[Path], Path]:
    return lambda path: write_checkpoint(path, metadata=entries)


def _config(**changes: object) -> Callable[[Path], Path]:
    text = json.dumps({**geometry().to_json(), **changes})
    return lambda path: write_checkpoint(path, metadata={"config": text})


def _changed(change: Callable[[Tensors], object]) -> Callable[[Path], Path]:
    return lambda path: write_checkpoint(path, change=change)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _retyped(name: str, dtype: type[np.generic]) -> Callable[[Path], Path]:
    return _changed(lambda tensors: tensors.update({name: tensors[name].astype(dtype)}))


_Q = "stack/layers/block/self_attn/q_proj/kernel"
_DOWNLOAD = "if it was downloaded, compare its size with the source and download it again"

BAD: Mapping[str, Bad] = {
    "truncated": Bad(
        _cut(0.5), ForeignFileError, ("cannot be read as a ladder checkpoint", "not fully covered", _DOWNLOAD)
    ),
    "one byte short": Bad(
        _cut(0.9999), ForeignFileError, ("cannot be read as a ladder checkpoint", _DOWNLOAD)
    ),
    "truncated header": Bad(_cut(0.001), ForeignFileError, ("cannot be read as a ladder checkpoint",)),
    "empty": Bad(_content(b""), ForeignFileError, ("cannot be read as a ladder checkpoint",)),
    "missing": Bad(lambda path: path, ForeignFileError, ("cannot be read", "No such file")),
    "folder": Bad(_folder, ForeignFileError, ("cannot be read", "Is a directory")),
    "text": Bad(
        _content(b"a checkpoint, in words, of some length\n" * 20),
        ForeignFileError,
        ("cannot be read as a ladder checkpoint", "Give a complete .safetensors file"),
    ),
    "foreign safetensors": Bad(
        _foreign,
        ForeignFileError,
        ("format_version is None", "this exporter reads '2'", "Save the checkpoint with a current trainer"),
    ),
    "older format": Bad(_metadata(format_version="1"), ForeignFileError, ("format_version is '1'",)),
    "newer format": Bad(_metadata(format_version="3"), ForeignFileError, ("format_version is '3'",)),
    **{
        f"pickle of protocol {protocol}": Bad(
            _pickled(protocol),
            PickleRefusedError,
            ("this is a pickle, which can run code when it is read", "Save it as safetensors"),
        )
        for protocol in (2, 3, 4, 5)
    },
    "pickle of protocol 0": Bad(_pickled(0), ForeignFileError, ("cannot be read as a ladder checkpoint",)),
    "saved by torch": Bad(
        _saved_by_torch, PickleRefusedError, ("this is a pickle", "Save it as safetensors")
    ),
    "no configuration": Bad(
        _without_config, ConfigError, ("metadata entry 'config' is None, and should be JSON",)
    ),
    "configuration that is no JSON": Bad(
        _metadata(config="{'d_model': 32}"), ConfigError, ("metadata entry 'config' is \"{'d_model': 32}\"",)
    ),
    "configuration that is no object": Bad(
        _metadata(config="[1]"), ConfigError, ("metadata entry 'config' is [1], and should be a JSON object",)
    ),
    "impossible configuration": Bad(
        _config(num_kv_heads=3), ConfigError, ("'num_kv_heads' is 3: it should divide num_heads 4",)
    ),
    "another configuration": Bad(
        _config(d_model=48), WrongShapeError, ("has shape [67, 32], and the configuration asks for [67, 48]",)
    ),
    "deeper configuration": Bad(_config(num_layers=9), WrongShapeError, ("asks for [9",)),
    "missing tensor": Bad(
        lambda path: write_checkpoint(path, drop=(_Q, "stack/mhc_a_pre")),
        MissingTensorError,
        (f"2 tensors are missing that the configuration asks for, the first {_Q!r}", "Is the file complete"),
    ),
    "half a head": Bad(
        lambda path: write_checkpoint(path, drop=("router_head/gain",)),
        MissingTensorError,
        ("1 tensors are missing", "'router_head/gain'"),
    ),
    "unexpected tensor": Bad(
        _changed(lambda tensors: tensors.update({"stack/layers/block/mlp/up": np.zeros(3, np.float32)})),
        UnexpectedTensorError,
        (
            "have no place in this configuration, the first 'stack/layers/block/mlp/up'",
            "another model family",
        ),
    ),
    "wrong shape": Bad(
        _changed(lambda tensors: tensors.update({_Q: tensors[_Q].swapaxes(1, 2).copy()})),
        WrongShapeError,
        (f"tensor {_Q!r} has shape [5, 24, 32], and the configuration asks for [5, 32, 24]",),
    ),
    "int8 tensor": Bad(
        _retyped(_Q, np.int8),
        WrongShapeError,
        (f"tensor {_Q!r} has dtype I8", "F32, F16, BF16", "Convert it"),
    ),
    "float64 tensor": Bad(_retyped("stack/mhc_a_pre", np.float64), WrongShapeError, ("has dtype F64",)),
}
"""What opening refuses, by what is wrong with it."""


def _poisoned(name: str, value: float) -> Callable[[Path], Path]:
    def change(tensors: Tensors) -> None:
        tensors[name].reshape(-1)[3] = value

    return _changed(change)


BROKEN_NUMBERS: Mapping[str, Bad] = {
    f"{value} in {name}": Bad(
        _poisoned(name, value),
        NotFiniteError,
        (f"tensor {name!r} holds 1 values that are NaN or infinite", "from before the training diverged"),
    )
    for name, value in (
        (_Q, np.nan),
        ("embedding/embedding", np.inf),
        ("engrams_0/embedding", -np.inf),
        ("router_head/row_bias", np.nan),
    )
}
"""What opening cannot see, since it reads no values; an export refuses it."""
