"""The generator of tool-calling examples."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from typing import TYPE_CHECKING, cast

import pytest

from golden.pocket.catalogue import OFF_TOPIC
from golden.pocket.data import COMMANDS, FIRST_STAGE, NEW_TOOLS, PRACTICE, Domain, Example, examples
from golden.pocket.devices import INTENTS
from golden.pocket.pools import POOLS, Split, draw, split_of
from golden.pocket.prompt import parse_calls, render_answer, render_prompt
from golden.pocket.unseen import UNSEEN

if TYPE_CHECKING:
    from golden.pocket.intents import Intent

_COUNT = 2000


_DOMAINS = {"first": FIRST_STAGE, "seen": COMMANDS, "unseen": NEW_TOOLS}


def _some(split: Split, seed: int = 3, count: int = _COUNT, domain: Domain = COMMANDS) -> list[Example]:
    return list(itertools.islice(examples(split, seed, domain), count))


def _words_of(intents: tuple[Intent, ...]) -> dict[str, set[str]]:
    forms = [form for intent in intents for form in intent.forms]
    return {
        "intents": {intent.name for intent in intents},
        "names": {form.name for form in forms},
        "descriptions": {form.description for form in forms},
        "parameters": {param.name for form in forms for param in form.params},
        "wordings": {phrasing.text for intent in intents for phrasing in intent.phrasings},
    }


def test_there_are_sixty_tools_or_more() -> None:
    assert len(_words_of(INTENTS)["names"]) >= 60


@pytest.mark.parametrize("what", ["intents", "names", "descriptions", "parameters", "wordings"])
def test_new_tools_share_nothing_with_those_of_the_training(what: str) -> None:
    assert not _words_of(INTENTS)[what] & _words_of(UNSEEN)[what]


def test_training_shows_no_new_tool() -> None:
    new = _words_of(UNSEEN)["names"]
    assert not new & {str(tool["name"]) for e in _some("train") for tool in e.tools}
    assert new == {str(call["name"]) for e in _some("test", domain=NEW_TOOLS) for call in e.calls}


def test_two_to_six_tools_are_offered() -> None:
    assert {len(e.tools) for e in _some("train")} == {2, 3, 4, 5, 6}


def test_enumerations_numbers_and_truth_values_are_asked_for() -> None:
    kinds = {
        (schema["type"], "enum" in schema)
        for e in _some("test")
        for tool in e.tools
        for schema in cast("dict[str, dict[str, object]]", tool["parameters"]).values()
    }
    plain = {(kind, False) for kind in ("string", "integer", "number", "boolean")}
    assert kinds == {*plain, ("string", True)}


def test_first_stage_is_what_the_tokenizer_was_made_from() -> None:
    text = "\n".join(
        render_prompt(e.query, e.tools) + render_answer(e.calls)
        for e in _some("train", 101, 500, FIRST_STAGE)
    )
    assert zlib.crc32(text.encode()) == 0x76772D86


def test_same_seed_same_examples() -> None:
    assert _some("train", count=200) == _some("train", count=200)


def test_other_seed_other_examples() -> None:
    assert _some("train", 3, 50) != _some("train", 4, 50)


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_value_belongs_to_its_split(split: Split) -> None:
    values = {value for e in _some(split) for value in e.values}
    assert len(values) > 200
    assert {split_of(value) for value in values} == {split}


def test_no_value_is_in_both_splits() -> None:
    seen = {split: {v for e in _some(split) for v in e.values} for split in ("train", "test")}
    assert not seen["train"] & seen["test"]


def test_no_query_with_a_value_is_in_both_splits() -> None:
    asked = {split: {e.query for e in _some(split) if e.values} for split in ("train", "test")}
    assert not asked["train"] & asked["test"]


@pytest.mark.parametrize("kind", POOLS)
def test_every_pool_has_values_of_both_splits(kind: str) -> None:
    rng = random.Random(0)  # noqa: S311 - reproducible
    for split in ("train", "test"):
        assert len({draw(kind, split, rng) for _ in range(200)}) >= 3


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("domain", _DOMAINS)
def test_calls_fit_the_offered_schemas(split: Split, domain: str) -> None:
    kinds = {"string": str, "integer": int, "number": float, "boolean": bool}
    for example in _some(split, domain=_DOMAINS[domain]):
        offered = {str(tool["name"]): tool["parameters"] for tool in example.tools}
        assert len(offered) == len(example.tools)
        for call in example.calls:
            parameters, arguments = offered[str(call["name"])], call["arguments"]
            assert isinstance(parameters, dict)
            assert isinstance(arguments, dict)
            assert list(parameters) == list(arguments)
            for name, schema in parameters.items():
                assert type(arguments[name]) is kinds[schema["type"]]
                assert arguments[name] in schema.get("enum", [arguments[name]])


@pytest.mark.parametrize("domain", _DOMAINS)
def test_drawn_arguments_stand_in_the_query(domain: str) -> None:
    for example in _some("test", domain=_DOMAINS[domain]):
        schemas = {str(tool["name"]): tool["parameters"] for tool in example.tools}
        for call in example.calls:
            arguments, schema = call["arguments"], schemas[str(call["name"])]
            assert isinstance(arguments, dict)
            assert isinstance(schema, dict)
            for name, value in arguments.items():
                worded = isinstance(value, bool) or value in {"on", "off"} or "enum" in schema[name]
                assert worded or str(value) in example.query


def test_shares_of_refusals_and_double_calls() -> None:
    calls = [len(example.calls) for example in _some("train")]
    assert 0.09 < calls.count(0) / _COUNT < 0.15
    assert 0.05 < calls.count(2) / _COUNT < 0.09
    assert max(calls) == 2


def test_practice_has_more_of_the_rare_kinds() -> None:
    calls = [len(example.calls) for example in _some("train", domain=PRACTICE)]
    assert 0.19 < calls.count(0) / _COUNT < 0.25
    assert 0.11 < calls.count(2) / _COUNT < 0.17


def test_every_intent_and_every_form_occurs() -> None:
    rows = _some("train")
    assert {name for e in rows for name in e.intents} == {intent.name for intent in INTENTS}
    forms = {form.name for intent in INTENTS for form in intent.forms}
    assert {str(call["name"]) for e in rows for call in e.calls} == forms
    assert len(forms) == sum(len(intent.forms) for intent in INTENTS)


def test_phrasings_use_exactly_their_slots() -> None:
    for intent in (*INTENTS, *UNSEEN):
        for phrasing in intent.phrasings:
            filled = phrasing.text.format(**{slot: "" for slot, _ in intent.slots})
            assert "{" not in filled
            known = {slot for slot, _ in intent.slots} | {slot for slot, _ in phrasing.fixed}
            assert {param.slot for form in intent.forms for param in form.params} <= known
    for text in OFF_TOPIC:
        assert "{" not in text.format(**dict.fromkeys(POOLS, ""))


def test_prompt_form() -> None:
    tool: dict[str, object] = {"name": "call", "description": "Phone", "parameters": {}}
    assert render_prompt("call Åsa", [tool], system="Be brief.") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
        '<tools>[{"name":"call","description":"Phone","parameters":{}}]</tools>\n'
        "call Åsa<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render_prompt("hi", []).startswith("<|im_start|>user\n<tools>[]</tools>\nhi<|im_end|>")


def test_answers_are_read_back() -> None:
    for example in _some("train", count=200):
        assert parse_calls(render_answer(example.calls)) == list(example.calls)


@pytest.mark.parametrize(
    "answer", ["", "[]", "<tool_call>[", "<tool_call>[1]</tool_call>", "<tool_call>{}</tool_call>"]
)
def test_malformed_answers_hold_no_calls(answer: str) -> None:
    assert parse_calls(answer) is None


def test_answer_is_compact_json() -> None:
    call: dict[str, object] = {"name": "call", "arguments": {"contact": "Zoë"}}
    answer = render_answer([call])
    assert answer == '<tool_call>[{"name":"call","arguments":{"contact":"Zoë"}}]</tool_call><|im_end|>'
    assert json.loads(answer.removeprefix("<tool_call>").partition("</tool_call>")[0]) == [call]
