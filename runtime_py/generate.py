"""Generation: token after token, streamed as text that never breaks a character."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runtime_py.errors import BusyStateError, InputError
from runtime_py.grammar import Constraint
from runtime_py.sampling import Sampler, Sampling
from runtime_py.session import Logits
from runtime_py.state import State
from runtime_py.text import StopStrings, Text, TextStream
from runtime_py.usage import Usage, peak_memory

__all__ = ["CONTEXT", "LENGTH", "STOP", "Generation", "Stops", "stop_ids"]

STOP: Final = "stop"
"""A stop id, a stop string, or the end of what the constraint admits."""
LENGTH: Final = "length"
"""As many tokens as were asked for."""
CONTEXT: Final = "context"
"""The state is full."""


@dataclass(frozen=True, kw_only=True)
class Stops:
    """When a generation ends."""

    max_tokens: int = 256
    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a limit that no generation can have.

        Raises:
            InputError: ``max_tokens`` is less than 1.
        """
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens!r}: give 1 or more.")


class Generation(Iterator[str]):
    """Pieces of text, to be iterated over; what came of it is in its attributes.

    When the iterator is exhausted, the state has seen every token, except a stop id and one for which
    there was no room. A stop id is in ``ids`` and not in the text; nor is a stop string.
    """

    def __init__(
        self,
        state: State,
        logits: Logits,
        text: Text | None,
        sampling: Sampling,
        stops: Stops,
        constraint: Constraint | None = None,
        prefill: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Start after a prefill.

        Args:
            state: that was prefilled; nothing else may use it meanwhile.
            logits: [V] after the last token.
            text: the tokenizer; None streams empty pieces, one a token.
            sampling: how to choose.
            stops: when to end.
            constraint: what to admit.
            prefill: tokens and seconds of it.
        """
        self.state = state
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self._logits, self._sampler, self._stops = logits, Sampler(sampling), stops
        self._constraint, self._prefill = constraint, prefill
        self._stream = TextStream(text) if text else None
        self._strings = StopStrings(stops.strings)
        self._pending: list[int] = []
        """Tokens chosen that the state has not seen."""
        self._position = state.position
        self._seconds = 0.0
        self._closed = False

    @property
    def usage(self) -> Usage:
        """Figures so far."""
        tokens, seconds = self._prefill
        return Usage(tokens, len(self.ids), seconds, self._seconds, peak_memory())

    def __next__(self) -> str:
        """The next piece of text, not empty where there is a tokenizer."""
        while not self._closed:
            start, going = time.perf_counter(), self.finish_reason is None
            try:
                piece = self._advance() if going else self._close()
            finally:
                self._seconds += time.perf_counter() - start
            self.text += piece
            if piece or (self._stream is None and going):
                return piece
        raise StopIteration

    def run(self) -> Generation:
        """Exhaust the iterator, and return it."""
        for _ in self:
            pass
        return self

    def _advance(self) -> str:
        """Choose one token, or take those that are forced; returns the text that became certain."""
        self._feed()
        tokens = self._forced() or [self._choose()]
        if self._constraint is not None:
            self._constraint.push(tokens)
        pieces = ""
        for token in tokens:
            self.ids.append(token)
            if token in self._stops.ids:
                self.finish_reason = STOP
                break
            self._pending.append(token)
            pieces += self._strings.push(self._stream.push(token)) if self._stream else ""
            if self._strings.found:
                self.finish_reason = STOP
                break
        if self.finish_reason is None:
            self.finish_reason = self._reason()
        return pieces

    def _reason(self) -> str | None:
        if self._constraint is not None and self._constraint.finished:
            return STOP
        if len(self.ids) >= self._stops.max_tokens:
            return LENGTH
        return CONTEXT if len(self._pending) > self.state.room else None

    def _choose(self) -> int:
        allowed = self._constraint.allowed() if self._constraint is not None else None
        return self._sampler.choose(self._logits, allowed)

    def _forced(self) -> list[int]:
        """Tokens that need no logits: they are fed in one call."""
        if self._constraint is None:
            return []
        limit = min(self._stops.max_tokens - len(self.ids), self.state.room)
        return self._constraint.forced()[: max(limit, 0)]

    def _feed(self) -> None:
        """Show the state what was chosen."""
        if not self._pending:
            return
        if self.state.position != self._position:
            message = (
                f"the state was moved from position {self._position} to {self.state.position} while a "
                "generation used it. Fork the state for what goes on beside it."
            )
            raise BusyStateError(message)
        self._logits = self.state.advance(self._pending)
        self._pending = []
        self._position = self.state.position

    def _close(self) -> str:
        """Flush the text, and let the state see what still fits."""
        self._closed = True
        self._pending = self._pending[: self.state.room]
        self._feed()
        if self._stream is None or self._strings.found:
            return ""
        return self._strings.push(self._stream.close()) + self._strings.close()


def stop_ids(text: Text | None, eos: int, pieces: Sequence[str]) -> frozenset[int]:
    """Ids that end an answer: the end of the sequence, and those of some pieces."""
    found = [text.id_of(piece) for piece in pieces] if text else []
    return frozenset({eos, *(token for token in found if token is not None)})
