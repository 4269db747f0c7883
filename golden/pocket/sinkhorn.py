"""A Sinkhorn normalisation quick enough to train with, equal to the reference's to float rounding.

The reference subtracts logarithms of sums, 40 times over [..., n, n]. The same result is
``diag(u) K diag(v)`` with ``K = exp(M)``, where the rounds touch the vectors u and v alone
(Sinkhorn and Knopp, 1967); the gradient is that of the same 20 rounds, run backwards. Both are
opaque operators, so that a compiled block does not unroll them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from golden.reference.lanes import SINKHORN_ROUNDS

__all__ = ["scaling_sinkhorn"]


def _across(kernel: Tensor, vector: Tensor) -> Tensor:
    """Sum over columns: kernel [n, n, N] times vector [n, N] gives [n, N]."""
    return (kernel * vector[None]).sum(1)


def _down(kernel: Tensor, vector: Tensor) -> Tensor:
    """Sum over rows, the transposed product."""
    return (kernel * vector[:, None]).sum(0)


@torch.library.custom_op("pocket::sinkhorn", mutates_args=())
def _rounds(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the rounds on [n, n, N]; tokens last, so that every step is one long vector.

    Returns the mixed matrix, the kernel, and every round's u and v [rounds, n, N].
    """
    # One shift per matrix leaves the result alone and keeps exp() from overflowing.
    kernel = torch.exp(logits - logits.amax((0, 1), keepdim=True))
    shape = (SINKHORN_ROUNDS, *kernel.shape[1:])
    rows, columns = kernel.new_empty(shape), kernel.new_empty(shape)
    v = torch.ones_like(kernel[0])
    for t in range(SINKHORN_ROUNDS):
        torch.reciprocal(_across(kernel, v), out=rows[t])
        v = torch.reciprocal(_down(kernel, rows[t]), out=columns[t])
    return rows[-1][:, None] * kernel * v[None], kernel, rows, columns


@_rounds.register_fake
def _(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (SINKHORN_ROUNDS, *logits.shape[1:])
    empty = torch.empty_like
    return empty(logits), empty(logits), logits.new_empty(shape), logits.new_empty(shape)


@torch.library.custom_op("pocket::sinkhorn_backward", mutates_args=())
def _rounds_backward(grad: Tensor, kernel: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Run the rounds backwards, collecting the gradient of the kernel."""
    u, v = rows[-1], columns[-1]
    weighted = grad * kernel
    grad_kernel = grad * u[:, None] * v[None]
    grad_u, grad_v = _across(weighted, v), _down(weighted, u)
    for t in range(SINKHORN_ROUNDS - 1, -1, -1):
        u, v = rows[t], columns[t]
        before = columns[t - 1] if t else torch.ones_like(v)
        sums = grad_v * v * v
        totals = (grad_u - _across(kernel, sums)) * u * u
        grad_kernel.addcmul_(u[:, None], sums[None], value=-1)
        grad_kernel.addcmul_(totals[:, None], before[None], value=-1)
        grad_v = -_down(kernel, totals)
        grad_u = torch.zeros_like(grad_u)
    return grad_kernel * kernel


@_rounds_backward.register_fake
def _(grad: Tensor, kernel: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    del kernel, rows, columns
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    del inputs
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> Tensor:  # noqa: ANN401
    result: Tensor = _rounds_backward(grad.contiguous(), *ctx.saved_tensors)
    return result


_rounds.register_autograd(_backward, setup_context=_remember)


def scaling_sinkhorn(logits: Tensor) -> Tensor:
    """Do what ``golden.reference.lanes.sinkhorn`` does, by scaling vectors.

    Args:
        logits: [..., n, n] float32 whose spread within a matrix stays below about 80 (exp() of a
            larger one underflows; a trained ladder's is below 20).

    Returns:
        [..., n, n], close to doubly stochastic.
    """
    lanes = logits.shape[-1]
    flat = logits.reshape(-1, lanes, lanes).permute(1, 2, 0).contiguous()
    mixed: Tensor = _rounds(flat)[0]
    return mixed.permute(2, 0, 1).reshape(logits.shape)
