"""The tools that a query may call, from JSON Schema or the form of OpenAI's interface."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime_py.errors import InputFileError, ToolSchemaError

__all__ = ["Tool", "as_tool", "read_tools", "tools_from_file"]

_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf")
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Tool:
    """One declared tool."""

    name: str
    description: str
    parameters: Schema
    """JSON Schema of the arguments, an object."""
    shown: Schema
    """The tool as the prompt shows it."""

    @property
    def text(self) -> str:
        """What the tool is compared by when it is searched for."""
        return f"{self.name}: {self.description}"


def read_tools(declared: Sequence[Schema | Tool]) -> list[Tool]:
    """Read declared tools.

    Args:
        declared: objects with ``name``, ``description`` and ``parameters``, or such objects under
            ``function``. ``parameters`` is a JSON Schema of an object, or short: schemas by parameter, each
            of them required unless it has ``"required": false``.

    Raises:
        ToolSchemaError: one of them is something else, or two have the same name.
    """
    if isinstance(declared, str | Mapping) or not isinstance(declared, Sequence):
        raise ToolSchemaError(f"tools are {declared!r:.80}: give a list of objects with name and parameters.")
    tools = [as_tool(entry, f"tool {number}") for number, entry in enumerate(declared)]
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ToolSchemaError(
                f"tool {name!r} is declared {names.count(name)} times. Give each its own name."
            )
    return tools


def as_tool(entry: Schema | Tool, what: str = "the tool") -> Tool:
    """Read one tool.

    Raises:
        ToolSchemaError: it is no object with a name and parameters.
    """
    if isinstance(entry, Tool):
        return entry
    # What came from a file may be anything, whatever the annotation says.
    given: object = entry
    shown = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(shown, Mapping):
        raise ToolSchemaError(f"{what} is {entry!r:.80}: give an object with name and parameters.")
    name, description = shown.get("name"), shown.get("description", "")
    if not isinstance(name, str) or not name:
        raise ToolSchemaError(f"{what} has the name {name!r}: give it a name, as text.")
    if not isinstance(description, str):
        raise ToolSchemaError(f"tool {name!r} has the description {description!r:.80}: give text.")
    parameters = shown.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        raise ToolSchemaError(
            f"tool {name!r} has the parameters {parameters!r:.80}: give a JSON Schema object."
        )
    return Tool(name, description, _object_schema(name, parameters), shown)


def _object_schema(name: str, parameters: Schema) -> Schema:
    """A schema of an object, whichever way the parameters are given."""
    kind = parameters.get("type")
    if isinstance(kind, str | list) or any(isinstance(parameters.get(key), list | str) for key in _COMBINING):
        if kind not in (None, "object", ["object"]):
            message = f"tool {name!r} has parameters of type {kind!r}: arguments are an object by name."
            raise ToolSchemaError(message)
        return {**parameters, "type": "object"}
    if _has_properties(parameters):
        return {**parameters, "type": "object"}
    return _from_short(name, parameters)


def _has_properties(parameters: Schema) -> bool:
    """Whether ``properties`` is the keyword and not a parameter of that name."""
    properties = parameters.get("properties")
    return isinstance(properties, Mapping) and all(isinstance(s, Mapping | bool) for s in properties.values())


def _from_short(name: str, parameters: Schema) -> Schema:
    properties: dict[str, Any] = {}
    required = []
    for parameter, schema in parameters.items():
        if not isinstance(schema, Mapping):
            message = f"tool {name!r} has the parameter {parameter!r} = {schema!r:.80}: give its JSON Schema."
            raise ToolSchemaError(message)
        needed = schema.get("required", True)
        plain = {
            key: value for key, value in schema.items() if key != "required" or not isinstance(value, bool)
        }
        properties[parameter] = plain
        if needed is not False:
            required.append(parameter)
    return {"type": "object", "properties": properties, "required": required}


def tools_from_file(path: Path) -> list[Tool]:
    """Read a JSON file with a list of tools.

    Raises:
        InputFileError: the file cannot be read.
        ToolSchemaError: it holds something else.
    """
    try:
        declared = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputFileError(
            f"{path}: cannot be read ({error}). Give a JSON file with a list of tools."
        ) from error
    return read_tools(declared)
