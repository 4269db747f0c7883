"""From a parsed TOML document to a :class:`~targets.profile.Target`."""

from __future__ import annotations

__all__ = ["LOWEST_RUNTIME", "from_document"]

from dataclasses import fields
from typing import TYPE_CHECKING

from targets.errors import InconsistentProfileError
from targets.profile import (
    PRECISIONS,
    QUANTISED,
    Budget,
    CpuClass,
    OnnxRuntime,
    Precision,
    Quantisation,
    Target,
)
from targets.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

LOWEST_RUNTIME = {
    # The window of GroupQueryAttention holds one position too many up to 1.23, without a word.
    "fp32": "1.24.0",
    "fp16": "1.24.0",
    # The same; for themselves MatMulNBits and GatherBlockQuantized take 4 and 8 bits since 1.23.
    "int8": "1.24.0",
    "int4": "1.24.0",
    # MatMulNBits takes 2 bits since 1.24, GatherBlockQuantized only since 1.27.
    "int2": "1.27.0",
}
"""The oldest ONNX Runtime that computes a ladder of each precision right, as measured."""

ARCHIVES = ("tar.gz", "zip", "aar")
ARCHITECTURES = ("arm64", "armv7", "any")
_CPU = ("architecture", "depths", "classes")
BLOCK_SIZES = (16, 32, 64, 128, 256)
ACCURACY_LEVELS = (0, 1, 4)
LOWEST_DEPTH = 2
LOWEST_OPSET = 21
LOWEST_IR_VERSION = 10
NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
VERSION = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}"


def from_document(document: Mapping[str, object], file: str) -> Target:
    """Validate a document and freeze it.

    Args:
        document: A parsed TOML file.
        file: How to call the file in messages.

    Raises:
        BadProfileError: A key is unknown or missing, or a value has the wrong type or form.
        InconsistentProfileError: Values exclude each other.
    """
    root = Table(
        file,
        "",
        document,
        ("name", "description", "cpu", "onnxruntime", "precision", "packing", "budget"),
    )
    target = Target(
        name=root.text("name", NAME, "my-device"),
        description=root.text("description", r"\S(.*\S)?", "Boards with one core and no fan."),
        architecture=root.table("cpu", _CPU).choice("architecture", ARCHITECTURES),
        cpus=_cpus(root),
        depths=root.table("cpu", _CPU).integers("depths", LOWEST_DEPTH),
        onnxruntime=_onnxruntime(root),
        precision=_precision(root),
        archive=root.table("packing", ("archive",)).choice("archive", ARCHIVES),
        budget=_budget(root) if "budget" in root else None,
    )
    _check_together(target, file)
    return target


def _cpus(root: Table) -> tuple[CpuClass, ...]:
    """Read the kinds of core."""
    keys = tuple(field.name for field in fields(CpuClass))
    return tuple(
        CpuClass(
            name=table.text("name", NAME, "cortex-a53"),
            dotprod=table.flag("dotprod"),
            i8mm=table.flag("i8mm"),
            fp16=table.flag("fp16"),
        )
        for table in root.table("cpu", _CPU).tables("classes", keys)
    )


def _onnxruntime(root: Table) -> OnnxRuntime:
    """Read the bounds of the runtime."""
    table = root.table("onnxruntime", tuple(field.name for field in fields(OnnxRuntime)))
    return OnnxRuntime(
        floor=table.text("floor", VERSION, "1.24.1"),
        tested=table.text("tested", VERSION, "1.24.1"),
        opset=table.integer("opset", LOWEST_OPSET),
        ir_version=table.integer("ir_version", LOWEST_IR_VERSION),
    )


def _precision(root: Table) -> Precision:
    """Read the precisions; each quantised one that is allowed has a table of its own."""
    table = root.table("precision", ("allowed", "default", *QUANTISED))
    allowed = table.choices("allowed", PRECISIONS)
    quantisations = []
    for name in QUANTISED:
        if name in allowed or name in table:
            layout = table.table(name, ("block_size", "accuracy_level"))
            quantisations.append(
                Quantisation(
                    precision=name,
                    block_size=layout.integer_choice("block_size", BLOCK_SIZES),
                    accuracy_level=layout.integer_choice("accuracy_level", ACCURACY_LEVELS),
                )
            )
    return Precision(allowed, table.choice("default", PRECISIONS), tuple(quantisations))


def _budget(root: Table) -> Budget:
    """Read what a bundle may cost; every entry may be absent."""
    table = root.table("budget", tuple(field.name for field in fields(Budget)))
    return Budget(
        storage=table.amount("storage") if "storage" in table else None,
        memory=table.amount("memory") if "memory" in table else None,
        context=table.integer("context") if "context" in table else None,
    )


def _version(text: str) -> tuple[int, ...]:
    """Return the parts of a version, so that 1.9 sorts before 1.24."""
    return tuple(map(int, text.split(".")))


def _check_together(target: Target, file: str) -> None:
    """Refuse values that exclude each other."""
    _check_cpus(target, file)
    _check_precision(target.precision, file)
    _check_runtime(target, file)


def _check_cpus(target: Target, file: str) -> None:
    """Refuse a core that is described twice, and cores that nothing would be run on."""
    cores = [cpu.name for cpu in target.cpus]
    for number, name in enumerate(cores):
        if name in cores[:number]:
            key = f"cpu.classes[{number}].name"
            raise InconsistentProfileError(file, key, "was there before", "describe it once", name)
    if bool(target.depths) != bool(target.cpus):
        fault = "names no depth to run on the cores" if cores else "names depths, and there is no core"
        remedy = "name one or more, such as [2, 20]" if cores else "leave it empty, or describe a core"
        raise InconsistentProfileError(file, "cpu.depths", fault, remedy)


def _check_precision(precision: Precision, file: str) -> None:
    """Refuse a default that is not allowed and a layout that nothing uses."""
    if precision.default not in precision.allowed:
        raise InconsistentProfileError(
            file,
            "precision.default",
            f"is not among the allowed ({', '.join(precision.allowed)})",
            "allow it or choose another default",
            precision.default,
        )
    for layout in precision.quantisations:
        if layout.precision not in precision.allowed:
            raise InconsistentProfileError(
                file,
                f"precision.{layout.precision}",
                "describes a precision that is not allowed",
                f"add {layout.precision!r} to precision.allowed or remove the table",
            )


def _check_runtime(target: Target, file: str) -> None:
    """Refuse a floor that was never tested or that cannot compute an allowed precision."""
    floor, tested = target.onnxruntime.floor, target.onnxruntime.tested
    if _version(floor) > _version(tested):
        raise InconsistentProfileError(
            file,
            "onnxruntime.floor",
            f"is above the newest tested version, {tested}",
            "lower the floor, or test a newer version and raise onnxruntime.tested",
            floor,
        )
    for name in target.precision.allowed:
        lowest = LOWEST_RUNTIME[name]
        if _version(floor) < _version(lowest):
            raise InconsistentProfileError(
                file,
                "onnxruntime.floor",
                f"cannot compute {name} right, which takes {lowest}",
                f"raise the floor or remove {name!r} from precision.allowed",
                floor,
            )
