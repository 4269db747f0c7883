"""The device's own program answers a command, and takes no more memory than its profile allows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from golden.pocket.data import Example
from golden.pocket.evaluate import held_out
from targets import Target
from targets.emulation import ARM64, EmulationError
from targets.emulation.emulator import RESIDENT
from tests.emulated.campaign import SCRIPT, Campaign, pinned, wheels
from tests.emulated.cases import Case
from tests.emulated.plan import Choice
from tests.emulated.table import FAILED, PASSED, Row

pytestmark = pytest.mark.emulated

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = 900


@dataclass(frozen=True)
class Said:
    """What the program left."""

    status: int
    answer: dict[str, Any]
    peak: int = 0

    @property
    def calls(self) -> object:
        """The calls that it answered with."""
        return self.answer.get("calls")


class Answers:
    """Guests that answered, one for all profiles that would ask the same of the same core."""

    def __init__(self, campaign: Campaign, device: Path, command: Example, folder: Path) -> None:
        """Ask nothing yet."""
        self._campaign, self._device, self._folder = campaign, device, folder
        self._command = command
        self._known: dict[object, tuple[Said, Said]] = {}

    def ask(self, target: Target, case: Case) -> tuple[Said, Said]:
        """What the program says in the guest, and what it says here.

        Raises:
            EmulationError: the guest did not get to its end.
        """
        cpu, runtime = target.cpus[0].name, target.onnxruntime.tested
        key = (cpu, runtime, case.depth, case.precision, target.precision.quantisation(case.precision))
        if key not in self._known:
            words = self._words(self._campaign.bundle(case))
            self._known[key] = self._inside(cpu, runtime, words), self._here(words)
        return self._known[key]

    def _words(self, bundle: Path) -> list[str]:
        tools = self._folder / "tools.json"
        tools.write_text(json.dumps(self._command.tools), encoding="utf-8")
        options = ["--json", "--no-constrain", "--max-tokens", "64", "--threads", "1"]
        return [str(bundle), self._command.query, "--tools", str(tools), *options]

    def _inside(self, cpu: str, runtime: str, words: list[str]) -> Said:
        projects = wheels(ARM64, runtime) | {"tokenizers": pinned("tokenizers")}
        guest = self._campaign.bed.guest(ARM64, projects)
        job, output = self._folder / "job.json", self._folder / "answer.json"
        packages = [*map(str, guest.packages), str(self._device)]
        text = {"packages": packages, "module": "runtime_py", "arguments": words, "output": str(output)}
        job.write_text(json.dumps(text), encoding="utf-8")
        guest.run(cpu, SCRIPT, job, timeout=_TIMEOUT, lean=True)
        found = json.loads(output.read_text(encoding="utf-8"))
        return Said(found["status"], json.loads(found["said"] or "{}"), found["peak"] - RESIDENT)

    def _here(self, words: list[str]) -> Said:
        done = subprocess.run(  # noqa: S603 - the project's own program
            [sys.executable, "-m", "runtime_py", *words],
            env={**os.environ, "PYTHONPATH": str(self._device)},
            cwd=self._device,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return Said(done.returncode, json.loads(done.stdout))


@pytest.fixture(scope="module")
def answers(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Asks the first held-out command that one call answers, of the device's program and nothing else."""
    command = next(example for example in held_out(64) if len(example.calls) == 1)
    folder = tmp_path_factory.mktemp("answers")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(_ROOT / "runtime_py", folder / "device" / "runtime_py", ignore=ignored)
    return Answers(campaign, folder / "device", command, folder)


def test_it_answers_as_here_within_its_memory(
    target: Target, choice: Choice, answers: Answers, rows: list[Row]
) -> None:
    depth, precision = max(choice.depths or target.depths), target.precision.default
    name = f"pocket-d{depth}-{precision}-{target.name}"
    cpu, runtime, title = target.cpus[0].name, target.onnxruntime.tested, f"answer, {name}"
    try:
        said, expected = answers.ask(target, Case("pocket", depth, precision, target.name, name))
    except EmulationError as error:
        rows.append(Row(cpu, runtime, title, error.state, note=str(error)))
        raise
    budget = target.budget.memory if target.budget else None
    same = (said.status, said.calls) == (expected.status, expected.calls)
    fits = budget is None or said.peak <= budget
    note = "" if same else f"called {said.calls}, and here {expected.calls}"
    state = PASSED if same and fits else FAILED
    rows.append(Row(cpu, runtime, title, state, peak=said.peak, peak_bound=budget, note=note))
    assert same, note
    assert fits, f"{said.peak} bytes, and {target.name} allows {budget}"
