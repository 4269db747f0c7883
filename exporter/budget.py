"""Whether an export fits its target, and which one would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from exporter.config import MINIMUM_DEPTH
from exporter.errors import BudgetError, PrecisionError
from exporter.footprint import Footprint, footprint
from exporter.ladder import Ladder, slice_ladder
from exporter.precision import BLOCKS, PRECISIONS, QUANTISERS, PrecisionPlan, Scheme, plan_precision
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
    _known: dict[tuple[int, str], Footprint] = field(default_factory=dict, init=False, repr=False)

    def require(self, depth: int, precision: str) -> Footprint:
        """Predict what an export costs, and refuse it if that is more than the target allows.

        Args:
            depth: rung of the ladder.
            precision: one that the target takes.

        Raises:
            BudgetError: it cannot fit; the message says by how much, and what would.
            DepthError: the depth is not on the ladder.
        """
        found = self.footprint(depth, precision)
        self._refuse(found, depth, precision)
        return found

    def require_plan(self, ladder: Ladder, plan: PrecisionPlan) -> Footprint:
        """Predict what an export of a plan costs, and refuse it if that is more than the target allows.

        Args:
            ladder: the slice.
            plan: its storage.

        Raises:
            BudgetError: it cannot fit.
        """
        depth, name = ladder.config.num_layers, plan.scheme.name
        if name in PRECISIONS:
            return self.require(depth, name)
        found = self._predicted(ladder, plan)
        self._refuse(found, depth, name)
        return found

    def _refuse(self, found: Footprint, depth: int, precision: str) -> None:
        over = list(_excess(found, self._budget))
        if over:
            remedy = (
                self._remedy(depth, precision) if precision in PRECISIONS else "Lower --budget or --depth."
            )
            message = (
                f"depth {depth} in {precision} does not fit target {self.target.name!r}: it takes "
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
            self.require(MINIMUM_DEPTH, precision)
            raise AssertionError(top)
        return deepest

    def footprint(self, depth: int, precision: str) -> Footprint:
        """Predict what the bundle of a depth and precision costs."""
        if (depth, precision) not in self._known:
            sliced = slice_ladder(self.ladder, depth)
            wanted = self.quantising if PRECISIONS[precision].block else AS_PLANNED
            scheme = scheme_for(self.target, precision, wanted)
            plan = plan_precision(sliced.config, sliced.layout, scheme)
            self._known[depth, precision] = self._predicted(sliced, plan)
        return self._known[depth, precision]

    def _predicted(self, ladder: Ladder, plan: PrecisionPlan) -> Footprint:
        context = self._budget.context or ladder.config.max_seq_len
        return footprint(ladder, plan, context, tokenizer=self.tokenizer)

    @property
    def _budget(self) -> Budget:
        return self.target.budget or Budget()

    def _fits(self, depth: int, precision: str) -> bool:
        return not any(_excess(self.footprint(depth, precision), self._budget))

    def _remedy(self, depth: int, precision: str) -> str:
        """What to ask for instead."""
        offers = []
        shallower = _last(MINIMUM_DEPTH, depth - 1, lambda d: self._fits(d, precision))
        if shallower is not None:
            offers.append(f"--depth {shallower} (or less) in {precision}")
        narrower = next((p for p in self._narrower(precision) if self._fits(depth, p)), None)
        if narrower is not None:
            offers.append(f"--precision {narrower} at depth {depth}")
        if offers:
            return f"What fits: {', or '.join(offers)}."
        for name in self._narrower(precision):
            shallower = _last(MINIMUM_DEPTH, depth - 1, partial(self._fits, precision=name))
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
