"""Answers: the calls in them, how sure the ladder is, and what it took."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runtime_py.climb import Attempt
from runtime_py.prompt import CALLS_END, CALLS_START
from runtime_py.tools import Tool
from runtime_py.usage import Usage

__all__ = ["Answer", "Call", "parse_calls"]


@dataclass(frozen=True)
class Call:
    """A call of a declared tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a query."""

    calls: tuple[Call, ...]
    """Calls to make, in order; none where nothing offered serves, or where ``problem`` says why."""
    problem: str | None
    """Why a text holds no calls that can be used; None where it does, or is an empty list."""
    withheld: tuple[Call, ...]
    """Calls that were not sure enough to be made."""
    confidence: float | None
    """Probability that the answer is right, 0 to 1; None where it was not scored."""
    text: str
    """The answer as written."""
    ids: tuple[int, ...]
    """Tokens of the answer."""
    finish_reason: str
    """``stop``, ``length`` (of the answer) or ``context`` (full)."""
    constrained: bool
    depth: int
    """Blocks that gave the answer."""
    probability: float
    """Product of the probabilities of its chosen tokens, as the ladder alone has them, 0 to 1."""
    attempts: tuple[Attempt, ...] = ()
    """The rungs that tried, this answer's the last, where the depth was left open."""
    usage: Usage

    def to_json(self) -> dict[str, Any]:
        """The answer, JSON-ready."""
        return {
            "calls": [asdict(call) for call in self.calls],
            "problem": self.problem,
            "withheld": [asdict(call) for call in self.withheld],
            "confidence": self.confidence,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "constrained": self.constrained,
            "depth": self.depth,
            "probability": self.probability,
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "usage": self.usage.to_json(),
        }


def parse_calls(text: str, tools: Sequence[Tool]) -> tuple[tuple[Call, ...], str | None]:
    """Read the calls out of an answer.

    Args:
        text: of the assistant's turn; thoughts before the list are passed over.
        tools: that were declared.

    Returns:
        The calls, and None; or none, and what is wrong with the text.
    """
    _, opened, rest = text.partition(CALLS_START)
    body, closed, _ = rest.partition(CALLS_END)
    if not (opened and closed):
        return (), "the answer holds no finished list of calls"
    names = {tool.name for tool in tools}
    try:
        entries = json.loads(body, parse_float=_finite, parse_constant=_finite)
        if not isinstance(entries, list):
            return (), "the answer is no list of calls"
        return tuple(_call(entry, names) for entry in entries), None
    except (ValueError, RecursionError) as error:
        return (), f"the answer holds no list of calls that could be made: {error}"


def _call(entry: object, names: Container[str]) -> Call:
    """Read one call.

    Raises:
        ValueError: it is none of a declared tool.
    """
    if not isinstance(entry, dict) or entry.keys() != {"name", "arguments"}:
        raise ValueError(f"{entry!r:.80} is no call")
    name, arguments = entry["name"], entry["arguments"]
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"{name!r:.80} was not declared")
    if isinstance(arguments, dict):
        return Call(name, arguments)
    raise ValueError(f"{name} has {arguments!r:.80} for arguments")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no number that JSON can carry")
    return number
