"""The ladder model in PyTorch, written to be read: the definition of correct for every export.

All arithmetic is float32. One forward pass serves whole sequences, chunks and single tokens; what has to
be remembered between calls is a :class:`State`.
"""

from __future__ import annotations

from golden.reference.heads import head_outputs
from golden.reference.model import Output, forward
from golden.reference.state import BlockState, State
from golden.reference.weights import TensorLadder, Weights

__all__ = ["BlockState", "Output", "State", "TensorLadder", "Weights", "forward", "head_outputs"]
