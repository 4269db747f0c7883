"""Generation: token after token, streamed as text that never breaks a character."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runtime_py.decoding import Decoding
from runtime_py.errors import InputError
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
        self, decoding: Decoding, text: Text | None, stops: Stops, prefill: tuple[int, float] = (0, 0.0)
    ) -> None:
        """Start after a prefill.

        Args:
            decoding: chooses tokens.
            text: the tokenizer; None streams empty pieces, one for each time that tokens are chosen.
            stops: when to end.
            prefill: tokens and seconds of it.
        """
        self.state = decoding.state
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self._decoding, self._stops, self._prefill = decoding, stops, prefill
        self._stream = TextStream(text) if text else None
        self._strings = StopStrings(stops.strings)
        self._seconds = 0.0
        self._closed = False

    @property
    def probability(self) -> float:
        """Product of the chosen tokens' probabilities so far, by the model alone; a forced one counts 1."""
        return math.exp(self._decoding.log_probability)

    @property
    def usage(self) -> Usage:
        """Figures so far."""
        tokens, seconds = self._prefill
        drafted, accepted = self._decoding.drafted, self._decoding.accepted
        return Usage(tokens, len(self.ids), seconds, self._seconds, peak_memory(), drafted, accepted)

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
        """Choose one token or several; returns the text that became certain."""
        kept, pieces = list[int](), ""
        for token in self._decoding.choose(self._stops.max_tokens - len(self.ids)):
            self.ids.append(token)
            if token in self._stops.ids:
                self.finish_reason = STOP
                break
            kept.append(token)
            pieces += self._strings.push(self._stream.push(token)) if self._stream else ""
            if self._strings.found:
                self.finish_reason = STOP
                break
        self._decoding.settle(kept)
        if self.finish_reason is None:
            self.finish_reason = self._reason()
        return pieces

    def _reason(self) -> str | None:
        constraint = self._decoding.constraint
        if constraint is not None and constraint.finished:
            return STOP
        if len(self.ids) >= self._stops.max_tokens:
            return LENGTH
        return CONTEXT if self._decoding.is_full else None

    def _close(self) -> str:
        """Flush the text, and let the state see what still fits."""
        self._closed = True
        self._decoding.close()
        if self._stream is None or self._strings.found:
            return ""
        return self._strings.push(self._stream.close()) + self._strings.close()


def stop_ids(text: Text | None, eos: int, pieces: Sequence[str]) -> frozenset[int]:
    """Ids that end an answer: the end of the sequence, and those of some pieces."""
    found = [text.id_of(piece) for piece in pieces] if text else []
    return frozenset({eos, *(token for token in found if token is not None)})
