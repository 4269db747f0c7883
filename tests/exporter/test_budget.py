"""Budgets that act: what fits, what does not, and what is offered instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from click.testing import Result

from exporter.budget import Fitting, Quantising, scheme_for
from exporter.errors import BudgetError, DepthError, PrecisionError
from exporter.export import Export, export
from exporter.footprint import Footprint
from exporter.forms import Form, Shared, Static
from exporter.ladder import keep_blocks, plan_slice, slice_ladder
from exporter.precision import plan_precision
from golden.synthetic import SyntheticLadder
from targets import Budget, Target, load
from tests.helpers import geometry
from tests.targets.documents import Document, document_of, toml

MIB = 1 << 20
TOP = 5
LADDER = SyntheticLadder(geometry(vocab_size=4096, d_model=128, num_layers=TOP, engram_slots=8192))


def with_budget(**budget: int) -> Target:
    return replace(load("rpi4"), budget=Budget(**budget))


@lru_cache
def cost(depth: int, precision: str = "int4") -> int:
    """Bytes of memory that a depth takes with a context of 64."""
    return Fitting(LADDER, with_budget(context=64)).footprint(depth, precision).memory.total


def require(fitting: Fitting, depth: int, precision: str) -> Footprint:
    return require_form(fitting, Static(slice_ladder(LADDER, depth)), precision)


def require_form(fitting: Fitting, form: Form, precision: str) -> Footprint:
    scheme = scheme_for(fitting.target, precision)
    return fitting.require(form, plan_precision(form.ladder.config, form.ladder.layout, scheme))


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Path]:
    """Write a profile with a budget, and return its path."""

    def write(**budget: object) -> Path:
        path = tmp_path / "mine.toml"
        document: Document = document_of("rpi4") | {"budget": budget}
        path.write_text(toml(document), encoding="utf-8")
        return path

    return write


def test_what_fits_exactly_is_taken() -> None:
    fitting = Fitting(LADDER, with_budget(memory=cost(4), context=64))
    assert require(fitting, 4, "int4").memory.total == cost(4)


def test_a_byte_too_many_is_refused_with_what_would_fit() -> None:
    fitting = Fitting(LADDER, with_budget(memory=cost(4) - 1, context=64))
    with pytest.raises(BudgetError) as caught:
        require(fitting, 4, "int4")
    message = str(caught.value)
    assert "depth 4 in int4 does not fit target 'rpi4'" in message
    assert f"{cost(4) / MIB:.1f} MiB of memory, 0.0 more than" in message
    assert "What fits: --depth 3 (or less) in int4." in message
    assert require(fitting, 3, "int4").storage


def test_by_how_much_is_said_of_storage_and_memory() -> None:
    found = Fitting(LADDER, with_budget()).footprint(TOP, "fp32")
    budget = {"storage": found.storage - 2 * MIB, "memory": found.memory.total - 3 * MIB}
    with pytest.raises(BudgetError) as caught:
        require(Fitting(LADDER, with_budget(**budget)), TOP, "fp32")
    over = re.findall(r"of (\w+), ([\d.]+) more than", str(caught.value))
    assert over == [("storage", "2.0"), ("memory", "3.0")]


def test_the_widest_narrower_precision_that_fits_is_offered() -> None:
    fitting = Fitting(LADDER, with_budget(memory=cost(TOP, "int8"), context=64))
    with pytest.raises(BudgetError, match=r"--precision int8 at depth 5\.$") as caught:
        require(fitting, TOP, "fp32")
    assert require(fitting, TOP, "int8").storage
    offered = re.search(r"--depth (\d+) \(or less\) in fp32", str(caught.value))
    if offered:
        assert require(fitting, int(offered[1]), "fp32").storage


def test_a_shallower_depth_of_a_narrower_precision_is_offered_where_neither_alone_helps() -> None:
    smallest = Fitting(LADDER, with_budget()).footprint(2, "int4").storage
    fitting = Fitting(LADDER, with_budget(storage=smallest))
    with pytest.raises(BudgetError, match=r"What fits: --depth 2 \(or less\) in int4\."):
        require(fitting, TOP, "fp32")


def test_a_set_of_blocks_is_taken_for_itself_and_not_for_the_rung_of_its_depth() -> None:
    sites = LADDER.config.engram_layers
    chosen = tuple(sorted({0, TOP - 1, *sites[:1]}))
    rung = plan_slice(LADDER.config, len(chosen)).blocks
    assert len(set(rung) & set(sites)) < len(set(chosen) & set(sites))
    form, fitting = Static(keep_blocks(LADDER, chosen)), Fitting(LADDER, with_budget(context=64))
    table = require_form(fitting, form, "int4").storage - require(fitting, len(chosen), "int4").storage
    assert table > LADDER.layout["engrams_0/embedding"].size // 2
    storage = fitting.footprint(len(chosen), "int4").storage
    with pytest.raises(BudgetError, match=re.escape(f"blocks {','.join(map(str, chosen))} in int4 does not")):
        require_form(Fitting(LADDER, with_budget(storage=storage)), form, "int4")


def test_rungs_over_shared_weights_take_storage() -> None:
    deepest, fitting = slice_ladder(LADDER, TOP), Fitting(LADDER, with_budget(context=64))
    form = Shared(deepest, (slice_ladder(deepest, 2),))
    shared, alone = require_form(fitting, form, "int4"), require(fitting, TOP, "int4")
    assert shared.storage > alone.storage
    assert shared.memory == alone.memory
    with pytest.raises(BudgetError, match=r"depths 2, 5 in int4 does not fit .* What fits: --depth 5 "):
        require_form(Fitting(LADDER, with_budget(storage=alone.storage)), form, "int4")


def test_where_nothing_fits_another_target_is_named_as_the_way_out() -> None:
    fitting = Fitting(LADDER, with_budget(memory=MIB))
    with pytest.raises(BudgetError, match="No depth of this ladder fits it in any precision that it takes"):
        require(fitting, TOP, "fp32")
    with pytest.raises(BudgetError, match="depth 2 in int4 does not fit"):
        fitting.deepest("int4")


@pytest.mark.parametrize("depth", range(2, TOP + 1))
def test_the_deepest_rung_that_fits_is_found(depth: int) -> None:
    fitting = Fitting(LADDER, with_budget(memory=cost(depth), context=64))
    assert fitting.deepest("int4") == depth


def test_without_a_budget_everything_fits() -> None:
    fitting = Fitting(LADDER, load("host"))
    assert fitting.deepest("fp32") == TOP
    assert require(fitting, TOP, "fp32").context == LADDER.config.max_seq_len


def test_a_depth_beside_the_ladder_is_refused_as_such() -> None:
    with pytest.raises(DepthError):
        require(Fitting(LADDER, load("host")), TOP + 1, "fp32")


def test_a_precision_is_laid_out_as_the_target_asks() -> None:
    assert scheme_for(load("rpi4"), "int4").block == 32
    assert scheme_for(load("rpi4"), "fp32").block == 0


def test_an_export_that_cannot_fit_leaves_nothing(
    tmp_path: Path, checkpoint: Path, profile: Callable[..., Path], run: Callable[..., Result]
) -> None:
    output = tmp_path / "out"
    arguments = ["--checkpoint", checkpoint, "--depth", 3, "--target", profile(memory="16 MiB")]
    result = run(*arguments, "--output", output)
    assert result.exit_code == 11
    assert "error: depth 3 in int4 does not fit target 'rpi4'" in result.stderr
    assert not output.exists()


def test_auto_takes_the_deepest_and_says_what_it_costs(
    tmp_path: Path, checkpoint: Path, profile: Callable[..., Path], run: Callable[..., Result]
) -> None:
    arguments = ["--checkpoint", checkpoint, "--depth", "auto", "--target", profile(memory="512 MiB")]
    result = run(*arguments, "--output", tmp_path)
    assert result.exit_code == 0, result.stderr
    folder = Path(result.stdout.strip())
    assert folder.name == "small-d5-rpi4-int4"
    costs = json.loads((folder / "bundle.json").read_text("utf-8"))["footprint"]
    assert f"about {costs['memory']['total'] / MIB:.0f} MiB of memory with {costs['context']} tokens" in (
        result.stderr
    )


def test_a_depth_is_a_number_or_auto(checkpoint: Path, run: Callable[..., Result]) -> None:
    result = run("--checkpoint", checkpoint, "--depth", "deep")
    assert result.exit_code == 2
    assert "'deep' is not a valid integer" in result.stderr


def test_the_budget_of_a_target_is_shown(run: Callable[..., Result]) -> None:
    shown = run("targets", "wearos").stdout
    assert "64 MiB of storage, 198 MiB of memory, 1024 tokens" in shown
    assert "budget" not in run("targets", "host").stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["android", "rpi-zero2w", "rpi4", "rpi5", "wearos", "wearos-32"])
def test_the_shipped_ladder_fits_every_device_at_full_depth(name: str) -> None:
    from exporter.checkpoint import Checkpoint  # noqa: PLC0415
    from exporter.export import SHIPPED  # noqa: PLC0415

    target = load(name)
    shipped = Checkpoint(SHIPPED)
    assert Fitting(shipped, target).deepest(target.precision.default) == shipped.config.num_layers


def test_an_export_says_what_it_found(tmp_path: Path, checkpoint: Path) -> None:
    result = export(Export(checkpoint=checkpoint, depth=2, target="wearos", output=tmp_path))
    assert result.footprint.context == 128
    assert 0 < result.footprint.memory.total < 198 * MIB


def test_the_user_decides_over_the_target() -> None:
    scheme = scheme_for(load("rpi4"), "int4", Quantising("rtn", 128, zero_points=True))
    assert (scheme.quantiser, scheme.block, scheme.zero_points) == ("rtn", 128, True)
    kept = scheme_for(load("rpi4"), "int4", Quantising(zero_points=True))
    assert (kept.quantiser, kept.block) == ("search", 32)


@pytest.mark.parametrize(
    ("precision", "wanted", "said"),
    [
        ("fp16", Quantising(block=32), "fp16 quantises nothing"),
        ("int4", Quantising("hqq"), "quantiser 'hqq' is unknown: choose rtn, search"),
        ("int4", Quantising(block=48), "block 48 has no kernel: choose 16, 32, 64, 128, 256"),
    ],
)
def test_what_cannot_be_quantised_so_is_refused(precision: str, wanted: Quantising, said: str) -> None:
    with pytest.raises(PrecisionError, match=re.escape(said)):
        scheme_for(load("rpi4"), precision, wanted)


def test_a_finer_block_is_paid_for() -> None:
    fine, coarse = (
        Fitting(LADDER, with_budget(context=64), quantising=Quantising(block=block)).footprint(TOP, "int4")
        for block in (16, 128)
    )
    assert fine.storage > coarse.storage
