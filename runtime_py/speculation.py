"""Speculation: a shallow rung drafts, a deeper one checks several tokens in one call.

Draft and check as in Leviathan et al., "Fast inference from transformers via speculative decoding" (2023):
what comes out is distributed as if the deeper rung had chosen alone. Both rungs read the same weights, and
each has a state of its own, since the lanes of a shallow rung carry another stream.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime_py.decoding import Decoding
from runtime_py.errors import GrammarError, InputError, SingleDepthError
from runtime_py.grammar import Constraint
from runtime_py.marks import Mark
from runtime_py.sampling import Sampler, log_probability
from runtime_py.session import Logits
from runtime_py.state import State

__all__ = ["DraftLength", "Speculation", "Speculative"]

_MARGINAL: Final = 0.1
"""What one more token adds to a call, as a share of a call with one."""
_FORGETTING: Final = 0.9
"""What acceptance seen counts for, one round later."""
_REST: Final = 16
"""Tokens without a draft before the drafter is tried again."""
_REFED: Final = 8
"""So many tokens that a state has to see again are shown in a call of their own."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Who drafts, and how much."""

    depth: int
    """Blocks that draft, fewer than those that check."""
    most: int = 8
    """Tokens of a draft at most."""
    adapt: bool = True
    """Whether drafts get shorter where fewer of them stand, down to none where they do not pay; else every
    draft has ``most`` tokens."""

    def __post_init__(self) -> None:
        """Refuse an impossible length.

        Raises:
            InputError: ``most`` is less than 1.
        """
        if self.most < 1:
            raise InputError(f"most is {self.most!r}: let a draft have 1 token or more.")

    def check(self, checker: State, depths: Sequence[int]) -> None:
        """Check that a state can be drafted for.

        Args:
            checker: the state.
            depths: that its bundle runs at.

        Raises:
            SingleDepthError: there is no other depth.
            InputError: the depth that drafts is not the lesser one.
            MissingLogitsError: the checker's graph gives the last position's logits alone.
        """
        name = checker.bundle.name
        if len(depths) == 1:
            message = (
                f"{name}: runs at depth {depths[0]} only, and drafting takes a shallower one beside it. "
                "Export the ladder with several depths, or do without drafts."
            )
            raise SingleDepthError(message)
        if self.depth >= checker.depth:
            message = (
                f"depth {self.depth!r} cannot draft for depth {checker.depth}: choose a lesser one of "
                f"{', '.join(map(str, depths))}."
            )
            raise InputError(message)
        checker.require_logits()


class DraftLength:
    """How long drafts should be, from how many of their tokens stood.

    With a share a of tokens that stand and k drafted, a round yields (1 - a^(k+1)) / (1 - a) tokens and costs
    1 + k (c + m) steps, c being what a step of the drafter costs and m what one more token adds to a check.
    It depends on tokens alone and never on time, so that a seed chooses the same every time.
    """

    def __init__(self, speculation: Speculation, cost: float) -> None:
        """Start with the belief that most stands.

        Args:
            speculation: its bounds.
            cost: of a step of the drafter, as a share of a step of the checker.
        """
        self._most, self._adapt = speculation.most, speculation.adapt
        self.cost = cost + _MARGINAL
        """Of one more drafted token."""
        self._stood, self._tested = 4.0, 5.0
        self._resting = 0

    def next(self) -> int:
        """Tokens to draft now."""
        if not self._adapt:
            return self._most
        share = min(self._stood / self._tested, 0.99)
        counts = np.arange(self._most + 1)
        gains = (1 - share ** (counts + 1)) / (1 - share) / (1 + counts * self.cost)
        best = int(np.argmax(gains))
        if best:
            return best
        self._resting += 1
        return int(self._resting % _REST == 0)

    def goes_on(self, sureness: float) -> bool:
        """Whether one more token is worth drafting, if it will be reached and stand with this probability."""
        return not self._adapt or sureness > self.cost

    def learn(self, stood: float, tested: int) -> None:
        """Note how many tokens of a draft stood, or how many were expected to, of those looked at."""
        self._stood = _FORGETTING * self._stood + stood
        self._tested = _FORGETTING * self._tested + tested


@dataclass
class _Draft:
    """Proposed tokens; what decides on each of them."""

    tokens: list[int] = field(default_factory=list)
    allowed: list[NDArray[np.bool_] | None] = field(default_factory=list)
    """What the constraint admits [V]."""
    chances: list[NDArray[np.float64] | None] = field(default_factory=list)
    """What the drafter drew from [V]; None where the constraint left no choice."""
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    """States of the drafter by how many of the tokens it had seen."""
    ends: bool = False
    """Whether nothing can follow."""

    @property
    def drawn(self) -> int:
        """Tokens that the drafter chose."""
        return sum(chances is not None for chances in self.chances)

    def add(self, token: int, allowed: NDArray[np.bool_] | None, chances: NDArray[np.float64] | None) -> None:
        """Append a token."""
        self.tokens.append(token)
        self.allowed.append(allowed)
        self.chances.append(chances)

    def force(self, tokens: Sequence[int], stops: Container[int]) -> None:
        """Append tokens that there was no choice about, up to one that ends all."""
        for token in tokens:
            self.add(token, None, None)
            if token in stops:
                break


