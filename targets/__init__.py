"""Device classes as data: what a bundle may ask of the machine that will run it.

A profile is one TOML file. Those of the project lie beside this module, and :func:`load` takes the
name of one of them or the path of a file written for another device. ``schema.json`` describes the
files to an editor; the loader checks them itself and needs nothing but the standard library.
"""

from __future__ import annotations

__all__ = [
    "PRECISIONS",
    "QUANTISED",
    "BadProfileError",
    "Budget",
    "CpuClass",
    "InconsistentProfileError",
    "OnnxRuntime",
    "Precision",
    "ProfileError",
    "Quantisation",
    "Target",
    "UnknownTargetError",
    "load",
    "names",
]

from targets.errors import (
    BadProfileError,
    InconsistentProfileError,
    ProfileError,
    UnknownTargetError,
)
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
from targets.registry import load, names
