"""Constrained answers of a random ladder: never an invalid call, whatever the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_py import Model, Sampling
from runtime_py.conversation import Asking
from runtime_py.errors import GrammarError
from runtime_py.grammar import enforceable
from runtime_py.tools import read_tools

pytest.importorskip("llguidance", reason="constrains answers")

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2581"), max_size=6)
NAMES = st.text('abcdefghij_ é日"\\', min_size=1, max_size=8)
NUMBERS = st.integers(-1000, 1000)


@st.composite
def integers(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(NUMBERS)
    bounds = {"minimum": low, "maximum": low + draw(st.integers(0, 100))}
    return {
        "type": "integer",
        **draw(st.sampled_from([{}, bounds, {"exclusiveMinimum": low}, {"minimum": low}])),
    }


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.floats(-100, 100).map(lambda x: round(x, 3)))
    high = round(low + draw(st.floats(0.5, 100)), 3)
    options = [{}, {"minimum": low, "maximum": high}, {"exclusiveMinimum": low, "exclusiveMaximum": high}]
    return {"type": "number", **draw(st.sampled_from(options))}


strings = st.one_of(
    st.integers(0, 8).map(lambda most: {"type": "string", "maxLength": most}),
    st.integers(1, 4).map(lambda least: {"type": "string", "minLength": least, "maxLength": least + 3}),
    st.sampled_from(["^[A-Z]{2}[0-9]{1,3}$", "^(on|off)$", "^\\d{2}:\\d{2}$", '^[^"]{1,4}$']).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    st.sampled_from(["date", "time", "uuid", "currency"]).map(
        lambda kind: {"type": "string", "format": kind, "maxLength": 40}
    ),
)
values = st.one_of(TEXT, NUMBERS, st.booleans(), st.none())
scalars = st.one_of(
    integers(),
    numbers(),
    strings,
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.lists(values, min_size=1, max_size=4).map(lambda options: {"enum": options}),
    values.map(lambda value: {"const": value}),
)


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of their properties required."""

    def build(properties: dict[str, Any], picks: list[bool]) -> dict[str, Any]:
        required = [name for name, pick in zip(properties, picks, strict=False) if pick]
        return {"type": "object", "properties": properties, "required": required}

    return st.builds(
        build, st.dictionaries(NAMES, inner, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3)
    )


schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(
            lambda items, least: {"type": "array", "items": items, "minItems": least, "maxItems": least + 1},
            inner,
            st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=4,
)
tools = st.lists(
    st.builds(lambda name, parameters: {"name": name, "parameters": parameters}, NAMES, objects(schemas)),
    min_size=1,
    max_size=3,
    unique_by=lambda tool: tool["name"],
)


def check(calls: list[dict[str, Any]], declared: list[dict[str, Any]]) -> None:
    """Fail where a call is none of a declared tool, or its arguments do not fit."""
    by_name = {tool["name"]: tool["parameters"] for tool in declared}
    for call in calls:
        jsonschema.validate(call["arguments"], by_name[call["name"]], jsonschema.Draft202012Validator)
        assert json.loads(json.dumps(call, allow_nan=False)) == call


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tools, st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 30.0]))
def test_never_an_invalid_call(
    model: Model, declared: list[dict[str, Any]], seed: int, temperature: float
) -> None:
    asking = Asking(sampling=Sampling(temperature=temperature, seed=seed), max_tokens=200, constrain=True)
    answer = model.call("do", declared, context=4000, asking=asking)
    assert answer.constrained
    if answer.finish_reason == "stop":
        assert answer.problem is None
        # What was written, too, and not only what was read out of it.
        written = json.loads(answer.text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        assert written == answer.to_json()["calls"]
        check(written, declared)
    else:
        assert answer.calls == ()
        assert answer.problem == "the answer was cut off as long as allowed"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(objects(schemas), st.integers(0, 10**6))
def test_extraction_is_one_valid_call(model: Model, schema: dict[str, Any], seed: int) -> None:
    asking = Asking(sampling=Sampling(temperature=20, seed=seed), max_tokens=200, constrain=True)
    answer = model.extract("a text", schema, asking=asking)
    if answer.finish_reason == "stop":
        assert len(answer.calls) == 1
        check(answer.to_json()["calls"], [{"name": "extract", "parameters": schema}])


def test_calls_do_happen(model: Model) -> None:
    """A random ladder calls something in most answers, so that the tests above test something."""
    declared = [
        {"name": "lamp", "parameters": {"on": {"type": "boolean"}}},
        {"name": "off", "parameters": {}},
    ]
    called = 0
    for seed in range(20):
        asking = Asking(sampling=Sampling(temperature=30, seed=seed), max_tokens=300)
        called += bool(model.call("do", declared, asking=asking).calls)
    assert called >= 5


def test_an_unconstrained_answer_is_garbage(model: Model) -> None:
    asking = Asking(constrain=False, max_tokens=30)
    answer = model.call("do", [{"name": "lamp", "parameters": {}}], asking=asking)
    assert answer.calls == ()
    assert answer.problem
    assert not answer.constrained


def test_without_tools_only_the_empty_list(model: Model) -> None:
    answer = model.call("hello", [], asking=Asking(constrain=True))
    assert answer.text == "<tool_call>[]</tool_call>"
    assert answer.problem is None


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "minLength": 3, "maxLength": 1},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"$ref": "#/$defs/missing"},
    ],
)
def test_says_which_schema_cannot_be_enforced(model: Model, schema: dict[str, Any]) -> None:
    declared = [{"name": "fine", "parameters": {}}, {"name": "odd", "parameters": {"x": schema}}]
    with pytest.raises(GrammarError, match=r"tool 'odd': its schema cannot be enforced .*--no-constrain"):
        model.call("do", declared, asking=Asking(constrain=True))


