"""Mistakes that re-implementers make, each done to the reference by replacing one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, one_hot

from exporter.config import LadderConfig
from exporter.layout import ENGRAM_TAPS
from golden.reference import Weights, attention, engram, heads, lanes, model, monarch, norms
from golden.reference.lanes import LaneMix
from golden.reference.state import BlockState

__all__ = ["DAMAGES", "HARMLESS", "HEAD_DAMAGES", "Damage", "hash_rows", "lane_of_parent"]

Patch = pytest.MonkeyPatch
Damage = Callable[[Patch], None]

_FACTORS = ("w1a", "w1b", "w2a", "w2b", "w3a", "w3b")
_HEAD_FORWARD, _PERMUTATIONS, _ROTATE = model.forward, monarch.permutations, attention.rotate
_KRON, _VISIBLE = monarch._kron, attention._visible  # noqa: SLF001 - damage is done inside


def _instead(owner: object, name: str, value: object) -> Damage:
    """Put a value in the place of a function or constant."""
    return lambda patch: patch.setattr(owner, name, value)


def _parameter(ending: str | tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Damage:
    """Change the block parameters whose names end so, whenever they are read."""

    def damage(patch: Patch) -> None:
        read = Weights.block

        def changed(self: Weights, name: str, block: int) -> Tensor:
            values = read(self, name, block)
            return change(values) if name.endswith(ending) else values

        patch.setattr(Weights, "block", changed)

    return damage


def _mix(change: Callable[[LaneMix], LaneMix]) -> Damage:
    """Change how blocks read and write the lanes."""
    return _instead(model, "lane_mix", lambda *args: change(lanes.lane_mix(*args)))


def _window(change: Callable[[int], int]) -> Damage:
    return _instead(attention, "_visible", lambda window, *rest: _VISIBLE(change(window), *rest))


def _columns_first(logits: Tensor) -> Tensor:
    for _ in range(lanes.SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


def _interleaved(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding on pairs (2i, 2i + 1)."""
    width = x.shape[-1]
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return _ROTATE(x[..., order], positions, theta)[..., order.argsort()]


def hash_rows(
    config: LadderConfig, tokens: Tensor, *, oldest_first: bool = False, final: bool = True, number: int = 1
) -> Tensor:
    """Rows of n-grams, in Python's integers; right as it is by default.

    Args:
        config: geometry.
        tokens: [B, m + T].
        oldest_first: eat the oldest token of an n-gram first.
        final: mix the upper bits down at the end.
        number: of the first head, in the seeds.
    """
    earlier = config.max_order - 1
    batch = []
    for ids in tokens.tolist():
        rows = []
        for end in range(earlier, len(ids)):
            row = []
            for index, order in enumerate(config.engram_orders):
                gram = [ids[end - back] for back in range(order)]
                for head in range(config.tables_per_order):
                    acc = 0x9E3779B9 * (index * config.seed_stride + head + number) % 2**32
                    for token in reversed(gram) if oldest_first else gram:
                        acc = (acc ^ token) * 0x01000193 % 2**32
                    row.append((acc ^ acc >> 15 if final else acc) % config.engram_slots)
            rows.append(row)
        batch.append(rows)
    return torch.tensor(batch)


