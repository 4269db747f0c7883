"""The workflows of public forges do what nox does, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import targets

HERE = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((HERE / ".github" / "workflows").glob("*.yml"))
ALLOWED = [
    r"python -m pip install -c constraints\.txt nox",
    r"\$NOX --session \"?\$\{\{ matrix\.session \}\}\"?( -- --offline)?",
]


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def sessions(*names: str) -> list[dict[str, Any]]:
    """What nox would run, as the workflows ask it; it fails where there is no such session."""
    pytest.importorskip("nox")
    words = [sys.executable, "-m", "nox", "--list", "--json", "--session", *names]
    ran = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=True)  # noqa: S603
    listed: list[dict[str, Any]] = json.loads(ran.stdout)
    return listed


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_step_is_a_session(path: Path) -> None:
    for name, job in jobs(path).items():
        for step in job["steps"]:
            if "run" in step and name != "plan":
                assert any(re.fullmatch(words, step["run"].strip()) for words in ALLOWED), step["run"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_sessions_that_are_named_exist(path: Path) -> None:
    for job in jobs(path).values():
        named = job.get("strategy", {}).get("matrix", {}).get("session", [])
        if named:
            assert {session["session"] for session in sessions(*named)} >= set(named)


def test_each_profile_has_a_session_that_writes_its_artifact() -> None:
    found = [session for session in sessions("bundles") if session["name"] == "bundles"]
    assert sorted(session["call_spec"]["target"] for session in found) == list(targets.names())


def test_the_matrix_is_asked_of_nox() -> None:
    (ci,) = WORKFLOWS
    plan = jobs(ci)["plan"]
    script = plan["steps"][-1]["run"]
    assert "$NOX --list --json" in script
    for name in plan["outputs"]:
        assert name in script
        assert (
            jobs(ci)[name]["strategy"]["matrix"]["include"]
            == f"${{{{ fromJSON(needs.plan.outputs.{name}) }}}}"
        )
