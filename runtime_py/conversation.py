"""Queries put to the ladder: one after the other in a conversation, over tools prefilled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from runtime_py.answer import Answer, parse_calls
from runtime_py.climb import AUTO, CONFIDENCE, PROBABILITY, Attempt, Climb
from runtime_py.drafting import Speculation
from runtime_py.errors import InputError
from runtime_py.generate import STOP, Generation
from runtime_py.grammar import Constraint, is_installed
from runtime_py.prompt import TURN_END, render_prefix, render_query, render_turn
from runtime_py.sampling import Sampling
from runtime_py.state import State
from runtime_py.tools import Tool

if TYPE_CHECKING:
    from runtime_py.model import Model

__all__ = ["Asking", "Conversation"]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How to answer."""

    depth: int | str | Climb | None = None
    """Blocks that answer; ``auto`` climbs from a shallow rung by the defaults of :class:`Climb`; None is the
    conversation's own, the deepest."""
    draft: int | Speculation | None = None
    """Depth that drafts for any deeper one that answers; None is none."""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 256
    constrain: bool | None = None
    """Whether only valid calls are admitted; None is yes where llguidance is installed."""
    exactly_one: bool = False
    """Whether the answer has to be one call, as in extraction; takes effect where constrained."""
    confidence: bool | None = None
    """Whether the answer is scored; None is yes where that costs no second pass."""
    min_confidence: float | None = None
    """Calls of an answer less sure are withheld; implies ``confidence``."""

    def __post_init__(self) -> None:
        """Refuse a threshold that no probability can be compared with, and a depth that is none.

        Raises:
            InputError: ``min_confidence`` is not 0 to 1, or ``depth`` a word other than ``auto``.
        """
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise InputError(f"min_confidence is {self.min_confidence!r}: give a probability, 0 to 1.")
        if isinstance(self.depth, str) and self.depth != AUTO:
            raise InputError(f"depth is {self.depth!r}: give a number of blocks, or {AUTO!r}.")

    @property
    def climb(self) -> Climb | None:
        """How to find the depth, where it is left open."""
        if self.depth == AUTO:
            return Climb()
        return self.depth if isinstance(self.depth, Climb) else None


@dataclass(frozen=True)
class _Turn:
    """What one rung made of a query."""

    answer: Answer
    state: State
    ended: bool
    """Whether the state has seen the end of the answer's turn."""


