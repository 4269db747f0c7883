"""What a generation took: tokens, seconds, memory."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Usage", "peak_memory", "resident_memory"]

_STATUS = Path("/proc/self/status")
_KIB = 1024


@dataclass(frozen=True)
class Usage:
    """Figures of one generation; seconds are of wall clock."""

    prompt_tokens: int
    """Tokens prefilled."""
    completion_tokens: int
    """Tokens answered, the one that ended the answer included."""
    prefill_seconds: float
    decode_seconds: float
    """From the first token of the answer on, constraints included."""
    peak_memory: int | None
    """Most bytes that the process ever had resident; None where the system does not say."""
    drafted_tokens: int = 0
    """Tokens that a shallow rung proposed."""
    accepted_tokens: int = 0
    """Those of them that stood."""

    @property
    def prefill_rate(self) -> float | None:
        """Tokens prefilled per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens answered per second."""
        return self.completion_tokens / self.decode_seconds if self.decode_seconds else None

    def to_json(self) -> dict[str, Any]:
        """The figures, JSON-ready."""
        rates = {"prefill_tokens_per_second": self.prefill_rate, "decode_tokens_per_second": self.decode_rate}
        return {key: _rounded(value) for key, value in {**asdict(self), **rates}.items()}


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value


def peak_memory() -> int | None:
    """Most bytes that this process ever had resident; None where the system does not say."""
    found = _status("VmHWM")
    if found is None and sys.platform == "darwin":
        import resource  # noqa: PLC0415 - there is none on Windows

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found


def resident_memory() -> int | None:
    """Bytes that this process has resident; None where the system does not say."""
    return _status("VmRSS")


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(f"{field}:")), None)
