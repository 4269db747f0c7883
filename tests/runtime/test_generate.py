"""Generation: what is streamed, when it ends, and where the state is then."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_py import Model, Sampling
from runtime_py.errors import BusyStateError, InputError, MissingTokenizerError, PromptTooLongError
from tests.runtime.bundles import change

PROMPT = [2, 300, 400, 500]


def by_hand(model: Model, count: int) -> list[int]:
    """The likeliest tokens, one at a time."""
    state, ids = model.state(), list[int]()
    logits = model.prefill(state, PROMPT)
    for _ in range(count):
        ids.append(int(logits.argmax()))
        logits = model.step(state, ids[-1])
    return ids


def test_greedy_is_step_by_step(model: Model) -> None:
    generation = model.generate(PROMPT, max_tokens=12)
    pieces = list(generation)
    assert generation.ids == by_hand(model, 12)
    assert "".join(pieces) == generation.text == model.text.decode(generation.ids)
    assert all(pieces)
    assert generation.finish_reason == "length"
    assert list(generation.state.ids) == PROMPT + generation.ids


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.5, 5))
def test_streams_what_it_says(model: Model, seed: int, temperature: float) -> None:
    generation = model.generate("é🙂", max_tokens=20, sampling=Sampling(temperature=temperature, seed=seed))
    assert "".join(generation) == generation.text
    spoken = [token for token in generation.ids if token != 1]
    assert generation.text == model.text.decode(spoken)


def test_goes_on_with_a_state(model: Model) -> None:
    whole = model.generate(PROMPT, max_tokens=9).run()
    state = model.state()
    first = model.generate(PROMPT, state, max_tokens=4).run()
    logits = model.prefill(state.fork(), [first.ids[-1]])
    assert logits.shape == (1024,)
    state.rewind(1)
    rest = model.generate([first.ids[-1]], state, max_tokens=5).run()
    assert first.ids + rest.ids == whole.ids


def test_stops_at_an_id(model: Model) -> None:
    ids = by_hand(model, 6)
    piece = model.text.bytes_of(ids[3]).decode()
    name = next(n for n in ("", piece, piece.replace(" ", "\u2581")) if n and model.text.id_of(n) == ids[3])
    generation = model.generate(PROMPT, stop_pieces=(name,)).run()
    cut = ids.index(ids[3]) + 1
    assert generation.ids == ids[:cut]
    assert generation.text == model.text.decode(ids[: cut - 1])
    assert generation.finish_reason == "stop"
    assert list(generation.state.ids) == PROMPT + ids[: cut - 1]


def test_stops_at_a_string(model: Model) -> None:
    free = model.generate(PROMPT, max_tokens=12).run().text
    string = free[5:8]
    generation = model.generate(PROMPT, max_tokens=12, stop=[string, "never said"])
    assert "".join(generation) == free[: free.index(string)]
    assert generation.finish_reason == "stop"


def test_a_full_context_ends_it(model: Model) -> None:
    generation = model.generate(PROMPT, model.state(9)).run()
    assert generation.finish_reason == "context"
    # Five that still fit, and one more that needs no room.
    assert generation.ids == by_hand(model, 6)
    assert generation.state.position == 9


def test_a_prompt_that_does_not_fit(model: Model) -> None:
    with pytest.raises(PromptTooLongError):
        model.generate(PROMPT, model.state(3))


def test_usage(model: Model) -> None:
    generation = model.generate(PROMPT, max_tokens=5).run()
    usage = generation.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 5)
    assert usage.prefill_seconds > 0 < usage.decode_seconds
    assert usage.prefill_rate == 4 / usage.prefill_seconds
    assert usage.decode_rate == 5 / usage.decode_seconds
    assert usage.peak_memory is None or usage.peak_memory > 10_000_000


def test_nothing_else_may_move_the_state(model: Model) -> None:
    generation = model.generate(PROMPT)
    next(generation)
    model.step(generation.state, 5)
    with pytest.raises(BusyStateError, match="moved from position 4 to 5"):
        next(generation)


@pytest.mark.parametrize("limit", [0, -1])
def test_an_impossible_limit(model: Model, limit: int) -> None:
    with pytest.raises(InputError, match=f"max_tokens is {limit}"):
        model.generate(PROMPT, max_tokens=limit)


def test_ids_need_no_tokenizer(own_bundle: Path, model: Model) -> None:
    change(own_bundle, lambda description: description.update(tokenizer=None))
    plain = Model.load(own_bundle, verify=False, threads=1)
    generation = plain.generate(PROMPT, max_tokens=4)
    assert list(generation) == [""] * 4
    assert generation.ids == model.generate(PROMPT, max_tokens=4).run().ids
    with pytest.raises(MissingTokenizerError):
        plain.generate("text")
