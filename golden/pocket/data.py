"""Seeded generator of tool-calling examples: a query, the offered tools, the right calls."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from golden.pocket.catalogue import FIRST, OFF_TOPIC
from golden.pocket.devices import INTENTS
from golden.pocket.intents import Intent, JsonType, ToolForm
from golden.pocket.pools import Split, draw
from golden.pocket.unseen import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COMMANDS", "FIRST_STAGE", "NEW_TOOLS", "PRACTICE", "Call", "Domain", "Example", "examples"]

Value = str | int | float | bool
Call = dict[str, object]
"""A call as it stands in an answer: ``{"name": str, "arguments": {str: value}}``."""

_POLITE_SHARE = 0.3
_BEFORE = ("please ", "can you ", "hey, ", "could you please ", "now ", "ok, ")
_AFTER = (" please", " now", ", thanks")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Domain:
    """What is asked, and among which tools.

    Attributes:
        wanted: the intents that queries are about.
        offered: the intents whose tools may be shown.
        offers: how many tools are shown, with the weight of each number.
        two_calls: share of the orders that ask for two calls.
        chat: share of the queries that no tool of any kind serves.
        not_offered: share of the queries whose tool is not shown.
    """

    wanted: tuple[Intent, ...]
    offered: tuple[Intent, ...]
    offers: tuple[tuple[int, int], ...] = ((2, 10), (3, 5), (4, 3), (5, 1), (6, 1))
    two_calls: float = 0.08
    chat: float = 0.06
    not_offered: float = 0.06


FIRST_STAGE = Domain(FIRST, FIRST, ((2, 6), (3, 4), (4, 1)), two_calls=0.05, not_offered=0.05)
"""What the tokenizer was made from, and the first stage of training saw."""

COMMANDS = Domain(INTENTS, INTENTS)
"""What the shipped ladder is asked."""

PRACTICE = Domain(INTENTS, INTENTS, two_calls=0.2, chat=0.08, not_offered=0.14)
"""The same with more of what is rare and hard: double calls and refusals."""

NEW_TOOLS = Domain(UNSEEN, (*INTENTS, *UNSEEN))
"""Queries for tools that no ladder was trained on, among all tools."""


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


def _typed(value: str | bool, kind: JsonType) -> Value:  # noqa: FBT001 - a JSON value, not a flag
    if kind == "number":
        return float(value)
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
    domain: Domain, wanted: tuple[Intent, ...], barred: tuple[Intent, ...], rng: random.Random
) -> list[tuple[Intent, ToolForm]]:
    """Choose the offered tools: every wanted intent, no barred one, in random order."""
    counts, weights = zip(*domain.offers, strict=True)
    count = rng.choices(counts, weights)[0]
    others = [intent for intent in domain.offered if intent not in wanted and intent not in barred]
    picked = [*wanted, *rng.sample(others, max(0, count - len(wanted)))]
    rng.shuffle(picked)
    return [(intent, rng.choice(intent.forms)) for intent in picked]


def _refusal(domain: Domain, split: Split, rng: random.Random, *, chat: bool) -> Example:
    intent = rng.choice(domain.wanted)
    ask = _chat(split, rng) if chat else _ask(intent, split, rng)
    barred = () if chat else (intent,)
    tools = tuple(form.schema() for _, form in _offer(domain, (), barred, rng))
    open_end = not chat and intent.open_end
    return Example(_polite(ask.text, open_end=open_end, rng=rng), tools, (), (), ask.values)


def _order(domain: Domain, split: Split, rng: random.Random, *, two: bool) -> Example:
    wanted = tuple(rng.sample(domain.wanted, 2 if two else 1))
    if two and wanted[0].open_end:
        # A free text would swallow the second command: put it last, or drop the second.
        wanted = wanted[:1] if wanted[1].open_end else wanted[::-1]
    asks = [_ask(intent, split, rng) for intent in wanted]
    offer = _offer(domain, wanted, (), rng)
    forms = dict(offer)
    text = ", then ".join(ask.text for ask in asks)
    return Example(
        _polite(text, open_end=wanted[-1].open_end, rng=rng),
        tuple(form.schema() for _, form in offer),
        tuple(_call(forms[intent], ask.slots) for intent, ask in zip(wanted, asks, strict=True)),
        tuple(intent.name for intent in wanted),
        tuple(value for ask in asks for value in ask.values),
    )


def examples(split: Split, seed: int, domain: Domain = COMMANDS) -> Iterator[Example]:
    """Yield an endless stream of examples.

    Args:
        split: the split whose values may appear.
        seed: the stream's seed; the two splits give different streams for one seed.
        domain: what is asked, and among which tools.

    Yields:
        Examples, the same for the same arguments on every machine.
    """
    rng = random.Random(f"{split}-{seed}")  # noqa: S311 - reproducible data, not secrets
    while True:
        share = rng.random()
        if share < domain.chat + domain.not_offered:
            yield _refusal(domain, split, rng, chat=share < domain.chat)
        else:
            yield _order(domain, split, rng, two=rng.random() < domain.two_calls)
