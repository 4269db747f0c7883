"""Speculation: what is drafted and checked is what would have been chosen alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime_py import Asking, Generation, Model, Sampling, Speculation
from runtime_py.carry import Carry
from runtime_py.drafting import Drafting, DraftLength
from runtime_py.errors import (
    InputError,
    MissingLogitsError,
    SingleDepthError,
    TokenIdError,
    UnknownDepthError,
)
from runtime_py.prompt import render_prefix, render_query
from runtime_py.sampling import Sampler
from runtime_py.session import Binding
from runtime_py.tools import read_tools
from tests.runtime.bundles import USUAL, make_rungs, random_ids
from tests.runtime.test_rollback import bits

PROMPTS = [random_ids(3 + seed % 40, seed) for seed in range(200)]
FIXED = Speculation(depth=2, most=5, adapt=False)
TOOLS: list[dict[str, Any]] = [
    {
        "name": "lamp",
        "description": "Lights",
        "parameters": {"on": {"type": "boolean"}, "what": {"enum": [1, "b"]}},
    },
    {"name": "note", "description": "Note", "parameters": {"text": {"type": "string", "maxLength": 9}}},
]


@pytest.fixture
def misled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is often wrong: a random ladder's rungs agree more than trained ones."""
    honest, random = Drafting.logits, np.random.default_rng(5)

    def noisy(self: Drafting, draft: Any) -> NDArray[np.float32]:  # noqa: ANN401 - private
        logits = honest(self, draft)
        noise = 3 if random.random() < 0.4 else 0.1
        return logits + random.normal(0, noise * logits.std(), logits.shape).astype(np.float32)

    monkeypatch.setattr(Drafting, "logits", noisy)


def outcome(generation: Generation) -> tuple[object, ...]:
    """All that a generation says, and what its state has seen."""
    generation.run()
    return (
        generation.ids,
        generation.text,
        generation.finish_reason,
        generation.state.ids.tolist(),
        generation.state.position,
    )


@pytest.mark.usefixtures("misled")
@pytest.mark.parametrize(
    ("draft", "prompts", "most"),
    [
        (FIXED, PROMPTS, 0.6),
        (Speculation(depth=3, most=3, adapt=False), PROMPTS[:50], 0.7),
        (2, PROMPTS[:50], 1.0),
    ],
)
def test_greedy_answers_are_the_same(
    ladder: Model, draft: int | Speculation, prompts: list[list[int]], most: float
) -> None:
    drafted = accepted = 0
    for prompt in prompts:
        alone = ladder.generate(prompt, max_tokens=24)
        together = ladder.generate(prompt, max_tokens=24, draft=draft)
        assert outcome(together) == outcome(alone)
        assert together.probability == pytest.approx(alone.probability, rel=1e-3)
        drafted += together.usage.drafted_tokens
        accepted += together.usage.accepted_tokens
    # Drafts stood and fell, over and over; a random ladder is so unsure that few are made where that counts.
    assert accepted >= (1 if draft == 2 else 5 * len(prompts))
    assert accepted < most * drafted


@pytest.mark.usefixtures("misled")
def test_constrained_answers_are_the_same(ladder: Model) -> None:
    pytest.importorskip("llguidance", reason="constrains answers")
    drafted = accepted = 0
    for number in range(60):
        asking = Asking(max_tokens=5 + number, constrain=True, exactly_one=number % 2 == 0)
        alone = ladder.call(f"go {number}", TOOLS, asking=asking)
        together = ladder.call(f"go {number}", TOOLS, asking=asking, draft=FIXED)
        assert (together.ids, together.text, together.finish_reason, together.calls) == (
            alone.ids,
            alone.text,
            alone.finish_reason,
            alone.calls,
        )
        assert together.confidence == pytest.approx(alone.confidence, abs=1e-5)
        assert together.probability == pytest.approx(alone.probability, rel=1e-3)
        drafted += together.usage.drafted_tokens
        accepted += together.usage.accepted_tokens
    assert drafted > accepted > 50


