"""The generator of tool-calling examples."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from golden.pocket.catalogue import INTENTS, OFF_TOPIC
from golden.pocket.data import Example, examples
from golden.pocket.pools import POOLS, Split, draw, split_of
from golden.pocket.prompt import parse_calls, render_answer, render_prompt

_COUNT = 2000


def _some(split: Split, seed: int = 3, count: int = _COUNT) -> list[Example]:
    return list(itertools.islice(examples(split, seed), count))


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
def test_calls_fit_the_offered_schemas(split: Split) -> None:
    kinds = {"string": str, "integer": int, "boolean": bool}
    for example in _some(split):
        offered = {str(tool["name"]): tool["parameters"] for tool in example.tools}
        assert len(offered) == len(example.tools)
        for call in example.calls:
            parameters, arguments = offered[str(call["name"])], call["arguments"]
            assert isinstance(parameters, dict)
            assert isinstance(arguments, dict)
            assert list(parameters) == list(arguments)
            for name, schema in parameters.items():
                assert type(arguments[name]) is kinds[schema["type"]]


def test_text_arguments_stand_in_the_query() -> None:
    for example in _some("test"):
        for call in example.calls:
            arguments = call["arguments"]
            assert isinstance(arguments, dict)
            for value in arguments.values():
                spoken = isinstance(value, bool) or value in {"on", "off"}
                assert spoken or str(value) in example.query


def test_shares_of_refusals_and_double_calls() -> None:
    calls = [len(example.calls) for example in _some("train")]
    assert 0.08 < calls.count(0) / _COUNT < 0.14
    assert 0.03 < calls.count(2) / _COUNT < 0.07
    assert max(calls) == 2


def test_every_intent_and_every_form_occurs() -> None:
    rows = _some("train")
    assert {name for e in rows for name in e.intents} == {intent.name for intent in INTENTS}
    forms = {form.name for intent in INTENTS for form in intent.forms}
    assert {str(call["name"]) for e in rows for call in e.calls} == forms
    assert len(forms) == sum(len(intent.forms) for intent in INTENTS)


def test_phrasings_use_exactly_their_slots() -> None:
    for intent in INTENTS:
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
