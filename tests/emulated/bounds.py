"""How far an emulated run may be from the reference, per kind of core: stated here and nowhere else.

A run is held to two things. On the weights *as stored* only arithmetic can differ: a core without the 8-bit
dot product multiplies quantised weights in float32 whatever their bits, so there it has to be as exact as a
float32 graph, and one with it rounds the activations to 8 bits. On the checkpoint's *own* weights comes what
rounding them costs, which is the precision's and no core's.

Measured with ONNX Runtime 1.24.1 and 1.32.0, greatest difference in units of the logits' spread: on the
weights as stored 6e-6 without the dot product and 0.07 with it; on the checkpoint's own 0.09 for int8 and
1.2 for int4.
"""

from __future__ import annotations

from exporter.compare import ACTIVATIONS, ARITHMETIC, FIDELITY, HEADS, Bound
from targets import QUANTISED, CpuClass

__all__ = ["head_bound", "own_bound", "stored_bound"]


def stored_bound(cpu: CpuClass, precision: str) -> Bound:
    """Bound against the reference on the weights as stored."""
    return ACTIVATIONS if cpu.dotprod and precision in QUANTISED else ARITHMETIC


def own_bound(precision: str) -> Bound:
    """Bound against the reference, or upstream, on the checkpoint's own weights."""
    return FIDELITY[precision]


def head_bound(cpu: CpuClass, precision: str) -> float:
    """Bound on a probe head's outputs, against the reference on the weights as stored, as a share of them."""
    return HEADS[precision if cpu.dotprod and precision in QUANTISED else "fp32"]
