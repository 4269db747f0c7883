"""The reference against an exported graph: what was run, how far apart they are, and the verdict."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exporter.compare import ACTIVATIONS, ARITHMETIC, FIDELITY, HEADS, Bound, Comparison, compare
from exporter.config import LadderConfig
from exporter.errors import VerificationError
from exporter.graph import state_contract
from exporter.ladder import Array, Ladder
from exporter.precision import PrecisionPlan, StoredLadder
from exporter.session import Graph, GraphSession, States, float_arithmetic, open_session

if TYPE_CHECKING:
    from golden.cases.stored import StoredCase

__all__ = [
    "MODEL",
    "READOUT",
    "SCORE",
    "Passage",
    "Report",
    "check_witness",
    "has_reference",
    "passages_of",
    "run_heads",
    "run_passages",
    "run_sizes",
    "verify_live",
    "verify_stored",
]

_FRESH = 32
_LONG_WINDOW = 128
_TAIL = 16
_BOS = 2
_BEST = 8
_CHUNKS = (1, 7, 2, 19, 5, 11, 3)
"""Uneven chunk sizes, repeated as long as there are tokens."""

MODEL, SCORE, READOUT = "model.onnx", "score.onnx", "readout.onnx"


@dataclass(frozen=True)
class Passage:
    """Tokens to run, from the start of a sequence or from a made-up state in its middle."""

    tokens: tuple[int, ...]
    position: int = 0
    seed: int | None = None
    """Seed of the made-up caches of ``position`` earlier tokens; None at the start of a sequence."""


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

    def judge(self, what: str, runs: Runs, reference: Sequence[Array], bound: Bound) -> None:
        """Compare runs with the reference's logits [T, V] per passage; rows of NaN are not known.

        Raises:
            VerificationError: the bound is exceeded.
        """
        self.bounds[what], self.comparisons[what] = bound, {}
        for way, passages in runs.items():
            pairs = [
                (row, known[token])
                for rows, known in zip(passages, reference, strict=True)
                for token, row in rows.items()
                if not np.isnan(known[token]).any()
            ]
            found = compare(np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs]), bound)
            self.comparisons[what][way] = found
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


def has_reference() -> bool:
    """Whether the reference can run here, which takes PyTorch."""
    return importlib.util.find_spec("torch") is not None


def passages_of(config: LadderConfig) -> list[Passage]:
    """The golden prompts of a checkpoint that brings none: seeded ids, past the sliding window.

    A short window is outrun from the start of a sequence. A long one is crossed from a made-up state just
    before its end, which the graph and the reference both continue.
    """
    rng = np.random.RandomState(config.vocab_size)

    def draw(count: int) -> tuple[int, ...]:
        ids = rng.randint(1, config.vocab_size, count - 1)
        ids[ids == config.pad_token_id] = 1
        return (_BOS % config.vocab_size, *(int(i) for i in ids))

    windows = {config.window(block) for block in range(config.num_layers)}
    longest = max(windows)
    if longest <= _LONG_WINDOW:
        return [Passage(draw(max(_FRESH, longest + _TAIL)))]
    return [Passage(draw(_FRESH)), Passage(draw(_TAIL), position=longest - _TAIL // 2, seed=1)]


def run_sizes(count: int) -> dict[str, list[int]]:
    """Chunk sizes of the three ways to run ``count`` tokens: at once, in uneven chunks, one by one."""
    chunks: list[int] = []
    sizes = itertools.cycle(_CHUNKS)
    while (left := count - sum(chunks)) > 0:
        chunks.append(min(left, next(sizes)))
    return {"prefill": [count], "chunks": chunks, "steps": [1] * count}


@lru_cache(maxsize=2)
def made_up_states(config: LadderConfig, passage: Passage) -> States | None:
    """Seeded past states of a passage in the middle of a sequence; None at its start."""
    if passage.seed is None:
        return None
    rng = np.random.default_rng(passage.seed)
    states: dict[str, NDArray[Any]] = {}
    for state in state_contract(config):
        shape = tuple(passage.position if a == state.grows else n for a, n in enumerate(state.shape))
        if state.dtype == "int64":
            states[state.past] = rng.integers(0, config.vocab_size, shape)
            continue
        values = 0.5 * rng.standard_normal(shape, dtype=np.float32)
        if state.grows is not None:
            width = config.qk_head_dim if state.past.endswith("key") else config.v_head_dim
            values[..., width:] = 0  # the cache's padding
        states[state.past] = values
    return states


def verify_live(
    folder: Path, ladder: Ladder, plan: PrecisionPlan, prompt: Sequence[int] | None = None
) -> Report:
    """Compare a bundle's graphs with the reference, run here.

    Three comparisons: *arithmetic*, the graph multiplying in float32 against the reference on the weights
    as stored, which must agree to rounding whatever the precision; *activations*, the graph as it is
    against the same; *fidelity*, the graph as it is against the checkpoint's own weights.

    Args:
        folder: of the graphs and the weights file.
        ladder: what was exported.
        plan: its storage.
        prompt: golden prompt, longer than the sliding window; None takes seeded ids.

    Raises:
        VerificationError: a bound is exceeded.
    """
    from golden.reference import live  # noqa: PLC0415 - PyTorch, only where there is one

    config, scheme = ladder.config, plan.scheme
    passages = passages_of(config) if prompt is None else [Passage(tuple(prompt))]
    stored: Ladder = ladder if scheme.name == "fp32" else StoredLadder(ladder, plan)

    def reference(source: Ladder) -> list[live.Outputs]:
        outputs = [live.run(source, p.tokens, p.position, made_up_states(config, p)) for p in passages]
        if not all(np.isfinite(output.logits).all() for output in outputs):
            message = (
                "the reference's own logits are NaN or infinite, so that nothing can be compared with them. "
                "Nothing was written; export a checkpoint from before the training diverged."
            )
            raise VerificationError(message)
        return outputs

    exact = reference(stored)
    truth = exact if stored is ladder else reference(ladder)
    stored_logits, true_logits = ([outputs.logits for outputs in o] for o in (exact, truth))
    report = Report("reference", _witness(passages, true_logits))
    with float_twins(folder) as twins:
        runs = run_passages(twins[MODEL], config, passages)
        report.judge("arithmetic", runs, stored_logits, ARITHMETIC)
        for name, got in run_heads(twins, config, passages[0]):
            report.judge_heads("arithmetic", name, got, exact[0].heads, HEADS["fp32"])
    if plan.integer_arithmetic:
        runs = run_passages(folder / MODEL, config, passages)
        report.judge("activations", runs, stored_logits, ACTIVATIONS)
    report.judge("fidelity", runs, true_logits, FIDELITY[scheme.name])
    for name, got in run_heads(_graphs(folder), config, passages[0]):
        report.judge_heads("fidelity", name, got, truth[0].heads, HEADS[scheme.name])
    return report


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
    passage = Passage(case.tokens)
    reference = np.full((len(case.tokens), case.logits.shape[-1]), np.nan, np.float32)
    reference[list(case.positions)] = case.logits
    report = Report("stored cases", _witness([passage], [reference]))
    runs = run_passages(folder / MODEL, config, [passage])
    report.judge("fidelity", runs, [reference], FIDELITY[scheme])
    for name, got in run_heads(_graphs(folder), config, passage):
        report.judge_heads("fidelity", name, got, case.heads, HEADS[scheme])
    return report


Runs = dict[str, list[dict[int, Array]]]
"""Per way to run, per passage: logits [V] by number of the token."""


def run_passages(graph: Path | Graph, config: LadderConfig, passages: Sequence[Passage]) -> Runs:
    """Run passages through a decoding graph at once, in uneven chunks and token by token."""
    session = GraphSession(graph, config)
    runs: Runs = {}
    for passage in passages:
        for way, sizes in run_sizes(len(passage.tokens)).items():
            states = made_up_states(config, passage)
            run = session.run(passage.tokens, sizes, states, passage.position)
            runs.setdefault(way, []).append(run.logits)
    return runs


def run_heads(
    graphs: Mapping[str, Path], config: LadderConfig, passage: Passage
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Head outputs of a whole sequence: from the scoring graph, and from what decoding carried along.

    Args:
        graphs: of one bundle, by name.
        config: their geometry.
        passage: from the start of a sequence, without padding.

    Yields:
        The graph's name, and its outputs [1, n] by head.
    """
    if SCORE in graphs:
        yield SCORE, _outputs(graphs[SCORE], {"input_ids": np.array([passage.tokens], np.int64)})
    if READOUT in graphs:
        session = GraphSession(graphs[MODEL], config)
        states = session.run(passage.tokens, run_sizes(len(passage.tokens))["chunks"]).states
        present = {state.present: states[state.past] for state in session.contract}
        yield READOUT, _outputs(graphs[READOUT], present)


