"""What a device runs: tool calls, scores and embeddings from a bundle, with numpy and ONNX Runtime."""

from __future__ import annotations

from runtime_py.answer import Answer, Call
from runtime_py.climb import Attempt, Climb
from runtime_py.conversation import Asking
from runtime_py.drafting import Speculation
from runtime_py.errors import DeviceError
from runtime_py.generate import Generation
from runtime_py.model import Model
from runtime_py.sampling import Sampling
from runtime_py.state import State
from runtime_py.tools import Tool

__all__ = [
    "Answer",
    "Asking",
    "Attempt",
    "Call",
    "Climb",
    "DeviceError",
    "Generation",
    "Model",
    "Sampling",
    "Speculation",
    "State",
    "Tool",
]
