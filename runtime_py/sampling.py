"""Choosing a token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import SamplingError

__all__ = ["Sampler", "Sampling", "log_probability"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose; the defaults choose the likeliest token.

    The filters apply in this order, each to what the one before left, and the temperature last, as
    llama.cpp has it: so they look at the model's own probabilities.
    """

    temperature: float = 0.0
    """0 is greedy; 1 takes the model's probabilities as they are."""
    top_k: int = 0
    """The likeliest so many; 0 is all."""
    top_p: float = 1.0
    """The likeliest whose probabilities reach this sum (Holtzman et al., 2020)."""
    min_p: float = 0.0
    """Those at least this share as likely as the likeliest (Nguyen et al., 2024)."""
    seed: int | None = None
    """The same seed chooses the same on every machine that has the same logits; None is a new one."""

    def __post_init__(self) -> None:
        """Refuse what no sampling can be.

        Raises:
            SamplingError: a parameter is out of its range.
        """
        checks = {
            "temperature": (0 <= self.temperature < float("inf"), "0 or more, and finite"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "0 to 1"),
            "seed": (self.seed is None or self.seed >= 0, "0 or more"),
        }
        for name, (good, wanted) in checks.items():
            if not good:
                raise SamplingError(f"{name} is {getattr(self, name)!r}: give a value that is {wanted}.")


class Sampler:
    """A sampling with its random numbers."""

    def __init__(self, sampling: Sampling) -> None:
        """Start the sequence of random numbers."""
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> int:
        """Choose a token.

        Args:
            logits: [V] float32.
            allowed: [V] bool, at least one of them true; None allows all.

        Returns:
            The token's id.
        """
        if allowed is not None:
            logits = np.where(allowed, logits, -np.inf)
        if self.sampling.temperature == 0:
            return int(np.argmax(logits))
        order, probabilities = self._filtered(logits)
        # Dividing the log-probabilities is dividing the logits: they differ by a constant.
        with np.errstate(divide="ignore"):
            scaled = np.log(probabilities) / self.sampling.temperature
        weights = np.cumsum(np.exp(scaled - scaled.max()))
        draw = self._random.random() * weights[-1]
        return int(order[np.searchsorted(weights, draw, side="right").clip(0, len(order) - 1)])

    def chances(
        self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """Probability [V] with which each token would be chosen.

        Where the choice is greedy, it is the model's own among what is allowed: how sure it is.
        """
        if allowed is not None:
            logits = np.where(allowed, logits, -np.inf)
        if self.sampling.temperature == 0:
            return _softmax(logits)
        order, probabilities = self._filtered(logits)
        with np.errstate(divide="ignore"):
            scaled = np.log(probabilities) / self.sampling.temperature
        weights = np.exp(scaled - scaled.max())
        chances = np.zeros(len(logits))
        chances[order] = weights / weights.sum()
        return chances

    def draw(self, chances: NDArray[np.float64]) -> int:
        """Choose a token by probabilities [V], the likeliest where the choice is greedy."""
        if self.sampling.temperature == 0:
            return int(np.argmax(chances))
        sums = np.cumsum(chances)
        found = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        # Rounding may lead behind the last that has a chance.
        return int(min(found, np.flatnonzero(chances)[-1]))

    def check(
        self,
        token: int,
        drafted: NDArray[np.float64],
        logits: NDArray[np.float32],
        allowed: NDArray[np.bool_] | None = None,
    ) -> int:
        """Choose in place of a drafted token, such that the draft leaves no trace in the probabilities.

        The token stands with probability min(1, p / q); else one is drawn from what p exceeds q by (Leviathan
        et al., 2023, algorithm 1).

        Args:
            token: what was drawn from ``drafted``.
            drafted: q [V].
            logits: [V], whose :meth:`chances` are p.
            allowed: as of :meth:`choose`.

        Returns:
            The drafted token where it stands, or the one that takes its place.
        """
        if self.sampling.temperature == 0:
            return self.choose(logits, allowed)
        chances = self.chances(logits, allowed)
        if self._random.random() * drafted[token] < chances[token]:
            return token
        rest = np.maximum(chances - drafted, 0)
        return self.draw(rest if rest.any() else chances)

    def _filtered(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Ids that remain, the likeliest first, and their probabilities."""
        sampling = self.sampling
        # Stable, so that equal logits keep the order of their ids.
        order = np.argsort(-logits, kind="stable")
        order = order[np.isfinite(logits[order])]
        if sampling.top_k:
            order = order[: sampling.top_k]
        probabilities = _softmax(logits[order])
        if sampling.top_p < 1:
            before = np.cumsum(probabilities) - probabilities
            kept = before < sampling.top_p
            order, probabilities = order[kept], probabilities[kept]
        if sampling.min_p:
            kept = probabilities >= sampling.min_p * probabilities[0]
            order, probabilities = order[kept], probabilities[kept]
        return order, probabilities


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Natural logarithm of a token's probability by logits [V]."""
    shifted = logits - logits.max()
    return float(shifted[token]) - float(np.log(np.exp(shifted).sum()))


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(shifted / shifted.sum())
