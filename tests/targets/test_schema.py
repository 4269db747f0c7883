"""The schema, for editors, and the loader, for the exporter, accept the same documents."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given, settings

import targets
from targets.document import from_document
from tests.targets.documents import PACKAGE, changed, document_of
from tests.targets.test_validation import BROKEN, CONFLICTING

VALIDATOR = jsonschema.Draft202012Validator(json.loads((PACKAGE / "schema.json").read_text(encoding="utf-8")))

KEYS = [
    "name",
    "description",
    "cpu",
    "cpu.architecture",
    "cpu.classes",
    "cpu.classes.0",
    "cpu.classes.0.name",
    "cpu.classes.0.dotprod",
    "onnxruntime",
    "onnxruntime.floor",
    "onnxruntime.opset",
    "onnxruntime.ir_version",
    "precision",
    "precision.allowed",
    "precision.default",
    "precision.int2",
    "precision.int8",
    "precision.int8.block_size",
    "precision.int8.accuracy_level",
    "packing",
    "packing.archive",
    "budget",
    "budget.storage",
    "budget.context",
    "unknown",
    "precision.unknown",
]

# No whole floats: 21.0 is an integer to JSON Schema and none to TOML.
SCALARS: st.SearchStrategy[Any] = (
    st.sampled_from(["", "mine", "1.24.1", "1.24", "int4", "fp64", "zip", "8 MiB", "8 MB", "0 MiB"])
    | st.sampled_from([-1, 0, 1, 4, 9, 10, 16, 20, 21, 24, 64, 0.5, True, False])
    | st.sampled_from([tomllib.loads("d = 2026-01-01")["d"], ["int4"], ["int4", "int8"], ["int4", "int4"]])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=2)
    | st.dictionaries(
        st.sampled_from(["block_size", "accuracy_level", "storage", "archive"]), SCALARS, max_size=2
    )
)


def loader_accepts(document: dict[str, Any]) -> bool:
    """Tell whether the loader finds every value possible by itself."""
    try:
        from_document(document, "profile.toml")
    except targets.InconsistentProfileError:
        # A schema cannot compare versions or values of different keys.
        return True
    except targets.BadProfileError:
        return False
    return True


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("name", targets.names())
def test_every_profile_follows_the_schema(name: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(document_of(name))] == []


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, value, _ in BROKEN])
def test_the_schema_refuses_what_the_loader_refuses(key: str, value: object) -> None:
    assert not VALIDATOR.is_valid(changed(document_of("rpi4"), key, value))


@pytest.mark.parametrize("changes", [changes for changes, _, _ in CONFLICTING])
def test_conflicts_are_beyond_the_schema(changes: dict[str, Any]) -> None:
    document = document_of("rpi4")
    for key, value in changes.items():
        document = changed(document, key, value)
    assert VALIDATOR.is_valid(document)


@settings(deadline=None)  # No timed tests.
@given(
    name=st.sampled_from(targets.names()),
    changes=st.lists(st.tuples(st.sampled_from(KEYS), st.none() | VALUES), max_size=3),
)
def test_schema_and_loader_agree(name: str, changes: list[tuple[str, Any]]) -> None:
    document = document_of(name)
    for key, value in changes:
        try:
            document = changed(document, key, value)
        except (AttributeError, IndexError, KeyError, TypeError):
            continue  # An earlier change took the place of this key's table away.
    assert loader_accepts(document) == VALIDATOR.is_valid(document)
