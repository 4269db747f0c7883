"""What a profile says, as frozen values."""

from __future__ import annotations

__all__ = [
    "PRECISIONS",
    "QUANTISED",
    "Budget",
    "CpuClass",
    "OnnxRuntime",
    "Precision",
    "Quantisation",
    "Target",
]

from dataclasses import dataclass

PRECISIONS = ("fp32", "fp16", "int8", "int4", "int2")
"""Every precision a profile may name, widest first."""

QUANTISED = ("int8", "int4", "int2")
"""Those that store blocks of integers with a scale each, and so need a block size."""


@dataclass(frozen=True, slots=True)
class CpuClass:
    """One kind of core that devices of the target have, by its name in the emulator.

    Attributes:
        name: The core, such as ``cortex-a53``, as the emulator's option ``-cpu`` takes it.
        dotprod: Whether it multiplies 8-bit integers four at a time (SDOT, UDOT).
        i8mm: Whether it multiplies 8-bit matrices (SMMLA, UMMLA).
        fp16: Whether it computes in half precision, rather than only converting.
    """

    name: str
    dotprod: bool
    i8mm: bool
    fp16: bool


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """Which ONNX Runtime reads the graph.

    Attributes:
        floor: The oldest version that must load and compute it, ``major.minor.patch``.
        tested: The newest version that the project's tests ran.
        opset: The highest version of the default operator set that the graph may import.
        ir_version: The highest ONNX IR version that the file may carry.
    """

    floor: str
    tested: str
    opset: int
    ir_version: int


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How one of the quantised precisions is laid out.

    Attributes:
        precision: Its name, one of :data:`QUANTISED`.
        block_size: Preferred number of weights that share a scale; a width that it does not divide
            takes the largest smaller one that does.
        accuracy_level: The attribute of every MatMulNBits node: 0 or 1 computes in float32, 4 lets
            the kernel round activations to 8 bits.
    """

    precision: str
    block_size: int
    accuracy_level: int


@dataclass(frozen=True, slots=True)
class Precision:
    """Which precisions the target takes.

    Attributes:
        allowed: Names out of :data:`PRECISIONS`, in the profile's order.
        default: The one to use unless another is asked for, one of ``allowed``.
        quantisations: The layout of each quantised one that is allowed.
    """

    allowed: tuple[str, ...]
    default: str
    quantisations: tuple[Quantisation, ...]

    def quantisation(self, precision: str) -> Quantisation | None:
        """Return the layout of a precision, None for one that is not quantised or not allowed."""
        return next((q for q in self.quantisations if q.precision == precision), None)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a bundle may cost; an export that is predicted to take more is refused.

    Attributes:
        storage: Bytes of the unpacked bundle.
        memory: Bytes of peak resident memory while it runs.
        context: Tokens that a conversation must be able to hold.
    """

    storage: int | None = None
    memory: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A device class.

    Attributes:
        name: Short name, as given on the command line.
        description: One sentence about the devices that it stands for.
        architecture: Instruction set of its programs, ``arm64`` or ``armv7``; ``any`` where the target is the
            machine at hand.
        cpus: The kinds of core; empty where the target is the machine at hand.
        depths: Rungs whose golden cases must pass on each of those cores.
        onnxruntime: The runtime's bounds.
        precision: The precisions and their layout.
        archive: How the bundle's folder is packed, ``tar.gz``, ``zip`` or ``aar``.
        budget: What the bundle may cost, None where the profile sets nothing.
    """

    name: str
    description: str
    architecture: str
    cpus: tuple[CpuClass, ...]
    depths: tuple[int, ...]
    onnxruntime: OnnxRuntime
    precision: Precision
    archive: str
    budget: Budget | None = None
