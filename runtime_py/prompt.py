"""The form of a prompt and of its answer on the wire.

Upstream's: the optional system text, the offered tools as compact JSON and the query in the user's turn,
then the opening of the assistant's turn, whose answer is a JSON list of calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from runtime_py.errors import EmptyQueryError
from runtime_py.tools import Tool

__all__ = ["CALLS_END", "CALLS_START", "TURN_END", "render_prefix", "render_query", "render_turn"]

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
CALLS_START: Final = "<tool_call>"
CALLS_END: Final = "</tool_call>"


def render_prefix(tools: Sequence[Tool], system: str = "") -> str:
    """Render what stays the same from query to query; ``bos`` goes before it, and is no part of the text."""
    first = f"{TURN_START}system\n{system.strip()}{TURN_END}\n" if system.strip() else ""
    shown = json.dumps([tool.shown for tool in tools], separators=(",", ":"), ensure_ascii=False)
    return f"{first}{TURN_START}user\n<tools>{shown}</tools>"


def render_query(query: str) -> str:
    """Render what follows the prefix, up to the first token of the answer.

    Raises:
        EmptyQueryError: there is nothing in it.
    """
    return f"\n{_checked(query)}{TURN_END}\n{TURN_START}assistant\n"


def render_turn(query: str) -> str:
    """Render a further turn, from behind the end of the answer before it.

    Raises:
        EmptyQueryError: there is nothing in it.
    """
    return f"\n{TURN_START}user\n{_checked(query)}{TURN_END}\n{TURN_START}assistant\n"


def _checked(query: str) -> str:
    if not query.strip():
        raise EmptyQueryError(f"the query is {query!r}: say what is wanted.")
    return query
