"""What a precision costs a ladder on examples of its task, per depth, measured on the weights as stored.

The reference runs on every tensor rounded to its storage, as the graph is proven to compute
(:mod:`exporter.verify`); int8 activations inside products are not in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from exporter.compare import divergences
from exporter.errors import QualityError
from exporter.examples import Example
from exporter.ladder import Array, Ladder, fingerprint, slice_ladder
from exporter.precision import PRECISIONS, PrecisionPlan, Scheme, StoredLadder
from exporter.quantize import SEARCH
from exporter.verify import require_reference

__all__ = [
    "GOALS",
    "STORED",
    "Figures",
    "Quality",
    "as_table",
    "examples_described",
    "measure",
    "misses",
    "read_quality",
    "stored",
]

STORED: Final = "quality.json"
"""Name of the file that is looked for beside a checkpoint."""

GOALS: Final[Mapping[str, tuple[float, float]]] = {"int8": (0.002, 0.01), "int4": (0.015, 0.02)}
"""How much of float32's loss, and of its exact answers, a precision may cost."""

_LEVEL: Final = "accuracy_level"

_ROUNDING: Final = 1e-9

_LEAST_DEPTH: Final = 6
"""The goals are for depths from here on."""


@dataclass(frozen=True)
class Figures:
    """What one depth achieves in one precision."""

    depth: int
    slice_sha256: str
    """Identity of the slice."""
    scheme: Mapping[str, Any]
    """As :meth:`~exporter.precision.Scheme.to_json` gives it."""
    bits_per_weight: float
    """Of all tensors, scales and zero points included."""
    bits_per_byte: float
    """Loss on the right answers, per byte of their text."""
    kl: float
    """Mean Kullback-Leibler divergence from the float32 weights per token of an answer, nats."""
    top1: float
    """Share of an answer's tokens where the likeliest is that of the float32 weights."""
    exact: float
    """Share of examples whose greedy answer is the right one, token for token."""

    @property
    def precision(self) -> str:
        """Name of the scheme."""
        return str(self.scheme["name"])

    @property
    def label(self) -> str:
        """Name of the scheme, with the quantiser where it is not the default."""
        quantised = self.scheme["block"] and self.scheme["quantiser"] != SEARCH
        return f"{self.precision} {self.scheme['quantiser']}" if quantised else self.precision


@dataclass(frozen=True)
class Quality:
    """Figures of a checkpoint, and of what they were measured on."""

    checkpoint: str
    examples: Mapping[str, Any]
    """Name, SHA-256 and count."""
    figures: tuple[Figures, ...]

    def to_json(self) -> dict[str, Any]:
        """The figures, JSON-ready, rounded to what the examples can tell."""
        rows = [
            {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in asdict(row).items()}
            for row in self.figures
        ]
        return {"checkpoint": self.checkpoint, "examples": dict(self.examples), "figures": rows}

    def of(self, identity: str, scheme: Mapping[str, Any]) -> Figures | None:
        """Figures of a slice in a scheme; the accuracy level of products is not in them."""
        wanted = _key(identity, scheme)
        return next((row for row in self.figures if _key(row.slice_sha256, row.scheme) == wanted), None)

    def require_same(self, checkpoint: str, examples: Mapping[str, Any]) -> None:
        """Make sure that figures of a checkpoint and examples may stand beside these.

        Raises:
            QualityError: these are of others.
        """
        if (self.checkpoint, dict(self.examples)) != (checkpoint, dict(examples)):
            message = (
                f"there are figures of {self.checkpoint} on {self.examples.get('count')} examples of "
                f"{self.examples.get('name')} already, and these would be of {checkpoint} on "
                f"{examples['count']} of {examples['name']}, or of other contents. Give another --output."
            )
            raise QualityError(message)

    def joined(self, later: Quality) -> Quality:
        """These figures with later ones in their places, or added, in the order of depth and bits."""
        rows = {_key(row.slice_sha256, row.scheme): row for row in (*self.figures, *later.figures)}
        ordered = sorted(rows.values(), key=lambda row: (row.depth, -row.scheme["bits"]))
        return Quality(self.checkpoint, self.examples, tuple(ordered))


def _key(identity: str, scheme: Mapping[str, Any]) -> tuple[str, str]:
    return identity, json.dumps({**scheme, _LEVEL: None}, sort_keys=True)


def measure(
    ladder: Ladder,
    depths: Sequence[int],
    plans_of: Callable[[Ladder], Sequence[PrecisionPlan]],
    examples: Sequence[Example],
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Figures, ...]:
    """Measure depths of a ladder.

    Args:
        ladder: what to slice.
        depths: rungs of it.
        plans_of: what to store a slice as, per precision; the first is float32.
        examples: to answer.
        progress: told what is being done.

    Raises:
        ReferenceUnavailableError: there is no PyTorch to run the examples.
    """
    require_reference("quality is measured with")
    from golden.reference.answers import answer_log_probabilities  # noqa: PLC0415 - PyTorch, only here

    asked = [(example.tokens, example.prompt) for example in examples]
    figures = []
    for depth in depths:
        sliced = slice_ladder(ladder, depth)
        identity, truth = fingerprint(sliced), None
        for plan in plans_of(sliced):
            progress(f"depth {depth}, {plan.scheme.name}")
            got = answer_log_probabilities(StoredLadder(sliced, plan), asked)
            truth = truth or got
            weights = sum(spec.size for spec in sliced.layout.values())
            figures.append(
                Figures(
                    depth,
                    identity,
                    plan.scheme.to_json(),
                    8 * plan.total / weights,
                    *_compared(got, truth, examples),
                )
            )
    return tuple(figures)