@pytest.mark.usefixtures("misled")
def test_ends_are_the_same(ladder: Model) -> None:
    free = ladder.generate(PROMPTS[7], max_tokens=30).run()
    piece = next(
        name
        for token in free.ids[6:]
        if (name := ladder.text.bytes_of(token).decode("utf-8", "replace"))
        and ladder.text.id_of(name) == token
    )
    for most in range(1, 14):
        for extra in (
            {"max_tokens": most},
            {"stop": [free.text[most : most + 3]]},
            {"stop_pieces": [piece], "max_tokens": 8 + most},
        ):
            alone = ladder.generate(PROMPTS[7], **extra)
            assert outcome(ladder.generate(PROMPTS[7], draft=FIXED, **extra)) == outcome(alone)
        small = [ladder.state(len(PROMPTS[7]) + most) for _ in range(2)]
        alone = ladder.generate(PROMPTS[7], small[0])
        assert outcome(ladder.generate(PROMPTS[7], small[1], draft=FIXED)) == outcome(alone)


@pytest.mark.usefixtures("misled")
def test_a_served_window_is_kept(ladder: Model) -> None:
    """Once it is full a call takes one token, and nothing is drafted."""
    states = [ladder.state(window=20) for _ in range(2)]
    for state in states:
        state.pin(4)
    alone = ladder.generate(PROMPTS[5], states[0], max_tokens=60)
    together = ladder.generate(PROMPTS[5], states[1], max_tokens=60, draft=FIXED)
    assert outcome(together) == outcome(alone)
    assert 0 < together.usage.drafted_tokens < 40


@pytest.mark.usefixtures("misled")
def test_goes_on_with_states(ladder: Model) -> None:
    """A generation leaves state and drafter such that the next goes on, past every window."""
    state, drafter, alone = ladder.state(), ladder.state(depth=2), ladder.state()
    for turn in range(6):
        prompt = random_ids(9, turn)
        one = ladder.generate(prompt, alone, max_tokens=40)
        other = ladder.generate(prompt, state, max_tokens=40, draft=FIXED, drafter=drafter)
        assert outcome(other) == outcome(one)
        assert drafter.ids.tolist() == state.ids.tolist()[: drafter.position]
    a, b = ladder.step(state, 5), ladder.step(alone, 5)
    assert np.abs(a - b).max() < 1e-4 * a.std()


def test_conversations_are_the_same(ladder: Model) -> None:
    pytest.importorskip("llguidance", reason="constrains answers")
    alone, together = ladder.conversation(TOOLS), ladder.conversation(TOOLS)
    for query in ("one", "two", "three"):
        expected = alone.ask(query, Asking(max_tokens=60))
        assert together.ask(query, Asking(max_tokens=60, draft=2)).ids == expected.ids


