"""A damaged graph must fail: what the emulated runs are known to be able to see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from targets.emulation import ARM64, Guest
from targets.emulation.guest import TAMPERED
from tests.emulated.campaign import CORES, Found, judge, pinned, run_on_cores
from tests.emulated.cases import Case, bundle_of, job_entry
from tests.emulated.damages import DAMAGES, damaged_copy
from tests.emulated.plan import GuestPlan
from tests.emulated.table import FAILED, PASSED, Row

pytestmark = pytest.mark.emulated

INTACT, FLIPPED = "intact", "a byte flipped"
_TIMEOUT = 600


def _case(precision: str, condition: str) -> Case:
    return Case("tiny", 6, precision, "rpi5", f"tiny-d6-{precision}, {condition}")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Path]:
    """A bundle of either kind of arithmetic, intact and in every way damaged."""
    folder, made = tmp_path_factory.mktemp("damaged"), {}
    for precision in ("fp32", "int4"):
        bundle = made[_case(precision, INTACT)] = bundle_of(_case(precision, INTACT), folder)
        for condition, damage in DAMAGES.items():
            case = _case(precision, condition)
            made[case] = damaged_copy(bundle, folder / case.name, damage)
    flipped = _case("fp32", FLIPPED)
    made[flipped] = damaged_copy(made[_case("fp32", INTACT)], folder / flipped.name, lambda _: None)
    weights = made[flipped] / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    return made


@pytest.fixture(scope="module")
def found(
    bundles: Mapping[Case, Path], guest: Guest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Found]:
    """What a guest per core left."""
    entries = [job_entry(case, bundle) for case, bundle in bundles.items()]
    return run_on_cores(guest, entries, tmp_path_factory.mktemp("damaged-guests"), timeout=_TIMEOUT)


def verdict(core: str, case: Case, found: Mapping[str, Found]) -> Row:
    return judge(GuestPlan(ARM64, CORES[core], pinned("onnxruntime")), case, found[core])


@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("core", CORES)
def test_the_intact_bundle_passes(core: str, precision: str, found: Mapping[str, Found]) -> None:
    row = verdict(core, _case(precision, INTACT), found)
    assert row.state == PASSED, row.note


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("core", CORES)
def test_a_damage_with_matching_sums_fails(
    core: str, precision: str, damage: str, found: Mapping[str, Found]
) -> None:
    row = verdict(core, _case(precision, damage), found)
    assert row.state == FAILED, f"{damage} went unseen: {row}"


@pytest.mark.parametrize("core", CORES)
def test_a_flipped_byte_is_seen_before_anything_is_computed(core: str, found: Mapping[str, Found]) -> None:
    row = verdict(core, _case("fp32", FLIPPED), found)
    assert row.state == TAMPERED
    assert "weights.bin" in row.note
