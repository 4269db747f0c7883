"""What drafting brings on held-out commands: ``python -m benchmarks.drafts BUNDLE``.

Every command is answered at full depth without drafts and then with each kind of draft, one after the other
in this process, and processor time is compared: so what else the machine does touches all alike. Writes
``drafts.csv``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from golden.pocket.data import Example, examples
from runtime_py import Generation, Model, Sampling, Speculation
from runtime_py.prompt import TURN_END, render_prefix, render_query
from runtime_py.tools import read_tools

ADAPTED = "adapted"


@dataclass(frozen=True)
class Row:
    """One kind of draft, over all commands."""

    depth: int
    """Blocks that draft."""
    length: str
    """Tokens of a draft, or ``adapted``: at most 8, fewer or none where that pays."""
    constrained: bool
    examples: int
    same: int
    """Answers that are the same, token for token."""
    drafted: float
    """Tokens drafted per token of the answers."""
    accepted: float
    """Share of the drafted tokens that stood."""
    decode: float
    """Times as fast as without drafts, from the first token of the answer on."""
    whole: float
    """The same with the prefill, which the drafter has to do as well."""


@dataclass
class Spent:
    """What some answers took."""

    prefill: float = 0.0
    decode: float = 0.0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    same: int = 0

    def add(self, started: float, prefilled: float, generation: Generation) -> None:
        """Count one answer."""
        self.prefill += prefilled - started
        self.decode += time.process_time() - prefilled
        self.tokens += len(generation.ids)
        self.drafted += generation.usage.drafted_tokens
        self.accepted += generation.usage.accepted_tokens


def kinds(depths: Sequence[int], lengths: Sequence[int]) -> list[Speculation]:
    """Every draft to try: of fixed lengths, and adapted."""
    fixed = [Speculation(depth=d, most=most, adapt=False) for d in depths for most in lengths]
    return fixed + [Speculation(depth=depth) for depth in depths]


def measure(
    model: Model,
    asked: Iterable[Example],
    drafts: Sequence[Speculation],
    *,
    constrained: bool,
    temperature: float,
) -> list[Row]:
    """Answer every command in every way."""
    plain, spent, count = Spent(), [Spent() for _ in drafts], 0
    for count, example in enumerate(asked, 1):
        expected = _answer(model, example, None, plain, constrained=constrained, temperature=temperature)
        for draft, sums in zip(drafts, spent, strict=True):
            ids = _answer(model, example, draft, sums, constrained=constrained, temperature=temperature)
            sums.same += ids == expected
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{count}")
    return [
        Row(
            draft.depth,
            ADAPTED if draft.adapt else str(draft.most),
            constrained,
            count,
            sums.same,
            sums.drafted / sums.tokens,
            sums.accepted / max(1, sums.drafted),
            plain.decode / sums.decode * sums.tokens / plain.tokens,
            (plain.prefill + plain.decode) / (sums.prefill + sums.decode),
        )
        for draft, sums in zip(drafts, spent, strict=True)
    ]


def _answer(
    model: Model,
    example: Example,
    draft: Speculation | None,
    sums: Spent,
    *,
    constrained: bool,
    temperature: float,
) -> list[int]:
    tools = read_tools(example.tools)
    prompt = render_prefix(tools) + render_query(example.query)
    constraint = model.grammar.calls(tools) if constrained else None
    state, drafter = model.state(512), model.state(512, depth=draft.depth) if draft else None
    started = time.process_time()
    generation = model.generate(
        prompt,
        state,
        sampling=Sampling(temperature=temperature, seed=0),
        max_tokens=128,
        stop_pieces=(TURN_END,),
        constraint=constraint,
        draft=draft,
        drafter=drafter,
    )
    prefilled = time.process_time()
    sums.add(started, prefilled, generation.run())
    return generation.ids


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write a row per kind of draft."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(row).items()})


def table(rows: Iterable[Row], said: Callable[[str], object] = sys.stdout.write) -> None:
    """Print the rows."""
    said(
        f"{'depth':>6}{'length':>9}{'grammar':>9}{'same':>9}{'drafted':>9}{'stood':>7}{'decode':>8}{'whole':>7}\n"
    )
    for row in rows:
        grammar, same = "yes" if row.constrained else "no", f"{row.same}/{row.examples}"
        said(
            f"{row.depth:>6}{row.length:>9}{grammar:>9}{same:>9}{row.drafted:>9.2f}{row.accepted:>7.2f}"
            f"{row.decode:>7.2f}x{row.whole:>6.2f}x\n"
        )


def main() -> None:
    """Measure, print and write a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.drafts", description=main.__doc__)
    parser.add_argument("bundle", type=Path, help="that runs at several depths")
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 4, 8], help="that draft")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    model = Model.load(options.bundle, threads=1)
    drafts = kinds([depth for depth in options.depths if depth in model.depths], options.lengths)
    rows = []
    for constrained in (False, True):
        asked = itertools.islice(examples("test", options.seed), options.examples)
        rows += measure(model, asked, drafts, constrained=constrained, temperature=options.temperature)
    table(rows)
    write_csv(options.out / "drafts.csv", rows)
    sys.stdout.write(f"{options.out / 'drafts.csv'}\n")


if __name__ == "__main__":
    main()
