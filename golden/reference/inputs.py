"""What a ladder's matrices are multiplied with while it runs: the statistics that calibration needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["InputMoments"]

_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__"})


class InputMoments(TorchFunctionMode):
    """While entered, sums x x^T over the inputs x of every product ``x @ W`` with a matrix that it knows.

    A matrix is known by where its values lie, so that a view of it (a row of stacked matrices, a transpose)
    is recognised in the forward pass as it stands.

    Attributes:
        sums: [K, K] float32 by key.
        count: inputs summed so far, the same for every matrix.
        keep: [B, T] bool, which inputs of the next forward pass count.
    """

    def __init__(self, matrices: Mapping[Any, Tensor]) -> None:
        """Know the matrices [K, N] by key."""
        super().__init__()
        self._keys = {matrix.data_ptr(): key for key, matrix in matrices.items()}
        self.sums: dict[Any, Tensor] = {}
        self.keep = torch.ones(0, dtype=torch.bool)
        self._last: tuple[Tensor, Tensor] | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - as in torch
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run ``func``, and look at its inputs where it is a product."""
        if getattr(func, "__name__", "") in _PRODUCTS:
            inputs, matrix = args
            key = self._keys.get(matrix.data_ptr())
            if key is not None and inputs.shape[:-1] == self.keep.shape:
                moment = self._moment(inputs)
                self.sums[key] = self.sums[key] + moment if key in self.sums else moment
        return func(*args, **(kwargs or {}))

    def _moment(self, inputs: Tensor) -> Tensor:
        """Sum of x x^T; matrices side by side have one input, which is looked at once."""
        if self._last is None or self._last[0] is not inputs:
            rows = inputs[self.keep]
            self._last = inputs, rows.mT @ rows
        return self._last[1]
