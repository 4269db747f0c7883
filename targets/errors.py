"""Why a profile cannot be used, one class per cause."""

from __future__ import annotations

__all__ = [
    "BadProfileError",
    "InconsistentProfileError",
    "ProfileError",
    "UnknownTargetError",
]

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ProfileError(Exception):
    """Base of the errors of this package."""


class UnknownTargetError(ProfileError):
    """No profile has this name, or no file lies at this path.

    Attributes:
        value: What was asked for.
        known: The names of the profiles that exist.
    """

    def __init__(self, value: str, known: Sequence[str], *, is_path: bool = False) -> None:
        """State what was asked for, what there is and what was probably meant."""
        self.value = value
        self.known = tuple(known)
        fault = f"no profile file at {value!r}" if is_path else f"no target is called {value!r}"
        close = get_close_matches(value.lower(), known, n=1)
        guess = f"did you mean {close[0]!r}? Otherwise give" if close else "give"
        remedy = f"{guess} one of {', '.join(known)}, or the path of a profile (./mine.toml)"
        super().__init__(f"{fault}; {remedy}.")


class BadProfileError(ProfileError):
    """A profile has a key or a value that no profile can have.

    Attributes:
        file: The profile's file, as it was given.
        key: The dotted key at fault, empty where the file as a whole is.
        value: The value at fault, None where the key is missing.
        remedy: What to do about it.
    """

    def __init__(self, file: str, key: str, fault: str, remedy: str, value: object = None) -> None:
        """State the file, the key, the value, what is wrong with it and what to do."""
        self.file = file
        self.key = key
        self.value = value
        self.remedy = remedy
        shown = f" = {value!r}" if value is not None else ""
        where = f"{file}: {key}{shown}" if key else file
        super().__init__(f"{where} {fault}; {remedy}.")


class InconsistentProfileError(BadProfileError):
    """Two values of a profile, each possible by itself, exclude each other."""
