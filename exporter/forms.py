"""The forms of a bundle: one slice, graphs whose blocks may stand idle, or rungs that share weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from exporter.config import MINIMUM_DEPTH, LadderConfig
from exporter.graph import (
    ACTIVE,
    Rows,
    Source,
    build_model,
    build_readout,
    build_score,
    pooled_of,
    state_contract,
)
from exporter.ladder import Ladder, SlicedLadder, fingerprint, plan_blocks, plan_slice, selection_order
from exporter.layout import heads_in
from exporter.passages import MODEL, READOUT, SCORE, graphs_in, suffixed
from exporter.precision import PrecisionPlan, plan_precision
from exporter.report import Report
from exporter.verify import Subject, has_reference, verify_cases, verify_subjects
from exporter.weights import WeightFile

__all__ = [
    "WEIGHTS",
    "Elastic",
    "Form",
    "Shared",
    "Static",
    "describe_graphs",
    "graphs_of",
    "write_graphs",
    "write_slice",
]

WEIGHTS = "weights.bin"

_RANDOM_SETS = 2
"""Sets of blocks beside the ladder's that an elastic export is verified on."""


@dataclass(frozen=True)
class Form(ABC):
    """What a bundle holds, and how that is built, verified and described."""

    ladder: SlicedLadder
    """All that its weights file holds, which is its deepest rung."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its part of the bundle's name."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is, in words."""

    @abstractmethod
    def build(self, folder: Path, plan: PrecisionPlan, *, all_logits: bool) -> WeightFile:
        """Write graphs and weights into a folder; the weights file comes back closed."""

    @abstractmethod
    def describe(self, *, all_logits: bool) -> dict[str, Any]:
        """Its entries of the bundle's description."""

    @abstractmethod
    def subjects(self, folder: Path) -> Iterator[tuple[Mapping[str, Path], list[Subject]]]:
        """Graphs in a folder, and the slices that they have to equal."""

    def beside(self, plan: PrecisionPlan) -> list[tuple[SlicedLadder, PrecisionPlan]]:  # noqa: ARG002 - of some
        """Slices with graphs of their own over the same weights, shallowest first, each with its storage."""
        return []

    def verify(self, folder: Path, plan: PrecisionPlan) -> Report:
        """Verify with what there is: the reference, else stored cases, else not at all.

        Raises:
            VerificationError: a bound is exceeded.
        """
        from golden.cases.stored import stored_case  # noqa: PLC0415 - read only here

        case, scheme = stored_case(fingerprint(self.ladder)), plan.scheme.name
        if has_reference():
            report, prompt = Report("reference"), None if case is None else case.tokens
            for graphs, subjects in self.subjects(folder):
                verify_subjects(report, graphs, subjects, self.ladder, plan, prompt)
            return report
        if case is None:
            return Report(None)
        report = Report("stored cases")
        for graphs, subjects in self.subjects(folder):
            known = ((subject, stored_case(fingerprint(subject.of(self.ladder)))) for subject in subjects)
            cases = [(subject, found) for subject, found in known if found is not None]
            verify_cases(report, graphs, cases, self.ladder.config, scheme)
        return report


class Static(Form):
    """One slice."""

    @property
    def name(self) -> str:
        """``d6``, or the blocks where they are no rung."""
        plan = self.ladder.plan
        return f"d{plan.depth}" if self._rung else f"b{'-'.join(map(str, plan.blocks))}"

    @property
    def label(self) -> str:
        """The depth, or the blocks."""
        plan = self.ladder.plan
        return f"depth {plan.depth}" if self._rung else f"blocks {','.join(map(str, plan.blocks))}"

    @property
    def _rung(self) -> bool:
        plan = self.ladder.plan
        return plan.blocks == plan_slice(self.ladder.parent.config, plan.depth).blocks

    def build(self, folder: Path, plan: PrecisionPlan, *, all_logits: bool) -> WeightFile:
        """Write the graphs of the slice."""
        return write_slice(folder, self.ladder, plan, Rows.ALL if all_logits else Rows.LAST)

    def describe(self, *, all_logits: bool) -> dict[str, Any]:
        """The graphs."""
        return {"graphs": describe_graphs(self.ladder, Rows.ALL if all_logits else Rows.LAST)}

    def subjects(self, folder: Path) -> Iterator[tuple[Mapping[str, Path], list[Subject]]]:
        """The slice."""
        yield graphs_in(folder), [Subject()]


