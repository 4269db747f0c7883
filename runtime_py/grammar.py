"""Keeping an answer to calls of the declared tools with valid arguments, token by token."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from runtime_py.bundle import Tokens
from runtime_py.errors import GrammarError, MissingPackageError
from runtime_py.prompt import CALLS_END, CALLS_START, TURN_END
from runtime_py.text import Text
from runtime_py.tools import Tool

if TYPE_CHECKING:
    import llguidance

__all__ = ["Constraint", "GrammarCompiler", "is_installed"]

_COMPACT: Final = {"x-guidance": {"whitespace_flexible": False}}
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""Formats that are enforced; others are notes, as JSON Schema has it."""
_GREATEST: Final = 10**18
"""Bound of a number that has none: what every reader of JSON can carry, and no exponent overflows."""
_LEAST_STEP: Final = 1e-12
_TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
_INTERSECTING: Final = frozenset({"allOf", "$ref", "$dynamicRef"})
_COMBINING: Final = _INTERSECTING | {"anyOf", "oneOf", "patternProperties"}
_DECIDING: Final = _COMBINING | {"type", "enum", "const"}
"""Keywords without one of which any type of value may stand."""
_ANYTHING: Final = "any-value"
_REFERENCE: Final = {"$ref": "#/$defs/any-value"}
_SUBSCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


def is_installed() -> bool:
    """Whether answers can be constrained here."""
    try:
        import llguidance  # noqa: F401, PLC0415 - optional
    except ImportError:
        return False
    return True


class GrammarCompiler:
    """Makes constraints for one tokenizer."""

    def __init__(self, text: Text, tokens: Tokens, width: int) -> None:
        """Prepare the vocabulary, once.

        Args:
            text: the tokenizer.
            tokens: ids with a meaning of their own.
            width: number of logits.

        Raises:
            MissingPackageError: llguidance is not installed.
        """
        try:
            import llguidance  # noqa: PLC0415 - optional
        except ImportError as error:
            message = (
                "constrained answers need the package llguidance. Run: pip install llguidance. Or answer "
                "unconstrained (--no-constrain)."
            )
            raise MissingPackageError(message) from error
        self._llguidance = llguidance
        self._tokenizer = llguidance.LLTokenizer(text.document, n_vocab=width, eos_token=tokens.eos)
        # Pieces that spell nothing, though their names look like text to a tokenizer.
        self._never = np.array([tokens.pad, tokens.bos, tokens.unk, tokens.eos])
        self._width = width
        self._lock = threading.Lock()
        self._last: tuple[str, llguidance.LLMatcher] | None = None

    def calls(self, tools: Sequence[Tool], *, exactly_one: bool = False) -> Constraint:
        """Admit a list of calls, or exactly one call.

        Args:
            tools: the declared tools; without any, only the empty list is admitted.
            exactly_one: whether the list has one call, as in extraction.

        Raises:
            GrammarError: a schema uses what cannot be enforced, or nothing satisfies it.
        """
        lines = [f"start: {CALLS_START} list {CALLS_END} {TURN_END}"]
        if not tools:
            lines.append('list: "[]"')
        else:
            lines.append('list: "[" call "]"' if exactly_one else 'list: "[]" | "[" call ("," call)* "]"')
            lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        for number, tool in enumerate(tools):
            opening = f'{{"name":{json.dumps(tool.name, ensure_ascii=False)},"arguments":'
            lines.append(f'call_{number}: {json.dumps(opening, ensure_ascii=False)} arguments_{number} "}}"')
            lines.append(f"arguments_{number}: %json {_arguments(tool)}")
        return Constraint(self._matcher("\n".join(lines), tools), self._never, self._width)

    def _matcher(self, lark: str, tools: Sequence[Tool]) -> llguidance.LLMatcher:
        """A matcher at its start; the last one is kept, since tools are mostly those of the query before."""
        with self._lock:
            if self._last is None or self._last[0] != lark:
                matcher = self._compile(lark)
                if matcher.is_error():
                    raise self._fault(matcher, tools)
                self._last = (lark, matcher)
            return self._last[1].deep_copy()

    def _compile(self, lark: str) -> llguidance.LLMatcher:
        grammar = self._llguidance.LLMatcher.grammar_from_lark(lark)
        return self._llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)

    def _fault(self, whole: llguidance.LLMatcher, tools: Sequence[Tool]) -> GrammarError:
        """Find the tool that no grammar can be made of."""
        what, reason = "the tools together", whole.get_error()
        for tool in tools:
            alone = self._compile(f"start: %json {_arguments(tool)}")
            if alone.is_error():
                what, reason = f"tool {tool.name!r}", alone.get_error()
                break
        return GrammarError(
            f"{what}: its schema cannot be enforced ({_reason(reason)}). Simplify it, or answer "
            "unconstrained (--no-constrain)."
        )


