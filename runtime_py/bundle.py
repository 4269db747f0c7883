"""A bundle on the device: its description, checked against its files and the runtime installed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime_py.errors import (
    BundleVersionError,
    DamagedFileError,
    NotABundleError,
    RuntimeFloorError,
    UnknownBlocksError,
    UnknownDepthError,
)

__all__ = ["BUNDLE_VERSION", "Blocks", "Bundle", "StateSpec", "Tokens"]

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
    block: int | None = None
    """The block that it belongs to, where the graph runs a chosen set of them."""
    rows: int | None = None
    """The axis with a row for the embedding and each block that runs; ``shape`` has one for every block."""

    def with_blocks(self, count: int) -> StateSpec:
        """The state as it is where so many blocks run."""
        if self.rows is None:
            return self
        return replace(self, shape=(*self.shape[: self.rows], count + 1, *self.shape[self.rows + 1 :]))


@dataclass(frozen=True)
class Blocks:
    """Which blocks a graph runs, where that is an input of its calls."""

    name: str
    """The input, [blocks] bool."""
    order: tuple[int, ...]
    """The ladder's: a rung of depth d is its first d."""
    least: int
    """The shallowest depth."""
    active: frozenset[int]


@dataclass(frozen=True)
class Tokens:
    """Ids with a meaning of their own; the defaults are those of the checkpoint format."""

    pad: int = 0
    eos: int = 1
    bos: int = 2
    unk: int = 3


@dataclass(frozen=True)
class Bundle:
    """What a device needs to know of a bundle, at one of its depths."""

    folder: Path
    name: str
    depth: int
    """Blocks that run; a loaded bundle is at its deepest."""
    identity: str
    """SHA-256 over the sums of the decoding graph and the weights: states belong to it."""
    graph: Path
    """The decoding graph."""
    states: tuple[StateSpec, ...]
    """The decoding graph's, in its order."""
    logits: str
    """Positions whose logits the graph gives: ``last``, ``all``, or ``kept``, the last so many."""
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
    blocks: Blocks | None = None
    """Which blocks run, where the graph is told; else it runs all that it has."""
    rungs: Mapping[int, Bundle] = field(default_factory=dict)
    """The same at other depths, which have graphs of their own."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths that it can run at, the shallowest first."""
        if self.blocks is not None:
            return tuple(range(self.blocks.least, len(self.blocks.order) + 1))
        return tuple(sorted({self.depth, *self.rungs}))

    @property
    def choice(self) -> dict[str, NDArray[np.bool_]]:
        """The input that chooses the blocks, by its name; none where the graph runs all that it has."""
        if self.blocks is None:
            return {}
        return {self.blocks.name: np.isin(np.arange(len(self.blocks.order)), sorted(self.blocks.active))}

    def is_idle(self, state: StateSpec) -> bool:
        """Whether a state is of a block that does not run."""
        return self.blocks is not None and state.block is not None and state.block not in self.blocks.active

    def at(self, depth: int) -> Bundle:
        """The bundle at another depth.

        Raises:
            UnknownDepthError: it does not run at that.
        """
        if isinstance(depth, bool) or depth not in self.depths:
            listed = ", ".join(map(str, self.depths))
            message = (
                f"{self.name}: does not run at depth {depth!r} (it has: {listed}). Choose one of these, or "
                "export the ladder with that depth."
            )
            raise UnknownDepthError(message)
        if depth == self.depth:
            return self
        if self.blocks is None:
            return self.rungs[depth]
        return self._with_blocks(replace(self.blocks, active=frozenset(self.blocks.order[:depth])))

    def keeping(self, blocks: Collection[int]) -> Bundle:
        """The bundle with a set of blocks that need not be a rung of the ladder.

        Raises:
            UnknownBlocksError: its graphs are not told which blocks run, or it has other blocks, or the first
                or the last is missing.
        """
        if self.blocks is None:
            message = (
                f"{self.name}: its graphs run all the blocks that they have. Export the ladder with "
                "--elastic, or these blocks alone with --blocks."
            )
            raise UnknownBlocksError(message)
        last, active = len(self.blocks.order) - 1, frozenset(blocks)
        if not {0, last} <= active <= frozenset(self.blocks.order) or len(active) < len(blocks):
            message = (
                f"{self.name}: cannot run the blocks {list(blocks)!r}. Give different numbers of 0 to "
                f"{last}, with both ends."
            )
            raise UnknownBlocksError(message)
        if active == self.blocks.active:
            return self
        return self._with_blocks(replace(self.blocks, active=active))

    def _with_blocks(self, blocks: Blocks) -> Bundle:
        """The same graphs with another set of blocks, whose states are no other set's."""
        own, count = f"{self.identity} {sorted(blocks.active)}", len(blocks.active)
        return replace(
            self,
            depth=count,
            identity=hashlib.sha256(own.encode()).hexdigest(),
            states=tuple(state.with_blocks(count) for state in self.states),
            blocks=blocks,
        )

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
        tokenizer, elastic = description.get("tokenizer"), description.get("elastic")
        deepest = cls(
            folder=folder,
            name=str(description["name"]),
            depth=int(configuration["num_layers"]),
            tokenizer=_found(folder, tokenizer) if tokenizer else None,
            tokens=Tokens(**{"pad": int(configuration["pad_token_id"]), **description.get("tokens", {})}),
            vocabulary=int(configuration["vocab_size"]),
            context=int(configuration["max_seq_len"]),
            kv_window=int(configuration["kv_window"]),
            blocks=_blocks(elastic) if elastic else None,
            **_graphs(folder, graphs, graphs["weights"], sums),
        )
        rungs = {
            int(depth): replace(deepest, depth=int(depth), **_graphs(folder, rung, graphs["weights"], sums))
            for depth, rung in description.get("rungs", {}).items()
        }
        return replace(deepest, rungs=rungs)


def _graphs(folder: Path, graphs: Mapping[str, Any], weights: str, sums: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a bundle that say which graphs run at a depth."""
    decode, score, readout = graphs["decode"], graphs.get("score"), graphs.get("readout")
    own = "".join(sums.get(name, name) for name in (decode["file"], weights))
    _found(folder, weights)
    return {
        "identity": hashlib.sha256(own.encode()).hexdigest(),
        "graph": _found(folder, decode["file"]),
        "states": tuple(StateSpec(**{**state, "shape": tuple(state["shape"])}) for state in decode["states"]),
        "logits": str(decode["logits"]),
        "score": _found(folder, score["file"]) if score else None,
        "heads": tuple(score["outputs"]) if score else (),
        "readout": _found(folder, readout["file"]) if readout else None,
        "pooled": tuple(readout["outputs"]) if readout else (),
    }


def _blocks(elastic: Mapping[str, Any]) -> Blocks:
    order = tuple(int(block) for block in elastic["order"])
    return Blocks(str(elastic["input"]), order, int(elastic["least"]), frozenset(order))


def _found(folder: Path, name: str) -> Path:
    """A file that the description names.

    Raises:
        DamagedFileError: it is not there.
    """
    if not (folder / name).is_file():
        raise DamagedFileError(f"{folder / name}: is missing. {_AGAIN}")
    return folder / name


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
