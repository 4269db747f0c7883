"""Why an emulated run gave no numbers, one class per cause; wrong numbers are none of them."""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "BedError",
    "DownloadError",
    "EmulationError",
    "EmulatorCrashError",
    "GuestError",
    "GuestFailedError",
    "GuestTimeoutError",
    "MissingPackageError",
    "MissingToolError",
    "UnknownCpuError",
]

import signal


class EmulationError(Exception):
    """Base of the errors of this package.

    Attributes:
        state: One word for a table of results.
    """

    state = "error"


class BedError(EmulationError):
    """The test bed could not be put together.

    Attributes:
        step: What was being done.
    """

    state = "no bed"

    def __init__(self, step: str, fault: str, remedy: str) -> None:
        """State the step, what went wrong and what to do."""
        self.step = step
        super().__init__(f"the test bed's step {step!r} failed: {fault}; {remedy}.")


class MissingToolError(BedError):
    """A program that the step needs is not on this machine."""


class ArchiveError(BedError):
    """There is no package archive to take the step's packages from."""


class DownloadError(BedError):
    """A file could not be fetched, or is not what the archive's list says."""


class GuestError(EmulationError):
    """The guest did not get to its end.

    Attributes:
        cpu: The processor it ran under.
        place: What it had last said that it was about to do, empty where nothing.
    """

    def __init__(self, cpu: str, place: str, fault: str, remedy: str) -> None:
        """State where, what happened and what to do."""
        self.cpu, self.place = cpu, place
        where = f"the guest on {cpu}, {place}," if place else f"the guest on {cpu}"
        super().__init__(f"{where} {fault}; {remedy}.")


class UnknownCpuError(GuestError):
    """The emulator knows no such processor."""

    state = "no cpu"


class MissingPackageError(GuestError):
    """Something that the guest imports or links is not in its system."""

    state = "missing"


class EmulatorCrashError(GuestError):
    """The guest, or the emulator itself, died of a signal.

    Attributes:
        signal: Its number.
    """

    state = "crashed"

    def __init__(self, cpu: str, place: str, number: int) -> None:
        """State the signal, and what it usually means."""
        self.signal = number
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if number == signal.SIGILL:
            remedy = "a library uses an instruction that this core lacks: take another version of it"
        elif number == signal.SIGKILL:
            remedy = "the machine ran out of memory, or somebody stopped it: free some and run again"
        else:
            remedy = "run it again under another -cpu to tell the library from the emulator"
        super().__init__(cpu, place, f"died of {name}", remedy)


class GuestTimeoutError(GuestError):
    """The guest took longer than it may."""

    state = "timeout"


class GuestFailedError(GuestError):
    """The guest's program ended with an error of its own."""

    state = "failed to run"
