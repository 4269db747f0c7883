"""What works where an optional package is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from runtime_py import Model
from runtime_py.conversation import Asking
from runtime_py.errors import MissingPackageError
from runtime_py.grammar import is_installed
from runtime_py.session import open_session


@pytest.fixture
def fresh(bundle: Path) -> Model:
    """A model that has not loaded anything optional yet."""
    return Model.load(bundle, threads=1)


def test_ids_need_nothing(fresh: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert fresh.prefill(fresh.state(), [2, 5]).shape == (1024,)
    assert 0 < fresh.confidence([2, 5]) < 1
    with pytest.raises(MissingPackageError, match="pip install tokenizers"):
        fresh.encode("text")


@pytest.mark.parametrize(("version", "reuses"), [("1.24.1", False), ("1.31.1", False), ("1.32.0", True)])
def test_a_runtime_that_plans_slowly_is_asked_for_no_plan(
    version: str, *, reuses: bool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[ort.SessionOptions] = []

    def record(_: Path, options: ort.SessionOptions, **__: object) -> None:
        opened.append(options)

    monkeypatch.setattr(ort, "__version__", version)
    monkeypatch.setattr(ort, "InferenceSession", record)
    open_session(bundle / "model.onnx")
    assert [options.enable_mem_reuse for options in opened] == [reuses]


def test_answers_are_unconstrained_without_llguidance(fresh: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert not is_installed()
    assert not fresh.call("go", [], asking=Asking(max_tokens=3)).constrained
    with pytest.raises(MissingPackageError, match="pip install llguidance"):
        fresh.call("go", [], asking=Asking(constrain=True))