class Elastic(Form):
    """Graphs that are told at each call which blocks run."""

    @property
    def name(self) -> str:
        """``elastic``, with the deepest rung where that is not all of the ladder."""
        plan = self.ladder.plan
        return "elastic" if plan.depth == plan.parent_depth else f"elastic-d{plan.depth}"

    @property
    def label(self) -> str:
        """The depth that it reaches."""
        return f"an elastic graph of depth {self.ladder.plan.depth}"

    def build(self, folder: Path, plan: PrecisionPlan, *, all_logits: bool) -> WeightFile:
        """Write graphs with a branch around each block."""
        rows = Rows.ALL if all_logits else Rows.KEPT
        return write_slice(folder, self.ladder, plan, rows, elastic=True)

    def describe(self, *, all_logits: bool) -> dict[str, Any]:
        """The graphs, and which blocks make which depth."""
        config = self.ladder.config
        depths = range(MINIMUM_DEPTH, config.num_layers + 1)
        return {
            "graphs": describe_graphs(self.ladder, Rows.ALL if all_logits else Rows.KEPT),
            "elastic": {
                "input": ACTIVE,
                "blocks": config.num_layers,
                "least": MINIMUM_DEPTH,
                "order": list(config.ladder_order or selection_order(config.num_layers)),
                "depths": {str(depth): list(plan_slice(config, depth).blocks) for depth in depths},
            },
        }

    def subjects(self, folder: Path) -> Iterator[tuple[Mapping[str, Path], list[Subject]]]:
        """The shallowest, the middle and the deepest rung, and some sets that are no rungs."""
        config = self.ladder.config
        total = config.num_layers
        subjects = [
            Subject(plan_slice(config, depth), elastic=True, label=f"depth {depth}: ")
            for depth in sorted({MINIMUM_DEPTH, (total + 2) // 2, total})
        ]
        for blocks in _random_sets(config):
            label = f"blocks {','.join(map(str, blocks))}: "
            subjects.append(Subject(plan_blocks(config, blocks), elastic=True, label=label))
        yield graphs_in(folder), subjects


@dataclass(frozen=True)
class Shared(Form):
    """Rungs with graphs of their own over one weights file."""

    others: tuple[SlicedLadder, ...]
    """The other rungs, shallowest first, as slices of the deepest."""

    @property
    def name(self) -> str:
        """The depths, such as ``d4-8-20``."""
        return f"d{'-'.join(self._depths)}"

    @property
    def label(self) -> str:
        """The depths."""
        return f"depths {', '.join(self._depths)}"

    @property
    def _depths(self) -> list[str]:
        return [str(rung.plan.depth) for rung in (*self.others, self.ladder)]

    def beside(self, plan: PrecisionPlan) -> list[tuple[SlicedLadder, PrecisionPlan]]:
        """The other rungs; a rung's heads have fewer rows, which must not change how they are stored."""

        def stored(rung: SlicedLadder) -> PrecisionPlan:
            own = plan_precision(rung.config, rung.layout, plan.scheme)
            kept = replace(own, storage={name: plan.storage[rung.source(name)] for name in own.storage})
            return kept.inherited(plan, rung)

        return [(rung, stored(rung)) for rung in self.others]

    def build(self, folder: Path, plan: PrecisionPlan, *, all_logits: bool) -> WeightFile:
        """Write the deepest rung's graphs, then those of the others over the same weights.

        Only the deepest has a scoring graph, so that another rung adds little; its confidence is carried
        along while it decodes.
        """
        rows = Rows.ALL if all_logits else Rows.KEPT
        with WeightFile(folder / WEIGHTS) as file:
            write_graphs(folder, Source(self.ladder, plan, file), rows)
            for rung, stored in self.beside(plan):
                write_graphs(folder, Source(rung, stored, file), rows, suffix=_suffix(rung), score=False)
        return file

    def describe(self, *, all_logits: bool) -> dict[str, Any]:
        """The graphs of the deepest rung, and those of the others."""
        rows, rungs = Rows.ALL if all_logits else Rows.KEPT, {}
        for rung in self.others:
            graphs = describe_graphs(rung, rows, suffix=_suffix(rung), score=False)
            del graphs["weights"]
            rungs[str(rung.plan.depth)] = {"blocks": list(rung.plan.blocks), **graphs}
        return {"graphs": describe_graphs(self.ladder, rows), "rungs": rungs}

    def subjects(self, folder: Path) -> Iterator[tuple[Mapping[str, Path], list[Subject]]]:
        """Every rung."""
        for rung in self.others:
            label = f"depth {rung.plan.depth}: "
            yield graphs_in(folder, _suffix(rung)), [Subject(rung.plan, label=label)]
        yield graphs_in(folder), [Subject(label=f"depth {self.ladder.plan.depth}: ")]


def write_slice(
    folder: Path, ladder: Ladder, plan: PrecisionPlan, rows: Rows, *, elastic: bool = False
) -> WeightFile:
    """Write the graphs of a ladder and a weights file of their own, which comes back closed.

    Args:
        folder: where.
        ladder: what to export.
        plan: its storage.
        rows: positions that get logits.
        elastic: whether blocks may stand idle.
    """
    with WeightFile(folder / WEIGHTS) as file:
        write_graphs(folder, Source(ladder, plan, file), rows, elastic=elastic)
    return file


def write_graphs(
    folder: Path, source: Source, rows: Rows, *, elastic: bool = False, suffix: str = "", score: bool = True
) -> None:
    """Write the graphs of a ladder into a folder.

    Args:
        folder: where.
        source: of their parameters; what its weights file lacks is appended.
        rows: positions that get logits.
        elastic: whether blocks may stand idle.
        suffix: of the names of the files.
        score: whether to write a scoring graph, if there is a head.
    """
    for name, graph in graphs_of(source, rows, elastic=elastic, score=score).items():
        ir.save(graph, folder / suffixed(name, suffix))


def graphs_of(
    source: Source, rows: Rows = Rows.LAST, *, elastic: bool = False, score: bool = True
) -> dict[str, ir.Model]:
    """The graphs of a ladder by the names of their files; the arguments are those of :func:`write_graphs`."""
    heads = heads_in(source.ladder.layout)
    pooled = pooled_of(heads)
    graphs = {MODEL: build_model(source, rows=rows, pooled=pooled, elastic=elastic)}
    if heads and score:
        graphs[SCORE] = build_score(source, heads, elastic=elastic)
    if pooled:
        graphs[READOUT] = build_readout(source, pooled, elastic=elastic)
    return graphs


def describe_graphs(
    ladder: Ladder, rows: Rows = Rows.LAST, *, suffix: str = "", score: bool = True
) -> dict[str, Any]:
    """The graphs of a ladder and their contract; the arguments are those of :func:`write_graphs`."""
    heads = heads_in(ladder.layout)
    pooled = pooled_of(heads)
    states = [state.to_json() for state in state_contract(ladder.config, pooled)]
    graphs: dict[str, Any] = {
        "weights": WEIGHTS,
        "decode": {"file": suffixed(MODEL, suffix), "logits": str(rows), "states": states},
    }
    if heads and score:
        graphs["score"] = {"file": suffixed(SCORE, suffix), "outputs": heads}
    if pooled:
        graphs["readout"] = {"file": suffixed(READOUT, suffix), "outputs": pooled}
    return graphs


def _suffix(rung: SlicedLadder) -> str:
    return f"-d{rung.plan.depth}"


def _random_sets(config: LadderConfig) -> Iterator[Sequence[int]]:
    """Seeded sets of blocks with both ends that are no rungs, if there are any."""
    rng = np.random.default_rng(config.num_layers)
    total, found = config.num_layers, set[tuple[int, ...]]()
    rungs = {plan_slice(config, depth).blocks for depth in range(MINIMUM_DEPTH, total + 1)}
    for _ in range(8 * _RANDOM_SETS):
        inner = np.flatnonzero(rng.random(total - 2) < rng.uniform(0.2, 0.8)) + 1
        blocks = (0, *(int(block) for block in inner), total - 1)
        if blocks not in rungs | found and len(found) < _RANDOM_SETS:
            found.add(blocks)
            yield blocks
