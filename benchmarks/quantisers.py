"""Quantisers side by side: ``python benchmarks/quantisers.py --depth 6``.

For some matrices of a slice, in 4 bits and blocks of 32: the squared error of their products on the
calibration examples, as a share of what rounding to nearest makes. Beside this project's quantisers stand the
same behind a rotation by Hadamard matrices in groups of 128, as the published archives store them, and ONNX
Runtime's GPTQ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization.neural_compressor.weight_only import gptq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from exporter.checkpoint import Checkpoint
from exporter.examples import CALIBRATION, read_examples
from exporter.export import SHIPPED
from exporter.ladder import slice_ladder
from exporter.layout import EMBEDDING, PROJECTIONS, STACK
from exporter.quantize import NEAREST, SEARCH, dequantise, quantise, quantise_for
from golden.reference.answers import input_moments

Matrix = NDArray[np.float32]
Rounding = Callable[[Matrix, Matrix], Matrix]
"""What a matrix [N, K] is stored as, given the moment [K, K] of its inputs."""

BITS, BLOCK, GROUP = 4, 32, 128


def hadamard(size: int) -> Matrix:
    """The normalised Walsh-Hadamard matrix of a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), np.float32)


def rotated(matrix: Matrix) -> Matrix:
    """A matrix [N, K] with each group of 128 along K rotated; its own inverse."""
    groups = matrix.reshape(len(matrix), -1, GROUP)
    return np.asarray((groups @ hadamard(GROUP)).reshape(matrix.shape), np.float32)


def plain(method: str) -> Rounding:
    """A quantiser that looks at the weights alone."""
    return lambda matrix, _: dequantise(quantise(matrix, BITS, BLOCK, method=method), BITS, matrix.shape[1])


def calibrated(matrix: Matrix, moment: Matrix) -> Matrix:
    """The calibrated quantiser."""
    return dequantise(quantise_for(matrix, moment, BITS, BLOCK), BITS, matrix.shape[1])


def behind_rotation(inner: Rounding) -> Rounding:
    """A quantiser of the rotated matrix."""

    def outer(matrix: Matrix, moment: Matrix) -> Matrix:
        return rotated(inner(rotated(matrix), rotated(rotated(moment).T)))

    return outer


def runtimes_own(scheme: str) -> Rounding:
    """ONNX Runtime's GPTQ, which keeps scales in full precision."""

    def run(matrix: Matrix, moment: Matrix) -> Matrix:
        wide = matrix.T.astype(np.float64), moment.astype(np.float64)
        return np.asarray(gptq(*wide, BITS, BLOCK, scheme), np.float32).T

    return run


QUANTISERS: dict[str, Rounding] = {
    "rtn": plain(NEAREST),
    "search": plain(SEARCH),
    "gptq": calibrated,
    "rotated rtn": behind_rotation(plain(NEAREST)),
    "rotated search": behind_rotation(plain(SEARCH)),
    "rotated gptq": behind_rotation(calibrated),
    "onnxruntime gptq sym": runtimes_own("sym"),
    "onnxruntime gptq asym": runtimes_own("asym"),
}


def shares(checkpoint: Path, depth: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Per matrix, the error of every quantiser as a share of that of rounding to nearest."""
    ladder = slice_ladder(Checkpoint(checkpoint), depth)
    examples = read_examples(checkpoint.with_name(CALIBRATION), ladder.config)
    keys: list[tuple[str, int | None]] = [(name, 1) for name in (*PROJECTIONS, f"{STACK}/mhc_phi_res")]
    keys += [("engrams_0/key_proj/kernel", None), (EMBEDDING, None)]
    known = {key: key for key in keys if key[0] in ladder.layout}
    moments = input_moments(ladder, known, [example.tokens for example in examples])
    for (name, row), moment in moments.items():
        values = ladder.read(name, row)
        matrix = values if name == EMBEDDING else np.ascontiguousarray(values.T)
        if matrix.shape[1] % GROUP:
            continue
        errors = {}
        for label, rounding in QUANTISERS.items():
            rest = (matrix - rounding(matrix, moment)).astype(np.float64)
            errors[label] = float(np.einsum("nk,kl,nl->", rest, moment, rest))
        yield name, {label: error / errors["rtn"] for label, error in errors.items()}


def main() -> None:
    """Print a row per matrix."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED)
    parser.add_argument("--depth", type=int, default=6)
    options = parser.parse_args()
    for name, row in shares(options.checkpoint, options.depth):
        text = "  ".join(f"{label} {share:.2f}" for label, share in row.items())
        sys.stdout.write(f"{name.removeprefix('stack/layers/block/')}: {text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
