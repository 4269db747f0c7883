"""Every way in which running a bundle can fail, one class per cause.

A message names the thing, quotes the value and says what to do next. ``exit_code`` tells the class of
failure to a shell: 3 bundle, 4 input, 5 state, 6 something that is not there (2 is wrong usage).
"""

from __future__ import annotations

__all__ = [
    "BundleError",
    "BundleVersionError",
    "BusyStateError",
    "ContextFullError",
    "DamagedFileError",
    "DeviceError",
    "EmptyQueryError",
    "ForeignStateError",
    "GrammarError",
    "InputError",
    "InputFileError",
    "MissingHeadError",
    "MissingLogitsError",
    "MissingPackageError",
    "MissingTokenizerError",
    "NotABundleError",
    "PromptTooLongError",
    "RewindError",
    "RuntimeFloorError",
    "SamplingError",
    "SingleDepthError",
    "StateError",
    "StateFileError",
    "TokenIdError",
    "ToolSchemaError",
    "UnavailableError",
    "UnknownDepthError",
]


class DeviceError(Exception):
    """Base of all of this package's own errors."""

    exit_code = 1


class BundleError(DeviceError):
    """The bundle cannot be used."""

    exit_code = 3


class NotABundleError(BundleError):
    """The path holds no bundle, or its description lacks what a device needs."""


class BundleVersionError(BundleError):
    """The bundle's format version is unknown."""


class RuntimeFloorError(BundleError):
    """The installed ONNX Runtime is older than the bundle's graphs ask for."""


class DamagedFileError(BundleError):
    """A file of the bundle is missing or altered."""


class InputError(DeviceError):
    """What was asked cannot be answered."""

    exit_code = 4


class TokenIdError(InputError):
    """A token id is outside the vocabulary, or there are no ids at all."""


class EmptyQueryError(InputError):
    """The query has no text."""


class PromptTooLongError(InputError):
    """The tokens do not fit in what is left of the context; the state is as it was."""


class ToolSchemaError(InputError):
    """A tool is no object with a name and a schema of its parameters."""


class GrammarError(InputError):
    """A schema uses something that no grammar can enforce."""


class SamplingError(InputError):
    """A sampling parameter is out of its range."""


class InputFileError(InputError):
    """A file of tools or queries cannot be read."""


class StateError(DeviceError):
    """The state cannot be used for this."""

    exit_code = 5


class ForeignStateError(StateError):
    """The state belongs to another bundle."""


class BusyStateError(StateError):
    """The state is in use by another thread."""


class ContextFullError(StateError):
    """The state has no room for another token."""


class RewindError(StateError):
    """The state no longer holds what it would be rewound to."""


class StateFileError(StateError):
    """The file holds no saved state, or cannot be written."""


class UnavailableError(DeviceError):
    """Something is asked for that is not there."""

    exit_code = 6


class MissingPackageError(UnavailableError):
    """A Python package is needed and not installed."""


class MissingHeadError(UnavailableError):
    """The bundle has no such head."""


class MissingLogitsError(UnavailableError):
    """The graph gives the last position's logits alone, and several are needed."""


class MissingTokenizerError(UnavailableError):
    """The bundle has no tokenizer that could be used."""


class UnknownDepthError(UnavailableError):
    """The bundle does not run at that depth."""


class UnknownBlocksError(UnavailableError):
    """The bundle cannot run that set of blocks."""


class SingleDepthError(UnavailableError):
    """Climbing or drafting takes a second depth, and the bundle has one."""
