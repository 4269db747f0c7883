"""What an intent is: something a user can ask for, its wordings, and the tools that can be offered for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Intent", "JsonType", "Param", "Phrasing", "ToolForm", "said", "say"]

JsonType = Literal["string", "integer", "number", "boolean"]


@dataclass(frozen=True)
class Param:
    """One parameter of an offered tool.

    Attributes:
        slot: the slot of the phrasing that fills it.
        name: its name in the schema.
        type: its JSON type.
        choices: the values that an enumeration allows; empty where any value goes.
    """

    slot: str
    name: str
    type: JsonType = "string"
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, object]:
        """Return the parameter as a JSON schema."""
        return {"type": self.type, "enum": list(self.choices)} if self.choices else {"type": self.type}


@dataclass(frozen=True)
class ToolForm:
    """One way of offering an intent as a tool."""

    name: str
    description: str
    params: tuple[Param, ...] = ()

    def schema(self) -> dict[str, object]:
        """Return the tool as the JSON object that a prompt shows."""
        params = {param.name: param.schema() for param in self.params}
        return {"name": self.name, "description": self.description, "parameters": params}


@dataclass(frozen=True)
class Phrasing:
    """A sentence with ``{slot}`` places, and the slots whose value the wording itself decides."""

    text: str
    fixed: tuple[tuple[str, str | bool], ...] = ()


@dataclass(frozen=True)
class Intent:
    """Something a user can ask for.

    Attributes:
        name: a stable key.
        slots: slot name and value pool (a key of ``pools.POOLS``) of every drawn slot.
        forms: the tools it can be offered as.
        phrasings: how users say it.
        open_end: whether a wording ends in free text, which would swallow what follows.
    """

    name: str
    slots: tuple[tuple[str, str], ...]
    forms: tuple[ToolForm, ...]
    phrasings: tuple[Phrasing, ...]
    open_end: bool = False


def say(*texts: str, **fixed: str | bool) -> tuple[Phrasing, ...]:
    """Wordings that share the slots they decide."""
    return tuple(Phrasing(text, tuple(fixed.items())) for text in texts)


def said(slot: str, **wordings: tuple[str, ...]) -> tuple[Phrasing, ...]:
    """Wordings by the value of ``slot`` that they decide."""
    return tuple(Phrasing(text, ((slot, value),)) for value, texts in wordings.items() for text in texts)