def _unmasked_ngrams(
    weights: Weights, site: int, rows: Tensor, complete: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return engram.site_pairs(weights, site, rows, torch.ones_like(complete), *rest)


def _undilated(
    weights: Weights, site: int, rows: Tensor, complete: Tensor, history: Tensor, reachable: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Engram taps at distances 0 to 3 instead of 0, 3, 6, 9."""
    key, _, value = engram.site_pairs(weights, site, rows, complete, history, reachable)
    taps = weights.whole(f"engrams_{site}/taps")
    length, reach = rows.shape[1], history.shape[1]
    tapped = [taps[j] * value[:, reach - j :][:, :length] for j in range(ENGRAM_TAPS)]
    return key, torch.stack(tapped).sum(0), value


def _unscaled_gate(u: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return u + torch.sigmoid((norms.rms(u) * norms.rms(key)).sum(-1, keepdim=True)) * value


def _engram_outside_the_skip(
    weights: Weights,
    block: int,
    stream: Tensor,
    pair: tuple[Tensor, Tensor] | None,
    state: BlockState,
    position: int,
    keep: Tensor,
) -> tuple[Tensor, BlockState]:
    """A block whose engram feeds attention alone, and is not passed on."""
    mix = lanes.lane_mix(weights, block, stream)
    u = torch.einsum("btj,btjc->btc", mix.pre, stream)
    entered = u if pair is None else engram.gate_in(u, *pair)
    attended, new = attention.attend(weights, block, entered, state, position, keep)
    y = attended + monarch.monarch_mlp(weights, block, attended) - entered
    carried = torch.einsum("btij,btjc->btic", mix.carry, stream)
    return carried + mix.post[..., None] * y[:, :, None, :], new


def _plain_gain(x: Tensor, gain: Tensor) -> Tensor:
    return gain * norms.rms(x)


def _everywhere(name: str, value: object) -> Damage:
    """Replace a norm in every part that uses it."""

    def damage(patch: Patch) -> None:
        for part in (attention, engram, lanes, model, monarch):
            if hasattr(part, name):
                patch.setattr(part, name, value)

    return damage


def _permutations(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Damage:
    def changed(width: int, *, halves: bool) -> tuple[Tensor, Tensor]:
        return change(*_PERMUTATIONS(width, halves=halves))

    return _instead(monarch, "permutations", changed)


def _cells(change: Callable[[Tensor], Tensor], **options: Any) -> Damage:  # noqa: ANN401
    """Change the cells that the heads read."""

    def changed(weights: Weights, tokens: Tensor, **given: Any) -> model.Output:  # noqa: ANN401
        output = _HEAD_FORWARD(weights, tokens, **{**given, **options})
        return replace(output, cells=change(output.cells))

    return _instead(heads, "forward", changed)


def lane_of_parent(blocks: Sequence[int]) -> Damage:
    """Give block i of a slice the lane that ``blocks[i]``, its number in the parent, had."""

    def changed(weights: Weights, block: int, stream: Tensor) -> LaneMix:
        mix, count = lanes.lane_mix(weights, block, stream), weights.config.mhc_lanes
        theirs, own = one_hot(torch.tensor([blocks[block] % count, block % count]), count)
        move = 4 * (theirs - own)
        pre = torch.sigmoid(mix.pre.logit() + 2 * move)
        return mix._replace(pre=pre, post=2 * torch.sigmoid((mix.post / 2).logit() + move))

    return _instead(model, "lane_mix", changed)


DAMAGES: Mapping[str, Damage] = {
    "window one longer": _window(lambda window: window + 1 if window else 0),
    "window one shorter": _window(lambda window: window - 1 if window else 0),
    "global blocks local": _window(lambda window: window or 8),
    "local blocks global": _window(lambda _: 0),
    "10 Sinkhorn rounds": _instead(lanes, "SINKHORN_ROUNDS", 10),
    "19 Sinkhorn rounds": _instead(lanes, "SINKHORN_ROUNDS", 19),
    "30 Sinkhorn rounds": _instead(lanes, "SINKHORN_ROUNDS", 30),
    "Sinkhorn's columns first": _instead(lanes, "sinkhorn", _columns_first),
    "carry transposed": _mix(lambda mix: mix._replace(carry=mix.carry.mT)),
    "post without its factor 2": _mix(lambda mix: mix._replace(post=mix.post / 2)),
    "a weaker preference for the own lane": _instead(lanes, "_OWN_LANE", 2.0),
    "epsilon 1e-5": _instead(norms, "_EPSILON", 1e-5),
    "gain not centred at one": _everywhere("zcrms", _plain_gain),
    "theta 10000": _instead(attention, "rotate", lambda x, at, _: _ROTATE(x, at, 10000.0)),
    "rotation of interleaved pairs": _instead(attention, "rotate", _interleaved),
    "no rotation": _instead(attention, "rotate", lambda x, *_: x),
    "scale of the value width": _instead(attention, "math", SimpleNamespace(sqrt=lambda _: 4.0)),
    "query head h on key h % K": _instead(
        Tensor, "repeat_interleave", lambda self, count, _: self.repeat(1, count, 1, 1)
    ),
    "taps reversed": _parameter("_taps", lambda taps: taps.flip(0)),
    "no last tap": _parameter("_taps", lambda taps: taps * torch.tensor([[1.0], [1.0], [0.0]])),
    "no gain after attention": _parameter("post_attn_norm/scale", torch.zeros_like),
    "attention's strength without sigmoid": _parameter("attn_gate", lambda g: g.clamp(0.01, 0.99).logit()),
    "Kronecker factors not transposed": _parameter(_FACTORS, lambda w: w.mT),
    "Kronecker factors swapped": _instead(
        monarch, "_kron", lambda config, z, rows, columns: _KRON(config, z, columns, rows)
    ),
    "permutations scattered": _permutations(lambda a, b: (a.argsort(), b.argsort())),
    "permutations exchanged": _permutations(lambda a, b: (b, a)),
    "condition without its 1": _parameter("cond_u", lambda u: u - 1),
    "GELU for SiLU": _instead(monarch, "silu", gelu),
    "hash with the oldest token first": _instead(
        model, "ngram_rows", lambda config, tokens: hash_rows(config, tokens, oldest_first=True)
    ),
    "hash without its last shift": _instead(
        model, "ngram_rows", lambda config, tokens: hash_rows(config, tokens, final=False)
    ),
    "hash heads counted from 0": _instead(
        model, "ngram_rows", lambda config, tokens: hash_rows(config, tokens, number=0)
    ),
    "n-grams before the start hashed": _instead(model, "site_pairs", _unmasked_ngrams),
    "engram taps not dilated": _instead(model, "site_pairs", _undilated),
    "engram gate without its scale": _instead(model, "gate_in", _unscaled_gate),
    "engram outside the skip path": _instead(model, "run_block", _engram_outside_the_skip),
    "embedding not scaled": _instead(model, "math", SimpleNamespace(sqrt=lambda _: 1.0)),
}
"""By name, what shows in the logits at every depth."""

HEAD_DAMAGES: Mapping[str, Damage] = {
    "lane sums": _cells(lambda cells: torch.cat([cells[:, :, :1], 4 * cells[:, :, 1:]], 2)),
    "rows in the opposite order": _cells(lambda cells: cells.flip(2)),
    "padding seen by the blocks": _cells(lambda cells: cells, mask_padding=False),
    "scores without their scale": _instead(heads, "math", SimpleNamespace(sqrt=lambda _: 1.0)),
    "pooled vectors not normed": _instead(heads, "rms", lambda x: x),
}
"""By name, what shows in the outputs of the probe heads."""

HARMLESS: Mapping[str, Damage] = {
    "nothing": lambda _: None,
    "positions counted from 5": _instead(attention, "rotate", lambda x, at, theta: _ROTATE(x, at + 5, theta)),
    "the hash in Python's integers": _instead(model, "ngram_rows", hash_rows),
    "the norms' square root apart": _everywhere(
        "rms", lambda x: x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    ),
}
"""By name, what changes no number by more than rounding."""
