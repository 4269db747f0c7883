"""The form of a prompt and of its answer on the wire.

The same text goes to a served ladder: ``<|im_start|>user``, the offered tools as compact JSON, the
query, and the opening of the assistant's turn; the answer is a JSON list of calls.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "MARKERS",
    "PAD_ID",
    "UNK_ID",
    "parse_calls",
    "render_answer",
    "render_prompt",
]

PAD_ID, EOS_ID, BOS_ID, UNK_ID = range(4)

MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_result>",
    "</tool_result>",
    "<context>",
    "</context>",
    "<extract>",
    "</extract>",
    "<schema>",
    "</schema>",
)
"""Marker pieces in id order, the first at id 4."""


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def render_prompt(query: str, tools: Sequence[dict[str, object]], system: str = "") -> str:
    """Render everything up to the assistant's first token; ``bos`` is not part of the text.

    Args:
        query: what the user said.
        tools: the offered tools as JSON objects.
        system: an optional instruction that goes first.

    Returns:
        The prompt's text.
    """
    first = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    user = f"<|im_start|>user\n<tools>{_compact(list(tools))}</tools>\n{query}<|im_end|>\n"
    return f"{first}{user}<|im_start|>assistant\n"


def render_answer(calls: Sequence[dict[str, object]]) -> str:
    """Render the answer that calls ``calls``; ``eos`` follows it and is not part of the text."""
    return f"<tool_call>{_compact(list(calls))}</tool_call><|im_end|>"


def parse_calls(answer: str) -> list[dict[str, object]] | None:
    """Read the calls out of an answer.

    Args:
        answer: the decoded text of the assistant's turn.

    Returns:
        The list of calls, or None where the answer holds no well-formed list of them.
    """
    _, opened, rest = answer.partition("<tool_call>")
    body, closed, _ = rest.partition("</tool_call>")
    if not (opened and closed):
        return None
    try:
        calls = json.loads(body)
    except json.JSONDecodeError:
        return None
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return None
    return calls
