"""One export, from a checkpoint to a bundle that was run and compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal

from exporter.artifacts.aar import write_aar
from exporter.budget import AS_PLANNED, Fitting, Quantising, scheme_for
from exporter.bundle import RUNTIME, archive_name, describe, pack, publish, staging, write_sums
from exporter.checkpoint import Checkpoint
from exporter.config import LadderConfig
from exporter.errors import (
    BudgetError,
    PrecisionError,
    ReferenceUnavailableError,
    RequestError,
    TargetError,
    TokenizerError,
)
from exporter.footprint import Footprint
from exporter.forms import WEIGHTS, Elastic, Form, Shared, Static, write_slice
from exporter.graph import Rows
from exporter.graph.builder import IR_VERSION, OPSET
from exporter.graph.constants import constant_bytes
from exporter.ladder import Ladder, fingerprint, keep_blocks, slice_ladder
from exporter.layout import heads_in
from exporter.lora import fold
from exporter.mixed import mixed_plan
from exporter.planning import Planning
from exporter.precision import MIXED, PRECISIONS, RECOVERED, PrecisionPlan, Scheme, plan_precision
from exporter.quality import stored
from exporter.recovered import recovered_beside
from exporter.verify import Report, has_reference
from exporter.weights import WeightFile
from targets import ProfileError, Target, load

__all__ = [
    "AUTO",
    "SHIPPED",
    "WEIGHTS",
    "Export",
    "ExportResult",
    "build",
    "export",
    "load_target",
    "scheme_of",
]

_ROOT = Path(__file__).resolve().parent.parent

SHIPPED = _ROOT / "golden" / "pocket" / "pocket.safetensors"
"""The checkpoint that comes with the project."""

AUTO: Final = "auto"
"""As a depth: the deepest rung that fits the target."""

TOKENIZER = "tokenizer.json"
_LICENCE = "Apache-2.0"
_PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "safetensors")


@dataclass(frozen=True, kw_only=True)
class Export:
    """What to export, and how.

    One of ``depth``, ``depths`` (rungs that share their weights) and ``blocks`` (numbers of those to keep)
    says what goes into the bundle. ``elastic`` makes graphs that are told at each call which blocks run; the
    depth is then that of the deepest rung, all blocks where it is None. ``depth`` ``auto`` takes the deepest
    rung that the target's budget has room for; ``precision`` None takes the target's default, and ``mixed``
    takes a ``budget``, bytes of weights; ``calibration`` None takes ``calibration.jsonl`` beside the
    checkpoint, where a quantiser or mixed widths ask for examples; ``recovered`` None takes
    ``<checkpoint>.<precision>.safetensors``, where that is the quantiser; ``tokenizer`` None takes
    ``tokenizer.json`` beside the checkpoint if there is one; ``output`` is the folder that the bundle's
    folder or archive goes into.
    """

    checkpoint: Path = SHIPPED
    depth: int | Literal["auto"] | None = None
    depths: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    elastic: bool = False
    target: str = "host"
    precision: str | None = None
    quantising: Quantising = AS_PLANNED
    budget: int | None = None
    adapters: tuple[Path, ...] = ()
    keep_confidence: bool = False
    calibration: Path | None = None
    recovered: Path | None = None
    tokenizer: Path | None = None
    all_logits: bool = False
    archive: bool = False
    require_verified: bool = False
    output: Path = Path("dist")
    force: bool = False


@dataclass(frozen=True)
class ExportResult:
    """What was written, and what is known of it."""

    path: Path
    """The bundle's folder or archive."""
    report: Report
    predicted_bytes: int
    """Bytes of the weights file that the plan predicted, less padding."""
    written_bytes: int
    """Bytes of the weights file, less padding."""
    footprint: Footprint
    """What it costs on the device, as predicted."""


def load_target(name: str) -> Target:
    """Load a target profile by name or path.

    Raises:
        TargetError: it is unknown, cannot be used, or asks for older operators than the graphs use.
    """
    try:
        target = load(name)
    except ProfileError as error:
        raise TargetError(str(error)) from error
    runtime = target.onnxruntime
    if runtime.opset < OPSET or runtime.ir_version < IR_VERSION:
        message = (
            f"target {target.name!r} reads operator set {runtime.opset} and IR version "
            f"{runtime.ir_version} at most, and the graphs here use {OPSET} and {IR_VERSION}. Raise its "
            "onnxruntime floor."
        )
        raise TargetError(message)
    return target


def scheme_of(target: Target, precision: str | None, quantising: Quantising = AS_PLANNED) -> Scheme:
    """The precision to export in, laid out as the target asks, and then as the user does.

    Raises:
        PrecisionError: it is unknown, or the target does not take it, or there is no such quantiser.
    """
    name = precision or target.precision.default
    if name == MIXED and {"int4", "int8"} <= set(target.precision.allowed):
        return replace(scheme_for(target, "int4", quantising), name=MIXED)
    if name not in target.precision.allowed or name not in PRECISIONS:
        known = [allowed for allowed in target.precision.allowed if allowed in PRECISIONS]
        message = (
            f"precision {name!r} is not one that target {target.name!r} takes: choose {', '.join(known)}."
        )
        raise PrecisionError(message)
    return scheme_for(target, name, quantising)


