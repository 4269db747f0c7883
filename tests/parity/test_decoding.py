"""Incremental decoding against upstream, which keeps no state and runs whole sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from exporter.checkpoint import Checkpoint
from exporter.ladder import slice_ladder
from golden.reference import State, Weights, forward
from tests.parity.ladders import GEOMETRIES, LENGTH
from tests.parity.test_forward import assert_close

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.parity.ladders import Samples
    from tests.parity.upstream import Floats, Upstream

pytestmark = pytest.mark.parity

EOS, BOS = 1, 2


def in_chunks(weights: Weights, tokens: torch.Tensor, sizes: Iterable[int]) -> torch.Tensor:
    """Logits of tokens [B, T] fed in chunks, state carried from one to the next."""
    state: State | None = None
    parts, start = [], 0
    for size in sizes:
        out = forward(weights, tokens[:, start : start + size], state)
        parts.append(out.logits)
        state, start = out.state, start + size
    assert start == tokens.shape[1]
    return torch.cat(parts, 1)


def greedy(weights: Weights, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation of bos + prompt, one token a call after the first."""
    out = forward(weights, torch.tensor([[BOS, *prompt]]))
    continuation: list[int] = []
    while len(continuation) < count:
        token = int(out.logits[0, -1].argmax())
        if token == EOS:
            break
        continuation.append(token)
        out = forward(weights, torch.tensor([[token]]), out.state)
    return continuation


@pytest.fixture(scope="module")
def whole(upstream: Upstream, samples: Samples) -> Floats:
    """Upstream's logits of the whole sequences."""
    sample = samples[GEOMETRIES[0]]
    return upstream.forward(sample.config, sample.params, sample.tokens())["logits"]


@pytest.mark.parametrize(
    "sizes",
    [(1,) * LENGTH, (10, 1, 1, 12), (9, 3, 2, 1, 9)],
    ids=["one by one", "prefill, steps, chunk", "ragged"],
)
def test_chunks_add_up_to_upstreams_whole(whole: Floats, samples: Samples, sizes: tuple[int, ...]) -> None:
    sample = samples[GEOMETRIES[0]]
    weights = Weights(Checkpoint(sample.path))
    ours = in_chunks(weights, torch.from_numpy(sample.tokens()), sizes)
    assert_close("logits", ours.numpy(), whole)


@pytest.mark.parametrize(("depth", "length"), [(5, 20), (3, 2)], ids=["to the limit", "to eos"])
def test_greedy_decoding_says_what_upstream_says(
    upstream: Upstream, samples: Samples, depth: int, length: int
) -> None:
    sample, prompt = samples[GEOMETRIES[3]], [7, 50, 7, 0, 33, 12, 7, 50, 7]
    config, params = upstream.slice(sample.config, sample.params, depth)
    theirs = upstream.generate(config, params, prompt, 20)
    assert len(theirs) == length
    assert len(set(theirs)) > min(length, 6) - 1, "a sample that repeats itself shows no difference"
    weights = Weights(slice_ladder(Checkpoint(sample.path), depth))
    assert greedy(weights, prompt, 20) == theirs