@pytest.mark.usefixtures("misled")
def test_a_rollback_left_out_shows(ladder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: refused tokens stay in taps, engram history and last ids."""
    expected = [outcome(ladder.generate(prompt, max_tokens=24)) for prompt in PROMPTS[:40]]
    monkeypatch.setattr(Carry, "put", lambda *_: None)
    found = [outcome(ladder.generate(prompt, max_tokens=24, draft=FIXED)) for prompt in PROMPTS[:40]]
    assert found != expected


@pytest.mark.usefixtures("misled")
@pytest.mark.parametrize("failing", ["choose", "check", "draw"])
def test_a_failure_leaves_the_states_as_they_were(
    ladder: Model, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    state, drafter = ladder.state(), ladder.state(depth=2)
    generation = ladder.generate(PROMPTS[4], state, max_tokens=60, draft=FIXED, drafter=drafter)
    for _ in range(7):
        next(generation)
    honest, seen = getattr(Sampler, failing), [(list(generation.ids), bits(state))]

    def breaking(*_: object) -> int:
        raise MemoryError

    def go_on() -> None:
        for _ in generation:
            seen.append((list(generation.ids), bits(state)))  # noqa: PERF401 - it ends in the middle

    monkeypatch.setattr(Sampler, failing, breaking)
    with pytest.raises(MemoryError):
        go_on()
    assert (generation.ids, bits(state)) == seen[-1]
    monkeypatch.setattr(Sampler, failing, honest)
    assert generation.run().ids == ladder.generate(PROMPTS[4], max_tokens=60).run().ids


# --- guesses


@pytest.mark.parametrize("wrong", [0, 3, 17, 39, None])
@pytest.mark.parametrize("draft", [None, FIXED])
def test_a_guess_has_no_influence(ladder: Model, wrong: int | None, draft: Speculation | None) -> None:
    """Right all along, or up to some token; longer than a call may be; with a drafter behind it or none."""
    alone = ladder.generate(PROMPTS[8], max_tokens=50)
    expected = outcome(alone)
    guess = list(alone.ids)
    if wrong is not None:
        guess[wrong] = (guess[wrong] + 1) % 1000 + 20
    for given in (guess, guess[:20], [*guess, 5, 6]):
        checked = ladder.generate(PROMPTS[8], max_tokens=50, guess=given, draft=draft)
        assert outcome(checked) == expected
        assert checked.usage.accepted_tokens >= (min(len(given), 50) - 3 if wrong is None else 0)


def test_a_guess_takes_few_calls(ladder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    guess, calls, run = ladder.generate(PROMPTS[8], max_tokens=50).run().ids, list[int](), Binding.run

    def counting(self: Binding, ids: NDArray[np.int64], position: int, kept: int = 1) -> NDArray[np.float32]:
        calls.append(len(ids))
        return run(self, ids, position, kept)

    monkeypatch.setattr(Binding, "run", counting)
    ladder.generate(PROMPTS[8], max_tokens=50, guess=guess).run()
    assert len(calls) <= 5


def test_a_constrained_guess(ladder: Model) -> None:
    pytest.importorskip("llguidance", reason="constrains answers")
    declared = read_tools(TOOLS)
    prompt = render_prefix(declared) + render_query("go")
    other = ladder.call("go", TOOLS, depth=2, asking=Asking(max_tokens=90)).ids
    for guess in (ladder.call("go", TOOLS, asking=Asking(max_tokens=90)).ids, other, [999] * 9):
        runs = [
            ladder.generate(prompt, max_tokens=90, constraint=ladder.grammar.calls(declared), guess=given)
            for given in (guess, ())
        ]
        assert outcome(runs[0]) == outcome(runs[1])


def test_guessed_samples_are_distributed_as_without(ladder: Model) -> None:
    chances = joint(ladder, PROMPTS[11], 2, Sampling(**SAMPLING))
    base, guess = ladder.state(64), max(chances, key=lambda ids: chances[ids])
    ladder.prefill(base, PROMPTS[11][:-1])
    counts: Counter[Any] = Counter()
    for seed in range(800):
        sampling = Sampling(seed=seed, **SAMPLING)
        generation = ladder.generate(
            PROMPTS[11][-1:], base.fork(), max_tokens=2, sampling=sampling, guess=[*guess, 5]
        )
        counts[tuple(generation.run().ids)] += 1
    assert fits(counts, chances)


# --- sampling


def fits(counts: Counter[Any], chances: dict[Any, float]) -> bool:
    """Whether counts are drawn from probabilities: chi-square within five deviations of its mean."""
    total = sum(counts.values())
    if any(not chances.get(key) for key in counts):
        return False
    likely = {key: chance for key, chance in chances.items() if chance * total >= 5}
    rest = 1 - sum(likely.values())
    terms = [(counts[key] - total * chance) ** 2 / (total * chance) for key, chance in likely.items()]
    if rest * total >= 5:
        others = total - sum(counts[key] for key in likely)
        terms.append((others - total * rest) ** 2 / (total * rest))
    freedom = len(terms) - 1
    return bool(sum(terms) < freedom + 5 * (2 * freedom) ** 0.5)


def joint(model: Model, prompt: list[int], length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every answer of some length, from plain steps."""
    found: dict[tuple[int, ...], float] = {}

    def walk(state: Any, logits: NDArray[np.float32], ids: tuple[int, ...], chance: float) -> None:  # noqa: ANN401
        if len(ids) == length:
            found[ids] = chance
            return
        chances = Sampler(sampling).chances(logits)
        for token in np.flatnonzero(chances):
            branch = state.fork()
            walk(branch, model.step(branch, int(token)), (*ids, int(token)), chance * chances[token])

    state = model.state(64)
    walk(state, model.prefill(state, prompt), (), 1.0)
    return found


def drawn(
    model: Model, prompt: list[int], length: int, sampling: dict[str, Any], rounds: int
) -> Counter[Any]:
    base = model.state(64)
    model.prefill(base, prompt[:-1])
    shallow = model.state(64, depth=2)
    model.prefill(shallow, prompt[:-1])
    counts: Counter[Any] = Counter()
    for seed in range(rounds):
        generation = model.generate(
            prompt[-1:],
            base.fork(),
            max_tokens=length,
            sampling=Sampling(seed=seed, **sampling),
            draft=Speculation(depth=2, most=2, adapt=False),
            drafter=shallow.fork(),
        ).run()
        counts[tuple(generation.ids)] += 1
    return counts


SAMPLING: dict[str, Any] = {"temperature": 1.5, "top_k": 4}


@pytest.mark.usefixtures("misled")
def test_samples_are_distributed_as_without_drafts(ladder: Model) -> None:
    prompt = PROMPTS[11]
    chances = joint(ladder, prompt, 2, Sampling(**SAMPLING))
    assert sum(chances.values()) == pytest.approx(1)
    assert len(chances) == 16
    assert fits(drawn(ladder, prompt, 2, SAMPLING, 800), chances)


Rule = Callable[..., int]


def always(_: Sampler, token: int, *__: object) -> int:
    """Damage: every draft stands."""
    return token


def again(self: Sampler, token: int, drafted: NDArray[np.float64], logits: Any, allowed: Any = None) -> int:  # noqa: ANN401
    """Damage: what falls is drawn anew from all, not from the rest."""
    chances = self.chances(logits, allowed)
    return token if self._random.random() * drafted[token] < chances[token] else self.draw(chances)


@pytest.mark.usefixtures("misled")
@pytest.mark.parametrize("rule", [always, again])
def test_a_wrong_acceptance_rule_shows(ladder: Model, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = PROMPTS[11]
    chances = joint(ladder, prompt, 2, Sampling(**SAMPLING))
    monkeypatch.setattr(Sampler, "check", rule)
    assert not fits(drawn(ladder, prompt, 2, SAMPLING, 800), chances)


@pytest.mark.parametrize("seed", range(5))
def test_the_rule_gives_the_checkers_probabilities(seed: int) -> None:
    random = np.random.default_rng(seed)
    logits, others = random.normal(0, 2, (2, 12)).astype(np.float32)
    allowed = random.random(12) < 0.7
    sampler = Sampler(Sampling(temperature=0.8, top_p=0.95, seed=seed))
    p, q = sampler.chances(logits, allowed), sampler.chances(others, allowed)
    counts = Counter(sampler.check(sampler.draw(q), q, logits, allowed) for _ in range(6000))
    assert fits(counts, dict(enumerate(p)))
    assert not fits(Counter(sampler.draw(q) for _ in range(6000)), dict(enumerate(p + 1e-9)))


def test_chances_are_what_choosing_does() -> None:
    logits = np.random.default_rng(3).normal(0, 2, 20).astype(np.float32)
    sampler = Sampler(Sampling(temperature=1.3, top_k=9, min_p=0.02, seed=4))
    counts = Counter(sampler.choose(logits) for _ in range(6000))
    assert fits(counts, dict(enumerate(sampler.chances(logits))))


def test_a_seed_chooses_the_same_again(ladder: Model) -> None:
    sampling = Sampling(temperature=2, seed=9)
    runs = [
        ladder.generate(PROMPTS[3], max_tokens=30, sampling=sampling, draft=2).run().ids for _ in range(2)
    ]
    assert runs[0] == runs[1]


# --- length of drafts


def test_drafts_get_longer_where_they_stand_and_end_where_they_do_not() -> None:
    length = DraftLength(Speculation(depth=2, most=8), 0.1)
    for _ in range(30):
        length.learn(8, 8)
    assert length.next() == 8
    for _ in range(60):
        length.learn(0, 1)
    drafts = [length.next() for _ in range(64)]
    # Tried again now and then, or it would never find out.
    assert drafts.count(0) == 60
    assert drafts.count(1) == 4
    for _ in range(60):
        length.learn(1, 1)
    assert length.next() > 4


def test_a_dear_drafter_drafts_less() -> None:
    lengths = [DraftLength(Speculation(depth=2, most=8), cost).next() for cost in (0.05, 0.2, 0.5, 0.9)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_a_fixed_length_stays() -> None:
    length = DraftLength(FIXED, 0.9)
    length.learn(0, 100)
    assert length.next() == 5
    assert length.goes_on(0.0)


def test_a_drafter_that_is_never_right_is_hardly_asked(
    ladder: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = np.zeros(1024, np.float32)
    wrong[999] = 50
    monkeypatch.setattr(Drafting, "logits", lambda *_: wrong)
    generation = ladder.generate(PROMPTS[2], max_tokens=200, draft=2).run()
    assert generation.ids == ladder.generate(PROMPTS[2], max_tokens=200).run().ids
    assert generation.usage.drafted_tokens < 40


# --- what cannot be


def test_no_shallow_rung(model: Model) -> None:
    with pytest.raises(SingleDepthError, match="usual: runs at depth 4 only, and drafting takes"):
        model.generate(PROMPTS[0], draft=2)
    with pytest.raises(SingleDepthError):
        model.call("go", TOOLS, draft=2)


@pytest.mark.parametrize("depth", [4, 9])
def test_no_lesser_depth(ladder: Model, depth: int) -> None:
    with pytest.raises(InputError, match=f"depth {depth} cannot draft for depth 4"):
        ladder.generate(PROMPTS[0], draft=depth)


def test_an_unknown_depth(ladder: Model) -> None:
    with pytest.raises(UnknownDepthError):
        ladder.generate(PROMPTS[0], draft=1)


def test_a_state_is_as_it_was_after_a_refusal(ladder: Model) -> None:
    state = ladder.state()
    for draft in (1, 4):
        with pytest.raises((UnknownDepthError, InputError)):
            ladder.generate(PROMPTS[0], state, draft=draft)
    assert state.position == 0


def test_a_graph_of_the_last_logits(tmp_path: Path) -> None:
    model = Model.load(make_rungs(tmp_path / "last", (2, 4), logits="last"), threads=1)
    with pytest.raises(
        MissingLogitsError, match="last: its graph gives the logits of the last position only"
    ):
        model.generate(PROMPTS[0], draft=2)
    with pytest.raises(MissingLogitsError):
        model.state().verify([5, 6], 2)
    assert model.state().verify([5, 6], 1).shape == (1, 1024)


def test_a_drafter_that_does_not_fit(ladder: Model) -> None:
    strange = ladder.state(depth=2)
    ladder.prefill(strange, [9, 9, 9])
    for drafter in (strange, ladder.state(depth=3)):
        with pytest.raises(InputError, match="no beginning of this sequence at 2"):
            ladder.generate(PROMPTS[0], draft=2, drafter=drafter)


def test_an_impossible_length() -> None:
    with pytest.raises(InputError, match="most is 0"):
        Speculation(depth=2, most=0)


def test_what_verify_refuses(ladder: Model) -> None:
    state = ladder.state()
    for ids, count in (([5, 6], 3), ([5], 0), (random_ids(33), 1)):
        with pytest.raises(InputError, match=f"logits of {count} positions are asked for"):
            state.verify(ids, count)
    with pytest.raises(TokenIdError):
        state.verify([5, 4000], 1)
    assert state.position == 0
    rows = state.verify([5, 6, 7], 2)
    alone = ladder.state()
    ladder.prefill(alone, [5])
    for row, token in zip(rows, (6, 7), strict=True):
        assert np.abs(row - ladder.step(alone, token)).max() < 1e-4 * row.std()


def test_geometry_is_the_usual_one(ladder: Model) -> None:
    """Taps, engram sites, windows and global blocks all take part in what is rolled back."""
    assert ladder.bundle.context == USUAL["max_seq_len"]
    kinds = {spec.past.split(".")[0] for spec in ladder.bundle.states}
    assert kinds == {"past_key_values", "past_taps", "past_engram", "past_ids", "past_pool"}
