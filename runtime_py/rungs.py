"""The depths that a bundle runs at: a graph and its heads for each, loaded when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from runtime_py.bundle import Bundle
from runtime_py.heads import Heads
from runtime_py.session import Decoder, Sessions

__all__ = ["Rung", "Rungs"]


@dataclass(frozen=True)
class Rung:
    """One depth, or set of blocks, ready to run."""

    bundle: Bundle
    decoder: Decoder
    heads: Heads


class Rungs:
    """The rungs of a bundle; those that share a graph share its session."""

    def __init__(self, bundle: Bundle, threads: int = 0) -> None:
        """Load the deepest rung, which is the usual one.

        Args:
            bundle: at its deepest.
            threads: threads within an operator; 0 leaves it to ONNX Runtime.

        Raises:
            NotABundleError: its graph cannot be loaded.
        """
        self.bundle = bundle
        self._sessions = Sessions(threads)
        self._made: dict[str, Rung] = {}
        self._by_depth = {depth: bundle.at(depth) for depth in bundle.depths}
        self._known = {rung.identity: rung for rung in self._by_depth.values()}
        self._lock = threading.Lock()
        self.deepest = self[bundle.depth]

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths there are, the shallowest first."""
        return self.bundle.depths

    def __getitem__(self, depth: int | None) -> Rung:
        """The rung of a depth; None is the deepest.

        Raises:
            UnknownDepthError: there is none.
            NotABundleError: its graph cannot be loaded.
        """
        if depth is None:
            return self._rung(self.bundle)
        return self._rung(self._by_depth.get(depth) or self.bundle.at(depth))

    def keeping(self, blocks: Collection[int]) -> Rung:
        """What runs a set of blocks that need not be a rung of the ladder; it is known from then on.

        Raises:
            UnknownBlocksError: the bundle cannot run them.
        """
        kept = self.bundle.keeping(blocks)
        self._known.setdefault(kept.identity, kept)
        return self._rung(kept)

    def __contains__(self, identity: str) -> bool:
        """Whether states of an identity belong to a rung that is known, loaded or not."""
        return identity in self._known

    def of(self, identity: str) -> Rung | None:
        """The rung whose states have an identity; None where none that is known has."""
        known = self._known.get(identity)
        return None if known is None else self._rung(known)

    def _rung(self, bundle: Bundle) -> Rung:
        with self._lock:
            if bundle.identity not in self._made:
                decoder = Decoder.load(bundle, self._sessions)
                self._made[bundle.identity] = Rung(bundle, decoder, Heads(bundle, self._sessions))
            return self._made[bundle.identity]