class Conversation:
    """Turns over one set of tools; every turn stays until :meth:`reset`."""

    def __init__(
        self,
        model: Model,
        tools: Sequence[Tool],
        system: str,
        prefix_at: Callable[[int], State],
        depth: int,
    ) -> None:
        """Start after the tools.

        Args:
            model: what answers.
            tools: the declared tools.
            system: an instruction that goes first.
            prefix_at: gives a state that holds the tools at a depth, as
                :meth:`~runtime_py.model.Model.prefix` makes it.
            depth: that answers where none is asked for.
        """
        self._model, self.tools, self._system = model, list(tools), system
        self._prefix_at, self._depth = prefix_at, depth
        self.reset()

    def reset(self) -> None:
        """Forget every turn, and keep the tools."""
        self._states: dict[int, State] = {}
        """By depth what a rung has seen: all of the conversation, or its beginning."""
        self._ids: list[int] = []
        """All of the conversation; empty before the first turn."""
        self._last, self._ended = self._depth, False

    @property
    def state(self) -> State:
        """What the conversation has come to, at the depth that answered last."""
        return self._state_at(self._last)

    def ask(self, query: str, asking: Asking | None = None) -> Answer:
        """Answer a query.

        A turn that fails leaves the conversation as it was.

        Raises:
            EmptyQueryError: there is no text in it.
            PromptTooLongError: it does not fit in what is left of the context.
            GrammarError: a tool's schema cannot be enforced.
            MissingHeadError: a score is asked for, and the bundle has no confidence head.
            UnknownDepthError: the bundle does not run at a depth that is asked for.
            SingleDepthError: it runs at one depth, and another is needed to climb or draft.
        """
        asking = asking or Asking()
        if asking.confidence or asking.min_confidence is not None:
            self._model.require_confidence()
        ids = self._prompt(query)
        if asking.climb is not None:
            turn = self._climb(ids, asking, asking.climb)
        else:
            turn = self._turn(ids, asking, asking.depth if isinstance(asking.depth, int) else self._depth)
        answer, state = turn.answer, turn.state
        self._states[state.depth], self._ids = state, state.ids.tolist()
        self._last, self._ended = state.depth, turn.ended
        return self._withheld(answer, asking.min_confidence)

    def _climb(self, ids: list[int], asking: Asking, climb: Climb) -> _Turn:
        """Let rung after rung answer, until one is sure or the budget is spent."""
        first, *others = climb.rungs(self._model.depths, self._model.bundle.name)
        by = climb.by or (CONFIDENCE if self._model.has_confidence else PROBABILITY)
        if by == CONFIDENCE:
            asking = replace(asking, confidence=True)
            self._model.require_confidence()
        turn = self._turn(ids, asking, first)
        attempts = [_attempt(turn, by)]
        for depth in others:
            if attempts[-1].score >= climb.threshold or not climb.affords(attempts, depth):
                break
            turn = self._turn(ids, asking, depth, guess=turn.answer.ids)
            attempts.append(_attempt(turn, by))
        return replace(turn, answer=replace(turn.answer, attempts=tuple(attempts)))

    def _turn(self, ids: list[int], asking: Asking, depth: int, guess: Sequence[int] = ()) -> _Turn:
        """Answer at one depth.

        Args:
            ids: the conversation from its beginning to the start of the answer.
            asking: how to answer.
            depth: blocks that answer.
            guess: what a shallower rung answered.
        """
        state = self._state_at(depth).fork()
        if state.ids.tolist() != ids[: state.position]:
            message = (
                f"the state given holds {state.position} tokens that are not the beginning of this prompt. "
                "Make it with the same tools and system text."
            )
            raise InputError(message)
        constraint = self._constraint(asking)
        draft = Speculation(depth=asking.draft) if isinstance(asking.draft, int) else asking.draft
        if draft is not None and asking.climb is not None and draft.depth >= depth:
            draft = None
        drafter = None
        if draft is not None and draft.depth in self._model.depths:
            drafter = self._state_at(draft.depth).fork()
        generation = self._model.generate(
            ids[state.position :],
            state,
            sampling=asking.sampling,
            max_tokens=asking.max_tokens,
            stop_pieces=(TURN_END,),
            constraint=constraint,
            draft=draft,
            drafter=drafter,
            guess=guess if state.bundle.logits != "last" else (),
        ).run()
        answer = self._read(generation, constrained=constraint is not None)
        ended = self._end_turn(state, answer)
        if self._wants_score(asking, state):
            seen = state if ended or answer.finish_reason != STOP else self._spelled(state, answer)
            answer = replace(answer, confidence=self._model.confidence(seen, depth=depth))
        return _Turn(answer, state, ended)

    def _state_at(self, depth: int) -> State:
        """The conversation before the present turn, as a rung has seen it; not to be changed."""
        state = self._states.get(depth) or self._prefix_at(depth)
        if missed := self._ids[state.position :]:
            state = state.fork()
            state.advance(missed)
        self._states[depth] = state
        return state

    def _prompt(self, query: str) -> list[int]:
        """Tokens of the whole conversation, up to the start of the answer."""
        if self._ids:
            return [*self._ids, *self._model.encode(("" if self._ended else TURN_END) + render_turn(query))]
        # As one text, so that the tokens are the same as if the tools had not been prefilled before.
        return self._model.encode(render_prefix(self.tools, self._system) + render_query(query), bos=True)

    def _constraint(self, asking: Asking) -> Constraint | None:
        if asking.constrain is False or (asking.constrain is None and not is_installed()):
            return None
        return self._model.grammar.calls(self.tools, exactly_one=asking.exactly_one)

    def _read(self, generation: Generation, *, constrained: bool) -> Answer:
        # The markers around the list are tokens that a text may leave out: spelled out, they always parse.
        spelled = self._model.text.decode(generation.ids)
        calls, problem = parse_calls(spelled, self.tools)
        if generation.finish_reason != STOP:
            limit = (
                "as long as allowed" if generation.finish_reason == "length" else "at the end of the context"
            )
            calls, problem = (), f"the answer was cut off {limit}"
        return Answer(
            calls=calls,
            problem=problem,
            withheld=(),
            confidence=None,
            text=generation.text,
            ids=tuple(generation.ids),
            finish_reason=str(generation.finish_reason),
            constrained=constrained,
            depth=generation.state.depth,
            probability=generation.probability,
            usage=generation.usage,
        )

    def _end_turn(self, state: State, answer: Answer) -> bool:
        """Show the state the end of a turn, which is part of the answer; returns whether it has seen it."""
        end = self._model.text.id_of(TURN_END)
        if end is None or answer.ids[-1:] != (end,) or not state.room:
            return False
        self._model.step(state, end)
        return True

    def _wants_score(self, asking: Asking, state: State) -> bool:
        if asking.confidence is None:
            return asking.min_confidence is not None or self._model.is_pooled(state)
        return asking.confidence or asking.min_confidence is not None

    @staticmethod
    def _withheld(answer: Answer, threshold: float | None) -> Answer:
        """The answer, without its calls where it is not sure enough of them."""
        score = answer.confidence
        if threshold is None or score is None or score >= threshold or not answer.calls:
            return answer
        problem = f"withheld: confidence {score:.3f} is below {threshold:g}"
        return replace(answer, withheld=answer.calls, calls=(), problem=problem)

    def _spelled(self, state: State, answer: Answer) -> list[int] | State:
        """What an answer is scored on, where the state does not hold the end of its turn."""
        last = answer.ids[-1]
        if last == self._model.bundle.tokens.eos:
            return state
        return [*state.ids.tolist(), last]


def _attempt(turn: _Turn, by: str) -> Attempt:
    """What a rung's turn says of the rung."""
    answer = turn.answer
    score = answer.probability if by == PROBABILITY else answer.confidence
    usage = answer.usage
    return Attempt(
        answer.depth,
        0.0 if score is None or answer.problem is not None else score,
        usage.prompt_tokens + usage.completion_tokens,
        usage.prefill_seconds + usage.decode_seconds,
    )
