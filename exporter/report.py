"""What verification found: how far graphs are from the reference, the bounds, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exporter.compare import Bound, Comparison, compare
from exporter.errors import VerificationError
from exporter.ladder import Array
from exporter.passages import Runs

__all__ = ["Report"]


@dataclass
class Report:
    """What verification found.

    ``against`` is ``reference`` (run live on this checkpoint), ``stored cases`` or None, for unverified.
    """

    against: str | None
    witness: list[dict[str, Any]] = field(default_factory=list)
    """Tokens and the reference's best logits, for checking the bundle where there is no reference."""
    comparisons: dict[str, dict[str, Comparison]] = field(default_factory=dict)
    """By what is compared (``arithmetic``, ``activations``, ``fidelity``), then by how it was run."""
    bounds: dict[str, Bound] = field(default_factory=dict)
    heads: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """By what is compared, by graph, greatest difference of each head's outputs, as a share of their size."""

    def judge(self, what: str, runs: Runs, reference: Sequence[Array], bound: Bound, label: str = "") -> None:
        """Compare runs with the reference's logits [T, V] per passage; rows of NaN are not known.

        ``label`` tells what ran, where that is one of several.

        Raises:
            VerificationError: the bound is exceeded.
        """
        self.bounds[what] = bound
        for passages, way in ((passages, f"{label}{way}") for way, passages in runs.items()):
            pairs = [
                (row, known[token])
                for rows, known in zip(passages, reference, strict=True)
                for token, row in rows.items()
                if not np.isnan(known[token]).any()
            ]
            found = compare(np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs]), bound)
            self.comparisons.setdefault(what, {})[way] = found
            if not found.within(bound):
                message = (
                    f"the exported graph, run as {way}, fails the {what} check: its logits differ from the "
                    f"reference's by {found.difference:.3g} of their spread (bound {bound.difference:g}), "
                    f"KL {found.kl:.3g} nats (bound {bound.kl:g}), {found.overturned} clear choices "
                    "overturned. Nothing was written; try a finer --precision, and report the checkpoint's "
                    "geometry if the check is 'arithmetic'."
                )
                raise VerificationError(message)

    def judge_heads(
        self, what: str, graph: str, got: Mapping[str, Array], outputs: Mapping[str, Array], bound: float
    ) -> None:
        """Compare a graph's head outputs with the reference's.

        Raises:
            VerificationError: the bound is exceeded.
        """
        scale = {head: max(1.0, float(np.abs(output).max())) for head, output in outputs.items()}
        found = {h: float(np.abs(value - outputs[h]).max()) / scale[h] for h, value in got.items()}
        self.heads.setdefault(what, {})[graph] = found
        for head, difference in found.items():
            if not difference <= bound:
                message = (
                    f"{graph} fails the {what} check: its {head} differs from the reference's by "
                    f"{difference:.3g} of its size (bound {bound:g}). Nothing was written; try a finer "
                    "--precision."
                )
                raise VerificationError(message)

    def to_json(self) -> dict[str, Any]:
        """The report, JSON-ready."""
        return {
            "status": "unverified" if self.against is None else "verified",
            "against": self.against,
            "bounds": {k: {"difference": b.difference, "kl": b.kl} for k, b in self.bounds.items()},
            "comparisons": {
                what: {run: comparison.to_json() for run, comparison in runs.items()}
                for what, runs in self.comparisons.items()
            },
            "heads": {
                what: {
                    graph: {h: float(f"{v:.3g}") for h, v in found.items()} for graph, found in graphs.items()
                }
                for what, graphs in self.heads.items()
            },
            "witness": self.witness,
        }
