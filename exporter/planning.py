"""Plans that know what quantisers find, and the files that these read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporter.calibrate import calibrated
from exporter.config import LadderConfig
from exporter.examples import CALIBRATION, Example, examples_beside, read_examples
from exporter.ladder import Ladder, SlicedLadder
from exporter.precision import CALIBRATED, RECOVERED, PrecisionPlan
from exporter.recovered import read_recovered, recovered_beside

__all__ = ["Planning"]


@dataclass(frozen=True)
class Planning:
    """A checkpoint's path, and what its quantisers read; None takes what lies beside the checkpoint."""

    checkpoint: Path
    calibration: Path | None = None
    """Examples."""
    recovered: Path | None = None
    """Recovered weights."""

    def examples(self, config: LadderConfig) -> list[Example]:
        """The examples to calibrate on.

        Raises:
            ExamplesError: there are none, or they cannot be used.
        """
        return read_examples(examples_beside(self.checkpoint, CALIBRATION, self.calibration), config)

    def informed(
        self,
        plans: Sequence[PrecisionPlan],
        ladder: Ladder,
        progress: Callable[[str], None] = lambda _: None,
    ) -> list[PrecisionPlan]:
        """Plans that know what their schemes' quantisers find; the examples are run once for all.

        Args:
            plans: of the storage.
            ladder: a slice, or a whole ladder; recovered weights are those of the whole one.
            progress: told what is being done.

        Raises:
            ExamplesError: there is nothing to calibrate on.
            RecoveryError: there are no recovered weights, or others.
            ReferenceUnavailableError: there is no PyTorch to calibrate with.
        """
        informed = [
            self._recovered(plan, ladder) if plan.scheme.quantised_by == RECOVERED else plan for plan in plans
        ]
        asking = [number for number, plan in enumerate(plans) if plan.scheme.quantised_by == CALIBRATED]
        if asking:
            examples = self.examples(ladder.config)
            together = calibrated([plans[n] for n in asking], ladder, examples, progress)
            for number, plan in zip(asking, together, strict=True):
                informed[number] = plan
        return informed

    def _recovered(self, plan: PrecisionPlan, ladder: Ladder) -> PrecisionPlan:
        scheme = plan.scheme
        path = recovered_beside(self.checkpoint, scheme.name, self.recovered)
        if not isinstance(ladder, SlicedLadder):
            return read_recovered(path, ladder, scheme)
        return plan.inherited(read_recovered(path, ladder.parent, scheme), ladder)
