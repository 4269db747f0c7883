"""What a precision costs, measured, judged, stored and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from exporter.cli import main
from exporter.errors import QualityError
from exporter.examples import Example
from exporter.export import Export, export
from exporter.ladder import Ladder, fingerprint, slice_ladder
from exporter.plot import Size, draw, draw_quality, read_csv, write_csv
from exporter.plot import measure as weigh
from exporter.precision import PRECISIONS, PrecisionPlan, plan_precision
from exporter.quality import Figures, Quality, as_table, measure, misses, read_quality, stored
from tests.helpers import reference_logits, small_ladder, write_checkpoint

ASKED = [Example((2, *range(first, first + 9 + first % 4)), 5, 7) for first in (5, 17, 30, 44)]


def planner(*names: str) -> Callable[[Ladder], list[PrecisionPlan]]:
    return lambda ladder: [plan_precision(ladder.config, ladder.layout, PRECISIONS[name]) for name in names]


@pytest.fixture(scope="module")
def figures() -> tuple[Figures, ...]:
    return measure(small_ladder(), [3, 5], planner("fp32", "int8", "int4"), ASKED)


def test_the_loss_is_that_of_the_reference_run_one_by_one(figures: tuple[Figures, ...]) -> None:
    for row in figures[::3]:
        ladder, nats, exact = slice_ladder(small_ladder(), row.depth), 0.0, 0
        for example in ASKED:
            logits = reference_logits(ladder, example.tokens).astype(np.float64)
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            places = range(example.prompt - 1, len(example.tokens) - 1)
            nats -= sum(logs[place, example.tokens[place + 1]] for place in places)
            exact += all(logs[place].argmax() == example.tokens[place + 1] for place in places)
        assert row.bits_per_byte == pytest.approx(nats / np.log(2) / 28, rel=1e-5)
        assert row.exact == exact / len(ASKED)
        assert (row.kl, row.top1) == (0, 1)
        assert row.bits_per_weight == 32


def test_fewer_bits_cost_more(figures: tuple[Figures, ...]) -> None:
    for whole, fine, coarse in (figures[:3], figures[3:]):
        assert whole.kl < fine.kl < coarse.kl
        assert fine.kl < 0.1 * coarse.kl
        assert whole.bits_per_weight > fine.bits_per_weight > coarse.bits_per_weight
        assert (
            whole.slice_sha256 == fine.slice_sha256 == fingerprint(slice_ladder(small_ladder(), whole.depth))
        )


def test_an_answer_that_is_followed_is_exact() -> None:
    ladder, tokens = small_ladder(), [2, 5, 9]
    for _ in range(4):
        tokens.append(int(reference_logits(ladder, tokens)[-1].argmax()))
    right, wrong = Example(tuple(tokens), 3, 4), Example((*tokens[:-1], (tokens[-1] + 1) % 67), 3, 4)
    assert measure(ladder, [5], planner("fp32"), [right])[0].exact == 1
    assert measure(ladder, [5], planner("fp32"), [right, wrong])[0].exact == 0.5


def row(depth: int, precision: str, loss: float, exact: float) -> Figures:
    return Figures(depth, f"{depth}", PRECISIONS[precision].to_json(), 5.0, loss, 1e-3, 0.99, exact)


def test_goals_that_are_missed_are_told() -> None:
    kept = [row(6, "fp32", 1.0, 0.5), row(6, "int8", 1.0019, 0.491), row(6, "int4", 1.0149, 0.481)]
    assert misses(kept) == []
    missed = [kept[0], row(6, "int8", 1.0021, 0.489), row(6, "int4", 1.0151, 0.479)]
    assert misses(missed) == [
        "depth 6 int8: loss +0.21% (goal 0.2%)",
        "depth 6 int8: exact answers -1.1 points (goal 1)",
        "depth 6 int4: loss +1.51% (goal 1.5%)",
        "depth 6 int4: exact answers -2.1 points (goal 2)",
    ]
    other = replace(row(6, "int4", 2.0, 0.5), scheme=replace(PRECISIONS["int4"], quantiser="rtn").to_json())
    assert misses([kept[0], other]) == ["depth 6 int4 rtn: loss +100.00% (goal 1.5%)"]
    assert misses([row(6, "fp32", 1.0, 0.9125), row(6, "int4", 1.0, 0.8925)]) == []
    assert misses([row(5, "fp32", 1.0, 0.5), row(5, "int4", 2.0, 0.1)]) == []
    assert len(misses([kept[0], row(6, "int4", float("nan"), 0.5)])) == 1


def test_figures_that_are_measured_anew_take_the_place_of_the_old(figures: tuple[Figures, ...]) -> None:
    earlier = Quality("x", {"count": 4}, figures)
    later = Quality("x", {"count": 4}, (replace(figures[4], exact=0.5),))
    joined = earlier.joined(later).figures
    assert joined == (*figures[:4], later.figures[0], *figures[5:])


def test_a_table_has_a_row_each(figures: tuple[Figures, ...]) -> None:
    lines = as_table(figures).splitlines()
    assert len(lines) == 1 + len(figures)
    assert lines[1].split()[:4] == ["3", "fp32", "32.00", f"{figures[0].bits_per_byte:.4f}"]


def write(path: Path, figures: tuple[Figures, ...]) -> Path:
    quality = Quality("small.safetensors", {"name": "held_out.jsonl", "sha256": "0", "count": 4}, figures)
    path.write_text(json.dumps(quality.to_json()), "utf-8")
    return path


def test_stored_figures_go_into_the_bundle_they_are_of(figures: tuple[Figures, ...], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "small.safetensors")
    write(tmp_path / "quality.json", figures)

    def told(**options: Any) -> Any:  # noqa: ANN401 - as in JSON
        output = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        request = Export(checkpoint=checkpoint, output=output, **options)
        return json.loads((export(request).path / "bundle.json").read_text("utf-8"))["quality"]

    found = told(depth=3, precision="int4")
    assert found["kl"] == pytest.approx(figures[2].kl, rel=1e-5)
    assert found["fp32"]["bits_per_byte"] == pytest.approx(figures[0].bits_per_byte, rel=1e-5)
    assert found["examples"]["count"] == 4
    assert told(depth=2, precision="int4") is None


def test_figures_of_another_slice_or_scheme_are_none_of_this(
    figures: tuple[Figures, ...], tmp_path: Path
) -> None:
    write(tmp_path / "quality.json", figures)
    checkpoint, identity, scheme = tmp_path / "x", figures[0].slice_sha256, PRECISIONS["int4"]
    assert stored(checkpoint, identity, replace(scheme, accuracy_level=1)) is not None
    assert stored(checkpoint, "0" * 64, scheme) is None
    for other in (
        replace(scheme, quantiser="rtn"),
        replace(scheme, block=64),
        replace(scheme, zero_points=True),
    ):
        assert stored(checkpoint, identity, other) is None
    assert stored(tmp_path / "elsewhere" / "x", identity, scheme) is None


@pytest.mark.parametrize("text", ["{", "{}", '{"checkpoint": "", "examples": {}, "figures": [{"depth": 2}]}'])
def test_figures_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "quality.json").write_text(text, "utf-8")
    with pytest.raises(QualityError, match="holds no figures of quality"):
        read_quality(tmp_path / "quality.json")


def test_the_command_measures_writes_and_tells_misses(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "small.safetensors")
    lines = [json.dumps(example._asdict()) for example in ASKED]
    (tmp_path / "held_out.jsonl").write_text("\n".join(lines), "utf-8")
    output, plot = tmp_path / "quality.json", tmp_path / "quality.png"
    options = ["--depth", "3", "--precision", "int4", "--count", "3", "--plot", str(plot)]
    options += ["--quantiser", "search", "--quantiser", "rtn"]
    command = ["quality", "--checkpoint", str(checkpoint), "--output", str(output), *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(output)
    assert [f.label for f in read_quality(output).figures] == ["fp32", "int4", "int4 rtn"]
    assert read_quality(output).examples["count"] == 3
    again = ["quality", "--checkpoint", str(checkpoint), "--output", str(output), "--depth", "2"]
    result = CliRunner().invoke(main, [*again, "--precision", "int4", "--count", "3"])
    assert result.exit_code == 0, result.output
    kept = read_quality(output).figures
    assert [(f.depth, f.label) for f in kept] == [
        (2, "fp32"),
        (2, "int4"),
        (3, "fp32"),
        (3, "int4"),
        (3, "int4 rtn"),
    ]
    result = CliRunner().invoke(main, [*again, "--count", "2"])
    assert result.exit_code != 0
    assert "figures of small.safetensors on 3 examples" in result.output
    assert read_quality(output).figures == kept
    assert plot.read_bytes().startswith(b"\x89PNG")


# Pictures.

SIZES = [
    Size(p, d, d // 3, 1000, 5000 * d + (p == "fp16") * 9000) for p in ("fp16", "int4") for d in range(2, 7)
]


def test_sizes_are_those_of_real_files(tmp_path: Path) -> None:
    sizes = weigh(small_ladder(), ["int8", "int4"], [2, 4])
    assert [(size.precision, size.depth) for size in sizes] == [
        ("int8", 2),
        ("int8", 4),
        ("int4", 2),
        ("int4", 4),
    ]
    assert sizes[0].weights_bytes < sizes[1].weights_bytes > sizes[3].weights_bytes
    write_csv(tmp_path / "sizes.csv", sizes)
    assert read_csv(tmp_path / "sizes.csv") == sizes


def test_a_picture_is_the_same_twice_and_shows_what_it_is_given(
    figures: tuple[Figures, ...], tmp_path: Path
) -> None:
    draw(SIZES, [tmp_path / "a.svg", tmp_path / "a.png"], "a title")
    draw(SIZES, [tmp_path / "b.svg"], "a title")
    draw(SIZES, [tmp_path / "c.svg"], "a title", figures)
    plain, panels = (tmp_path / "a.svg").read_text("utf-8"), (tmp_path / "c.svg").read_text("utf-8")
    assert plain == (tmp_path / "b.svg").read_text("utf-8")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for text, count in (("engram site", 2), ("exact answers", 0)):
        assert plain.count(f"<!-- {text}") == count
    assert "<!-- exact answers" in panels
    assert panels.count("<!-- int8 -->") == 1 + plain.count("<!-- int8 -->")


def test_the_loss_is_drawn_beside_exact_answers(figures: tuple[Figures, ...], tmp_path: Path) -> None:
    draw_quality(figures, [tmp_path / "q.svg"], "a title")
    drawn = (tmp_path / "q.svg").read_text("utf-8")
    for text in ("exact answers", "loss above float32"):
        assert f"<!-- {text}" in drawn
