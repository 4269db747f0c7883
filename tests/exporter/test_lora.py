"""Adapters: folded in order, refused with names and shapes."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from exporter.errors import (
    AdapterError,
    AdapterMismatchError,
    ForeignAdapterError,
    ForeignFileError,
    NotFiniteError,
    PickleRefusedError,
    ZeroAdapterWarning,
)
from exporter.ladder import slice_ladder
from exporter.layout import PROJECTIONS
from exporter.lora import Adapter, fold
from golden.cases import adapter_case
from tests.helpers import heads_of, oracle_ladder, small_ladder, tensors_of, write_checkpoint

Q, K, V, GATE, OUT = PROJECTIONS
Factors = dict[str, NDArray[Any]]

METADATA = {
    "scale": "2.0",
    "base": '"small.safetensors"',
    "rank": "3",
    "seed": "1",
    "languages": "null",
    "pieces": "null",
}


def factors(targets: tuple[str, ...] = PROJECTIONS, rank: int = 3, seed: int = 0) -> Factors:
    """Random pairs for the small ladder."""
    random, pairs = np.random.default_rng(seed), {}
    for target in targets:
        blocks, inputs, outputs = small_ladder().layout[target].shape
        pairs[f"lora/{target}/A"] = random.standard_normal((blocks, inputs, rank)).astype(np.float32) / rank
        pairs[f"lora/{target}/B"] = random.standard_normal((blocks, rank, outputs)).astype(np.float32)
    return pairs


def write(path: Path, pairs: Mapping[str, NDArray[Any]], **metadata: str | None) -> Path:
    entries = {key: text for key, text in {**METADATA, **metadata}.items() if text is not None}
    save_file(dict(pairs), path, entries)
    return path


def expected(pairs: Mapping[str, NDArray[Any]], target: str, scale: float) -> NDArray[np.float64]:
    base = small_ladder().tensors[target].astype(np.float64)
    a, b = (pairs[f"lora/{target}/{side}"].astype(np.float64) for side in "AB")
    return np.asarray(base + scale * np.einsum("lir,lro->lio", a, b))


def test_upstreams_adapter_is_folded_into_every_projection() -> None:
    case = adapter_case()
    adapter = Adapter(case.adapter)
    assert (adapter.scale, adapter.base) == (2.0, "tiny.safetensors")
    assert adapter.targets == tuple(sorted(PROJECTIONS))
    base, folded = oracle_ladder("tiny"), fold(oracle_ladder("tiny"), [case.adapter])
    for target in PROJECTIONS:
        a, b = (side.astype(np.float64) for side in adapter.pair(target))
        exact = base.tensors[target] + 2 * np.einsum("lir,lro->lio", a, b)
        np.testing.assert_allclose(folded.read(target), exact, atol=1e-5)


def test_a_fold_is_w_plus_scale_times_a_b(tmp_path: Path) -> None:
    pairs = factors()
    folded = fold(small_ladder(), [write(tmp_path / "a.safetensors", pairs, scale="0.25")])
    for target in PROJECTIONS:
        np.testing.assert_allclose(folded.read(target), expected(pairs, target, 0.25), atol=1e-5)
        assert folded.read(target).dtype == np.float32
    for name in small_ladder().layout.keys() - set(PROJECTIONS):
        if not name.startswith("confidence_head/"):
            assert np.array_equal(folded.read(name), small_ladder().read(name))


@pytest.mark.parametrize("targets", [(Q,), (V, OUT), (GATE,)])
def test_an_adapter_may_leave_projections_alone(targets: tuple[str, ...], tmp_path: Path) -> None:
    pairs = factors(targets)
    folded = fold(small_ladder(), [write(tmp_path / "a.safetensors", pairs)])
    for target in PROJECTIONS:
        if target in targets:
            np.testing.assert_allclose(folded.read(target), expected(pairs, target, 2), atol=1e-5)
        else:
            assert np.array_equal(folded.read(target), small_ladder().read(target))


def test_several_adapters_fold_one_after_another(tmp_path: Path) -> None:
    first, second = factors((Q, K)), factors((Q, V), rank=2, seed=5)
    paths = [
        write(tmp_path / "first.safetensors", first, scale="1.5"),
        write(tmp_path / "second.safetensors", second, scale="-0.5"),
    ]
    both = fold(small_ladder(), paths)
    nested = fold(fold(small_ladder(), paths[:1]), paths[1:])
    for target in PROJECTIONS:
        assert np.array_equal(both.read(target), nested.read(target))
    base = small_ladder().read(Q)
    sums = expected(first, Q, 1.5) + expected(second, Q, -0.5) - base
    np.testing.assert_allclose(both.read(Q), sums, atol=1e-5)
    np.testing.assert_allclose(both.read(V), expected(second, V, -0.5), atol=1e-5)


def test_the_order_of_adapters_is_kept(tmp_path: Path) -> None:
    # In float32, adding a great delta first swallows the small one and its undoing does not bring it back.
    a, b = np.ones((5, 32, 1), np.float32), np.ones((5, 1, 24), np.float32)
    great, small = (
        write(tmp_path / f"{scale}.safetensors", {f"lora/{Q}/A": a, f"lora/{Q}/B": b}, scale=scale)
        for scale in ("1e9", "1.0")
    )
    undo = write(tmp_path / "undo.safetensors", {f"lora/{Q}/A": a, f"lora/{Q}/B": b}, scale="-1e9")
    swallowed = fold(small_ladder(), [great, small, undo]).read(Q)
    kept = fold(small_ladder(), [great, undo, small]).read(Q)
    assert np.abs(swallowed).max() == 0
    assert np.array_equal(kept, np.ones_like(kept))


def test_a_row_is_the_row_of_the_whole(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.safetensors", factors(seed=i, rank=i + 1)) for i in range(2)]
    folded = fold(small_ladder(), paths)
    for name, spec in folded.layout.items():
        for row in range(spec.shape[0]) if spec.shape else ():
            np.testing.assert_allclose(folded.read(name, row), folded.read(name)[row], atol=1e-6)


def test_tables_are_gathered_from_the_base(tmp_path: Path) -> None:
    folded = fold(small_ladder(), [write(tmp_path / "a.safetensors", factors())])
    rows = folded.gather("engrams_0/embedding", 1, [3, 1, 3])
    assert np.array_equal(rows, small_ladder().tensors["engrams_0/embedding"][1][[3, 1, 3]])


def test_folding_then_slicing_is_slicing_the_folded(tmp_path: Path) -> None:
    pairs = factors()
    folded = fold(small_ladder(), [write(tmp_path / "a.safetensors", pairs)])
    sliced = slice_ladder(folded, 3)
    for target in PROJECTIONS:
        np.testing.assert_allclose(sliced.read(target), expected(pairs, target, 2)[[0, 2, 4]], atol=1e-5)


def test_no_adapter_is_the_ladder_itself() -> None:
    assert fold(small_ladder(), []) is small_ladder()


def test_the_base_is_not_changed(tmp_path: Path) -> None:
    before = tensors_of(small_ladder())
    fold(small_ladder(), [write(tmp_path / "a.safetensors", factors())]).read(Q)
    assert all(np.array_equal(before[name], values) for name, values in small_ladder().tensors.items())


def test_the_confidence_head_goes_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", factors())
    assert heads_of(fold(small_ladder(), [path])) == ["embedding", "router"]
    assert heads_of(fold(small_ladder(), [path], keep_confidence=True)) == heads_of(small_ladder())
    sliced = slice_ladder(fold(small_ladder(), [path]), 3)
    assert not [name for name in sliced.layout if name.startswith("confidence_head/")]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_factors_may_be_of_another_float(dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    pairs: Factors = {name: values.astype(dtype) for name, values in factors((K,)).items()}
    folded = fold(small_ladder(), [write(tmp_path / "a.safetensors", pairs)])
    np.testing.assert_allclose(folded.read(K), expected(pairs, K, 2), atol=1e-5)


def _shapes(a: tuple[int, ...], b: tuple[int, ...], target: str = Q) -> Factors:
    return {f"lora/{target}/A": np.ones(a, np.float32), f"lora/{target}/B": np.ones(b, np.float32)}


MISMATCHED: list[tuple[Callable[[], Factors], tuple[str, ...]]] = [
    (lambda: _shapes((20, 64, 4), (20, 4, 48)), (f"{Q!r}: A [20, 64, 4] and B [20, 4, 48] do not make [5",)),
    (lambda: _shapes((5, 32, 4), (5, 3, 24)), ("A [5, 32, 4] and B [5, 3, 24] do not make [5, 32, 24]",)),
    (lambda: _shapes((4, 32, 4), (4, 4, 24)), ("A [4, 32, 4] and B [4, 4, 24]",)),
    (lambda: _shapes((32, 4), (4, 24)), ("A [32, 4] and B [4, 24]",)),
    (lambda: _shapes((5, 32, 4), (5, 4, 24), "stack/mhc_phi_pre"), ("'stack/mhc_phi_pre' is no projection",)),
    (lambda: _shapes((5, 32, 4), (5, 4, 24), "model.layers.0"), ("'model.layers.0' is no projection",)),
    (
        lambda: {k: v for i in range(7) for k, v in _shapes((1, 1, 1), (1, 1, 1), f"extra{i}").items()},
        ("'extra0' is no projection", "'extra4' is no projection", "; and 2 more"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pairs", "texts"), MISMATCHED)
def test_an_adapter_of_another_base_is_told_what_disagrees(
    pairs: Callable[[], Factors], texts: tuple[str, ...], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.safetensors", pairs())
    with pytest.raises(AdapterMismatchError) as caught:
        fold(small_ladder(), [path])
    message = str(caught.value)
    assert message.startswith(
        f"{path}: this adapter was trained on another base (it names 'small.safetensors')"
    )
    assert message.endswith("Give the checkpoint that it was trained on.")
    assert all(text in message for text in texts)
    assert caught.value.exit_code == 5


def test_every_disagreement_is_named() -> None:
    with pytest.raises(AdapterMismatchError) as caught:
        fold(small_ladder(), [adapter_case().adapter])
    assert "it names 'tiny.safetensors'" in str(caught.value)
    assert all(repr(target) in str(caught.value) for target in PROJECTIONS)
    assert "A [20, 64, 4] and B [20, 4, 24] do not make [5, 32, 12]" in str(caught.value)


def test_a_slice_is_another_base_than_its_parent() -> None:
    with pytest.raises(AdapterMismatchError, match="do not make"):
        fold(slice_ladder(oracle_ladder("tiny"), 8), [adapter_case().adapter])


@pytest.mark.parametrize("sides", ["A", "B", "AB"])
def test_a_zero_adapter_is_warned_of(sides: str, tmp_path: Path) -> None:
    pairs = factors((Q, V))
    for name, values in pairs.items():
        if name[-1] in sides:
            values[:] = 0
    path = write(tmp_path / "zero.safetensors", pairs)
    with pytest.warns(
        ZeroAdapterWarning, match="every A or B is zero, so this adapter changes nothing"
    ) as seen:
        folded = fold(small_ladder(), [path])
    assert str(path) in str(seen[0].message)
    assert np.array_equal(folded.read(Q), small_ladder().read(Q))


def test_an_adapter_that_is_zero_in_places_is_not_warned_of(tmp_path: Path) -> None:
    pairs = factors((Q, V))
    pairs[f"lora/{Q}/B"][:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fold(small_ladder(), [write(tmp_path / "a.safetensors", pairs)])


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_adapter_that_diverged_is_refused(side: str, value: float, tmp_path: Path) -> None:
    pairs = factors((Q, V))
    pairs[f"lora/{V}/{side}"][1, 0, 0] = value
    path = write(tmp_path / "a.safetensors", pairs)
    with pytest.raises(NotFiniteError) as caught:
        fold(small_ladder(), [path])
    assert str(caught.value) == (
        f"{path}: tensor 'lora/{V}/{side}' holds NaN or infinity. Use an adapter from before its training "
        "diverged."
    )


def _another_family(path: Path) -> Path:
    return write(path, factors((Q,)), languages='["de", "en"]')


def _rows(path: Path) -> Path:
    return write(path, {**factors((Q,)), "rows": np.ones(3, np.float32)})


def _without(name: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        pairs = factors((Q, V))
        del pairs[name]
        return write(path, pairs)

    return make


def _with(name: str) -> Callable[[Path], Path]:
    return lambda path: write(path, {**factors((Q,)), name: np.ones(3, np.float32)})


FOREIGN: list[tuple[Callable[[Path], Path], str]] = [
    (_another_family, "belongs to another model family (languages: ['de', 'en']). Give an adapter that was"),
    (_rows, "belongs to another model family (languages: None)"),
    (write_checkpoint, "not a LoRA adapter, which holds pairs lora/<path>/A and lora/<path>/B (found 'conf"),
    (write_checkpoint, "A checkpoint is given as --checkpoint."),
    (lambda path: write(path, {"x": np.ones(1, np.float32)}), "not a LoRA adapter"),
    (_without(f"lora/{V}/B"), "not a LoRA adapter"),
    (_without(f"lora/{Q}/A"), "not a LoRA adapter"),
    (_with("lora/other/C"), "(found 'lora/other/C')"),
    (_with("unet/A"), "(found 'unet/A')"),
    (lambda path: write(path, factors((Q,)), scale=None), "'scale' is None, and should be alpha / rank"),
    (lambda path: write(path, factors((Q,)), scale="null"), "metadata entry 'scale' is None"),
    (lambda path: write(path, factors((Q,)), scale="two"), "metadata entry 'scale' is None"),
    (lambda path: write(path, factors((Q,)), scale="true"), "metadata entry 'scale' is True"),
    (lambda path: write(path, factors((Q,)), scale="NaN"), "metadata entry 'scale' is nan"),
    (lambda path: write(path, factors((Q,)), scale="Infinity"), "metadata entry 'scale' is inf"),
    (lambda path: write(path, factors((Q,)), scale='"2"'), "metadata entry 'scale' is '2'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), FOREIGN)
def test_a_foreign_adapter_is_refused(make: Callable[[Path], Path], text: str, tmp_path: Path) -> None:
    path = make(tmp_path / "a.safetensors")
    with pytest.raises(ForeignAdapterError) as caught:
        Adapter(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert issubclass(ForeignAdapterError, AdapterError)


def test_absent_notes_are_the_text_null(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", factors((Q,)), base="null", rank="null", seed="null")
    assert Adapter(path).base is None
    path = write(tmp_path / "b.safetensors", factors((Q,)), base="a name without quotes", rank=None)
    assert Adapter(path).base == "a name without quotes"


def test_the_rank_is_that_of_the_factors_whatever_the_notes_say(tmp_path: Path) -> None:
    pairs = factors((Q,), rank=2)
    folded = fold(small_ladder(), [write(tmp_path / "a.safetensors", pairs, rank="64")])
    np.testing.assert_allclose(folded.read(Q), expected(pairs, Q, 2), atol=1e-5)


def test_a_pickled_adapter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "adapter.bin"
    path.write_bytes(pickle.dumps({"A": [1.0]}))
    with pytest.raises(PickleRefusedError, match="this is a pickle, which can run code when it is read"):
        Adapter(path)


@pytest.mark.parametrize("content", [b"", b"words and more words", json.dumps(METADATA).encode()])
def test_a_file_that_is_no_safetensors_is_named_an_adapter(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ForeignFileError, match="cannot be read as a LoRA adapter"):
        Adapter(path)
