"""What no profile may say, and how it is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

import targets
from tests.targets.documents import Write, changed

BROKEN: list[tuple[str, object, str]] = [
    # key, value (None removes the key), what the message says
    ("name", "Rpi 4", "has not the expected form; write it like 'my-device'"),
    ("description", "", "has not the expected form"),
    ("description", 5, "has not the expected form"),
    ("colour", "red", "is no key of a profile; remove it"),
    ("packagin", {"archive": "zip"}, "is no key of a profile; rename it to 'packing'"),
    ("packing", None, "is missing; add it"),
    ("packing", "zip", "is no table; write it as [packing]"),
    ("packing.archive", "rar", "is not known; use one of tar.gz, zip, aar"),
    ("packing.archive", ["zip"], "is not known"),
    ("cpu.architecture", None, "is missing"),
    ("cpu.architecture", "x86", "is not known; use one of arm64, armv7, any"),
    ("cpu.depths", None, "is missing"),
    ("cpu.depths", 6, "is not possible; list different whole numbers from 2 up"),
    ("cpu.depths", [1, 6], "is not possible"),
    ("cpu.depths", [2, 2], "is not possible"),
    ("cpu.depths", [2, True], "is not possible"),
    ("cpu.classes", None, "is missing"),
    ("cpu.classes", {"name": "cortex-a53"}, "is no list of tables; write each as [[cpu.classes]]"),
    ("cpu.classes.0", "cortex-a53", "is no table"),
    ("cpu.classes.0.name", "Cortex A53", "has not the expected form"),
    ("cpu.classes.0.dotprod", "no", "is neither true nor false"),
    ("cpu.classes.0.i8mm", 0, "is neither true nor false"),
    ("cpu.classes.0.fp16", None, "is missing"),
    ("cpu.classes.0.dot_prod", True, "rename it to 'dotprod'"),
    ("onnxruntime.floor", "1.24", "has not the expected form; write it like '1.24.1'"),
    ("onnxruntime.floor", 1.24, "has not the expected form"),
    ("onnxruntime.floor", "1.024.1", "has not the expected form"),
    ("onnxruntime.tested", "newest", "has not the expected form"),
    ("onnxruntime.opset", 20, "is not possible; give a whole number from 21 up"),
    ("onnxruntime.opset", "21", "is not possible"),
    ("onnxruntime.opset", True, "is not possible"),
    ("onnxruntime.ir_version", 9, "is not possible; give a whole number from 10 up"),
    ("precision.allowed", [], "is no list of names"),
    ("precision.allowed", "int4", "is no list of names"),
    ("precision.allowed", ["int4", "int8", "fp8"], "names 'fp8'"),
    ("precision.allowed", ["int4", "int8", "int4"], "names one thing twice"),
    ("precision.default", "int3", "is not known; use one of fp32, fp16, int8, int4, int2"),
    ("precision.int4", None, "is missing"),
    ("precision.fp32", {"block_size": 32, "accuracy_level": 4}, "is no key of a profile"),
    ("precision.int4.block_size", 24, "is not possible; use one of 16, 32, 64, 128, 256"),
    ("precision.int4.block_size", None, "is missing"),
    ("precision.int4.accuracy_level", 2, "is not possible; use one of 0, 1, 4"),
    ("precision.int4.accuracy_level", True, "is not possible"),
    ("budget", 5, "is no table"),
    ("budget.storage", 512, "is no amount; write a whole number and a unit, like '512 MiB'"),
    ("budget.storage", "512", "is no amount"),
    ("budget.storage", "512MiB", "is no amount"),
    ("budget.storage", "1.5 GiB", "is no amount"),
    ("budget.storage", "512 MB", "has the unknown unit 'MB'; use one of KiB, MiB, GiB"),
    ("budget.memory", "64 mib", "has the unknown unit 'mib'"),
    ("budget.memory", "0 MiB", "is zero or starts with one"),
    ("budget.memory", "064 MiB", "is zero or starts with one"),
    ("budget.context", 0, "is not possible; give a whole number from 1 up"),
    ("budget.context", -5, "is not possible"),
    ("budget.speed", "fast", "is no key of a profile"),
]

CONFLICTING: list[tuple[dict[str, Any], str, str]] = [
    # changes, the key that is blamed, what the message says
    (
        {"onnxruntime.floor": "1.33.0"},
        "onnxruntime.floor",
        "'1.33.0' is above the newest tested version, 1.32.0; lower the floor",
    ),
    # As texts these would be in order.
    (
        {"onnxruntime.tested": "1.9.0"},
        "onnxruntime.floor",
        "above the newest tested version, 1.9.0",
    ),
    ({"onnxruntime.floor": "1.23.2"}, "onnxruntime.floor", "cannot compute fp32 right"),
    (
        {"onnxruntime.floor": "1.22.0", "precision.allowed": ["int8", "int4"]},
        "onnxruntime.floor",
        "cannot compute int8 right, which takes 1.24.0; raise the floor or remove 'int8'",
    ),
    (
        {
            "onnxruntime.floor": "1.26.0",
            "precision.allowed": ["fp32", "int8", "int4", "int2"],
            "precision.int2": {"block_size": 32, "accuracy_level": 4},
        },
        "onnxruntime.floor",
        "cannot compute int2 right, which takes 1.27.0",
    ),
    (
        {"precision.default": "int2"},
        "precision.default",
        "is not among the allowed (fp32, fp16, int8, int4); allow it or choose another",
    ),
    (
        {"precision.allowed": ["fp32", "int4"]},
        "precision.int8",
        "describes a precision that is not allowed; add 'int8' to precision.allowed or remove",
    ),
    (
        {
            "cpu.classes": [
                {"name": "cortex-a53", "dotprod": flag, "i8mm": False, "fp16": False}
                for flag in (False, True)
            ]
        },
        "cpu.classes[1].name",
        "was there before; describe it once",
    ),
    ({"cpu.depths": []}, "cpu.depths", "names no depth to run on the cores; name one or more"),
    ({"cpu.classes": []}, "cpu.depths", "names depths, and there is no core"),
]


@pytest.mark.parametrize(("key", "value", "message"), BROKEN)
def test_a_broken_value_is_quoted_with_its_file_key_and_remedy(
    write: Write, key: str, value: object, message: str
) -> None:
    path = write(lambda document: changed(document, key, value))
    with pytest.raises(targets.BadProfileError) as caught:
        targets.load(path)
    error = caught.value
    assert not isinstance(error, targets.InconsistentProfileError)
    assert error.file == str(path)
    assert error.key == re.sub(r"\.(\d+)", r"[\1]", key)
    assert error.value == value
    assert message in str(error)
    assert error.remedy in str(error)
    assert f"{path}: {error.key}" in str(error)
    assert value is None or f"= {value!r}" in str(error)


@pytest.mark.parametrize(("changes", "key", "message"), CONFLICTING)
def test_values_that_exclude_each_other_are_refused(
    write: Write, changes: dict[str, Any], key: str, message: str
) -> None:
    def change(document: dict[str, Any]) -> dict[str, Any]:
        for where, value in changes.items():
            document = changed(document, where, value)
        return document

    with pytest.raises(targets.InconsistentProfileError) as caught:
        targets.load(write(change))
    assert caught.value.key == key
    assert message in str(caught.value)


def test_two_bits_are_taken_from_the_version_that_has_both_operators(write: Write) -> None:
    def change(document: dict[str, Any]) -> dict[str, Any]:
        document["onnxruntime"]["floor"] = "1.27.0"
        document["precision"] |= {
            "allowed": ["fp32", "fp16", "int8", "int4", "int2"],
            "int2": {"block_size": 16, "accuracy_level": 4},
        }
        return document

    precision = targets.load(write(change)).precision
    assert precision.quantisation("int2") == targets.Quantisation("int2", 16, 4)


def test_a_floor_may_be_the_tested_version(write: Write) -> None:
    path = write(lambda document: changed(document, "onnxruntime.floor", "1.32.0"))
    assert targets.load(path).onnxruntime.floor == "1.32.0"
