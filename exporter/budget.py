"""Whether an export fits its target, and which one would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from exporter.config import MINIMUM_DEPTH
from exporter.errors import BudgetError, PrecisionError
from exporter.footprint import Footprint, footprint
from exporter.forms import Form
from exporter.ladder import Ladder, SlicedLadder, slice_ladder
from exporter.precision import BLOCKS, MIXED, PRECISIONS, QUANTISERS, PrecisionPlan, Scheme, plan_precision
from targets import Budget, Target

__all__ = ["AS_PLANNED", "Fitting", "Quantising", "scheme_for"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Quantising:
    """How to quantise otherwise than the target and the precision say; None leaves it to them."""

    quantiser: str | None = None
    block: int | None = None
    zero_points: bool = False


AS_PLANNED = Quantising()


def scheme_for(target: Target, precision: str, wanted: Quantising = AS_PLANNED) -> Scheme:
    """A precision, laid out as the target asks, and then as the user does.

    Raises:
        PrecisionError: there is no such quantiser or block, or the precision quantises nothing.
    """
    layout, scheme = target.precision.quantisation(precision), PRECISIONS[precision]
    if layout is not None:
        scheme = replace(scheme, block=layout.block_size, accuracy_level=layout.accuracy_level)
    if wanted == AS_PLANNED:
        return scheme
    if not scheme.block:
        message = f"{precision} quantises nothing: drop --quantiser, --block and --zero-points."
        raise PrecisionError(message)
    quantiser, block = wanted.quantiser or scheme.quantiser, wanted.block or scheme.block
    if quantiser not in QUANTISERS:
        message = f"quantiser {quantiser!r} is unknown: choose {', '.join(QUANTISERS)}."
        raise PrecisionError(message)
    if block not in BLOCKS:
        message = f"block {block} has no kernel: choose {', '.join(map(str, BLOCKS))}."
        raise PrecisionError(message)
    return replace(scheme, quantiser=quantiser, block=block, zero_points=wanted.zero_points)


@dataclass(frozen=True)
class Fitting:
    """A ladder beside the budget of a target.

    ``tokenizer`` is the number of bytes of the tokenizer's file, 0 for none; ``quantising`` applies to every
    precision that quantises.
    """

    ladder: Ladder
    target: Target
    tokenizer: int = 0
    quantising: Quantising = AS_PLANNED
    _known: dict[tuple[Any, ...], Footprint] = field(default_factory=dict, init=False, repr=False)

    def require(self, form: Form, plan: PrecisionPlan) -> Footprint:
        """Predict what an export costs, and refuse it if that is more than the target allows.

        Args:
            form: what the bundle holds.
            plan: its storage.

        Raises:
            BudgetError: it cannot fit; the message says by how much, and what would.
        """
        found, name = self._predicted(form.ladder, plan, form.beside(plan)), plan.scheme.name
        self._refuse(found, form.label, name, form.ladder.plan.depth)
        return found

    def _refuse(self, found: Footprint, label: str, precision: str, depth: int) -> None:
        over = list(_excess(found, self._budget))
        if over:
            remedy = (
                self._remedy(depth, precision) if precision in PRECISIONS else "Lower --budget or --depth."
            )
            message = (
                f"{label} in {precision} does not fit target {self.target.name!r}: it takes "
                f"{' and '.join(over)}. {remedy}"
            )
            raise BudgetError(message)

    def deepest(self, precision: str) -> int:
        """The deepest rung that fits.

        Raises:
            BudgetError: not even the shallowest does.
        """
        top = self.ladder.config.num_layers
        if self._fits(top, precision):
            return top
        deepest = _last(MINIMUM_DEPTH, top - 1, lambda depth: self._fits(depth, precision))
        if deepest is None:
            found = self.footprint(MINIMUM_DEPTH, precision)
            self._refuse(found, f"depth {MINIMUM_DEPTH}", precision, MINIMUM_DEPTH)
            raise AssertionError(top)
        return deepest

    def footprint(self, depth: int, precision: str) -> Footprint:
        """Predict what the bundle of a rung and precision costs.

        Raises:
            DepthError: the depth is not on the ladder.
        """
        sliced = slice_ladder(self.ladder, depth)
        wanted = self.quantising if PRECISIONS[precision].block else AS_PLANNED
        scheme = scheme_for(self.target, precision, wanted)
        return self._predicted(sliced, plan_precision(sliced.config, sliced.layout, scheme))

    def _predicted(
        self,
        ladder: SlicedLadder,
        plan: PrecisionPlan,
        beside: Sequence[tuple[SlicedLadder, PrecisionPlan]] = (),
    ) -> Footprint:
        # A scheme decides every tensor's storage, unless widths were chosen tensor by tensor.
        key = ladder.plan.blocks, plan.scheme, tuple(rung.plan.blocks for rung, _ in beside)
        if key not in self._known or plan.scheme.name == MIXED:
            context = self._budget.context or ladder.config.max_seq_len
            self._known[key] = footprint(ladder, plan, context, tokenizer=self.tokenizer, beside=beside)
        return self._known[key]

    @property
    def _budget(self) -> Budget:
        return self.target.budget or Budget()

    def _fits(self, depth: int, precision: str) -> bool:
        return not any(_excess(self.footprint(depth, precision), self._budget))

    def _remedy(self, depth: int, precision: str) -> str:
        """What to ask for instead."""
        offers = []
        shallower = _last(MINIMUM_DEPTH, depth, lambda d: self._fits(d, precision))
        if shallower is not None:
            offers.append(f"--depth {shallower} (or less) in {precision}")
        narrower = next((p for p in self._narrower(precision) if self._fits(depth, p)), None)
        if narrower is not None:
            offers.append(f"--precision {narrower} at depth {depth}")
        if offers:
            return f"What fits: {', or '.join(offers)}."
        for name in self._narrower(precision):
            shallower = _last(MINIMUM_DEPTH, depth, partial(self._fits, precision=name))
            if shallower is not None:
                return f"What fits: --depth {shallower} (or less) in {name}."
        return "No depth of this ladder fits it in any precision that it takes; choose another target."

    def _narrower(self, precision: str) -> Iterator[str]:
        """Precisions of fewer bits that the target takes, widest first."""
        bits = PRECISIONS[precision].bits
        allowed = [PRECISIONS[name] for name in self.target.precision.allowed if name in PRECISIONS]
        narrower = sorted((scheme for scheme in allowed if scheme.bits < bits), key=lambda s: -s.bits)
        return (scheme.name for scheme in narrower)


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The greatest number from ``low`` to ``high`` for which it holds, given that it stops holding once."""
    found = None
    while low <= high:
        middle = (low + high) // 2
        if holds(middle):
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


def _excess(found: Footprint, budget: Budget) -> Iterator[str]:
    """What is more than the budget, in words."""
    for what, takes, allowed in (
        ("storage", found.storage, budget.storage),
        ("memory", found.memory.total, budget.memory),
    ):
        if allowed is not None and takes > allowed:
            yield (
                f"{takes / _MIB:.1f} MiB of {what}, {(takes - allowed) / _MIB:.1f} more than the "
                f"{allowed / _MIB:.1f} that it allows"
            )