def _compared(
    got: Sequence[Array], truth: Sequence[Array], examples: Sequence[Example]
) -> tuple[float, float, float, float]:
    """Loss, divergence, agreement and exact answers; logarithms of probabilities [answer, V] per example."""
    nats, kl, same, exact, positions = 0.0, 0.0, 0, 0, 0
    for log_q, log_p, example in zip(got, truth, examples, strict=True):
        answer = np.array(example.tokens[example.prompt :])
        nats -= float(log_q[np.arange(len(answer)), answer].sum(dtype=np.float64))
        kl += float(divergences(log_p, log_q).sum())
        best = log_q.argmax(-1)
        same += int((best == log_p.argmax(-1)).sum())
        # As far as the likeliest token is the right one, greedy decoding goes the same way.
        exact += bool((best == answer).all())
        positions += len(answer)
    size = sum(example.bytes for example in examples)
    return nats / math.log(2) / size, max(kl, 0.0) / positions, same / positions, exact / len(examples)


def misses(figures: Sequence[Figures]) -> list[str]:
    """Where a goal of :data:`GOALS` is missed, in words."""
    whole = {row.depth: row for row in figures if row.precision == "fp32"}
    found = []
    for row in figures:
        goal, base = GOALS.get(row.precision), whole.get(row.depth)
        if goal is None or base is None or row.depth < _LEAST_DEPTH:
            continue
        loss, exact = row.bits_per_byte / base.bits_per_byte - 1, base.exact - row.exact
        # Written so that NaN is a miss, and two points less are two points, whatever floats make of it.
        if not loss <= goal[0]:
            found.append(f"depth {row.depth} {row.label}: loss {loss:+.2%} (goal {goal[0]:.1%})")
        if not exact <= goal[1] + _ROUNDING:
            found.append(
                f"depth {row.depth} {row.label}: exact answers {-100 * exact:+.1f} points "
                f"(goal {100 * goal[1]:.0f})"
            )
    return found


def as_table(figures: Sequence[Figures]) -> str:
    """The figures as text, a row each; loss also as its difference from float32's."""
    whole = {row.depth: row.bits_per_byte for row in figures if row.precision == "fp32"}
    names = f"{'bits/weight':>11}  {'bits/byte':>9}  {'loss':>7}  {'KL':>8}  {'top-1':>7}  {'exact':>6}"
    lines = [f"{'depth':>5}  {'precision':<14}  {names}"]
    for row in figures:
        change = row.bits_per_byte / whole[row.depth] - 1 if row.depth in whole else math.nan
        lines.append(
            f"{row.depth:>5}  {row.label:<14}  {row.bits_per_weight:>11.2f}  {row.bits_per_byte:>9.4f}  "
            f"{change:>+7.2%}  {row.kl:>8.1e}  {row.top1:>7.2%}  {row.exact:>6.1%}"
        )
    return "\n".join(lines)


def examples_described(path: Path, count: int) -> dict[str, Any]:
    """What was measured on."""
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "count": count}


def read_quality(path: Path) -> Quality:
    """Read figures that were stored.

    Raises:
        QualityError: the file holds none.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        figures = tuple(Figures(**row) for row in document["figures"])
        for row in figures:
            Scheme(**row.scheme)
        return Quality(str(document["checkpoint"]), dict(document["examples"]), figures)
    except (OSError, ValueError, LookupError, TypeError) as error:
        message = (
            f"{path}: holds no figures of quality ({error!r}). Measure with: python -m exporter quality."
        )
        raise QualityError(message) from error


def stored(checkpoint: Path, identity: str, scheme: Scheme) -> dict[str, Any] | None:
    """Figures of a slice in a scheme that are stored beside its checkpoint, JSON-ready.

    Args:
        checkpoint: its path.
        identity: fingerprint of the slice.
        scheme: what it is stored as.

    Returns:
        None where there are none.

    Raises:
        QualityError: there is a file, and it holds no figures.
    """
    path = checkpoint.with_name(STORED)
    if not path.exists():
        return None
    quality = read_quality(path)
    row, whole = quality.of(identity, scheme.to_json()), quality.of(identity, PRECISIONS["fp32"].to_json())
    if row is None or whole is None:
        return None
    return {
        "examples": dict(quality.examples),
        **{key: getattr(row, key) for key in ("bits_per_weight", "bits_per_byte", "kl", "top1", "exact")},
        "fp32": {key: getattr(whole, key) for key in ("bits_per_byte", "exact")},
    }
