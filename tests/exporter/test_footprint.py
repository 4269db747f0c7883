"""What a bundle is predicted to take, beside what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.bundle import files_of
from exporter.export import Export, export
from exporter.footprint import CHUNK, Footprint, footprint
from exporter.forms import Shared, Static
from exporter.graph import state_contract
from exporter.ladder import Ladder, slice_ladder
from exporter.precision import PRECISIONS, plan_precision
from golden.synthetic import SyntheticLadder
from tests.helpers import build, geometry, small_ladder

# A process that fills a bundle's context with as much at once as the runtime does, and tells its peak.
PROCESS = """
import sys, numpy
sys.path.insert(0, sys.argv[1])
from runtime_py import Model
from runtime_py.usage import peak_memory
model = Model.load(sys.argv[1], verify=False, threads=1)
context = int(sys.argv[2])
state = model.state(context)
ids = numpy.random.default_rng(0).integers(4, model.bundle.vocabulary, context)
if model.bundle.tokenizer:
    model.encode("turn on the light")
model.prefill(state, ids[:-2])
for token in ids[-2:]:
    model.step(state, int(token))
print(peak_memory())
"""


def predicted(
    ladder: Ladder, precision: str = "int4", context: int = 128, *, tokenizer: int = 0, chunk: int = CHUNK
) -> Footprint:
    plan = plan_precision(ladder.config, ladder.layout, PRECISIONS[precision])
    return footprint(ladder, plan, context, tokenizer=tokenizer, chunk=chunk)


def peak(folder: Path, context: int) -> int:
    """Most bytes that a process had resident which ran the bundle."""
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-I", "-c", PROCESS, str(folder), str(context)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return int(ran.stdout)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_storage_is_that_of_the_files(tmp_path: Path, checkpoint: Path, precision: str) -> None:
    result = export(Export(checkpoint=checkpoint, depth=4, precision=precision, output=tmp_path))
    files = sum((result.path / name).stat().st_size for name in files_of(result.path))
    # The runtime, the description and notices are taken as a constant, which is most of so small a bundle.
    assert result.footprint.storage == pytest.approx(files, abs=128 << 10)


def test_storage_of_a_large_ladder_is_exact(tmp_path: Path) -> None:
    ladder = SyntheticLadder(geometry(vocab_size=4096, d_model=128, engram_slots=4096))
    built = build(tmp_path, ladder, "int8")
    files = sum(path.stat().st_size for path in built.folder.iterdir())
    assert predicted(ladder, "int8").storage == pytest.approx(files, rel=0.1)


def test_storage_of_rungs_over_shared_weights_is_exact(tmp_path: Path) -> None:
    deepest = slice_ladder(small_ladder(), 5)
    form = Shared(deepest, (slice_ladder(deepest, 2), slice_ladder(deepest, 3)))
    plan = plan_precision(deepest.config, deepest.layout, PRECISIONS["int8"])
    for name, each in {"alone": Static(deepest), "shared": form}.items():
        (tmp_path / name).mkdir()
        each.build(tmp_path / name, plan, all_logits=False)
    alone, shared = (
        sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("alone", "shared")
    )
    added = (
        footprint(deepest, plan, 128, beside=form.beside(plan)).storage
        - footprint(deepest, plan, 128).storage
    )
    assert added == pytest.approx(shared - alone, rel=0.02)


def test_no_weight_is_read() -> None:
    class Sealed(SyntheticLadder):
        def read(self, name: str, row: int | None = None) -> object:  # type: ignore[override]
            # The lanes' few gates and biases become constants of the graph.
            assert "/mhc_" in name, name
            return super().read(name, row)

    predicted(Sealed(geometry()))


def test_every_further_block_takes_more() -> None:
    costs = [predicted(slice_ladder(small_ladder(), depth)) for depth in range(2, 6)]
    assert [c.storage for c in costs] == sorted({c.storage for c in costs})
    assert [c.memory.total for c in costs] == sorted({c.memory.total for c in costs})


def test_fewer_bits_take_less() -> None:
    ladder = SyntheticLadder(geometry(vocab_size=4096, d_model=128, engram_slots=4096))
    costs = [predicted(ladder, precision) for precision in ("fp32", "int8", "int4")]
    assert [c.storage for c in costs] == sorted((c.storage for c in costs), reverse=True)
    assert [c.memory.total for c in costs] == sorted((c.memory.total for c in costs), reverse=True)


def test_caches_are_those_of_the_contract() -> None:
    ladder = small_ladder()
    config = ladder.config
    more, less = (predicted(ladder, context=context, chunk=64).memory.caches for context in (120, 110))
    grown = [state for state in state_contract(config) if state.grows is not None]
    # 7 positions of a window, 63 kept to rewind and a chunk of 64 exceed the context: all rows count.
    row = sum(4 * state.shape[1] * state.shape[3] for state in grown)
    assert more - less == 10 * row


def test_a_window_bounds_its_caches() -> None:
    ladder = SyntheticLadder(geometry("no globals", max_seq_len=4096))
    filled, longer = (predicted(ladder, context=context, chunk=16).memory.caches for context in (512, 4096))
    assert filled == longer


def test_context_ends_where_the_checkpoint_does() -> None:
    found = predicted(small_ladder(), context=100_000)
    assert found.context == small_ladder().config.max_seq_len
    assert found == predicted(small_ladder(), context=found.context)


def test_a_tokenizer_takes_memory_and_storage() -> None:
    without, given = predicted(small_ladder()), predicted(small_ladder(), tokenizer=50_000)
    assert given.storage - without.storage == 50_000
    assert given.memory.runtime > without.memory.runtime + 50_000


def test_a_footprint_is_written_down() -> None:
    found = predicted(small_ladder())
    written = json.loads(json.dumps(found.to_json()))
    memory = written["memory"]
    assert memory.pop("total") == sum(memory.values()) == found.memory.total


def test_the_runtime_prefills_as_much_at_once() -> None:
    from runtime_py import model  # noqa: PLC0415 - here alone, since the exporter must not know it

    assert model._CHUNK == CHUNK  # noqa: SLF001


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(("width", "precision"), [(128, "int4"), (512, "int8"), (512, "fp32")])
def test_memory_is_within_a_tenth_of_a_process(tmp_path: Path, width: int, precision: str) -> None:
    ladder = SyntheticLadder(
        geometry(
            vocab_size=8192,
            d_model=width,
            num_heads=8,
            qk_head_dim=48,
            v_head_dim=64,
            max_seq_len=1024,
            engram_slots=8192,
            sliding_window=512,
        )
    )
    path = tmp_path / "ladder.safetensors"
    from exporter.checkpoint import save  # noqa: PLC0415

    save(ladder, path)
    result = export(Export(checkpoint=path, depth=5, precision=precision, output=tmp_path))
    found = predicted(ladder, precision, context=1024)
    assert found.memory.total == pytest.approx(peak(result.path, 1024), rel=0.1)
