"""What works where an optional package is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runtime_py import Model
from runtime_py.conversation import Asking
from runtime_py.errors import MissingPackageError
from runtime_py.grammar import is_installed


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


def test_answers_are_unconstrained_without_llguidance(fresh: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert not is_installed()
    assert not fresh.call("go", [], asking=Asking(max_tokens=3)).constrained
    with pytest.raises(MissingPackageError, match="pip install llguidance"):
        fresh.call("go", [], asking=Asking(constrain=True))
