"""What runs inside the emulator: every case of a job, and one file of what came out.

Stand-alone: it is started by path under the guest's own Python, with NumPy and ONNX Runtime beside it,
and knows a bundle by its ``bundle.json`` alone. ``python guest.py JOB.json``; the job says

``packages``
    folders to import from,
``library``
    path of a libonnxruntime to call through its C interface, or null for the package ``onnxruntime``,
``output``
    the .npz to write,
``cases``
    a list of ``name``, ``bundle`` (its folder), ``options`` (session configuration entries), ``runs``
    (each a ``name``, ``tokens`` and the ``sizes`` of the chunks to feed them in), ``score`` (tokens for
    the scoring graph, or null) and, where the bundle's blocks may stand idle, ``blocks`` (those that run).

or, to run a program as on a device, ``module`` and its ``arguments`` in place of ``library`` and ``cases``.

The file holds ``CASE/RUN`` [chunks, V] float32, the last logits of each chunk; ``CASE/score/HEAD``; and
``report``, JSON as a string. Of a module it is JSON: ``status``, ``said`` and ``peak``. Before a case its
name goes to standard output, so that a crash can be placed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import runpy
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CASE_MARK", "MISSING", "RAN", "REFUSED", "TAMPERED", "main"]

CASE_MARK = "case: "
"""What a line of standard output starts with that names the case about to run."""

MISSING = 64
"""Exit status where a package cannot be imported."""

RAN, REFUSED, TAMPERED = "ran", "refused", "tampered"
"""What became of a case: it ran, the runtime refused to load or compute it, or its sums differ."""

_KEPT = "logits_kept"
_CACHED = {True: "cached_global", False: "cached_local"}


class TamperedError(Exception):
    """A file of the bundle is not what its sums say."""


def main(job: dict[str, Any]) -> None:
    """Run a job and write its results."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[:0] = job["packages"]
    try:
        if "module" in job:
            _run_module(job)
        else:
            _run_cases(job)
    except ImportError as error:
        print(f"cannot be imported in the guest: {error}", file=sys.stderr)  # noqa: T201 - no logging here
        sys.exit(MISSING)


def _run_module(job: dict[str, Any]) -> None:
    """Run a program as its command line would, and keep what it says."""
    print(CASE_MARK + job["module"], flush=True)  # noqa: T201 - the host reads it
    sys.argv[1:], status, said = job["arguments"], 0, io.StringIO()
    try:
        with redirect_stdout(said):
            runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    result = {"status": status, "said": said.getvalue(), "peak": peak_memory()}
    Path(job["output"]).write_text(json.dumps(result), encoding="utf-8")


def _run_cases(job: dict[str, Any]) -> None:
    """Run every case.

    Raises:
        ImportError: there is no NumPy, or no ONNX Runtime.
    """
    import numpy as np  # noqa: PLC0415 - where the job says

    opener = _opener(job["library"])
    arrays: dict[str, NDArray[Any]] = {}
    cases = [_attempt(case, opener, arrays) for case in job["cases"]]
    report = {
        "runtime": opener.version,
        "python": sys.version.split()[0],
        "features": _features(),
        "peak": peak_memory(),
        "cases": cases,
    }
    output = Path(job["output"])
    beside = output.with_name(f".{output.name}")
    with beside.open("wb") as file:
        np.savez(file, report=np.array(json.dumps(report)), **arrays)  # type: ignore[arg-type]
    beside.replace(output)


def peak_memory() -> int:
    """Peak resident bytes of this process, the emulator's own among them."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def _features() -> list[str]:
    """Names of the instruction sets that the processor says it has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].split() for line in lines if line.startswith("Features")), [])


class _Package:
    """Sessions of the package ``onnxruntime``."""

    def __init__(self) -> None:
        import onnxruntime  # noqa: PLC0415 - found only now

        self._ort = onnxruntime
        self.version: str = onnxruntime.__version__

    def open(self, path: Path, entries: dict[str, str]) -> Any:  # noqa: ANN401 - it has no types
        options = self._ort.SessionOptions()
        # One guest per core of the host: threads within an operator would only compete.
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        for name, value in entries.items():
            options.add_session_config_entry(name, value)
        return self._ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _opener(library: str | None) -> Any:  # noqa: ANN401 - one of two kinds of sessions
    if library is None:
        return _Package()
    # Beside this file, which is not imported as part of a package.
    sys.path.insert(0, str(Path(__file__).parent))
    from capi import Library  # type: ignore[import-not-found]  # noqa: PLC0415

    try:
        return Library(Path(library))
    except OSError as error:
        raise ImportError(str(error)) from error