class Speculative(Decoding):
    """Several tokens at a time, drafted and checked."""

    def __init__(
        self,
        state: State,
        logits: Logits,
        sampler: Sampler,
        constraint: Constraint | None,
        *,
        drafter: State,
        speculation: Speculation,
        stops: Container[int],
    ) -> None:
        """Start after a prefill.

        Args:
            state: as of :class:`Decoding`; its graph gives the logits of several positions.
            logits: as of :class:`Decoding`.
            sampler: as of :class:`Decoding`.
            constraint: as of :class:`Decoding`.
            drafter: a state at a lesser depth that holds the beginning of the same tokens.
            speculation: how to draft.
            stops: ids that end a generation.

        Raises:
            InputError: the drafter is of another depth, or holds other tokens.
        """
        super().__init__(state, logits, sampler, constraint)
        self._drafter, self._stops = drafter, stops
        held, ids = drafter.position, state.ids
        if drafter.depth != speculation.depth or not np.array_equal(drafter.ids, ids[:held]):
            message = (
                f"the drafter holds {held} tokens at depth {drafter.depth}, and no beginning of this "
                f"sequence at {speculation.depth}. Give a state with the same prompt, or none."
            )
            raise InputError(message)
        if not held:
            drafter.pin(state.pinned)
        if held < len(ids) - 1:
            # All but the last, which the first draft goes on from.
            drafter.advance(ids[held:-1])
        self._length = DraftLength(speculation, drafter.depth / state.depth)
        self._sequence: list[int] = ids.tolist()
        """All tokens chosen, the prompt before them."""
        self._draft = _Draft()
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
        self._draft, self._mark, self._stood = _Draft(), None, 0
        if len(self._pending) > _REFED:
            self._pending, last = self._pending[:-1], self._pending[-1:]
            self._feed()
            self._pending = last
        fitting = min(self.state.chunk, self.state.room, self._drafter.room) - len(self._pending)
        count = self._length.next() if min(fitting, limit - 1) > 0 else 0
        try:
            if count:
                self._propose(count, min(fitting, limit - 1))
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
        if marks and self._drafter.position > marks[-1].position:
            self._drafter.go_back(marks[-1])

    def _undo(self) -> None:
        """Leave both states as they were before the draft."""
        if self._mark is not None:
            self.state.go_back(self._mark)
            self._pending = self._before
        if self._draft.marks:
            self._drafter.go_back(self._draft.marks[0][1])

    def _propose(self, count: int, fitting: int) -> None:
        """Draft ``count`` tokens, and what is forced between them, ``fitting`` in all."""
        draft, sureness = self._draft, 1.0
        ahead = self._ahead = self.constraint.fork() if self.constraint is not None else None
        # Where a draft leads to what no grammar admits, it ends; the checker may never go there.
        with suppress(GrammarError):
            while len(draft.tokens) < fitting and not draft.ends:
                added = ahead.forced()[: fitting - len(draft.tokens)] if ahead is not None else []
                if added:
                    draft.force(added, self._stops)
                elif draft.drawn == count:
                    break
                else:
                    allowed = ahead.allowed() if ahead is not None else None
                    chances = self._sampler.chances(self._drafters_logits(draft), allowed)
                    sureness *= float(chances.max())
                    # Decided before the token is drawn, or what is drawn would change what is looked at.
                    if not self._length.goes_on(sureness):
                        break
                    added = [self._sampler.draw(chances)]
                    draft.add(added[0], allowed, chances)
                if ahead is not None:
                    ahead.push(added)
                    draft.ends = ahead.finished
                draft.ends = draft.ends or draft.tokens[-1] in self._stops
        if not draft.tokens:
            self._length.learn(sureness, 1)

    def _drafters_logits(self, draft: _Draft) -> Logits:
        """What the drafter makes of everything up to the end of the draft."""
        everything = [*self._sequence, *draft.tokens]
        if not draft.marks:
            draft.marks.append((0, self._drafter.mark()))
        logits = self._drafter.advance(everything[self._drafter.position :])
        draft.marks.append((len(draft.tokens), self._drafter.mark()))
        return logits

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
        self._length.learn(tested - fallen, tested)
        if not fallen and not draft.ends:
            chosen.append(self._next(rows[-1]))
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
