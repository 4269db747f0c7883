"""Examples as padded batches of ids, each a function of its number alone."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING

from golden.pocket.data import COMMANDS, PRACTICE, Domain, Example, examples
from golden.pocket.padding import Batch, pad
from golden.pocket.prompt import BOS_ID, EOS_ID, render_answer, render_prompt
from golden.pocket.tokenizer import load

if TYPE_CHECKING:
    from golden.pocket.pools import Split
    from golden.pocket.recipe import Recipe

__all__ = ["Batch", "batch_at", "encode", "pad"]

_BATCHES_PER_POOL = 32


def encode(example: Example) -> tuple[list[int], int]:
    """Encode an example: all its ids, and how many of them are its prompt (``bos`` included)."""
    tokenizer = load()
    prompt = [BOS_ID, *tokenizer.encode(render_prompt(example.query, example.tools)).ids]
    answer = tokenizer.encode(render_answer(example.calls)).ids
    return [*prompt, *answer, EOS_ID], len(prompt)


@lru_cache(maxsize=2)
def _pool(
    split: Split, domain: Domain, seed: int, number: int, batch: int, longest: int
) -> tuple[Batch, ...]:
    """Draw the batches of one pool: similar lengths together, batches in random order."""
    stream = examples(split, seed * 1_000_003 + number, domain)
    kept: list[tuple[list[int], int]] = []
    while len(kept) < batch * _BATCHES_PER_POOL:
        encoded = encode(next(stream))
        if len(encoded[0]) <= longest:
            kept.append(encoded)
    kept.sort(key=lambda encoded: len(encoded[0]))
    batches = [pad(kept[start : start + batch]) for start in range(0, len(kept), batch)]
    random.Random(f"{seed}-{number}").shuffle(batches)  # noqa: S311 - reproducible order
    return tuple(batches)


def batch_at(recipe: Recipe, step: int, split: Split = "train", domain: Domain | None = None) -> Batch:
    """Return the batch of step ``step``; the same on every machine and after every resume.

    Args:
        recipe: the run's recipe.
        step: number of the step.
        split: whose values occur.
        domain: what is asked; the recipe's choice where None.
    """
    chosen = domain or (COMMANDS if step < recipe.rare_from else PRACTICE)
    number, index = divmod(step, _BATCHES_PER_POOL)
    return _pool(split, chosen, recipe.seed, number, recipe.batch, recipe.longest)[index]