def _attempt(case: dict[str, Any], opener: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:  # noqa: ANN401
    """Run one case; what it raises is its result."""
    print(CASE_MARK + case["name"], flush=True)  # noqa: T201 - the host reads it
    started = time.monotonic()
    state, error = RAN, None
    try:
        for name, array in _run(case, opener).items():
            arrays[f"{case['name']}/{name}"] = array
    except TamperedError as fault:
        state, error = TAMPERED, str(fault)
    except Exception as fault:  # noqa: BLE001 - whatever the runtime raises, the next case may run
        state, error = REFUSED, f"{type(fault).__name__}: {fault}"
    return {
        "case": case["name"],
        "state": state,
        "error": error,
        "seconds": round(time.monotonic() - started, 2),
        "peak": peak_memory(),
    }


def _run(case: dict[str, Any], opener: Any) -> dict[str, NDArray[Any]]:  # noqa: ANN401
    """Arrays that a case gives, by run."""
    import numpy as np  # noqa: PLC0415

    folder = Path(case["bundle"])
    _check_sums(folder)
    description = json.loads((folder / "bundle.json").read_text("utf-8"))
    graphs, blocks = description["graphs"], case.get("blocks")
    session = opener.open(folder / graphs["decode"]["file"], case["options"])
    chosen, contract = {}, graphs["decode"]["states"]
    if blocks is not None:
        elastic = description["elastic"]
        chosen = {elastic["input"]: np.isin(np.arange(elastic["blocks"]), blocks)}
        contract = [_running(state, blocks) for state in contract]
    found = {run["name"]: _feed(session, contract, run, chosen) for run in case["runs"]}
    if case["score"] is not None and "score" in graphs:
        score, heads = (
            opener.open(folder / graphs["score"]["file"], case["options"]),
            graphs["score"]["outputs"],
        )
        outputs = score.run(heads, {"input_ids": np.array([case["score"]], np.int64), **chosen})
        found |= {f"score/{head}": output for head, output in zip(heads, outputs, strict=True)}
    return found


def _check_sums(folder: Path) -> None:
    for line in (folder / "SHA256SUMS").read_text("utf-8").splitlines():
        digest, _, name = line.partition("  ")
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                message = f"{name}: differs from SHA256SUMS"
                raise TamperedError(message)


def _running(state: dict[str, Any], blocks: list[int]) -> dict[str, Any]:
    """A state where so many blocks run; one of an idle block grows by nothing."""
    shape = list(state["shape"])
    if state["rows"] is not None:
        shape[state["rows"]] = len(blocks) + 1
    idle = state["block"] is not None and state["block"] not in blocks
    return {**state, "shape": shape, "grows": None if idle else state["grows"]}


def _feed(
    session: Any,  # noqa: ANN401
    contract: list[dict[str, Any]],
    run: dict[str, Any],
    chosen: dict[str, NDArray[np.bool_]],
) -> NDArray[np.float32]:
    """Feed a run's tokens chunk by chunk, states carried along; the last logits of each chunk."""
    import numpy as np  # noqa: PLC0415

    inputs = {value.name for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    states = {s["past"]: np.full(s["shape"], s.get("fill", 0), s["dtype"]) for s in contract}
    logits, done = [], 0
    for size in run["sizes"]:
        feeds = {
            "input_ids": np.array([run["tokens"][done : done + size]], np.int64),
            "position": np.array([done], np.int64),
            **chosen,
        }
        if _KEPT in inputs:
            feeds[_KEPT] = np.ones(1, np.int64)
        for state in contract:
            if state["grows"] is not None and (name := _CACHED[state["window"] == 0]) in inputs:
                feeds[name] = np.array([states[state["past"]].shape[state["grows"]]], np.int64)
        present = dict(zip(outputs, session.run(outputs, feeds | states), strict=True))
        logits.append(present["logits"][0, -1])
        states = {state["past"]: _trim(state, present[state["present"]]) for state in contract}
        done += size
    return np.stack(logits)


def _trim(state: dict[str, Any], value: NDArray[Any]) -> NDArray[Any]:
    """Cut a windowed cache to what the next token sees besides itself."""
    if state["grows"] is None or not state["window"]:
        return value
    extent = value.shape[state["grows"]]
    return value.take(range(max(0, extent - state["window"] + 1), extent), axis=state["grows"])


if __name__ == "__main__":
    # Threads of NumPy's own would only take memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
