"""Weight-only block quantisers and the packing that ONNX Runtime's operators read."""

from __future__ import annotations

from exporter.quantize.blocks import Blocks, dequantise, finite_half, joined, pack, packed_width, unpack
from exporter.quantize.calibrated import quantise_for
from exporter.quantize.uncalibrated import METHODS, NEAREST, SEARCH, quantise

__all__ = [
    "METHODS",
    "NEAREST",
    "SEARCH",
    "Blocks",
    "dequantise",
    "finite_half",
    "joined",
    "pack",
    "packed_width",
    "quantise",
    "quantise_for",
    "unpack",
]