def _outputs(graph: Path, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Every output of a graph, fed with those of ``feeds`` that it takes."""
    session = open_session(graph)
    names = [value.name for value in session.get_outputs()]
    wanted = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, wanted), strict=True))


def _graphs(folder: Path) -> dict[str, Path]:
    """The graphs that a bundle has, by name."""
    return {name: folder / name for name in (MODEL, SCORE, READOUT) if (folder / name).exists()}


@contextmanager
def float_twins(folder: Path) -> Iterator[dict[str, Path]]:
    """Twins of a bundle's graphs that multiply in float32, beside them while the context lasts."""
    twins = {name: folder / f".float.{name}" for name in _graphs(folder)}
    try:
        for name, twin in twins.items():
            float_arithmetic(folder / name, twin)
        yield twins
    finally:
        for twin in twins.values():
            twin.unlink(missing_ok=True)


def _witness(passages: Sequence[Passage], truth: Sequence[Array]) -> list[dict[str, Any]]:
    """The best logits of the reference at the ends of the uneven chunks, and the tokens before them."""
    witness = []
    for passage, reference in zip(passages, truth, strict=True):
        ends = itertools.accumulate(run_sizes(len(passage.tokens))["chunks"])
        positions = []
        for end in (end - 1 for end in ends if np.isfinite(reference[end - 1]).all()):
            best = np.argsort(-reference[end], kind="stable")[:_BEST]
            logits = [float(f"{value:.6g}") for value in reference[end][best]]
            positions.append({"token": end, "ids": [int(i) for i in best], "logits": logits})
        spread = float(f"{np.nanstd(reference):.6g}")
        witness.append({**asdict(passage), "spread": spread, "positions": positions})
    return witness


def check_witness(
    graph: Path | Graph, config: LadderConfig, scheme: str, witness: Sequence[Mapping[str, Any]]
) -> float:
    """Run a bundle's decoding graph on its own witness.

    Args:
        graph: the decoding graph.
        config: its geometry.
        scheme: name of its precision.
        witness: of its report.

    Returns:
        The greatest difference, in units of the spread.

    Raises:
        VerificationError: it exceeds the precision's bound.
    """
    differences = [0.0]
    for entry in witness:
        passage = Passage(tuple(entry["tokens"]), entry["position"], entry["seed"])
        runs = run_passages(graph, config, [passage])["chunks"][0]
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
