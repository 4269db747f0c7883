"""Speculation: a shallow rung drafts, a deeper one checks several tokens in one call.

Draft and check as in Leviathan et al., "Fast inference from transformers via speculative decoding" (2023):
what comes out is distributed as if the deeper rung had chosen alone. Both rungs read the same weights, and
each has a state of its own, since the lanes of a shallow rung carry another stream.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from runtime_py.decoding import Decoding
from runtime_py.drafting import Draft, Drafting, DraftLength, Mask, Speculation, catch_up
from runtime_py.errors import GrammarError
from runtime_py.grammar import Constraint
from runtime_py.marks import Mark
from runtime_py.sampling import Sampler, log_probability
from runtime_py.session import Logits
from runtime_py.state import State

__all__ = ["Speculative"]

_REFED: Final = 8
"""So many tokens that a state has to see again are shown in a call of their own."""


class Speculative(Decoding):
    """Several tokens at a time, drafted and checked."""

    def __init__(
        self,
        state: State,
        logits: Logits,
        sampler: Sampler,
        constraint: Constraint | None,
        *,
        stops: Container[int],
        drafter: State | None = None,
        speculation: Speculation | None = None,
        guess: Sequence[int] = (),
    ) -> None:
        """Start after a prefill.

        Args:
            state: as of :class:`Decoding`; its graph gives the logits of several positions.
            logits: as of :class:`Decoding`.
            sampler: as of :class:`Decoding`.
            constraint: as of :class:`Decoding`.
            stops: ids that end a generation.
            drafter: a state at a lesser depth that holds the beginning of the same tokens, if any drafts.
            speculation: how it drafts.
            guess: what may well be the answer; checked first, up to where it is wrong.

        Raises:
            InputError: the drafter is of another depth, or holds other tokens.
        """
        super().__init__(state, logits, sampler, constraint)
        self._stops, self._guess = stops, list(guess)
        self._sequence: list[int] = state.ids.tolist()
        """All tokens chosen, the prompt before them."""
        self._drafter = drafter
        self._length: DraftLength | None = None
        if drafter is not None and speculation is not None:
            catch_up(drafter, state, speculation)
            self._length = DraftLength(speculation, drafter.depth / state.depth)
        self._draft = Draft()
        self._ahead: Constraint | None = None
        """The constraint as it is behind the draft."""
        self._mark: Mark | None = None
        """Where the state was before it saw the draft."""
        self._before: list[int] = []
        """Tokens that it was shown before those of the draft."""
        self._shown = self._stood = 0
        """Tokens of the draft that it was shown, and those that stand."""

    def choose(self, limit: int) -> list[int]:
        """Draft and check, or choose one token where no draft fits or pays; as :meth:`Decoding.choose`."""
        self._draft, self._mark, self._stood = Draft(), None, 0
        if len(self._pending) > _REFED and (self._guess or self._drafter):
            self._pending, last = self._pending[:-1], self._pending[-1:]
            self._feed()
            self._pending = last
        fitting = min(self.state.chunk, self.state.room) - len(self._pending)
        try:
            self._propose(min(fitting, limit - 1))
            if not self._draft.tokens:
                return super().choose(limit)
            tokens = self._check(self._show())
            if self.constraint is not None:
                self.constraint.push(tokens)
        except BaseException:
            self._undo()
            raise
        return tokens

    def settle(self, tokens: Sequence[int]) -> None:
        """Take over tokens; both states go back to where they have seen nothing else."""
        kept = min(self._stood, len(tokens))
        self._sequence += tokens
        if self._mark is None:
            super().settle(tokens)
        elif kept < self._shown:
            # Bit for bit where it was; what stood is seen again, in the next call.
            self.state.go_back(self._mark)
            self._pending = [*self._before, *tokens]
        else:
            self._pending = list(tokens[self._shown :])
        self._position = self.state.position
        marks = [mark for seen, mark in self._draft.marks if seen <= kept]
        if marks and self._drafter is not None and self._drafter.position > marks[-1].position:
            self._drafter.go_back(marks[-1])

    def _undo(self) -> None:
        """Leave both states as they were before the draft."""
        if self._mark is not None:
            self.state.go_back(self._mark)
            self._pending = self._before
        if self._draft.marks and self._drafter is not None:
            self._drafter.go_back(self._draft.marks[0][1])

    def _propose(self, fitting: int) -> None:
        """Draft, ``fitting`` tokens at most, what is forced between them included."""
        if fitting < 1 or not (self._guess or self._drafter):
            return
        self._ahead = self.constraint.fork() if self.constraint is not None else None
        # Where a draft leads to what no grammar admits, it ends; the checker may never go there.
        with suppress(GrammarError):
            if self._guess:
                self._fill(fitting, self._guessed)
            elif self._drafter is not None and self._length is not None:
                self._fill(fitting, Drafting(self._drafter, self._length, self._sampler, self._sequence))

    def _fill(self, fitting: int, propose: Callable[[Draft, Mask], int | None]) -> None:
        """Extend the draft by what is forced, and what is proposed where there is a choice."""
        draft, ahead = self._draft, self._ahead
        while len(draft.tokens) < fitting and not draft.ends:
            added = ahead.forced()[: fitting - len(draft.tokens)] if ahead is not None else []
            if added:
                draft.force(added, self._stops)
            else:
                token = propose(draft, ahead.allowed() if ahead is not None else None)
                if token is None:
                    break
                added = [token]
            if ahead is not None:
                ahead.push(added)
                draft.ends = ahead.finished
            draft.ends = draft.ends or draft.tokens[-1] in self._stops

    def _guessed(self, draft: Draft, allowed: Mask) -> int | None:
        """Add the next token of the guess."""
        number = len(draft.tokens)
        if number >= len(self._guess):
            return None
        token = self._guess[number]
        # Drawn from what leaves no choice, so the rule of acceptance holds for it too.
        chances = np.zeros(len(self._logits))
        chances[token] = 1
        draft.add(token, allowed, chances)
        return token

    def _show(self) -> list[Logits]:
        """Show the draft to the state; returns the logits that decide on each of its tokens, and the next."""
        self._check_position()
        self._before, self._mark = self._pending, self.state.mark()
        fed = self._draft.tokens[:-1] if self._draft.ends else self._draft.tokens
        self._shown, rows = len(fed), [] if self._before else [self._logits]
        shown = [*self._before, *fed]
        if shown:
            rows += list(self.state.verify(shown, len(fed) + bool(self._before)))
        return rows

    def _check(self, rows: Sequence[Logits]) -> list[int]:
        """Tokens of the draft that stand, and the one that is chosen after them."""
        draft, chosen, tested = self._draft, list[int](), 0
        for number, token in enumerate(draft.tokens):
            found, chances = token, draft.chances[number]
            if chances is not None:
                tested += 1
                found = self._sampler.check(token, chances, rows[number], draft.allowed[number])
                self.log_probability += log_probability(rows[number], found)
            chosen.append(found)
            if found != token:
                break
            self._stood += 1
        fallen = len(chosen) - self._stood
        self.drafted += draft.drawn
        self.accepted += tested - fallen
        if not fallen and not draft.ends:
            chosen.append(self._next(rows[-1]))
        if self._guess:
            # A guess that was wrong once has lost its place.
            goes_on = chosen == self._guess[: len(chosen)]
            self._guess = self._guess[len(chosen) :] if goes_on else []
        elif self._length is not None:
            self._length.learn(tested - fallen, tested)
        return chosen

    def _next(self, logits: Logits) -> int:
        """The token after a draft that stood as a whole."""
        if self._ahead is None:
            token = self._sampler.choose(logits)
        elif forced := self._ahead.forced():
            return forced[0]
        else:
            token = self._sampler.choose(logits, self._ahead.allowed())
        self.log_probability += log_probability(logits, token)
        return token
