"""Numbers that every implementation must reproduce, computed by the upstream JAX package.

The data lie beside this module: two random ladders, an adapter, and what upstream computed from
them in float32 (``README.md`` lists the files). Importing this needs NumPy only; arrays are never
unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HEADS", "NAMES", "AdapterCase", "OracleCase", "adapter_case", "oracle"]

NAMES = ("tiny", "wide")
"""``tiny`` is 64 wide (a power of two); ``wide`` is 96 wide, with three hash heads per order."""

HEADS = ("confidence", "embedding", "router")
"""Probe heads, in the order in which :meth:`OracleCase.heads` gives them."""

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class OracleCase:
    """A ladder of 20 blocks and what upstream computed from it."""

    name: str
    checkpoint: Path
    """The ladder, a safetensors file of format version 2."""
    arrays: Mapping[str, NDArray[Any]]
    """Everything stored, under the names that the maker gave it."""

    @property
    def tokens(self) -> Ids:
        """[1, 40] ids, none of them 0."""
        return self.arrays["tokens"].astype(np.int64)

    @property
    def tokens_with_padding(self) -> Ids:
        """[1, 40] ids, some of them 0."""
        return self.arrays["tokens_with0"].astype(np.int64)

    @property
    def ladder_order(self) -> tuple[int, ...]:
        """The order in which blocks join the ladder."""
        return tuple(int(block) for block in self.arrays["ladder_order"])

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose logits are stored, ascending."""
        return _numbers(self.arrays, "logits_")

    @property
    def head_depths(self) -> tuple[int, ...]:
        """Depths whose head outputs are stored, ascending."""
        return _numbers(self.arrays, "forward_router_")

    def logits(self, depth: int) -> Floats:
        """[1, 40, V] logits of the slice to ``depth`` on :attr:`tokens`.

        Raises:
            KeyError: nothing is stored for this depth.
        """
        return self.arrays[f"logits_{depth}"]

    def logits_with_padding(self, *, masked: bool) -> Floats:
        """[1, 40, V] full-depth logits on :attr:`tokens_with_padding`.

        Args:
            masked: whether id 0 is hidden from every position, as in the heads' forward; otherwise
                it is an ordinary id, as in plain logits. A masked id's own row means nothing.
        """
        return self.arrays[f"logits_20_with0{'_masked' if masked else ''}"]

    def heads(self, depth: int, *, padded: bool = False) -> dict[str, Floats]:
        """Outputs of the probe heads of the slice to ``depth`` on :attr:`tokens`.

        Args:
            depth: one of :attr:`head_depths`.
            padded: whether upstream was given the tokens right-padded with id 0 to 48.

        Returns:
            ``confidence`` [1, 1] and ``router`` [1, 3] logits, ``embedding`` [1, 16] of length 1.

        Raises:
            KeyError: nothing is stored for this depth.
        """
        suffix = "_pad48" if padded else ""
        return {head: self.arrays[f"forward_{head}_{depth}{suffix}"].reshape(1, -1) for head in HEADS}

    @property
    def confidence_with_padding(self) -> Floats:
        """[1, 1] full-depth confidence logit on :attr:`tokens_with_padding`."""
        return self.arrays["forward_confidence_20_with0"].reshape(1, 1)

    @property
    def first_last_hidden(self) -> Floats:
        """[2, 1, 40, C]: full-depth lane means after first and last block, on :attr:`tokens`."""
        return self.arrays["hidden_20_first_last"]


@dataclass(frozen=True)
class AdapterCase:
    """A LoRA adapter of the ``tiny`` ladder and the logits after folding it."""

    base: Path
    adapter: Path
    arrays: Mapping[str, NDArray[Any]]

    @property
    def tokens(self) -> Ids:
        """[1, 40] ids."""
        return self.arrays["tokens"].astype(np.int64)

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose logits are stored, ascending."""
        return _numbers(self.arrays, "logits_")

    def logits(self, depth: int) -> Floats:
        """[1, 40, V] logits: the adapter folded in, then sliced to ``depth``.

        Raises:
            KeyError: nothing is stored for this depth.
        """
        return self.arrays[f"logits_{depth}"]


def oracle(name: str) -> OracleCase:
    """The case ``name``, one of :data:`NAMES`.

    Raises:
        KeyError: there is no such case.
    """
    if name not in NAMES:
        message = f"there is no oracle case {name!r}: choose one of {', '.join(NAMES)}"
        raise KeyError(message)
    return OracleCase(name, _HERE / f"{name}.safetensors", _load(f"{name}_logits.npz"))


def adapter_case() -> AdapterCase:
    """The LoRA adapter of the ``tiny`` ladder: rank 4, scale 2, on all five projections."""
    adapter = _HERE / "tiny_adapter.safetensors"
    return AdapterCase(_HERE / "tiny.safetensors", adapter, _load("tiny_adapter_logits.npz"))


def _numbers(arrays: Mapping[str, NDArray[Any]], prefix: str) -> tuple[int, ...]:
    """The N of every array named ``<prefix>N``, ascending."""
    rests = (name.removeprefix(prefix) for name in arrays if name.startswith(prefix))
    return tuple(sorted(int(rest) for rest in rests if rest.isdigit()))


@lru_cache(maxsize=8)
def _load(file: str) -> Mapping[str, NDArray[Any]]:
    with np.load(_HERE / file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays
