"""The reference against exported graphs, and graphs against the witness that a bundle carries."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from exporter.compare import ACTIVATIONS, ARITHMETIC, FIDELITY, HEADS
from exporter.config import LadderConfig
from exporter.errors import ReferenceUnavailableError, VerificationError
from exporter.ladder import Array, Ladder, SlicedLadder, SlicePlan, plan_blocks, sliced_config
from exporter.passages import (
    MODEL,
    READOUT,
    SCORE,
    Passage,
    Runs,
    graphs_in,
    made_up_states,
    passages_of,
    run_heads,
    run_passages,
    run_sizes,
)
from exporter.precision import PrecisionPlan, StoredLadder
from exporter.report import Report
from exporter.session import Graph, float_arithmetic, open_session

if TYPE_CHECKING:
    import onnxruntime as ort

    from golden.cases.stored import StoredCase
    from golden.reference import live

__all__ = [
    "MODEL",
    "READOUT",
    "SCORE",
    "Passage",
    "Report",
    "Runs",
    "Subject",
    "check_witness",
    "has_reference",
    "passages_of",
    "require_reference",
    "run_heads",
    "run_passages",
    "run_sizes",
    "verify_cases",
    "verify_live",
    "verify_stored",
    "verify_subjects",
]

_BEST = 8


def has_reference() -> bool:
    """Whether the reference can run here, which takes PyTorch."""
    return importlib.util.find_spec("torch") is not None


def require_reference(use: str, otherwise: str = "") -> None:
    """Make sure that the reference can run here.

    Args:
        use: what is done with it, to go before "the reference" in the message.
        otherwise: what helps besides installing it.

    Raises:
        ReferenceUnavailableError: there is no PyTorch.
    """
    if not has_reference():
        message = f"{use} the reference, which takes PyTorch: install the extra 'verify'{otherwise}."
        raise ReferenceUnavailableError(message)


class Subject(NamedTuple):
    """A slice that some graphs of a bundle have to equal."""

    plan: SlicePlan | None = None
    """Of the slice; None where it is all that the bundle holds."""
    elastic: bool = False
    """Whether the graphs are told which blocks run."""
    label: str = ""
    """What tells it from the bundle's other slices, with a blank behind."""

    @property
    def chosen(self) -> SlicePlan | None:
        """What the graphs are told to run."""
        return self.plan if self.elastic else None

    def of(self, ladder: Ladder) -> Ladder:
        """The slice of what the bundle holds."""
        return ladder if self.plan is None else SlicedLadder(ladder, self.plan)

    def config(self, whole: LadderConfig) -> LadderConfig:
        """Geometry of the slice."""
        return whole if self.plan is None else sliced_config(whole, self.plan)


def verify_live(
    folder: Path, ladder: Ladder, plan: PrecisionPlan, prompt: Sequence[int] | None = None
) -> Report:
    """Compare the graphs of a bundle with the reference, run here.

    Args:
        folder: of the graphs and the weights file.
        ladder: what was exported.
        plan: its storage.
        prompt: golden prompt, longer than the sliding window; None takes seeded ids.

    Raises:
        VerificationError: a bound is exceeded.
    """
    report = Report("reference")
    verify_subjects(report, graphs_in(folder), [Subject()], ladder, plan, prompt)
    return report


def verify_subjects(
    report: Report,
    graphs: Mapping[str, Path],
    subjects: Sequence[Subject],
    ladder: Ladder,
    plan: PrecisionPlan,
    prompt: Sequence[int] | None = None,
) -> None:
    """Compare graphs with the reference on slices, run here.

    Three comparisons: *arithmetic*, the graph multiplying in float32 against the reference on the weights
    as stored, which must agree to rounding whatever the precision; *activations*, the graph as it is
    against the same; *fidelity*, the graph as it is against the checkpoint's own weights.

    Args:
        report: to add to.
        graphs: by name.
        subjects: the slices that they have to equal.
        ladder: what the bundle holds.
        plan: its storage.
        prompt: golden prompt, longer than the sliding window; None takes seeded ids.

    Raises:
        VerificationError: a bound is exceeded.
    """
    rounded: Ladder = ladder if plan.scheme.name == "fp32" else StoredLadder(ladder, plan)
    expected = [_Expected.of(subject, ladder, rounded, prompt) for subject in subjects]
    runs: list[Runs] = []
    with float_twins(graphs) as twins:
        opened = {name: open_session(twin) for name, twin in twins.items()}
        for one in expected:
            report.witness += _witness(one.passages, [o.logits for o in one.truth], one.subject.plan)
            runs.append(one.run(opened))
            logits = [outputs.logits for outputs in one.exact]
            report.judge("arithmetic", runs[-1], logits, ARITHMETIC, one.subject.label)
            one.judge_heads(report, "arithmetic", opened, one.exact[0].heads, HEADS["fp32"])
    opened = {name: open_session(graph) for name, graph in graphs.items()}
    for one, got in zip(expected, runs, strict=True):
        label, logits = one.subject.label, [outputs.logits for outputs in one.truth]
        if plan.integer_arithmetic:
            got = one.run(opened)  # noqa: PLW2901 - the twin's products were others
            report.judge("activations", got, [outputs.logits for outputs in one.exact], ACTIVATIONS, label)
        report.judge("fidelity", got, logits, FIDELITY[plan.scheme.name], label)
        one.judge_heads(report, "fidelity", opened, one.truth[0].heads, HEADS[plan.scheme.name])


class _Expected(NamedTuple):
    """What the reference gives for a slice."""

    subject: Subject
    config: LadderConfig
    passages: list[Passage]
    exact: list[live.Outputs]
    """On the weights as stored."""
    truth: list[live.Outputs]
    """On the checkpoint's own."""

    @classmethod
    def of(cls, subject: Subject, ladder: Ladder, rounded: Ladder, prompt: Sequence[int] | None) -> _Expected:
        config = subject.config(ladder.config)
        passages = passages_of(config) if prompt is None else [Passage(tuple(prompt))]
        exact = _reference(subject.of(rounded), passages)
        truth = exact if rounded is ladder else _reference(subject.of(ladder), passages)
        return cls(subject, config, passages, exact, truth)

    def run(self, graphs: Mapping[str, ort.InferenceSession]) -> Runs:
        return run_passages(graphs[MODEL], self.config, self.passages, self.subject.chosen)

    def judge_heads(
        self,
        report: Report,
        what: str,
        graphs: Mapping[str, ort.InferenceSession],
        outputs: Mapping[str, Array],
        bound: float,
    ) -> None:
        for name, got in run_heads(graphs, self.config, self.passages[0], self.subject.chosen):
            report.judge_heads(what, f"{self.subject.label}{name}", got, outputs, bound)


def _reference(ladder: Ladder, passages: Sequence[Passage]) -> list[live.Outputs]:
    """What the reference gives.

    Raises:
        VerificationError: it gives NaN or infinity.
    """
    from golden.reference import live  # noqa: PLC0415 - PyTorch, only where there is one

    config = ladder.config
    outputs = [live.run(ladder, p.tokens, p.position, made_up_states(config, p)) for p in passages]
    if not all(np.isfinite(output.logits).all() for output in outputs):
        message = (
            "the reference's own logits are NaN or infinite, so that nothing can be compared with them. "
            "Nothing was written; export a checkpoint from before the training diverged."
        )
        raise VerificationError(message)
    return outputs


def verify_stored(folder: Path, config: LadderConfig, scheme: str, case: StoredCase) -> Report:
    """Compare a bundle's graphs with what the reference gave when the case was stored.

    Args:
        folder: of the graphs and the weights file.
        config: geometry of what was exported.
        scheme: name of the precision.
        case: of the same ladder at the same depth.

    Raises:
        VerificationError: a bound is exceeded.
    """
    report = Report("stored cases")
    verify_cases(report, graphs_in(folder), [(Subject(), case)], config, scheme)
    return report


