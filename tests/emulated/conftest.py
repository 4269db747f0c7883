"""Options of the emulated runs, the test bed, and the table at the end."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from targets.emulation import ARM64, Bed, BedError, Guest
from tests.emulated.campaign import Campaign, pinned
from tests.emulated.plan import Choice, GuestPlan, guests, targets_of
from tests.emulated.table import Row, as_lines, write

_ROOT = Path(__file__).resolve().parents[2]
_ROWS = pytest.StashKey[list[Row]]()
_PLANS = pytest.StashKey[list[GuestPlan]]()
_NO_BED = 10
"""Exit status where the test bed could not be made."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("emulated", "emulated Arm cores")
    bed = os.environ.get("EMULATION_BED", str(_ROOT / ".nox" / "emulation"))
    group.addoption(
        "--test-bed", default=bed, help="folder of the test bed (default: $EMULATION_BED or %(default)s)"
    )
    group.addoption("--results", default=str(_ROOT / ".nox" / "emulated"), help="folder for the table")
    group.addoption("--machine", default=ARM64.name, help="arm64 or armv7")
    group.addoption("--target", action="append", default=[], help="profile; all of them by default")
    group.addoption("--cpu", action="append", default=[], help="core; all of the profiles' by default")
    group.addoption("--depth", action="append", type=int, default=[], help="the profiles' by default")
    group.addoption("--precision", action="append", default=[], help="all of the profiles' by default")
    group.addoption(
        "--runtime", action="append", default=[], help="version, floor or tested; both by default"
    )
    group.addoption(
        "--guests", type=int, default=os.cpu_count() or 1, help="at once; one per core by default"
    )
    group.addoption("--guest-timeout", type=float, default=3600.0, help="seconds of one guest")


def choice_of(config: pytest.Config) -> Choice:
    """What the options choose; everything where this folder's options were not even read."""

    def given(name: str) -> list[str]:
        return list(config.getoption(name, default=None) or [])

    return Choice(
        machine=str(config.getoption("--machine", default=ARM64.name)),
        targets=given("--target"),
        cpus=given("--cpu"),
        depths=[int(depth) for depth in given("--depth")],
        precisions=given("--precision"),
        runtimes=given("--runtime"),
    )


def plans_of(config: pytest.Config) -> list[GuestPlan]:
    """The guests that the options choose."""
    if _PLANS not in config.stash:
        config.stash[_PLANS] = guests(choice_of(config))
    return config.stash[_PLANS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        choice = choice_of(metafunc.config)
        found = [t for t in targets_of(choice) if not choice.cpus or t.cpus[0].name in choice.cpus]
        metafunc.parametrize("target", found, ids=[target.name for target in found])
    if "plan" not in metafunc.fixturenames:
        return
    plans = plans_of(metafunc.config)
    if "case" in metafunc.fixturenames:
        pairs = [(plan, case) for plan in plans for case in plan.cases]
        metafunc.parametrize(("plan", "case"), pairs, ids=[f"{p.name}-{c.name}" for p, c in pairs])
    else:
        metafunc.parametrize("plan", plans, ids=[plan.name for plan in plans])


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[Row]:
    """The table so far."""
    return pytestconfig.stash.setdefault(_ROWS, [])


@pytest.fixture(scope="session")
def choice(pytestconfig: pytest.Config) -> Choice:
    """What the options choose."""
    return choice_of(pytestconfig)


@pytest.fixture(scope="session")
def bed(pytestconfig: pytest.Config) -> Bed:
    """The test bed, perhaps still empty."""
    return Bed(Path(pytestconfig.getoption("--test-bed")).absolute())


@pytest.fixture(scope="session")
def guest(bed: Bed) -> Guest:
    """A 64-bit guest with the NumPy and ONNX Runtime of the constraints."""
    return bed.guest(ARM64, {"numpy": pinned("numpy"), "onnxruntime": pinned("onnxruntime")})


@pytest.fixture(scope="session")
def campaign(
    pytestconfig: pytest.Config, bed: Bed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    """The guests that the options choose, started."""
    folder = tmp_path_factory.mktemp("emulated")
    workers, timeout = pytestconfig.getoption("--guests"), pytestconfig.getoption("--guest-timeout")
    made = Campaign(bed, folder, workers, timeout)
    try:
        made.start(plans_of(pytestconfig))
    except BedError as error:
        # Every test would only say the same.
        pytest.exit(str(error), returncode=_NO_BED)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_ROWS, [])
    if not found:
        return
    terminalreporter.section("emulated Arm cores")
    for line in as_lines(found):
        terminalreporter.write_line(line)
    about = {
        "host": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "arguments": " ".join(sys.argv[1:]),
    }
    for path in write(found, about, Path(config.getoption("--results"))):
        terminalreporter.write_line(str(path))
