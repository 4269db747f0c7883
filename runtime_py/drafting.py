"""Drafts: who proposes tokens, how many, and what decides on each of them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import InputError, SingleDepthError
from runtime_py.marks import Mark
from runtime_py.sampling import Sampler
from runtime_py.session import Logits
from runtime_py.state import State

__all__ = ["Draft", "DraftLength", "Drafting", "Mask", "Speculation", "catch_up"]

Mask = NDArray[np.bool_] | None
"""What a constraint admits [V]."""

_MARGINAL: Final = 0.1
"""What one more token adds to a call, as a share of a call with one."""
_FORGETTING: Final = 0.9
"""What acceptance seen counts for, one round later."""
_REST: Final = 16
"""Tokens without a draft before the drafter is tried again."""


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
class Draft:
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


class Drafting:
    """One draft of a drafter."""

    def __init__(
        self, drafter: State, length: DraftLength, sampler: Sampler, sequence: Sequence[int]
    ) -> None:
        """Start a draft behind all tokens chosen, ``sequence``."""
        self._drafter, self._length, self._sampler, self._sequence = drafter, length, sampler, sequence
        self._count, self._sureness = length.next(), 1.0

    def __call__(self, draft: Draft, allowed: Mask) -> int | None:
        """Draw a token and add it; None where the draft is long enough, or the drafter is not sure."""
        if draft.drawn >= self._count or len(self._sequence) + len(draft.tokens) > self._drafter.context:
            return None
        chances = self._sampler.chances(self.logits(draft), allowed)
        self._sureness *= float(chances.max())
        # Decided before the token is drawn, or what is drawn would change what is looked at.
        if not self._length.goes_on(self._sureness):
            if not draft.tokens:
                self._length.learn(self._sureness, 1)
            return None
        token = self._sampler.draw(chances)
        draft.add(token, allowed, chances)
        return token

    def logits(self, draft: Draft) -> Logits:
        """What the drafter makes of everything up to the end of the draft."""
        everything = [*self._sequence, *draft.tokens]
        if not draft.marks:
            draft.marks.append((0, self._drafter.mark()))
        logits = self._drafter.advance(everything[self._drafter.position :])
        draft.marks.append((len(draft.tokens), self._drafter.mark()))
        return logits


def catch_up(drafter: State, state: State, speculation: Speculation) -> None:
    """Show a drafter all but the last token of a state, which the first draft goes on from.

    Raises:
        InputError: the drafter is of another depth, or holds other tokens.
    """
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
        drafter.advance(ids[held:-1])
