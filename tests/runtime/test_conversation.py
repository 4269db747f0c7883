"""Conversations: turns that stay, tools that are prefilled once, calls that are withheld."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime_py import Model, Sampling
from runtime_py.conversation import Asking
from runtime_py.errors import EmptyQueryError, ForeignStateError, InputError, PromptTooLongError
from runtime_py.prompt import render_prefix, render_query
from runtime_py.tools import read_tools
from tests.runtime.bundles import BARE, change, make_bundle

pytest.importorskip("llguidance", reason="constrains answers")

TOOLS: list[dict[str, Any]] = [
    {"name": "lamp", "description": "Lights", "parameters": {"on": {"type": "boolean"}}},
    {"name": "stop", "description": "Be quiet", "parameters": {}},
]
WILD = Asking(sampling=Sampling(temperature=20, seed=3), max_tokens=300)


def test_a_call_is_one_prompt(model: Model) -> None:
    answer = model.call("go", TOOLS, asking=WILD)
    prompt = render_prefix(read_tools(TOOLS)) + render_query("go")
    constraint = model.grammar.calls(read_tools(TOOLS))
    generation = model.generate(
        prompt,
        model.state(),
        sampling=WILD.sampling,
        max_tokens=300,
        stop_pieces=("<|im_end|>",),
        constraint=constraint,
    ).run()
    assert answer.ids == tuple(generation.ids)
    assert answer.ids[-1] == model.text.id_of("<|im_end|>")


def test_threads_share_a_model(model: Model) -> None:
    def ask(number: int) -> tuple[int, ...]:
        return model.call(f"go {number % 3}", TOOLS).ids

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, range(12)))
    assert together == [ask(number) for number in range(12)]


def test_the_same_tools_are_prefilled_once(model: Model) -> None:
    model.call("go", [TOOLS[1]])
    whole = model.call("go", TOOLS).usage.prompt_tokens
    again = model.call("go", TOOLS)
    # The prefix is no part of what either prefills.
    assert whole == again.usage.prompt_tokens == len(model.encode(render_query("go")))


def test_confidence_is_that_of_prompt_and_answer(model: Model) -> None:
    answer = model.call("go", TOOLS, asking=WILD)
    prompt = model.encode(render_prefix(read_tools(TOOLS)) + render_query("go"), bos=True)
    assert answer.confidence == pytest.approx(model.confidence([*prompt, *answer.ids]), abs=1e-5)


@pytest.mark.parametrize("context", [None, 100])
def test_confidence_in_a_second_pass_is_the_same(tmp_path: Path, model: Model, context: int | None) -> None:
    older = make_bundle(tmp_path / "older")
    change(older, lambda description: description["graphs"].pop("readout"))
    other = Model.load(older, verify=False, threads=1)
    assert other.call("go", TOOLS, context=context, asking=WILD).confidence is None
    asking = replace(WILD, confidence=True)
    expected = model.call("go", TOOLS, context=context, asking=WILD).confidence
    assert other.call("go", TOOLS, context=context, asking=asking).confidence == pytest.approx(
        expected, abs=1e-5
    )


def test_withholds_what_is_not_sure(model: Model) -> None:
    def wild(seed: int) -> Asking:
        return Asking(sampling=Sampling(temperature=30, seed=seed), max_tokens=300)

    asking = next(wild(seed) for seed in range(50) if model.call("go", TOOLS, asking=wild(seed)).calls)
    sure = model.call("go", TOOLS, asking=replace(asking, min_confidence=0))
    unsure = model.call("go", TOOLS, asking=replace(asking, min_confidence=1))
    assert sure.calls == unsure.withheld
    assert sure.calls
    assert unsure.calls == ()
    assert unsure.problem == f"withheld: confidence {unsure.confidence:.3f} is below 1"
    assert sure.withheld == ()


@pytest.mark.parametrize("threshold", [-0.1, 1.1])
def test_an_impossible_threshold(threshold: float) -> None:
    with pytest.raises(InputError, match="give a probability"):
        Asking(min_confidence=threshold)


def test_turns_stay(model: Model) -> None:
    conversation = model.conversation(TOOLS)
    first = conversation.ask("one")
    held = list(conversation.state.ids)
    second = conversation.ask("two")
    text = (
        render_prefix(read_tools(TOOLS))
        + render_query("one")
        + first.text
        + "<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
        + second.text
        + "<|im_end|>"
    )
    assert model.text.decode(conversation.state.ids.tolist()) == model.text.decode(
        model.encode(text, bos=True)
    )
    assert list(conversation.state.ids)[: len(held)] == held


def test_reset_keeps_the_tools(model: Model) -> None:
    conversation = model.conversation(TOOLS)
    first = conversation.ask("one")
    conversation.ask("two")
    conversation.reset()
    assert conversation.ask("one").ids == first.ids


def test_a_failed_turn_changes_nothing(model: Model) -> None:
    conversation = model.conversation(TOOLS, context=120)
    conversation.ask("one")
    held = list(conversation.state.ids)
    with pytest.raises(PromptTooLongError, match="offer fewer tools"):
        conversation.ask("word " * 200)
    with pytest.raises(EmptyQueryError):
        conversation.ask("  ")
    assert list(conversation.state.ids) == held


def test_a_prefix_from_a_file(model: Model, tmp_path: Path) -> None:
    model.prefix(TOOLS, "Be brief.").save(tmp_path / "tools.npz")
    prefix = model.load_state(tmp_path / "tools.npz")
    assert model.holds_prefix(prefix, TOOLS, "Be brief.")
    assert not model.holds_prefix(prefix, TOOLS)
    answer = model.call("go", TOOLS, system="Be brief.", prefix=prefix, asking=WILD)
    assert answer.ids == model.call("go", TOOLS, system="Be brief.", asking=WILD).ids
    # What was loaded serves again.
    assert model.holds_prefix(prefix, TOOLS, "Be brief.")
    with pytest.raises(InputError, match="not the beginning of this prompt"):
        model.call("go", TOOLS[:1], prefix=prefix)


def test_a_prefix_of_another_bundle(model: Model, tmp_path: Path) -> None:
    other = Model.load(make_bundle(tmp_path / "other", BARE), threads=1)
    with pytest.raises(ForeignStateError, match="the prefix belongs to another bundle"):
        model.call("go", TOOLS, prefix=other.prefix(TOOLS))


def test_tools_that_do_not_fit(model: Model) -> None:
    with pytest.raises(PromptTooLongError):
        model.call("go", TOOLS, context=20)


def test_tools_stay_in_sight_of_a_served_window(model: Model) -> None:
    conversation = model.conversation(TOOLS, window=16)
    prefix = conversation.state.position
    assert conversation.state.pinned == prefix > 16
    conversation.ask("one")
    caches = conversation.state._caches["cached_global"]  # noqa: SLF001 - which rows is nobody else's business
    assert set(range(prefix)) <= set(caches.positions[: caches.filled].tolist())


def test_an_answer_that_is_cut_off_has_no_calls(model: Model) -> None:
    answer = model.call("go", TOOLS, asking=Asking(max_tokens=2))
    assert answer.finish_reason == "length"
    assert answer.calls == ()
    assert answer.problem == "the answer was cut off as long as allowed"