def export(request: Export, progress: Callable[[str], None] = lambda _: None) -> ExportResult:
    """Export a depth of a ladder as a bundle, and verify it.

    Nothing is left at the output path unless every check passed.

    Args:
        request: what to export.
        progress: told what is being done, in a few words.

    Raises:
        ExporterError: of the class that names the cause.
    """
    target = load_target(request.target)
    scheme = scheme_of(target, request.precision, request.quantising)
    checkpoint = Checkpoint(request.checkpoint)
    base = fold(checkpoint, request.adapters, keep_confidence=request.keep_confidence)
    tokenizer = _tokenizer(request, base.config)
    taken = tokenizer.stat().st_size if tokenizer is not None else 0
    fitting = Fitting(base, target, taken, request.quantising)
    _require_budget(request, scheme)
    form = _form(request, fitting, scheme)
    ladder = form.ladder
    plan, costs = _plan(request, fitting, form, scheme, progress)
    name = f"{request.checkpoint.stem}-{form.name}-{target.name}-{scheme.name}"
    folder = request.output / name
    output = archive_name(folder, target.archive) if request.archive else folder
    with staging(output, force=request.force) as stage:
        built = stage / name
        built.mkdir()
        if has_reference():
            # PyTorch takes seconds to import, which pass beside the reading and quantising.
            Thread(target=import_module, args=("golden.reference.live",), daemon=True).start()
        progress("reading the slice")
        identity = fingerprint(ladder)
        progress(f"building graphs and {scheme.name} weights")
        file = form.build(built, plan, all_logits=request.all_logits)
        _require_kept(request, file)
        progress("verifying")
        report = form.verify(built, plan)
        if report.against is None and request.require_verified:
            message = (
                f"{request.checkpoint}: there is no PyTorch here to run the reference, and no stored case of "
                "this checkpoint at this depth. Install the extra 'verify', or drop --require-verified."
            )
            raise ReferenceUnavailableError(message)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, built / TOKENIZER)
        _copy_runtime(built)
        description = {
            "name": name,
            "source": _source(request, checkpoint, identity, scheme),
            "target": _target(target),
            "configuration": ladder.config.to_json(),
            "slice": ladder.plan.to_json(),
            "precision": plan.to_json(),
            **form.describe(all_logits=request.all_logits),
            "tokenizer": TOKENIZER if tokenizer is not None else None,
            "footprint": costs.to_json(),
            "quality": _quality(request, identity, scheme),
            "tokens": {"pad": ladder.config.pad_token_id, "eos": 1, "bos": 2, "unk": 3},
            "verification": report.to_json(),
            "versions": _versions(),
            "licence": {"exporter": _LICENCE, "weights": _weights_licence(checkpoint)},
        }
        describe(built, description)
        write_sums(built, {WEIGHTS: file.sha256})
        if request.archive:
            progress("packing")
            write = write_aar if target.archive == "aar" else pack
            write(built, name, stage / output.name)
            built = stage / output.name
        publish(built, output)
    predicted = plan.total + constant_bytes(ladder.config, score=bool(heads_in(ladder.layout)))
    return ExportResult(output, report, predicted, file.size - file.padding, costs)


def _require_budget(request: Export, scheme: Scheme) -> None:
    """Make sure that a budget comes with the precision that keeps to it, and with a depth.

    Raises:
        PrecisionError: it does not.
    """
    if (scheme.name == MIXED) != (request.budget is not None):
        message = "--precision mixed and --budget, such as 14MB, go together: give both or neither."
        raise PrecisionError(message)
    if scheme.name == MIXED and request.depth == AUTO:
        message = "--precision mixed fills its --budget at any depth: give --depth as a number."
        raise PrecisionError(message)
    if scheme.name == MIXED and scheme.quantiser == RECOVERED:
        message = "recovered weights have one width: give --precision mixed another --quantiser."
        raise PrecisionError(message)


def _require_kept(request: Export, file: WeightFile) -> None:
    """Make sure that the weights keep to the budget that their widths were chosen under.

    Raises:
        BudgetError: they do not, since several rungs have tensors of their own besides.
    """
    if request.budget is not None and file.size > request.budget:
        message = (
            f"the weights take {file.size} bytes of a budget of {request.budget}: rungs beside the deepest "
            "have tensors of their own. Lower --budget by as much more, or name fewer --depths."
        )
        raise BudgetError(message)


def _plan(
    request: Export, fitting: Fitting, form: Form, scheme: Scheme, progress: Callable[[str], None]
) -> tuple[PrecisionPlan, Footprint]:
    """The storage of a slice, measured and calibrated as far as was asked for, and what it costs.

    Raises:
        BudgetError: it does not fit the target.
    """
    ladder, planning = form.ladder, Planning(request.checkpoint, request.calibration, request.recovered)
    if request.budget is not None:
        examples = planning.examples(ladder.config)
        plan = mixed_plan(ladder, scheme, request.budget, examples, progress)
        return plan, fitting.require(form, plan)
    plan = plan_precision(ladder.config, ladder.layout, scheme)
    # Calibration takes its time, and changes no size.
    costs = fitting.require(form, plan)
    return planning.informed([plan], ladder, progress)[0], costs


