"""Every way in which an export can fail, one class per cause.

A message names the thing, quotes the value and says what to do next. ``exit_code`` tells the class of
failure to a shell: 3 checkpoint, 4 depth, 5 adapter, 6 precision, 7 verification, 8 output, 9 bundle,
10 target, 11 budget, 12 examples and quality (2 is click's own, for wrong usage).
"""

from __future__ import annotations

__all__ = [
    "AdapterError",
    "AdapterMismatchError",
    "BlocksError",
    "BudgetError",
    "BundleError",
    "CheckpointError",
    "ConfigError",
    "DepthError",
    "ExamplesError",
    "ExporterError",
    "ForeignAdapterError",
    "ForeignFileError",
    "ForeignRecoveryError",
    "MissingPackageError",
    "MissingTensorError",
    "NotABundleError",
    "NotFiniteError",
    "OutputError",
    "OutputExistsError",
    "PickleRefusedError",
    "PrecisionError",
    "QualityError",
    "RecoveryError",
    "RecoveryMismatchError",
    "ReferenceUnavailableError",
    "RequestError",
    "TamperedBundleError",
    "TargetError",
    "TokenizerError",
    "UnexpectedTensorError",
    "VerificationError",
    "WrongShapeError",
    "ZeroAdapterWarning",
]


class ExporterError(Exception):
    """Base of all of the exporter's own errors."""

    exit_code = 1


class MissingPackageError(ExporterError):
    """An optional package is needed for what was asked, and is not installed."""


class RequestError(ExporterError):
    """What is asked for contradicts itself, or leaves open what to do."""

    exit_code = 2


class CheckpointError(ExporterError):
    """The checkpoint cannot be used."""

    exit_code = 3


class ForeignFileError(CheckpointError):
    """The file is truncated, or no ladder checkpoint of a known format version."""


class PickleRefusedError(CheckpointError):
    """The file is a pickle (or an archive of pickles), which could run code when read."""


class ConfigError(CheckpointError):
    """The stored configuration has a value that no ladder can have."""


class MissingTensorError(CheckpointError):
    """A tensor that the configuration asks for is not in the file."""


class UnexpectedTensorError(CheckpointError):
    """The file holds a tensor that the configuration has no place for."""


class WrongShapeError(CheckpointError):
    """A tensor's shape or dtype differs from what the configuration asks for."""


class NotFiniteError(CheckpointError):
    """A tensor holds NaN or infinity."""


class TokenizerError(CheckpointError):
    """The tokenizer file cannot be used with the checkpoint."""


class DepthError(ExporterError):
    """The depth is not a rung of the ladder."""

    exit_code = 4


class BlocksError(ExporterError):
    """The set of blocks is none that a slice of the ladder can keep."""

    exit_code = 4


class AdapterError(ExporterError):
    """The LoRA adapter cannot be used."""

    exit_code = 5


class AdapterMismatchError(AdapterError):
    """The adapter was trained on another base: names or shapes disagree."""


class ForeignAdapterError(AdapterError):
    """The file is no adapter of this model family."""


class ZeroAdapterWarning(UserWarning):
    """The adapter changes nothing, since every product A @ B is zero."""


class PrecisionError(ExporterError):
    """The precision is unknown, or not allowed by the target."""

    exit_code = 6


class RecoveryError(PrecisionError):
    """The recovered weights cannot be used, or cannot be found."""


class ForeignRecoveryError(RecoveryError):
    """The file holds no recovered weights of a known version, or not all of them."""


class RecoveryMismatchError(RecoveryError):
    """The recovered weights are those of another ladder, or of another way to store it."""


class VerificationError(ExporterError):
    """The exported graph differs from the reference by more than the stated bound."""

    exit_code = 7


class ReferenceUnavailableError(ExporterError):
    """Verification was demanded and there is nothing to verify against."""

    exit_code = 7


class OutputError(ExporterError):
    """The output cannot be written."""

    exit_code = 8


class OutputExistsError(OutputError):
    """There is something at the output path already, and it is kept."""


class BundleError(ExporterError):
    """The bundle cannot be used."""

    exit_code = 9


class NotABundleError(BundleError):
    """The path holds no bundle of a known format version."""


class TamperedBundleError(BundleError):
    """A file of the bundle is missing, extra or altered."""


class TargetError(ExporterError):
    """The target profile is unknown or cannot be used."""

    exit_code = 10


class BudgetError(ExporterError):
    """What was asked for cannot fit what the target allows."""

    exit_code = 11


class ExamplesError(ExporterError):
    """The examples to calibrate or to measure with cannot be used."""

    exit_code = 12


class QualityError(ExporterError):
    """The stored figures of quality cannot be read."""

    exit_code = 12
