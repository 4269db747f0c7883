"""The depths that a bundle runs at: a graph and its heads for each, loaded when first asked for."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from runtime_py.bundle import Bundle
from runtime_py.heads import Heads
from runtime_py.session import Decoder, Sessions

__all__ = ["Rung", "Rungs"]


@dataclass(frozen=True)
class Rung:
    """One depth, ready to run."""

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
        self._made: dict[int, Rung] = {}
        self._by_identity = {bundle.at(depth).identity: depth for depth in bundle.depths}
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
        wanted = self.bundle.depth if depth is None else depth
        with self._lock:
            if wanted not in self._made:
                bundle = self.bundle.at(wanted)
                decoder = Decoder.load(bundle, self._sessions)
                self._made[wanted] = Rung(bundle, decoder, Heads(bundle, self._sessions))
            return self._made[wanted]

    def depth_of(self, identity: str) -> int | None:
        """The depth whose states have an identity; None where none of them has."""
        return self._by_identity.get(identity)
