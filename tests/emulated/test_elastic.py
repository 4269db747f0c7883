"""A graph whose blocks may stand idle, on emulated cores: each set of blocks is the slice that it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from exporter.checkpoint import Checkpoint
from exporter.compare import Comparison, compare
from exporter.export import Export, export, load_target, scheme_of
from exporter.ladder import Array, keep_blocks, plan_slice
from exporter.precision import StoredLadder, plan_precision
from golden.cases import oracle
from golden.reference import live
from targets import CpuClass
from targets.emulation import Guest
from targets.emulation.guest import RAN
from tests.emulated.bounds import head_bound, stored_bound
from tests.emulated.campaign import CORES, Found, heads_differ, run_on_cores
from tests.emulated.cases import Case, ends_of, job_entry, tokens_of

pytestmark = pytest.mark.emulated

_TARGET, _TIMEOUT = "rpi5", 1200
_PRECISIONS = ("fp32", "int4")
_LADDER = Checkpoint(oracle("tiny").checkpoint)
_DEPTHS = (2, 7, _LADDER.config.num_layers)
SETS = {
    **{f"d{depth}": plan_slice(_LADDER.config, depth).blocks for depth in _DEPTHS},
    "no rung": (0, 3, 4, 11, _LADDER.config.num_layers - 1),
}
"""Blocks that run, by name."""


def _case(precision: str, name: str) -> Case:
    return Case("tiny", len(SETS[name]), precision, _TARGET, f"elastic-{precision}, {name}")


@lru_cache(maxsize=16)
def reference(precision: str, blocks: Sequence[int]) -> live.Outputs:
    """What the reference says of a slice on the weights as stored."""
    kept = keep_blocks(_LADDER, blocks)
    plan = plan_precision(kept.config, kept.layout, scheme_of(load_target(_TARGET), precision))
    return live.run(StoredLadder(kept, plan), tokens_of(_case(precision, "d2")))


@pytest.fixture(scope="module")
def found(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What a guest per core left: every set of blocks of one bundle per precision."""
    folder, entries = tmp_path_factory.mktemp("elastic-guests"), []
    for precision in _PRECISIONS:
        request = Export(
            checkpoint=oracle("tiny").checkpoint,
            elastic=True,
            target=_TARGET,
            precision=precision,
            output=folder / precision,
        )
        bundle: Path = export(request).path
        for name, blocks in SETS.items():
            entries.append({**job_entry(_case(precision, name), bundle), "blocks": list(blocks)})
    return run_on_cores(guest, entries, folder, timeout=_TIMEOUT)


def comparisons(cpu: CpuClass, case: Case, found: Found, logits: Array) -> list[Comparison]:
    """Each way to run beside the logits [T, V] of a slice."""
    assert found.case(case.name)["state"] == RAN, found.case(case.name)["error"]
    bound = stored_bound(cpu, case.precision)
    return [
        compare(found.arrays[f"{case.name}/{way}"], logits[numbers], bound)
        for way, numbers in ends_of(len(tokens_of(case))).items()
    ]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("precision", _PRECISIONS)
@pytest.mark.parametrize("core", CORES)
def test_the_blocks_that_run_are_the_slice(
    core: str, precision: str, name: str, found: Mapping[str, Found]
) -> None:
    cpu, case, expected = CORES[core], _case(precision, name), reference(precision, SETS[name])
    bound = stored_bound(cpu, precision)
    for comparison in comparisons(cpu, case, found[core], expected.logits):
        assert comparison.within(bound), comparison
    assert heads_differ(case, found[core], expected.heads) <= head_bound(cpu, precision)


@pytest.mark.parametrize("precision", _PRECISIONS)
@pytest.mark.parametrize("core", CORES)
def test_one_block_more_or_less_is_seen(core: str, precision: str, found: Mapping[str, Found]) -> None:
    cpu, blocks = CORES[core], SETS["d7"]
    bound, case = stored_bound(cpu, precision), _case(precision, "d7")
    for other in (plan_slice(_LADDER.config, 6).blocks, plan_slice(_LADDER.config, 8).blocks):
        assert len(set(other) ^ set(blocks)) == 1
        logits = reference(precision, other).logits
        assert not any(c.within(bound) for c in comparisons(cpu, case, found[core], logits))