def _form(request: Export, fitting: Fitting, scheme: Scheme) -> Form:
    """What the bundle holds.

    Raises:
        RequestError: the request names none of the ways to say it, or several.
        BlocksError, DepthError: the ladder has no such blocks or rung.
    """
    base, ways = fitting.ladder, [request.depth is not None, bool(request.depths), bool(request.blocks)]
    if sum(ways) > 1 or not (any(ways) or request.elastic) or (request.elastic and request.depths):
        message = (
            "say what to export with one of --depth, --depths and --blocks; --elastic takes --depth or "
            "--blocks, or neither for the whole ladder."
        )
        raise RequestError(message)
    if request.depths:
        *others, deepest = sorted(set(request.depths))
        kept = slice_ladder(base, deepest)
        return Shared(kept, tuple(slice_ladder(kept, depth) for depth in others))
    if request.blocks:
        kept = keep_blocks(base, request.blocks)
    else:
        depth = base.config.num_layers if request.depth is None else request.depth
        kept = slice_ladder(base, fitting.deepest(scheme.name) if depth == AUTO else depth)
    return Elastic(kept) if request.elastic else Static(kept)


def build(
    folder: Path, ladder: Ladder, plan: PrecisionPlan, *, all_logits: bool = False
) -> tuple[list[str], WeightFile]:
    """Write the graphs and weights of a ladder into a folder.

    Args:
        folder: where.
        ladder: what to export.
        plan: its storage.
        all_logits: logits of every position instead of the last.

    Returns:
        The heads of the scoring graph, and the weights file, closed.
    """
    file = write_slice(folder, ladder, plan, Rows.ALL if all_logits else Rows.LAST)
    return heads_in(ladder.layout), file


def _quality(request: Export, identity: str, scheme: Scheme) -> dict[str, Any] | None:
    """What is known of the slice's answers, where it was measured as it is exported."""
    if request.calibration is not None or request.recovered is not None:
        return None
    return stored(request.checkpoint, identity, scheme)


def _copy_runtime(folder: Path) -> None:
    """Copy the runtime whole, so that a device needs nothing of the exporter."""
    (folder / RUNTIME).mkdir()
    for path in sorted((_ROOT / RUNTIME).glob("*.py")):
        shutil.copyfile(path, folder / RUNTIME / path.name)


def _tokenizer(request: Export, config: LadderConfig) -> Path | None:
    """The tokenizer file to ship, checked against the vocabulary.

    Raises:
        TokenizerError: it cannot be read, or has more pieces than the checkpoint has rows.
    """
    path = request.tokenizer or request.checkpoint.with_name(TOKENIZER)
    if request.tokenizer is None and not path.exists():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
        pieces = [*document["model"]["vocab"].values(), *(t["id"] for t in document["added_tokens"])]
        largest = max(pieces)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        message = (
            f"{path}: cannot be read as a tokenizer.json ({error}). Give the checkpoint's own with "
            "--tokenizer."
        )
        raise TokenizerError(message) from error
    if largest >= config.vocab_size:
        message = (
            f"{path}: has a piece with id {largest}, and the checkpoint's vocabulary ends at "
            f"{config.vocab_size - 1}. Give the checkpoint's own tokenizer with --tokenizer."
        )
        raise TokenizerError(message)
    return path


def _source(request: Export, checkpoint: Checkpoint, identity: str, scheme: Scheme) -> dict[str, Any]:
    recovered = None
    if scheme.quantised_by == RECOVERED:
        recovered = _file(recovered_beside(request.checkpoint, scheme.name, request.recovered))
    return {
        "name": request.checkpoint.name,
        "bytes": request.checkpoint.stat().st_size,
        "step": checkpoint.step,
        "adapters": [_file(path) for path in request.adapters],
        "recovered": recovered,
        # Over the float32 values of the slice's tensors: the dropped ones are never read.
        "slice_sha256": identity,
    }


def _file(path: Path) -> dict[str, str]:
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _target(target: Target) -> dict[str, Any]:
    runtime = target.onnxruntime
    return {
        "name": target.name,
        "onnxruntime": {"floor": runtime.floor, "tested": runtime.tested},
        "opset": OPSET,
        "ir_version": IR_VERSION,
    }


def _versions() -> dict[str, str]:
    """Versions of what made and ran the graphs."""
    versions = {name: version(name) for name in _PACKAGES}
    try:
        versions["exporter"] = version("needle-ladder-export")
    except PackageNotFoundError:
        versions["exporter"] = "source"
    return versions


def _weights_licence(checkpoint: Checkpoint) -> str | None:
    """The licence that the checkpoint's trainer noted, if any."""
    licence = checkpoint.run.get("licence") if isinstance(checkpoint.run, dict) else None
    return licence if isinstance(licence, str) else None