def verify_cases(
    report: Report,
    graphs: Mapping[str, Path],
    cases: Iterable[tuple[Subject, StoredCase]],
    config: LadderConfig,
    scheme: str,
) -> None:
    """Compare graphs with stored cases.

    Args:
        report: to add to.
        graphs: by name.
        cases: slices that they have to equal, each with its case.
        config: geometry of what the bundle holds.
        scheme: name of the precision.

    Raises:
        VerificationError: a bound is exceeded.
    """
    opened = {name: open_session(graph) for name, graph in graphs.items()}
    for subject, case in cases:
        passage, label, geometry = Passage(case.tokens), subject.label, subject.config(config)
        reference = np.full((len(case.tokens), case.logits.shape[-1]), np.nan, np.float32)
        reference[list(case.positions)] = case.logits
        report.witness += _witness([passage], [reference], subject.plan)
        runs = run_passages(opened[MODEL], geometry, [passage], subject.chosen)
        report.judge("fidelity", runs, [reference], FIDELITY[scheme], label)
        for name, got in run_heads(opened, geometry, passage, subject.chosen):
            report.judge_heads("fidelity", f"{label}{name}", got, case.heads, HEADS[scheme])


@contextmanager
def float_twins(graphs: Mapping[str, Path]) -> Iterator[dict[str, Path]]:
    """Twins of graphs that multiply in float32, beside them while the context lasts."""
    twins = {name: path.with_name(f".float.{path.name}") for name, path in graphs.items()}
    try:
        for name, twin in twins.items():
            float_arithmetic(graphs[name], twin)
        yield twins
    finally:
        for twin in twins.values():
            twin.unlink(missing_ok=True)


def _witness(
    passages: Sequence[Passage], truth: Sequence[Array], plan: SlicePlan | None
) -> list[dict[str, Any]]:
    """The best logits of the reference at the ends of the uneven chunks, and the tokens before them."""
    which = {} if plan is None else {"blocks": list(plan.blocks)}
    witness = []
    for passage, reference in zip(passages, truth, strict=True):
        ends = itertools.accumulate(run_sizes(len(passage.tokens))["chunks"])
        positions = []
        for end in (end - 1 for end in ends if np.isfinite(reference[end - 1]).all()):
            best = np.argsort(-reference[end], kind="stable")[:_BEST]
            logits = [float(f"{value:.6g}") for value in reference[end][best]]
            positions.append({"token": end, "ids": [int(i) for i in best], "logits": logits})
        spread = float(f"{np.nanstd(reference):.6g}")
        witness.append({**which, **asdict(passage), "spread": spread, "positions": positions})
    return witness


def check_witness(
    graph: Path | Graph, config: LadderConfig, scheme: str, witness: Sequence[Mapping[str, Any]]
) -> float:
    """Run a bundle's decoding graph on its own witness.

    Args:
        graph: the decoding graph.
        config: its geometry.
        scheme: name of its precision.
        witness: of its report; entries that name blocks are those of an elastic graph.

    Returns:
        The greatest difference, in units of the spread.

    Raises:
        VerificationError: it exceeds the precision's bound.
    """
    differences = [0.0]
    for entry in witness:
        passage, plan, geometry = (
            Passage(tuple(entry["tokens"]), entry["position"], entry["seed"]),
            None,
            config,
        )
        if entry.get("blocks") is not None:
            plan = plan_blocks(config, entry["blocks"])
            geometry = sliced_config(config, plan)
        runs = run_passages(graph, geometry, [passage], plan)["chunks"][0]
        for position in entry["positions"]:
            got = runs[position["token"]][position["ids"]]
            differences.append(float(np.abs(got - position["logits"]).max()) / entry["spread"])
    # Written so that NaN fails; the built-in max would pass over it.
    worst, bound = float(np.max(differences)), FIDELITY[scheme].difference
    if not worst <= bound:
        message = (
            f"{graph}: on the bundle's own witness its logits differ from the reference's by {worst:.3g} of "
            f"their spread, and {scheme} may differ by {bound:g}. Export the bundle again."
        )
        raise VerificationError(message)
    return worst
