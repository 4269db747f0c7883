"""Declared tools, and the prompt that shows them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from golden.pocket.data import examples
from golden.pocket.prompt import render_prompt
from runtime_py.answer import Call, parse_calls
from runtime_py.errors import EmptyQueryError, InputFileError, ToolSchemaError
from runtime_py.prompt import render_prefix, render_query, render_turn
from runtime_py.tools import read_tools, tools_from_file

LAMP: dict[str, Any] = {
    "name": "lamp",
    "description": "Lights",
    "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
}


def parameters(given: object) -> Mapping[str, Any]:
    return read_tools([{"name": "t", "parameters": given}])[0].parameters


@pytest.mark.parametrize("system", ["", "Be brief.", "  padded "])
def test_the_prompt_is_upstreams(system: str) -> None:
    for example in itertools.islice(examples("test", 3), 20):
        tools = read_tools(list(example.tools))
        prompt = render_prefix(tools, system) + render_query(example.query)
        assert prompt == render_prompt(example.query, example.tools, system.strip())


def test_a_further_turn_makes_the_same_form() -> None:
    first = render_prefix([]) + render_query("a") + "ANSWER<|im_end|>" + render_turn("b")
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert first == turn.format("<tools>[]</tools>\na") + "ANSWER<|im_end|>\n" + turn.format("b")


@pytest.mark.parametrize("query", ["", "  ", "\n\t"])
def test_an_empty_query(query: str) -> None:
    for render in (render_query, render_turn):
        with pytest.raises(EmptyQueryError, match="say what is wanted"):
            render(query)


def test_openai_form_is_unwrapped() -> None:
    wrapped, plain = read_tools([{"type": "function", "function": LAMP}]), read_tools([LAMP])
    assert wrapped == plain
    assert render_prefix(wrapped) == render_prefix(plain)


def test_short_form() -> None:
    assert parameters({"a": {"type": "string"}, "b": {"type": "integer", "required": False}}) == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a"],
    }


def test_parameters_called_like_keywords() -> None:
    schemas: dict[str, Any] = {"type": {"type": "string"}, "properties": {"type": "string"}}
    assert parameters(schemas)["properties"] == schemas


@pytest.mark.parametrize("given", [None, {}])
def test_no_parameters(given: object) -> None:
    assert parameters(given)["properties"] == {}


def test_a_schema_without_type_is_an_object() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
    assert parameters(schema) == {**schema, "type": "object"}
    assert parameters({"$ref": "#/$defs/x", "$defs": {}})["type"] == "object"


@pytest.mark.parametrize(
    "declared",
    [
        "lamp",
        LAMP,
        7,
        ["lamp"],
        [None],
        [{"name": ""}],
        [{"name": 5}],
        [{"description": "nameless"}],
        [{"name": "t", "description": 5}],
        [{"name": "t", "parameters": [1]}],
        [{"name": "t", "parameters": "none"}],
        [{"name": "t", "parameters": {"a": "string"}}],
        [{"name": "t", "parameters": {"type": "array"}}],
        [{"name": "t", "parameters": {"type": ["object", "null"]}}],
        [{"function": "lamp"}],
        [LAMP, LAMP],
    ],
)
def test_refuses_what_are_no_tools(declared: list[dict[str, Any]]) -> None:
    with pytest.raises(ToolSchemaError):
        read_tools(declared)


def test_a_refusal_names_the_tool() -> None:
    with pytest.raises(ToolSchemaError, match="tool 1 is 'lamp': give an object with name and parameters"):
        read_tools([LAMP, "lamp"])  # type: ignore[list-item]
    with pytest.raises(ToolSchemaError, match="'lamp' is declared 2 times"):
        read_tools([LAMP, LAMP])


def test_tools_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([LAMP]), encoding="utf-8")
    assert tools_from_file(path) == read_tools([LAMP])
    path.write_text("[", encoding="utf-8")
    with pytest.raises(InputFileError, match=r"tools\.json: cannot be read"):
        tools_from_file(path)


def answer(body: str) -> str:
    return f"<think>\nhm\n</think>\n<tool_call>{body}</tool_call><|im_end|>"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_reads_calls(count: int) -> None:
    call = {"name": "lamp", "arguments": {"on": True, "level": 1.5}}
    calls, problem = parse_calls(answer(json.dumps([call] * count)), read_tools([LAMP]))
    assert calls == (Call("lamp", {"on": True, "level": 1.5}),) * count
    assert problem is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "<tool_call>[]",
        answer(""),
        answer("{}"),
        answer("[1]"),
        answer('[{"name":"lamp"}]'),
        answer('[{"name":"lamp","arguments":[]}]'),
        answer('[{"name":"lamp","arguments":{},"id":1}]'),
        answer('[{"name":["lamp"],"arguments":{}}]'),
        answer('[{"name":"other","arguments":{}}]'),
        answer('[{"name":"lamp","arguments":{"a":NaN}}]'),
        answer('[{"name":"lamp","arguments":{"a":1e999}}]'),
        answer(f'[{{"name":"lamp","arguments":{{"a":{"9" * 5000}}}}}]'),
        answer("[" * 100_000),
    ],
)
def test_says_what_is_wrong_with_an_answer(text: str) -> None:
    calls, problem = parse_calls(text, read_tools([LAMP]))
    assert calls == ()
    assert problem
