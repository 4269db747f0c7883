"""Prefilled tools, kept from query to query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from runtime_py.state import State

__all__ = ["Prefixes"]


class Prefixes:
    """States that hold one set of tools, one per depth; another set takes their place."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._key: Hashable = None
        self._states: dict[int, State] = {}

    def fork(self, key: Hashable, depth: int, make: Callable[[], State]) -> State:
        """A fork of the state of some tools at a depth, which is made where it is not kept.

        Args:
            key: what tells one set of tools from another.
            depth: of the state.
            make: makes the state.
        """
        with self._lock:
            if self._key != key:
                self._key, self._states = key, {}
            if depth not in self._states:
                self._states[depth] = make()
            # Forked here, under the lock: another thread may ask for the same at the same time.
            return self._states[depth].fork()
