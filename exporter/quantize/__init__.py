"""Weight-only block quantisers and the packing that ONNX Runtime's operators read."""

from __future__ import annotations

from exporter.quantize.blocks import Blocks, dequantise, pack, quantise, unpack

__all__ = ["Blocks", "dequantise", "pack", "quantise", "unpack"]
