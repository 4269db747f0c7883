"""Arm processors on any Linux machine, in one folder: an emulator, small systems for it, and guests.

:class:`Bed` puts together what is missing of the folder and :class:`Guest` runs a script of Python in it
under a named processor. Nothing outside the folder changes, and no privilege is needed. ``guest.py`` and
``capi.py`` are what runs inside; they are started by path and never imported from here.
"""

from __future__ import annotations

__all__ = [
    "ARM64",
    "ARMV7",
    "ArchiveError",
    "Bed",
    "BedError",
    "DownloadError",
    "EmulationError",
    "EmulatorCrashError",
    "Guest",
    "GuestError",
    "GuestFailedError",
    "GuestTimeoutError",
    "Machine",
    "MissingPackageError",
    "MissingToolError",
    "UnknownCpuError",
]

from targets.emulation.bed import Bed
from targets.emulation.emulator import Guest
from targets.emulation.errors import (
    ArchiveError,
    BedError,
    DownloadError,
    EmulationError,
    EmulatorCrashError,
    GuestError,
    GuestFailedError,
    GuestTimeoutError,
    MissingPackageError,
    MissingToolError,
    UnknownCpuError,
)
from targets.emulation.machine import ARM64, ARMV7, Machine
