"""Choosing tokens and showing them to a state: what a generation goes on by."""

from __future__ import annotations

from collections.abc import Sequence

from runtime_py.errors import BusyStateError
from runtime_py.grammar import Constraint
from runtime_py.sampling import Sampler, log_probability
from runtime_py.session import Logits
from runtime_py.state import State

__all__ = ["Decoding"]


class Decoding:
    """One token after the other."""

    drafted, accepted = 0, 0
    """Tokens that a shallow rung proposed, and those of them that stood; not forced ones."""

    def __init__(self, state: State, logits: Logits, sampler: Sampler, constraint: Constraint | None) -> None:
        """Start after a prefill.

        Args:
            state: that was prefilled; nothing else may use it meanwhile.
            logits: [V] after its last token.
            sampler: chooses.
            constraint: what to admit.
        """
        self.state, self.constraint = state, constraint
        self.log_probability = 0.0
        """Of the tokens chosen so far, by the model alone; a forced one counts 0."""
        self._logits, self._sampler = logits, sampler
        self._pending: list[int] = []
        """Tokens chosen that the state has not seen."""
        self._position = state.position

    @property
    def is_full(self) -> bool:
        """Whether the state has no room for what was chosen."""
        return len(self._pending) > self.state.room

    def choose(self, limit: int) -> list[int]:
        """Choose one token, or take those that are forced.

        Args:
            limit: tokens at most, 1 or more.
        """
        self._feed()
        tokens = self._forced(min(limit, self.state.room)) or [self._pick(self._logits)]
        if self.constraint is not None:
            self.constraint.push(tokens)
        return tokens

    def settle(self, tokens: Sequence[int]) -> None:
        """Take over the first of the tokens chosen last; the others are forgotten."""
        self._pending += tokens

    def close(self) -> None:
        """Show the state what still fits."""
        self._pending = self._pending[: self.state.room]
        self._feed()

    def _pick(self, logits: Logits) -> int:
        allowed = self.constraint.allowed() if self.constraint is not None else None
        token = self._sampler.choose(logits, allowed)
        self.log_probability += log_probability(logits, token)
        return token

    def _forced(self, limit: int) -> list[int]:
        """Tokens that need no logits: they are fed in one call."""
        return self.constraint.forced()[: max(limit, 0)] if self.constraint is not None else []

    def _feed(self) -> None:
        """Show the state what was chosen."""
        if not self._pending:
            return
        self._check_position()
        self._logits = self.state.advance(self._pending)
        self._pending = []
        self._position = self.state.position

    def _check_position(self) -> None:
        if self.state.position != self._position:
            message = (
                f"the state was moved from position {self._position} to {self.state.position} while a "
                "generation used it. Fork the state for what goes on beside it."
            )
            raise BusyStateError(message)
