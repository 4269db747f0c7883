"""Exports any depth of a ladder checkpoint to ONNX."""
