"""Seeded generator of tool-calling examples: a query, the offered tools, the right calls."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from golden.pocket.catalogue import INTENTS, OFF_TOPIC, Intent, ToolForm
from golden.pocket.pools import Split, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Call", "Example", "examples"]

Value = str | int | bool
Call = dict[str, object]
"""A call as it stands in an answer: ``{"name": str, "arguments": {str: value}}``."""

_CHAT_SHARE = 0.06
_NOT_OFFERED_SHARE = 0.05
_TWO_CALLS_SHARE = 0.05
_POLITE_SHARE = 0.3
_OFFER_WEIGHTS = {2: 6, 3: 4, 4: 1}
_BEFORE = ("please ", "can you ", "hey, ", "could you please ", "now ", "ok, ")
_AFTER = (" please", " now", ", thanks")
_SLOT = re.compile(r"\{(\w+)\}")
_ENDS_IN_FREE_TEXT = frozenset({"message", "note", "reminder"})


@dataclass(frozen=True)
class Example:
    """One labelled query.

    Attributes:
        query: what the user said.
        tools: the offered tools, as JSON objects, in the order shown.
        calls: the right calls in the order asked for; empty where no offered tool serves.
        intents: the catalogue keys behind ``calls`` (empty for a refusal).
        values: every drawn value that ``query`` contains.
    """

    query: str
    tools: tuple[dict[str, object], ...]
    calls: tuple[Call, ...]
    intents: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class _Ask:
    """A filled phrasing: the words, the slot values, and the drawn texts among them."""

    text: str
    slots: dict[str, str | bool]
    values: tuple[str, ...]


def _typed(value: str | bool, kind: str) -> Value:  # noqa: FBT001 - a JSON value, not a flag
    return int(value) if kind == "integer" else value


def _call(form: ToolForm, slots: dict[str, str | bool]) -> Call:
    arguments = {param.name: _typed(slots[param.slot], param.type) for param in form.params}
    return {"name": form.name, "arguments": arguments}


def _ask(intent: Intent, split: Split, rng: random.Random) -> _Ask:
    phrasing = rng.choice(intent.phrasings)
    drawn = {slot: draw(kind, split, rng) for slot, kind in intent.slots}
    return _Ask(phrasing.text.format(**drawn), {**drawn, **dict(phrasing.fixed)}, tuple(drawn.values()))


def _chat(split: Split, rng: random.Random) -> _Ask:
    text = rng.choice(OFF_TOPIC)
    drawn = {slot: draw(slot, split, rng) for slot in _SLOT.findall(text)}
    return _Ask(text.format(**drawn), {}, tuple(drawn.values()))


def _polite(query: str, *, open_end: bool, rng: random.Random) -> str:
    """Add a courtesy; never behind a free text, where it would read as part of the text."""
    if rng.random() >= _POLITE_SHARE:
        return query
    if open_end or rng.random() < 0.6:  # noqa: PLR2004 - a share, used once
        return rng.choice(_BEFORE) + query
    return query + rng.choice(_AFTER)


def _offer(
    wanted: tuple[Intent, ...], barred: tuple[Intent, ...], rng: random.Random
) -> list[tuple[Intent, ToolForm]]:
    """Choose the offered tools: every wanted intent, no barred one, in random order."""
    count = rng.choices(tuple(_OFFER_WEIGHTS), tuple(_OFFER_WEIGHTS.values()))[0]
    others = [intent for intent in INTENTS if intent not in wanted and intent not in barred]
    picked = [*wanted, *rng.sample(others, max(0, count - len(wanted)))]
    rng.shuffle(picked)
    return [(intent, rng.choice(intent.forms)) for intent in picked]


def _refusal(split: Split, rng: random.Random, *, chat: bool) -> Example:
    intent = rng.choice(INTENTS)
    ask = _chat(split, rng) if chat else _ask(intent, split, rng)
    barred = () if chat else (intent,)
    tools = tuple(form.schema() for _, form in _offer((), barred, rng))
    open_end = not chat and intent.name in _ENDS_IN_FREE_TEXT
    return Example(_polite(ask.text, open_end=open_end, rng=rng), tools, (), (), ask.values)


def _order(split: Split, rng: random.Random, *, two: bool) -> Example:
    wanted = tuple(rng.sample(INTENTS, 2 if two else 1))
    if two and wanted[0].name in _ENDS_IN_FREE_TEXT:
        # A free text would swallow the second command: put it last, or drop the second.
        wanted = wanted[::-1] if wanted[1].name not in _ENDS_IN_FREE_TEXT else wanted[:1]
    asks = [_ask(intent, split, rng) for intent in wanted]
    offer = _offer(wanted, (), rng)
    forms = dict(offer)
    query = _polite(
        ", then ".join(ask.text for ask in asks),
        open_end=wanted[-1].name in _ENDS_IN_FREE_TEXT,
        rng=rng,
    )
    return Example(
        query,
        tuple(form.schema() for _, form in offer),
        tuple(_call(forms[intent], ask.slots) for intent, ask in zip(wanted, asks, strict=True)),
        tuple(intent.name for intent in wanted),
        tuple(value for ask in asks for value in ask.values),
    )


def examples(split: Split, seed: int) -> Iterator[Example]:
    """Yield an endless stream of examples.

    Args:
        split: the split whose values may appear.
        seed: the stream's seed; the two splits give different streams for one seed.

    Yields:
        Examples, the same for the same arguments on every machine.
    """
    rng = random.Random(f"{split}-{seed}")  # noqa: S311 - reproducible data, not secrets
    while True:
        share = rng.random()
        if share < _CHAT_SHARE + _NOT_OFFERED_SHARE:
            yield _refusal(split, rng, chat=share < _CHAT_SHARE)
        else:
            yield _order(split, rng, two=rng.random() < _TWO_CALLS_SHARE)
