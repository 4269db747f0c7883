"""Queries put to the ladder: one after the other in a conversation, over tools prefilled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from runtime_py.answer import Answer, Call, parse_calls
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
        """Refuse a threshold that no probability can be compared with.

        Raises:
            InputError: ``min_confidence`` is not 0 to 1.
        """
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise InputError(f"min_confidence is {self.min_confidence!r}: give a probability, 0 to 1.")


class Conversation:
    """Turns over one set of tools; every turn stays in the state until :meth:`reset`."""

    def __init__(self, model: Model, tools: Sequence[Tool], system: str, prefix: State) -> None:
        """Start after the tools.

        Args:
            model: what answers.
            tools: the declared tools.
            system: an instruction that goes first.
            prefix: a state that holds the tools, as :meth:`~runtime_py.model.Model.prefix` makes it.
        """
        self._model, self.tools, self._system = model, list(tools), system
        self._prefix = prefix
        self.state = prefix
        """What the conversation has come to."""
        self._turns, self._ended = 0, False

    def reset(self) -> None:
        """Forget every turn, and keep the tools."""
        self.state, self._turns, self._ended = self._prefix, 0, False

    def ask(self, query: str, asking: Asking | None = None) -> Answer:
        """Answer a query.

        A turn that fails leaves the conversation as it was.

        Raises:
            EmptyQueryError: there is no text in it.
            PromptTooLongError: it does not fit in what is left of the context.
            GrammarError: a tool's schema cannot be enforced.
            MissingHeadError: a score is asked for, and the bundle has no confidence head.
        """
        asking = asking or Asking()
        if asking.confidence or asking.min_confidence is not None:
            self._model.require_confidence()
        ids, constraint = self._opening(query), self._constraint(asking)
        state = self.state.fork()
        generation = self._model.generate(
            ids,
            state,
            sampling=asking.sampling,
            max_tokens=asking.max_tokens,
            stop_pieces=(TURN_END,),
            constraint=constraint,
        ).run()
        answer = self._read(generation, constrained=constraint is not None)
        ended = self._end_turn(state, answer)
        if self._wants_score(asking, state):
            answer = self._scored(answer, state, ended=ended, threshold=asking.min_confidence)
        self.state, self._turns, self._ended = state, self._turns + 1, ended
        return answer

    def _opening(self, query: str) -> list[int]:
        """Tokens from the present state to the start of the answer."""
        if self._turns:
            return self._model.encode(("" if self._ended else TURN_END) + render_turn(query))
        # As one text, so that the tokens are the same as if the tools had not been prefilled before.
        whole = self._model.encode(render_prefix(self.tools, self._system) + render_query(query), bos=True)
        held = state_ids(self.state)
        if whole[: len(held)] != held:
            message = (
                f"the state given holds {len(held)} tokens that are not the beginning of this prompt. Make "
                "it with the same tools and system text."
            )
            raise InputError(message)
        return whole[len(held) :]

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

    def _scored(self, answer: Answer, state: State, *, ended: bool, threshold: float | None) -> Answer:
        """The answer with its confidence, its calls withheld where that is too low."""
        seen = state if ended or answer.finish_reason != STOP else self._spelled(state, answer)
        score = self._model.confidence(seen)
        problem, withheld = answer.problem, tuple[Call, ...]()
        if threshold is not None and score < threshold and answer.calls:
            withheld = answer.calls
            problem = f"withheld: confidence {score:.3f} is below {threshold:g}"
        calls = () if withheld else answer.calls
        return replace(answer, confidence=score, withheld=withheld, calls=calls, problem=problem)

    def _spelled(self, state: State, answer: Answer) -> list[int] | State:
        """What an answer is scored on, where the state does not hold the end of its turn."""
        last = answer.ids[-1]
        if last == self._model.bundle.tokens.eos:
            return state
        return [*state_ids(state), last]


def state_ids(state: State) -> list[int]:
    """Tokens that a state holds, as a list."""
    return [int(token) for token in state.ids]
