"""The golden cases of the emulated runs: bundles of slices, and what the reference says of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from exporter.checkpoint import Checkpoint
from exporter.export import SHIPPED, Export, export, load_target, scheme_of
from exporter.ladder import Array, Ladder, fingerprint, slice_ladder
from exporter.precision import PrecisionPlan, StoredLadder, plan_precision
from exporter.verify import passages_of, run_sizes
from golden.cases import oracle
from golden.cases.stored import stored_case
from golden.reference import live

__all__ = ["CHECKPOINTS", "Case", "Truth", "bundle_of", "ends_of", "job_entry", "tokens_of", "truth_of"]

CHECKPOINTS = {"pocket": SHIPPED, "tiny": oracle("tiny").checkpoint}
"""The checkpoint that ships, trained; and a random one that upstream gave numbers for."""


@dataclass(frozen=True, order=True)
class Case:
    """A slice in a precision, laid out as a target asks."""

    checkpoint: str
    depth: int
    precision: str
    target: str
    name: str
    """What tables and bundles call it."""


@dataclass(frozen=True)
class Truth:
    """What the reference says of a case; logits are [T, V]."""

    stored: Array
    """On the weights as stored."""
    own: Array
    """On the checkpoint's own weights; upstream's own where there are such."""
    heads: dict[str, Array]
    """Outputs of the probe heads on the weights as stored."""


def bundle_of(case: Case, folder: Path) -> Path:
    """Export a case into a folder of its own, which verifies it on this machine."""
    request = Export(
        checkpoint=CHECKPOINTS[case.checkpoint],
        depth=case.depth,
        target=case.target,
        precision=case.precision,
        output=folder / case.name,
    )
    return export(request).path


def tokens_of(case: Case) -> list[int]:
    """Golden tokens, more than the sliding window holds: upstream's, the stored ones, or seeded ones."""
    if case.checkpoint == "tiny":
        return [int(token) for token in oracle("tiny").tokens[0]]
    sliced = _slice(case.checkpoint, case.depth)
    stored = stored_case(fingerprint(sliced))
    return list(stored.tokens if stored else passages_of(sliced.config)[0].tokens)


def job_entry(case: Case, bundle: Path) -> dict[str, Any]:
    """The case as the guest takes it: one prefill, uneven chunks, and token by token."""
    tokens = tokens_of(case)
    runs = [{"name": way, "tokens": tokens, "sizes": s} for way, s in run_sizes(len(tokens)).items()]
    return {"name": case.name, "bundle": str(bundle), "options": {}, "runs": runs, "score": tokens}


def ends_of(count: int) -> dict[str, list[int]]:
    """Numbers of the tokens after which each way to run gives logits."""
    return {way: [end - 1 for end in itertools.accumulate(s)] for way, s in run_sizes(count).items()}


@lru_cache(maxsize=64)
def truth_of(case: Case) -> Truth:
    """Run the reference."""
    sliced, tokens = _slice(case.checkpoint, case.depth), tokens_of(case)
    scheme = scheme_of(load_target(case.target), case.precision)
    plan: PrecisionPlan = plan_precision(sliced.config, sliced.layout, scheme)
    exact = live.run(StoredLadder(sliced, plan), tokens)
    own = live.run(sliced, tokens).logits
    if case.checkpoint == "tiny":
        own = oracle("tiny").logits(case.depth)[0]
    return Truth(exact.logits, own, exact.heads)


@lru_cache(maxsize=16)
def _slice(checkpoint: str, depth: int) -> Ladder:
    return slice_ladder(Checkpoint(CHECKPOINTS[checkpoint]), depth)
