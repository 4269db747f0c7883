"""The probe heads: confidence, embeddings, router scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime_py.bundle import Bundle
from runtime_py.errors import MissingHeadError
from runtime_py.session import Sessions
from runtime_py.state import State

__all__ = ["Heads", "ToolIndex", "sigmoid"]

Vector = NDArray[np.float32]


class Heads:
    """The graphs of the heads at one depth, each loaded when it is first asked."""

    def __init__(self, bundle: Bundle, sessions: Sessions) -> None:
        """Remember what to load."""
        self._bundle, self._sessions = bundle, sessions

    def scores(self, head: str) -> bool:
        """Whether :meth:`score` can give a head's output."""
        return self._bundle.score is not None and head in self._bundle.heads

    def pools(self, head: str, ids: Sequence[int] | NDArray[np.integer]) -> bool:
        """Whether :meth:`read` can give a head's output for these tokens: pooling takes padding for text."""
        return head in self._bundle.pooled and self._bundle.tokens.pad not in np.asarray(ids)

    def require(self, head: str) -> None:
        """Check that a head can be asked.

        Raises:
            MissingHeadError: the bundle does not carry it.
        """
        self._path(head, self._bundle.score, self._bundle.heads)

    def read(self, head: str, state: State) -> Vector:
        """A head's output for the tokens of a state, out of the pooling that decoding carried along.

        Args:
            head: one for which :meth:`pools` holds.
            state: with a token at least.

        Returns:
            As :meth:`score`.
        """
        path = self._path(head, self._bundle.readout, self._bundle.pooled)
        return self._run(path, head, state.present())

    def score(self, head: str, ids: Sequence[int]) -> Vector:
        """A head's output for a whole sequence.

        Args:
            head: ``confidence``, ``embedding`` or ``router``.
            ids: [T], ``bos`` included; padding is masked.

        Returns:
            [1] logit, [embedding width] of length 1, or [3] logits.

        Raises:
            MissingHeadError: the bundle does not carry it.
        """
        path = self._path(head, self._bundle.score, self._bundle.heads)
        return self._run(path, head, {"input_ids": np.asarray([ids], np.int64)})

    def _path(self, head: str, path: Path | None, heads: Sequence[str]) -> Path:
        if path is None or head not in heads:
            message = (
                f"{self._bundle.name}: has no {head} head (it has: {', '.join(heads) or 'none'}). Export a "
                "checkpoint that has one."
            )
            raise MissingHeadError(message)
        return path

    def _run(self, path: Path, head: str, given: Mapping[str, NDArray[Any]]) -> Vector:
        """A head's output for one row, given what its graph asks for and maybe more."""
        session = self._sessions[path]
        everything = {**given, **self._bundle.choice}
        inputs = {value.name: everything[value.name] for value in session.get_inputs()}
        return np.asarray(session.run([head], inputs)[0][0], np.float32)


class ToolIndex:
    """Embeddings of a catalogue, to be searched by that of a query."""

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        """Keep embeddings [N, width], each of length 1."""
        self.embeddings = embeddings

    def nearest(self, query: Vector, count: int) -> list[int]:
        """Numbers of the ``count`` entries nearest to a query [width], the nearest first."""
        scores = self.embeddings @ query
        return [int(number) for number in np.argsort(-scores, kind="stable")[:count]]


def sigmoid(logit: float) -> float:
    """Probability of a logit."""
    # By way of tanh, which overflows on neither side.
    return 0.5 * (1 + math.tanh(logit / 2))