def test_references_between_tools_stay_apart(model: Model) -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"]}
        return {"name": name, "parameters": {**schema, "$defs": {"x": {"type": kind}}}}

    for seed in range(5):
        asking = Asking(sampling=Sampling(temperature=30, seed=seed), max_tokens=200)
        for call in model.call("do", [tool("a", "boolean"), tool("b", "null")], asking=asking).calls:
            assert call.arguments["x"] is None if call.name == "b" else isinstance(call.arguments["x"], bool)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "exclusiveMinimum": 3}, {"minimum": 4, "maximum": 10**18}),
        ({"type": "integer", "exclusiveMinimum": 3, "minimum": 9}, {"minimum": 9}),
        ({"type": "integer", "exclusiveMaximum": 3.5}, {"maximum": 3}),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, {"minimum": 4}),
        ({"type": "number", "exclusiveMaximum": 1}, {"maximum": 1 - 1e-12}),
        ({"type": "number", "exclusiveMinimum": 1e9}, {"minimum": 1e9 + 2**-23}),
    ],
)
def test_bounds_become_inclusive(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    strict = enforceable(schema)
    assert {key: strict[key] for key in expected} == expected
    assert not any(key.startswith("exclusive") for key in strict)


def test_objects_are_closed_where_nothing_combines() -> None:
    inner: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "null"}}}
    beside = {"type": "object", "properties": {"b": {"type": "null"}}, "anyOf": [inner]}
    properties = {"x": inner, "y": {"allOf": [inner]}, "z": {"anyOf": [inner]}, "w": beside}
    strict = enforceable({"type": "object", "properties": properties}, closed=True)
    found = strict["properties"]
    assert strict["additionalProperties"] is False
    assert found["x"]["additionalProperties"] is False
    assert found["z"]["anyOf"][0]["additionalProperties"] is False
    assert found["y"]["allOf"][0]["additionalProperties"] is not False
    assert found["w"]["anyOf"][0]["additionalProperties"] is not False


@pytest.mark.parametrize(
    "schema", [{}, True, {"type": "object"}, {"type": "array"}, {"type": ["array", "null"]}]
)
def test_anything_is_still_within_bounds(model: Model, schema: Any) -> None:  # noqa: ANN401 - JSON
    tool = {"name": "t", "parameters": {"type": "object", "properties": {"x": schema}, "required": ["x"]}}
    finished = 0
    for seed in range(6):
        asking = Asking(sampling=Sampling(temperature=30, seed=seed), max_tokens=100, exactly_one=True)
        answer = model.call("do", [tool], asking=asking)
        if answer.finish_reason == "stop":
            finished += 1
            check(answer.to_json()["calls"], [tool])
    assert finished
    constraint = model.grammar.calls(read_tools([tool]), exactly_one=True)
    start = '<tool_call>[{"name":"t","arguments":{"x":'
    for value, good in (('[{"a":12.5}]', True), ("[1e999]", False), ('{"a":[1e9]}', False)):
        if schema in ({}, True) or (value[0] == "[") == ("array" in schema["type"]):
            fresh = model.grammar.calls(read_tools([tool]), exactly_one=True)
            assert fresh.admits(model.encode(start + value)) == good
    assert constraint.admits(model.encode(start))


def test_objects_may_say_that_they_are_open(model: Model) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": {"type": "boolean"}}
    constraint = model.grammar.calls(read_tools([{"name": "t", "parameters": schema}]))
    assert constraint.admits(model.encode('<tool_call>[{"name":"t","arguments":{"a":true}}]</tool_call>'))
