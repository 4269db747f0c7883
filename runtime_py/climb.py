"""Climbing: a query is answered by a shallow rung, and by the next one where that is not sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runtime_py.errors import InputError, SingleDepthError, UnknownDepthError

__all__ = ["AUTO", "CONFIDENCE", "PROBABILITY", "Attempt", "Climb"]

AUTO: Final = "auto"
"""As a depth: climb, by the defaults."""
CONFIDENCE: Final = "confidence"
"""Sureness as the confidence head has it."""
PROBABILITY: Final = "probability"
"""Sureness as the product of the probabilities of the tokens that were chosen."""

_FEW: Final = 4
"""So many rungs are all climbed; of more, those at a quarter, a half and the whole of the depth."""


@dataclass(frozen=True)
class Attempt:
    """What one rung made of a query."""

    depth: int
    score: float
    """How sure it was, 0 to 1; 0 where its answer holds no calls that could be read."""
    tokens: int
    """Tokens prefilled and answered."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Climb:
    """When to go on to the next rung, and how far.

    A budget is not overrun by what can be foreseen: a rung is only begun if it would keep within, taking as
    many tokens as the one before it, and as many seconds as its blocks take. The first rung always answers.
    """

    depths: tuple[int, ...] = ()
    """Rungs in the order climbed; empty is all of a few, or a quarter, a half and the whole of many."""
    threshold: float = 0.9
    """An answer at least so sure is given; 0 to 1."""
    by: str | None = None
    """``confidence`` or ``probability``; None is the first where the bundle has that head."""
    seconds: float | None = None
    """For all rungs together; None is no limit."""
    tokens: int | None = None
    """Prefilled and answered, of all rungs together; None is no limit."""

    def __post_init__(self) -> None:
        """Refuse what no climb can be.

        Raises:
            InputError: a value is out of its range.
        """
        rising = all(low < high for low, high in zip(self.depths, self.depths[1:], strict=False))
        checks = {
            "depths": (rising, "rising depths"),
            "threshold": (0 <= self.threshold <= 1, "a probability, 0 to 1"),
            "by": (self.by in {None, CONFIDENCE, PROBABILITY}, f"{CONFIDENCE} or {PROBABILITY}"),
            "seconds": (self.seconds is None or self.seconds > 0, "more than 0"),
            "tokens": (self.tokens is None or self.tokens > 0, "more than 0"),
        }
        for name, (good, wanted) in checks.items():
            if not good:
                raise InputError(f"{name} of a climb is {getattr(self, name)!r}: give {wanted}.")

    def rungs(self, available: Sequence[int], name: str) -> tuple[int, ...]:
        """The depths to try, the shallowest first.

        Args:
            available: depths that the bundle runs at, rising.
            name: of the bundle.

        Raises:
            SingleDepthError: there is only one.
            UnknownDepthError: one that is wanted is not there.
        """
        if len(available) == 1:
            message = (
                f"{name}: runs at depth {available[0]} only, and climbing takes a second one. Export the "
                "ladder with several depths, or drop the depth."
            )
            raise SingleDepthError(message)
        for depth in self.depths:
            if depth not in available:
                listed = ", ".join(map(str, available))
                raise UnknownDepthError(f"{name}: cannot climb to depth {depth!r}. Choose of {listed}.")
        if self.depths:
            return self.depths
        if len(available) <= _FEW:
            return tuple(available)
        deepest = available[-1]
        wanted = (deepest // 4, deepest // 2, deepest)
        return tuple(sorted({min(available, key=lambda depth: abs(depth - aim)) for aim in wanted}))

    def affords(self, attempts: Sequence[Attempt], depth: int) -> bool:
        """Whether a rung may be begun after others."""
        last = attempts[-1]
        tokens = sum(attempt.tokens for attempt in attempts) + last.tokens
        seconds = sum(attempt.seconds for attempt in attempts) + last.seconds * depth / last.depth
        return (self.tokens is None or tokens <= self.tokens) and (
            self.seconds is None or seconds <= self.seconds
        )
