"""Ways to damage an exported graph that no format check can see."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from exporter.bundle import SUMS, write_sums

__all__ = ["DAMAGES", "damaged_copy"]

Values = NDArray[Any]


def _change(model: ir.Model, pattern: str, edit: Callable[[Values], None]) -> None:
    """Edit every initialiser whose name matches; there has to be one."""
    found = [value for name, value in model.graph.initializers.items() if re.search(pattern, name)]
    assert found, f"no initialiser is called {pattern}"
    for value in found:
        assert value.const_value is not None
        array = np.array(value.const_value.numpy())
        before = array.copy()
        edit(array)
        assert not np.array_equal(array, before), f"{value.name} is as before"
        value.const_value = ir.tensor(array, name=value.name)


def swap_two_lanes(model: ir.Model) -> None:
    """A block reads and writes its own lane and the next one the other way round."""

    def edit(bias: Values) -> None:
        bias[[1, 2, 5, 6]] = bias[[2, 1, 6, 5]]

    _change(model, r"blocks\.1\.lanes\.mix\.bias$", edit)


def drop_a_tap(model: ir.Model) -> None:
    """The oldest tap of one block's queries, keys and values is lost."""

    def edit(taps: Values) -> None:
        taps[-1] = 0

    _change(model, r"blocks\.0\.attention\.taps\.value$", edit)


def shift_the_window(model: ir.Model) -> None:
    """The sliding window ends one position early."""
    shifted = 0
    for node in model.graph:
        window = node.attributes.get("local_window_size")
        if window is not None and window.as_int() > 0:
            node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", window.as_int() - 1)
            shifted += 1
    assert shifted


def permute_a_table(model: ir.Model) -> None:
    """The rows of an engram site's hashed tables are in another order."""

    def edit(rows: Values) -> None:
        rows[:] = np.roll(rows, 1, axis=0)

    _change(model, r"sites\.\d+\.table\.", edit)


DAMAGES = {
    "two lanes swapped": swap_two_lanes,
    "a tap dropped": drop_a_tap,
    "the window shifted by one": shift_the_window,
    "a table permuted": permute_a_table,
}
"""Each edits a decoding graph in place."""


def damaged_copy(bundle: Path, target: Path, damage: Callable[[ir.Model], None]) -> Path:
    """Copy a bundle, damage the copy's decoding graph, and let its sums agree with the damage."""
    shutil.copytree(bundle, target)
    path = target / "model.onnx"
    model = ir.load(path)
    damage(model)
    ir.save(model, path)
    (target / SUMS).unlink()
    write_sums(target)
    return target
