"""Widths chosen per tensor under a byte budget, by what each was measured to cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from exporter.calibrate import calibrated
from exporter.compare import divergences
from exporter.errors import BudgetError, PrecisionError
from exporter.examples import Example
from exporter.footprint import weights_bytes
from exporter.ladder import Array, Ladder
from exporter.layout import PROJECTIONS, Part
from exporter.precision import (
    CALIBRATED,
    MIXED,
    PRECISIONS,
    PrecisionPlan,
    Role,
    Scheme,
    Storage,
    StoredLadder,
    plan_precision,
    role_of,
)
from exporter.verify import require_reference

__all__ = ["WIDTHS", "Option", "cheapest", "mixed_plan", "parse_bytes"]

WIDTHS: Final[Mapping[int, int]] = {2: 32, 4: 32, 8: 64}
"""Bits that may be chosen, with the weights to a scale."""

_FINEST: Final = 256
"""What the 8-bit cost is of the 4-bit one: a sixteenth of the step, squared."""

_BINS: Final = 1 << 12
"""Parts of the budget that are told apart."""


class Option(NamedTuple):
    """One width of one group of tensors."""

    bits: int
    nbytes: int
    cost: float
    """Divergence of the ladder's answers from float32's when this alone is stored so, nats."""


def mixed_plan(
    ladder: Ladder,
    scheme: Scheme,
    budget: int,
    examples: Sequence[Example],
    progress: Callable[[str], None] = lambda _: None,
) -> PrecisionPlan:
    """Choose the storage of every tensor of a ladder so that its weights fit a budget at the least cost.

    Tensors that one operator multiplies with share a width. Each group's cost is measured by itself, and
    costs are added up: errors of different groups are as good as independent. Probe heads stay at 8 bits.

    Args:
        ladder: what is stored.
        scheme: of 4 bits; its quantiser, block and accuracy level go for the other widths too.
        budget: bytes of the weights file.
        examples: to measure on.
        progress: told what is being done.

    Raises:
        BudgetError: not even the fewest bits fit.
        ReferenceUnavailableError: there is no PyTorch to measure with.
    """
    require_reference("mixed measures with")
    plans = {bits: _uniform(ladder, scheme, bits) for bits in WIDTHS}
    if scheme.quantiser == CALIBRATED:
        together = calibrated(list(plans.values()), ladder, examples, progress)
        plans = dict(zip(plans, together, strict=True))
    groups = _groups(plans[4])
    options = _measured(ladder, plans, groups, examples, progress)
    base = plans[4]
    # What the file holds besides: small tensors, constants, and the gaps of its layout.
    besides = weights_bytes(ladder, base) - sum(base.nbytes(n) for names in groups.values() for n in names)
    room = budget - besides
    while True:
        chosen = cheapest(options, room)
        if chosen is None:
            least = besides + sum(min(option.nbytes for option in group) for group in options.values())
            message = (
                f"the weights do not fit {budget / 1e6:.2f} MB: {least / 1e6:.2f} MB is the least at "
                "this depth. Raise --budget, or give a lower --depth."
            )
            raise BudgetError(message)
        plan = _joined(base, plans, {n: chosen[group] for group, names in groups.items() for n in names})
        over = weights_bytes(ladder, plan) - budget
        if over <= 0:
            return plan
        room -= over


def cheapest(options: Mapping[str, Sequence[Option]], room: int) -> dict[str, int] | None:
    """The bits of every group that cost the least in all and fit; None where nothing fits.

    Exact but for rounding every option's bytes up to a part in 4096 of the room.
    """
    if room <= 0:
        return None
    unit = -(-room // _BINS)
    states: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for group in options.values():
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for used, (cost, bits) in states.items():
            for option in group:
                total = used + -(-option.nbytes // unit)
                if total * unit > room + unit - 1 or total > room // unit:
                    continue
                known = reached.get(total)
                if known is None or cost + option.cost < known[0]:
                    reached[total] = cost + option.cost, (*bits, option.bits)
        states = reached
    if not states:
        return None
    _, best = min(states.values())
    return dict(zip(options, best, strict=True))


def _uniform(ladder: Ladder, scheme: Scheme, bits: int) -> PrecisionPlan:
    """Everything in one width."""
    block = scheme.block if bits == PRECISIONS["int4"].bits else WIDTHS[bits]
    return plan_precision(ladder.config, ladder.layout, replace(scheme, bits=bits, block=block))


def _groups(plan: PrecisionPlan) -> dict[str, list[str]]:
    """Names of the tensors whose width is chosen, those that share an operator together."""
    groups: dict[str, list[str]] = {}
    for name, spec in plan.specs.items():
        if plan.storage[name].block and spec.part is not Part.HEADS:
            groups.setdefault(_group(name), []).append(name)
    return groups


def _group(name: str) -> str:
    if name in PROJECTIONS[:-1]:
        return "attention's inputs"
    if "/mhc_phi_" in name:
        return "lanes"
    site, _, kind = name.partition("/")
    return f"{site}/projections" if kind in {"key_proj/kernel", "value_proj/kernel"} else name


def _measured(
    ladder: Ladder,
    plans: Mapping[int, PrecisionPlan],
    groups: Mapping[str, Sequence[str]],
    examples: Sequence[Example],
    progress: Callable[[str], None],
) -> dict[str, list[Option]]:
    """What every width of every group takes and costs."""
    from golden.reference.answers import answer_log_probabilities  # noqa: PLC0415 - PyTorch, only here

    asked = [(example.tokens, example.prompt) for example in examples]
    truth = answer_log_probabilities(ladder, asked)
    whole = plan_precision(ladder.config, ladder.layout, PRECISIONS["fp32"])
    options: dict[str, list[Option]] = {}
    for group, names in groups.items():
        costs: dict[int, float] = {}
        for bits, plan in plans.items():
            if bits == max(WIDTHS) or (bits == min(WIDTHS) and role_of(plan.specs[names[0]]) is Role.TIED):
                # GatherBlockQuantized reads 4 and 8 bits everywhere, 2 bits in new runtimes alone.
                continue
            progress(f"measuring {group} in {bits} bits")
            alone = _joined(whole, plans, dict.fromkeys(names, bits))
            got = answer_log_probabilities(StoredLadder(ladder, alone), asked)
            costs[bits] = _divergence(got, truth)
        costs[max(WIDTHS)] = costs[4] / _FINEST
        options[group] = [
            Option(bits, sum(plans[bits].nbytes(name) for name in names), cost)
            for bits, cost in costs.items()
        ]
    return options


def _divergence(got: Sequence[Array], truth: Sequence[Array]) -> float:
    """Mean Kullback-Leibler divergence per token, nats."""
    sums = [float(divergences(p, q).sum()) for p, q in zip(truth, got, strict=True)]
    return max(math.fsum(sums), 0.0) / sum(map(len, truth))


def _joined(
    base: PrecisionPlan, plans: Mapping[int, PrecisionPlan], bits: Mapping[str, int]
) -> PrecisionPlan:
    """A plan that takes the storage of some tensors, and what is known of them, from plans of one width."""
    storage: dict[str, Storage] = dict(base.storage)
    storage |= {name: plans[width].storage[name] for name, width in bits.items()}
    known = {key: blocks for key, blocks in base.known.items() if key[0] not in bits}
    for name, width in bits.items():
        known |= {key: blocks for key, blocks in plans[width].known.items() if key[0] == name}
    return PrecisionPlan(replace(base.scheme, name=MIXED), storage, base.specs, known)


def parse_bytes(text: str) -> int:
    """A number of bytes from text such as ``14MB`` or ``900 KiB``.

    Raises:
        PrecisionError: it is none.
    """
    units = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    number = text.strip().rstrip("BKMGibkmg ")
    unit = text.strip()[len(number) :].strip().lower() or "b"
    try:
        size = float(number) * units[unit]
    except (ValueError, KeyError) as error:
        message = f"budget {text!r} is no size: give one such as 14MB or 900KiB."
        raise PrecisionError(message) from error
    if not 0 < size < math.inf:
        message = f"budget {text!r} leaves no room: give one such as 14MB or 900KiB."
        raise PrecisionError(message)
    return int(size)
