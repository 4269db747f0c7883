"""Leaves out what an installation without the training packages cannot run."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDS = {
    "test_tokenizer.py": "sentencepiece",
    "test_training.py": "torch",
    "test_adapt.py": "torch",
    "test_figures.py": "torch",
}

collect_ignore = [file for file, package in _NEEDS.items() if find_spec(package) is None]
