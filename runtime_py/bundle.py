"""A bundle on the device: its description, checked against its files and the runtime installed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from runtime_py.errors import BundleVersionError, DamagedFileError, NotABundleError, RuntimeFloorError

__all__ = ["BUNDLE_VERSION", "Bundle", "StateSpec", "Tokens"]

BUNDLE_VERSION: Final = 1
"""The format version that this package reads."""

_DESCRIPTION, _SUMS = "bundle.json", "SHA256SUMS"
_AGAIN = "Copy the bundle from its source again."


@dataclass(frozen=True)
class StateSpec:
    """One state of a graph: it is given as ``past`` and comes back, advanced, as ``present``.

    ``shape`` is that of the state before the first token, every element being ``fill``. ``grows`` names
    the axis that gets a position per token, or is None where the shape never changes. ``window`` is how
    many of the latest positions a query sees, itself included; 0 is all.
    """

    past: str
    present: str
    dtype: str
    shape: tuple[int, ...]
    grows: int | None = None
    window: int = 0
    fill: float = 0.0


@dataclass(frozen=True)
class Tokens:
    """Ids with a meaning of their own; the defaults are those of the checkpoint format."""

    pad: int = 0
    eos: int = 1
    bos: int = 2
    unk: int = 3


@dataclass(frozen=True)
class Bundle:
    """What a device needs to know of a bundle."""

    folder: Path
    name: str
    identity: str
    """SHA-256 over the sums of the decoding graph and the weights: states belong to it."""
    graph: Path
    """The decoding graph."""
    states: tuple[StateSpec, ...]
    """The decoding graph's, in its order."""
    all_logits: bool
    """Whether the graph gives the logits of every position, not of the last alone."""
    score: Path | None
    """The scoring graph, where the bundle has one."""
    heads: tuple[str, ...]
    """Outputs of the scoring graph."""
    readout: Path | None
    """The graph that reads heads out of the pooling in a state, where the bundle has one."""
    pooled: tuple[str, ...]
    """Outputs of the readout graph."""
    tokenizer: Path | None
    tokens: Tokens
    vocabulary: int
    """Ids are below it."""
    context: int
    """Positions that the checkpoint was trained for."""
    kv_window: int
    """Served window that the checkpoint was trained for; 0 is none."""

    @classmethod
    def load(cls, folder: Path, *, verify: bool = True) -> Bundle:
        """Read a bundle's description and check what it names.

        Args:
            folder: the bundle.
            verify: compare every file with its SHA-256 sum, which reads all of them.

        Raises:
            NotABundleError: there is no bundle, or its description lacks something.
            BundleVersionError: its format version is unknown.
            RuntimeFloorError: the installed ONNX Runtime is too old for it.
            DamagedFileError: a file is missing, or altered.
        """
        description = _read_description(folder)
        sums = _read_sums(folder)
        if verify:
            _check_files(folder, sums)
        try:
            _check_floor(folder, description["target"]["onnxruntime"]["floor"])
            return cls._from_description(folder, description, sums)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            message = f"{folder / _DESCRIPTION}: lacks or garbles what a device needs ({error!r}). {_AGAIN}"
            raise NotABundleError(message) from error

    @classmethod
    def _from_description(
        cls, folder: Path, description: Mapping[str, Any], sums: Mapping[str, str]
    ) -> Bundle:
        configuration, graphs = description["configuration"], description["graphs"]
        decode, score, readout = graphs["decode"], graphs.get("score"), graphs.get("readout")
        needed = [decode["file"], graphs["weights"], *(graph["file"] for graph in (score, readout) if graph)]
        tokenizer = description.get("tokenizer")
        for name in [*needed, *([tokenizer] if tokenizer else [])]:
            if not (folder / name).is_file():
                raise DamagedFileError(f"{folder / name}: is missing. {_AGAIN}")
        own = "".join(sums.get(name, name) for name in needed[:2])
        return cls(
            folder=folder,
            name=str(description["name"]),
            identity=hashlib.sha256(own.encode()).hexdigest(),
            graph=folder / decode["file"],
            states=tuple(
                StateSpec(**{**state, "shape": tuple(state["shape"])}) for state in decode["states"]
            ),
            all_logits=decode["logits"] == "all",
            score=folder / score["file"] if score else None,
            heads=tuple(score["outputs"]) if score else (),
            readout=folder / readout["file"] if readout else None,
            pooled=tuple(readout["outputs"]) if readout else (),
            tokenizer=folder / tokenizer if tokenizer else None,
            tokens=Tokens(**{"pad": int(configuration["pad_token_id"]), **description.get("tokens", {})}),
            vocabulary=int(configuration["vocab_size"]),
            context=int(configuration["max_seq_len"]),
            kv_window=int(configuration["kv_window"]),
        )


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _DESCRIPTION
    try:
        description = json.loads(path.read_text("utf-8"))
    except NotADirectoryError as error:
        raise NotABundleError(f"{folder}: is a file. Unpack the bundle, and give its folder.") from error
    except (OSError, ValueError) as error:
        message = f"{path}: cannot be read ({error}). Give the folder that the exporter wrote."
        raise NotABundleError(message) from error
    version = description.get("bundle_version") if isinstance(description, dict) else None
    if version != BUNDLE_VERSION:
        message = (
            f"{path}: bundle_version is {version!r}, and this runtime reads {BUNDLE_VERSION}. Run the bundle "
            "with the runtime_py that lies in it, or export it again."
        )
        raise BundleVersionError(message)
    return dict(description)


def _read_sums(folder: Path) -> dict[str, str]:
    path = folder / _SUMS
    try:
        lines = path.read_text("utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"{path}: cannot be read ({error}). {_AGAIN}") from error


def _check_files(folder: Path, sums: Mapping[str, str]) -> None:
    """Compare the files with their sums; files that have none are left alone (Python caches, notes)."""
    for name, digest in sums.items():
        path = folder / name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DamagedFileError(f"{path}: is missing or unreadable ({error}). {_AGAIN}") from error
        if found != digest:
            raise DamagedFileError(f"{path}: is not the file that was exported ({_SUMS} differs). {_AGAIN}")


def _check_floor(folder: Path, floor: str) -> None:
    if _numbers(ort.__version__) < _numbers(floor):
        message = (
            f"{folder}: needs onnxruntime {floor} or newer, and {ort.__version__} is installed. "
            f"Run: pip install 'onnxruntime>={floor}'"
        )
        raise RuntimeFloorError(message)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; what follows them (a build, a candidate) does not count."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    if found is None:
        raise ValueError(version)
    return tuple(int(number) for number in found[0].split("."))
