"""Every golden case under every core and ONNX Runtime that the profiles name."""

from __future__ import annotations

import pytest

from targets.emulation import EmulationError
from tests.emulated.campaign import Campaign, judge
from tests.emulated.cases import Case
from tests.emulated.plan import GuestPlan
from tests.emulated.table import NOT_EXPORTED, PASSED, Row

pytestmark = pytest.mark.emulated


def test_the_core_has_what_its_profile_says(plan: GuestPlan, campaign: Campaign) -> None:
    features = set(campaign.found(plan).report["features"])
    found = ["asimddp" in features, "i8mm" in features, "asimdhp" in features]
    assert found == [plan.cpu.dotprod, plan.cpu.i8mm, plan.cpu.fp16]


def test_the_guest_runs_the_version_that_is_asked_for(plan: GuestPlan, campaign: Campaign) -> None:
    assert campaign.found(plan).report["runtime"] == plan.runtime


def test_a_case_keeps_the_bounds_of_its_core(
    plan: GuestPlan, case: Case, campaign: Campaign, rows: list[Row]
) -> None:
    if refusal := campaign.refused.get(case):
        rows.append(Row(plan.cpu.name, plan.runtime, case.name, NOT_EXPORTED, note=str(refusal)))
        pytest.fail(str(refusal), pytrace=False)
    try:
        row = judge(plan, case, campaign.found(plan))
    except EmulationError as error:
        rows.append(Row(plan.cpu.name, plan.runtime, case.name, error.state, note=str(error)))
        pytest.fail(str(error), pytrace=False)
    rows.append(row)
    assert row.state == PASSED, row.note
