"""Names and shapes of a ladder's tensors."""

from __future__ import annotations

import pytest

from exporter.checkpoint import Checkpoint
from exporter.config import HEADS, LadderConfig
from exporter.layout import PROJECTIONS, Axis, Part, head_of, layout
from golden.cases import NAMES, oracle
from tests.helpers import GEOMETRIES, geometry

# At Needle 3's size, as upstream has them; sites and heads alike are listed once.
FULL: dict[str, tuple[int, ...]] = {
    "embedding/embedding": (16384, 768),
    "stack/final_norm/scale": (768,),
    "stack/layers/block/ZCRMSNorm_0/scale": (20, 768),
    "stack/layers/block/attn_gate": (20,),
    "stack/layers/block/hadamard_mlp/b2": (20, 1024),
    "stack/layers/block/hadamard_mlp/cond_u": (20, 8, 1024),
    "stack/layers/block/hadamard_mlp/cond_v": (20, 768, 8),
    "stack/layers/block/hadamard_mlp/d1": (20, 1024),
    "stack/layers/block/hadamard_mlp/d2": (20, 1024),
    "stack/layers/block/hadamard_mlp/d3": (20, 1024),
    "stack/layers/block/hadamard_mlp/d4": (20, 1024),
    "stack/layers/block/hadamard_mlp/w1a": (20, 32, 32),
    "stack/layers/block/hadamard_mlp/w1b": (20, 32, 32),
    "stack/layers/block/hadamard_mlp/w2a": (20, 32, 32),
    "stack/layers/block/hadamard_mlp/w2b": (20, 32, 32),
    "stack/layers/block/hadamard_mlp/w3a": (20, 32, 32),
    "stack/layers/block/hadamard_mlp/w3b": (20, 32, 32),
    "stack/layers/block/post_attn_norm/scale": (20, 768),
    "stack/layers/block/pre_hada_norm/scale": (20, 768),
    "stack/layers/block/self_attn/gate_proj/kernel": (20, 768, 768),
    "stack/layers/block/self_attn/k_norm/scale": (20, 48),
    "stack/layers/block/self_attn/k_proj/kernel": (20, 768, 96),
    "stack/layers/block/self_attn/k_taps": (20, 3, 96),
    "stack/layers/block/self_attn/out_proj/kernel": (20, 768, 768),
    "stack/layers/block/self_attn/q_norm/scale": (20, 48),
    "stack/layers/block/self_attn/q_proj/kernel": (20, 768, 576),
    "stack/layers/block/self_attn/q_taps": (20, 3, 576),
    "stack/layers/block/self_attn/v_proj/kernel": (20, 768, 128),
    "stack/layers/block/self_attn/v_taps": (20, 3, 128),
    "stack/mhc_a_post": (20,),
    "stack/mhc_a_pre": (20,),
    "stack/mhc_a_res": (20,),
    "stack/mhc_b_post": (20, 4),
    "stack/mhc_b_pre": (20, 4),
    "stack/mhc_b_res": (20, 4, 4),
    "stack/mhc_phi_post": (20, 3072, 4),
    "stack/mhc_phi_pre": (20, 3072, 4),
    "stack/mhc_phi_res": (20, 3072, 16),
    **{
        f"engrams_{site}/{name}": shape
        for site in range(5)
        for name, shape in {
            "embedding": (6, 18432, 128),
            "key_proj/kernel": (768, 768),
            "taps": (4, 768),
            "value_proj/kernel": (768, 768),
        }.items()
    },
    **{
        f"{head}_head/{name}": shape
        for head in ("confidence", "embedding", "router")
        for name, shape in {
            "gain": (21, 4),
            "probes": (21, 4, 768),
            "query": (4, 768),
            "row_bias": (4, 21, 4),
        }.items()
    },
    "confidence_head/proj/bias": (1,),
    "confidence_head/proj/kernel": (3072, 1),
    "embedding_head/bias": (),
    "embedding_head/log_temp": (),
    "embedding_head/proj/kernel": (3072, 128),
    "router_head/calibration": (3,),
    "router_head/proj/bias": (3,),
    "router_head/proj/kernel": (3072, 3),
}
PARAMETERS = 127_849_765


def test_the_full_size_has_upstreams_names_and_shapes() -> None:
    assert {name: spec.shape for name, spec in layout(LadderConfig()).items()} == FULL


def test_the_full_size_has_upstreams_number_of_parameters() -> None:
    assert sum(spec.size for spec in layout(LadderConfig()).values()) == PARAMETERS


@pytest.mark.parametrize("name", NAMES)
def test_upstreams_files_hold_exactly_this(name: str) -> None:
    checkpoint = Checkpoint(oracle(name).checkpoint)
    assert checkpoint.layout == layout(checkpoint.config)
    for tensor, spec in checkpoint.layout.items():
        assert checkpoint.read(tensor).shape == spec.shape


def test_names_are_keys() -> None:
    for name, spec in layout(geometry()).items():
        assert spec.name == name


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_sliced_axis_is_as_long_as_there_are_blocks(name: str) -> None:
    config = geometry(name)
    for spec in layout(config).values():
        if spec.axis is Axis.BLOCKS:
            assert spec.shape[0] == config.num_layers
        elif spec.axis is Axis.ROWS_0:
            assert spec.shape[0] == config.num_layers + 1
        elif spec.axis is Axis.ROWS_1:
            assert spec.shape[1] == config.num_layers + 1


def test_only_training_scalars_and_the_calibration_are_optional() -> None:
    optional = {name for name, spec in layout(LadderConfig()).items() if spec.optional}
    assert optional == {"embedding_head/bias", "embedding_head/log_temp", "router_head/calibration"}


def test_heads_that_a_ladder_lacks_have_no_tensors() -> None:
    for heads in ((), ("router",), HEADS):
        found = {head for name in layout(geometry(), heads) if (head := head_of(name))}
        assert found == set(heads)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("router_head/proj/bias", "router"),
        ("embedding_head/bias", "embedding"),
        ("embedding/embedding", None),
        ("stack/mhc_a_pre", None),
    ],
)
def test_the_head_of_a_name(name: str, head: str | None) -> None:
    assert head_of(name) == head


def test_no_taps_and_no_sites_have_no_tensors() -> None:
    names = layout(geometry("blocks alone"))
    assert not [name for name in names if "taps" in name or name.startswith("engrams_")]


def test_every_projection_is_a_stacked_kernel() -> None:
    specs = layout(LadderConfig())
    assert [len(specs[name].shape) for name in PROJECTIONS] == [3] * 5
    assert {specs[name].axis for name in PROJECTIONS} == {Axis.BLOCKS}


def test_the_parts_of_the_full_size() -> None:
    counts = dict.fromkeys(Part, 0)
    for spec in layout(LadderConfig()).values():
        counts[spec.part] += spec.size
    assert counts[Part.ENGRAM_TABLES] == 5 * 6 * 18432 * 128
    assert counts[Part.EMBEDDING] == 16384 * 768
    assert counts[Part.LANES] == 20 * (3 + 8 + 16 + 3072 * 24)
    assert sum(counts.values()) == PARAMETERS
