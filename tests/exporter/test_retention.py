"""Which blocks to keep: greedy removal on examples, beside the ladder's rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from exporter.errors import DepthError, ReferenceUnavailableError
from exporter.examples import Example
from exporter.ladder import SlicePlan, keep_blocks, plan_slice
from exporter.retention import as_table, search
from golden.reference.answers import AnswerLoss
from golden.synthetic import SyntheticLadder
from tests.helpers import geometry, loaded, reference_logits, small_ladder

EXAMPLES = [Example(tuple(range(2, 14)), 5, 9), Example(tuple(range(30, 38)), 3, 7)]


def loss_by_hand(blocks: tuple[int, ...]) -> float:
    total, count = 0.0, 0
    for tokens, prompt, _ in EXAMPLES:
        logits = reference_logits(keep_blocks(small_ladder(), blocks), tokens).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        total -= sum(expected[place - 1, tokens[place]] for place in range(prompt, len(tokens)))
        count += len(tokens) - prompt
    return float(total / count)


def test_the_loss_is_that_of_the_answers_tokens() -> None:
    loss = AnswerLoss(small_ladder(), [(example.tokens, example.prompt) for example in EXAMPLES])
    for depth in (2, 4, 5):
        plan = plan_slice(small_ladder().config, depth)
        assert loss.of(plan) == pytest.approx(loss_by_hand(plan.blocks), rel=1e-5)


def test_each_step_removes_what_is_missed_least() -> None:
    found = search(small_ladder(), 2, EXAMPLES)
    assert [each.depth for each in found] == [5, 4, 3, 2]
    for more, fewer in pairwise(found):
        candidates = [tuple(b for b in more.blocks if b != gone) for gone in more.blocks[1:-1]]
        losses = {blocks: loss_by_hand(blocks) for blocks in candidates}
        assert fewer.blocks == min(losses, key=losses.__getitem__)
        assert fewer.loss == pytest.approx(losses[fewer.blocks], rel=1e-5)
    for each in found:
        assert each.rung == plan_slice(small_ladder().config, each.depth).blocks
        assert each.rung_loss == pytest.approx(loss_by_hand(each.rung), rel=1e-5)


def test_blocks_that_do_nothing_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of which the answer is known: block b costs b when it is gone."""

    class Known:
        def __init__(self, *_: object) -> None:
            pass

        def of(self, plan: SlicePlan) -> float:
            return float(sum(set(range(9)) - set(plan.blocks)))

    monkeypatch.setattr("golden.reference.answers.AnswerLoss", Known)
    ladder = loaded(SyntheticLadder(geometry(num_layers=9), heads=()))
    found = search(ladder, 4, EXAMPLES)
    assert found[-1].blocks == (0, 6, 7, 8)
    assert found[-1].loss == 15
    assert as_table(found).splitlines()[-1].split() == ["4", "15.000", "22.000", "0,6,7,8"]


@pytest.mark.parametrize("depth", [1, 6])
def test_a_depth_off_the_ladder(depth: int) -> None:
    with pytest.raises(DepthError, match="from 2 to 5"):
        search(small_ladder(), depth, EXAMPLES)


def test_without_the_reference_there_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.verify.has_reference", lambda: False)
    with pytest.raises(ReferenceUnavailableError, match="PyTorch"):
        search(small_ladder(), 3, EXAMPLES)


def test_the_command_prints_what_blocks_takes(
    run: Callable[..., Result], checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(example._asdict()) + "\n" for example in EXAMPLES), encoding="utf-8")
    result = run("search", "--checkpoint", checkpoint, "--depth", 3, "--calibration", path)
    assert result.exit_code == 0, result.output
    found = search(small_ladder(), 3, EXAMPLES)
    lines = result.stdout.splitlines()
    assert lines[-1] == ",".join(map(str, found[-1].blocks))
    assert "\n".join(lines[:-1]) == as_table(found)
