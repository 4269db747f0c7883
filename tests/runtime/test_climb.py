"""Climbing: rung after rung, until one is sure or the budget is spent."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_py import Answer, Asking, Climb, Model, Sampling
from runtime_py.climb import Attempt
from runtime_py.errors import InputError, MissingHeadError, SingleDepthError, UnknownDepthError

pytest.importorskip("llguidance", reason="constrains answers")

TOOLS: list[dict[str, Any]] = [
    {"name": "lamp", "description": "Lights", "parameters": {"on": {"type": "boolean"}}},
    {"name": "stop", "description": "Be quiet", "parameters": {}},
]
LONG = Asking(max_tokens=300)


def same(one: Answer, other: Answer) -> bool:
    return (one.ids, one.calls, one.depth) == (other.ids, other.calls, other.depth)


def test_the_first_rung_that_is_sure_answers(ladder: Model) -> None:
    by_depth = {depth: ladder.call("go", TOOLS, depth=depth, asking=LONG) for depth in (2, 3, 4)}
    for by in ("confidence", "probability"):
        scores = {depth: getattr(answer, by) for depth, answer in by_depth.items()}
        # Just below, since a guess that is checked sums in another order.
        for threshold in (0.0, *(score * (1 - 1e-4) for score in scores.values()), 1.0):
            climb = Climb(threshold=threshold, by=by)
            answer = ladder.call("go", TOOLS, depth=climb, asking=LONG)
            tried = next((d for d in (2, 3) if scores[d] >= threshold and not by_depth[d].problem), 4)
            assert same(answer, by_depth[tried])
            assert [attempt.depth for attempt in answer.attempts] == list(range(2, tried + 1))
            assert answer.attempts[-1].score == pytest.approx(scores[tried], abs=1e-6)


def test_auto_climbs_by_the_defaults(ladder: Model) -> None:
    answer = ladder.call("go", TOOLS, depth="auto", asking=LONG)
    assert same(answer, ladder.call("go", TOOLS, depth=Climb(), asking=LONG))
    assert answer.attempts
    assert ladder.call("go", TOOLS, asking=LONG).attempts == ()
    shown = answer.to_json()
    assert shown["depth"] == answer.attempts[-1].depth
    assert [attempt["depth"] for attempt in shown["attempts"]] == [a.depth for a in answer.attempts]


def test_a_climb_of_chosen_rungs(ladder: Model) -> None:
    answer = ladder.call("go", TOOLS, depth=Climb(depths=(2, 4), threshold=1, by="probability"))
    assert [attempt.depth for attempt in answer.attempts] == [2, 4]


def test_an_answer_that_is_cut_off_is_not_sure(ladder: Model) -> None:
    answer = ladder.call("go", TOOLS, depth=Climb(threshold=0.001), asking=Asking(max_tokens=2))
    assert [(attempt.depth, attempt.score) for attempt in answer.attempts] == [(2, 0), (3, 0), (4, 0)]
    assert answer.finish_reason == "length"


def test_a_budget_of_tokens(ladder: Model) -> None:
    def tried(tokens: int | None) -> list[Attempt]:
        climb = Climb(threshold=1, by="probability", tokens=tokens)
        return list(ladder.call("go", TOOLS, depth=climb, asking=LONG).attempts)

    whole = tried(None)
    assert len(whole) == 3
    first, second = whole[0].tokens, whole[1].tokens
    assert len(tried(1)) == 1
    assert len(tried(2 * first - 1)) == 1
    assert len(tried(2 * first)) == 2
    assert len(tried(first + 2 * second - 1)) == 2
    assert len(tried(first + 2 * second)) == 3


def test_a_budget_of_seconds() -> None:
    attempts = [Attempt(2, 0.1, 10, 1.0)]
    assert Climb(seconds=3).affords(attempts, 4)
    assert not Climb(seconds=2.9).affords(attempts, 4)
    assert Climb().affords(attempts, 4)


@pytest.mark.parametrize(
    ("available", "expected"),
    [((2, 4), (2, 4)), (range(2, 21), (5, 10, 20)), ((2, 3, 8, 9, 10, 11), (2, 3, 11))],
)
def test_rungs_of_a_default_climb(available: tuple[int, ...], expected: tuple[int, ...]) -> None:
    found = Climb().rungs(tuple(available), "b")
    assert found == expected or (found[-1] == expected[-1] and len(found) <= 3)
    assert list(found) == sorted(found)


def test_turns_of_a_conversation_may_have_any_depth(ladder: Model) -> None:
    """What a rung is shown of turns that another answered is what those were."""
    asking = [Asking(depth=depth, max_tokens=40) for depth in (2, 4, 3, 2)]
    conversation = ladder.conversation(TOOLS)
    answers = [conversation.ask(f"go {number}", each) for number, each in enumerate(asking)]
    assert [answer.depth for answer in answers] == [2, 4, 3, 2]
    held = conversation.state.ids.tolist()
    again = ladder.conversation(TOOLS)
    for number, answer in enumerate(answers):
        # Every rung sees the whole so far in one prefill, and comes to the same.
        before = len(again.state.ids)
        assert again.ask(f"go {number}", asking[number]).ids == answer.ids
        assert len(again.state.ids) > before
    assert again.state.ids.tolist() == held
    fresh = ladder.state(depth=2)
    ladder.prefill(fresh, held[:-1])
    ladder.prefill(fresh, held[-1:])
    assert ladder.confidence(fresh) == pytest.approx(ladder.confidence(conversation.state), abs=1e-5)


def test_the_tools_are_prefilled_once_per_rung(ladder: Model) -> None:
    climb = Climb(threshold=1, by="probability")
    ladder.call("stop", [TOOLS[0]])
    first = ladder.call("go", TOOLS, depth=climb, asking=LONG)
    again = ladder.call("go", TOOLS, depth=climb, asking=LONG)
    assert [attempt.tokens for attempt in first.attempts] == [attempt.tokens for attempt in again.attempts]
    assert again.usage.prompt_tokens < 40


def test_a_prefix_serves_its_depth(ladder: Model) -> None:
    prefix = ladder.prefix(TOOLS, depth=3)
    assert ladder.holds_prefix(prefix, TOOLS)
    assert ladder.call("go", TOOLS, prefix=prefix, asking=LONG).depth == 3
    climb = Climb(threshold=1, by="probability")
    assert same(
        ladder.call("go", TOOLS, prefix=prefix, depth=climb, asking=LONG),
        ladder.call("go", TOOLS, depth=climb, asking=LONG),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": -0.1},
        {"threshold": 1.1},
        {"by": "luck"},
        {"depths": (4, 2)},
        {"seconds": 0},
        {"tokens": -1},
    ],
)
def test_an_impossible_climb(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} of a climb is .*: give "):
        Climb(**wrong)


def test_nothing_to_climb(model: Model) -> None:
    with pytest.raises(SingleDepthError, match="usual: runs at depth 4 only"):
        model.call("go", TOOLS, depth="auto")


def test_a_rung_that_is_not_there(ladder: Model) -> None:
    with pytest.raises(UnknownDepthError, match=r"cannot climb to depth 9. Choose of 2, 3, 4"):
        ladder.call("go", TOOLS, depth=Climb(depths=(2, 9)))


def test_a_word_that_is_no_depth(ladder: Model) -> None:
    with pytest.raises(InputError, match="depth is 'deep': give a number of blocks, or 'auto'"):
        ladder.call("go", TOOLS, depth="deep")


def test_confidence_that_is_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.runtime.bundles import make_rungs  # noqa: PLC0415 - one test

    folder = make_rungs(tmp_path_factory.mktemp("headless") / "headless", (2, 4), heads=())
    headless = Model.load(folder, threads=1)
    answer = headless.call("go", TOOLS, depth="auto", asking=LONG)
    assert answer.attempts[-1].score in {answer.probability, 0.0}
    with pytest.raises(MissingHeadError):
        headless.call("go", TOOLS, depth=Climb(by="confidence"))


def test_the_probability_of_an_answer(ladder: Model) -> None:
    """The product over the chosen tokens, of all logits and not of those that were admitted."""
    import numpy as np  # noqa: PLC0415 - one test

    sampling = Sampling(temperature=3, seed=1, top_k=50)
    generation = ladder.generate([2, 300, 400], max_tokens=5, sampling=sampling).run()
    state, expected = ladder.state(), 1.0
    logits = ladder.prefill(state, [2, 300, 400])
    for token in generation.ids:
        chances = np.exp(logits.astype(np.float64))
        expected *= chances[token] / chances.sum()
        logits = ladder.step(state, token)
    assert generation.probability == pytest.approx(expected, rel=1e-4)