class Constraint:
    """What the next token of one answer may be."""

    def __init__(self, matcher: llguidance.LLMatcher, never: NDArray[np.integer], width: int) -> None:
        """Start at the beginning of an answer."""
        self._matcher, self._never, self._width = matcher, never, width

    def fork(self) -> Constraint:
        """A copy that goes its own way."""
        return Constraint(self._matcher.deep_copy(), self._never, self._width)

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and can only end."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, [V].

        Raises:
            GrammarError: none may, or the grammar outgrew its limits.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._width, bitorder="little").astype(np.bool_)
        allowed[self._never] = False
        if self._matcher.is_error() or not allowed.any():
            raise self._stuck()
        return allowed

    def forced(self) -> list[int]:
        """Tokens that come next whatever the ladder says, possibly none."""
        return list(self._matcher.compute_ff_tokens())

    def push(self, tokens: Sequence[int]) -> None:
        """Take note of the tokens that were chosen.

        Raises:
            GrammarError: they are none that may come.
        """
        if not self._matcher.consume_tokens(list(tokens)):
            raise self._stuck()

    def admits(self, tokens: Sequence[int]) -> bool:
        """Whether tokens may come next, one after the other; nothing is noted."""
        return bool(self._matcher.validate_tokens(list(tokens)) == len(tokens))

    def _stuck(self) -> GrammarError:
        reason = _reason(self._matcher.get_error() or "no token fits")
        message = (
            f"the answer cannot go on within its schema ({reason}). Simplify the schema's patterns and "
            "texts, or answer unconstrained (--no-constrain)."
        )
        return GrammarError(message)


def _arguments(tool: Tool) -> str:
    """Schema of a tool's arguments, as the grammar takes it."""
    return json.dumps({**_COMPACT, **enforceable({"properties": {}, **tool.parameters}, closed=True)})


def enforceable(schema: Mapping[str, Any], *, closed: bool = False) -> dict[str, Any]:
    """A schema as strict as the one given or stricter, in what the grammar can enforce exactly.

    Every number gets inclusive bounds, also where anything may stand.

    Args:
        schema: JSON Schema.
        closed: whether objects that list their properties take no others, where they do not say.
    """
    strict = _strict(schema, closed=closed)
    return {**strict, "$defs": {**strict.get("$defs", {}), _ANYTHING: _strict({}, closed=False)}}


def _strict(schema: Any, *, closed: bool) -> Any:  # noqa: ANN401 - JSON
    if schema is True:
        return _strict({}, closed=False)
    if not isinstance(schema, Mapping):
        return schema
    strict = {key: value for key, value in schema.items() if not _is_note(key, value)}
    if not _DECIDING & strict.keys():
        strict["type"] = list(_TYPES)
    # A choice alone may be closed branch by branch; beside properties of its own it may not.
    branches = closed and not {"properties", *_INTERSECTING} & strict.keys()
    closed = closed and not _COMBINING & strict.keys()
    for key, value in strict.items():
        if key in _SUBSCHEMAS and isinstance(value, Mapping):
            inside = closed and key == "properties"
            strict[key] = {name: _strict(part, closed=inside) for name, part in value.items()}
        elif key in _LISTS and isinstance(value, list):
            inside = branches and key in {"anyOf", "oneOf"}
            strict[key] = [_strict(part, closed=inside) for part in value]
        elif key in {"items", "additionalProperties"}:
            strict[key] = _strict(value, closed=closed)
    return _with_defaults(strict, closed=closed)


def _with_defaults(strict: dict[str, Any], *, closed: bool) -> dict[str, Any]:
    """A schema that says what it leaves open: further properties, items, bounds."""
    kinds = strict.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if {"enum", "const"} & strict.keys():
        return strict
    if "object" in kinds and not _INTERSECTING & strict.keys():
        strict.setdefault("additionalProperties", False if closed and "properties" in strict else _REFERENCE)
    if "array" in kinds and not _INTERSECTING & strict.keys():
        strict.setdefault("items", _REFERENCE)
    return _bounded(strict) if {"integer", "number"} & kinds else strict


def _is_note(key: str, value: object) -> bool:
    """Whether a keyword constrains nothing here."""
    return (key == "format" and value not in _FORMATS) or (key == "uniqueItems" and value is False)


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of numbers with inclusive bounds.

    A decimal may lie inside an exclusive bound and be read as the bound itself, since floats are coarser;
    an inclusive bound that is a float stays one. Of two bounds the narrower counts.
    """
    rest = {
        key: value for key, value in schema.items() if key not in {"exclusiveMinimum", "exclusiveMaximum"}
    }
    whole = schema.get("type") == "integer"
    for side, least, sign in (("Minimum", -_GREATEST, 1), ("Maximum", _GREATEST, -1)):
        plain, exclusive = schema.get(side.lower(), least), schema.get(f"exclusive{side}")
        if exclusive is True:
            # As OpenAPI 3.0 has it: the keyword turns the bound beside it into an exclusive one.
            plain = _step(plain, sign, whole=whole)
        elif _is_number(exclusive):
            plain = max(plain * sign, _step(exclusive, sign, whole=whole) * sign) * sign
        rest[side.lower()] = plain
    return rest


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step(bound: float, sign: int, *, whole: bool) -> float:
    """The number next to a bound, above it for a positive sign."""
    if whole:
        return math.floor(bound) + 1 if sign > 0 else math.ceil(bound) - 1
    return bound + sign * max(math.ulp(bound), _LEAST_STEP)


def _reason(message: str) -> str:
    """The first line of a message of the grammar's."""
    return message.strip().splitlines()[0].removeprefix("failed to compile JSON schema: ")[:200]
