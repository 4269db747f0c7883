"""The configuration: what it takes, what it refuses, what it derives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config import HEADS, LadderConfig
from exporter.errors import CheckpointError, ConfigError
from tests.helpers import GEOMETRIES, geometry

REFUSED: list[tuple[str, object, str]] = [
    # field, value, what the message says of it
    ("d_model", "64", "is '64': it should be int"),
    ("d_model", 64.0, "is 64.0: it should be int"),
    ("d_model", None, "is None: it should be int"),
    ("num_heads", True, "is True: it should be int"),
    ("rope_theta", "1e5", "is '1e5': it should be float"),
    ("rope_theta", False, "is False: it should be float"),
    ("flash", 1, "is 1: it should be bool"),
    ("dtype", 16, "is 16: it should be str"),
    ("weight_bits", None, "is None: it should be str"),
    ("engram_layers", 3, "is 3: it should be a list of int"),
    ("engram_layers", [1, "2"], "is (1, '2'): it should be a list of int"),
    ("global_layers", [True], "is (True,): it should be a list of int"),
    ("engram_orders", [2.0, 3.0], "is (2.0, 3.0): it should be a list of int"),
    ("ladder_order", [[0, 1]], "is ([0, 1],): it should be a list of int"),
    ("vocab_size", 0, "is 0: it should be positive"),
    ("d_model", -64, "is -64: it should be positive"),
    ("num_heads", -4, "is -4: it should be positive"),
    ("num_kv_heads", 0, "is 0: it should be positive"),
    ("max_seq_len", 0, "is 0: it should be positive"),
    ("engram_slots", 0, "is 0: it should be positive"),
    ("mhc_lanes", 0, "is 0: it should be positive"),
    ("rope_theta", 0, "is 0: it should be positive"),
    ("rope_theta", -1.5, "is -1.5: it should be positive"),
    ("rope_theta", float("nan"), "is nan: it should be finite"),
    ("rope_theta", float("inf"), "is inf: it should be finite"),
    ("embedding_dim", 0, "is 0: it should be positive"),
    ("embedding_probes", 0, "is 0: it should be positive"),
    ("embedding_queries", 0, "is 0: it should be positive"),
    ("confidence_probes", 0, "is 0: it should be positive"),
    ("confidence_queries", -1, "is -1: it should be positive"),
    ("router_probes", 0, "is 0: it should be positive"),
    ("router_queries", 0, "is 0: it should be positive"),
    ("pad_token_id", -1, "is -1: it should not be negative"),
    ("engram_heads", -1, "is -1: it should not be negative"),
    ("engram_seed_heads", -2, "is -2: it should not be negative"),
    ("sliding_window", -8, "is -8: it should not be negative"),
    ("qkv_conv_taps", -3, "is -3: it should not be negative"),
    ("out_vocab", -1, "is -1: it should not be negative"),
    ("kv_window", -256, "is -256: it should not be negative"),
    ("num_layers", 1, "is 1: a ladder has at least two blocks"),
    ("num_layers", -20, "is -20: a ladder has at least two blocks"),
    ("sliding_window", 2, "is 2: it is shorter than the taps reach"),
    ("num_kv_heads", 3, "is 3: it should divide num_heads 4"),
    ("qk_head_dim", 7, "is 7: rotary embedding needs an even width"),
    ("out_vocab", 68, "is 68: it exceeds vocab_size 67"),
    ("engram_orders", [], "is (): engram sites need orders of at least 1"),
    ("engram_orders", [0, 2], "is (0, 2): engram sites need orders of at least 1"),
    ("engram_heads", 17, "is 17: the tables share the width 32"),
    ("engram_layers", [1, 5], "is (1, 5): its block numbers should be distinct and below num_layers 5"),
    ("engram_layers", [1, 1], "is (1, 1): its block numbers should be distinct and below num_layers 5"),
    ("engram_layers", [-1], "is (-1,): its block numbers should be distinct and below num_layers 5"),
    ("engram_layers", [3, 1], "is (3, 1): the sites should be in ascending order"),
    ("global_layers", [2, 2], "is (2, 2): its block numbers should be distinct and below num_layers 5"),
    ("global_layers", [7], "is (7,): its block numbers should be distinct and below num_layers 5"),
    ("ladder_order", [0, 4, 9, 1, 2], "its block numbers should be distinct and below num_layers 5"),
    ("ladder_order", [0, 4, 2], "is (0, 4, 2): it should list every block, both ends first"),
    ("ladder_order", [0, 1, 2, 3, 4], "is (0, 1, 2, 3, 4): it should list every block, both ends first"),
]


@pytest.mark.parametrize(("field", "value", "text"), REFUSED)
def test_an_impossible_value_is_refused_and_quoted(field: str, value: object, text: str) -> None:
    saved = {**geometry().to_json(), field: value}
    with pytest.raises(ConfigError) as caught:
        LadderConfig.from_json(saved)
    assert str(caught.value).startswith(f"configuration field {field!r} is ")
    assert text in str(caught.value)
    assert "Save the checkpoint again from its trainer, or correct the field" in str(caught.value)


def test_a_config_error_is_a_checkpoint_error_with_its_exit_code() -> None:
    assert issubclass(ConfigError, CheckpointError)
    assert ConfigError.exit_code == 3


def test_a_head_width_of_0_is_refused_where_it_is_no_legacy() -> None:
    with pytest.raises(ConfigError, match="'qk_head_dim' is 0: it should be positive"):
        LadderConfig(qk_head_dim=0)


def test_missing_keys_take_the_values_from_before_they_existed() -> None:
    config = LadderConfig.from_json({})
    assert (config.qk_head_dim, config.v_head_dim) == (64, 64)
    assert (config.sliding_window, config.qkv_conv_taps, config.out_vocab) == (0, 0, 0)
    assert (config.global_layers, config.engram_seed_heads) == ((), 0)
    assert (config.ladder_depths, config.ladder_widths, config.ladder_order) == ((), (), ())
    assert config.ladder_sample is False


def test_the_defaults_are_not_the_legacy_values() -> None:
    config = LadderConfig()
    assert (config.qk_head_dim, config.v_head_dim) == (48, 64)
    assert (config.sliding_window, config.qkv_conv_taps) == (1024, 3)
    assert config.global_layers == (4, 9, 14, 19)


@pytest.mark.parametrize("zero", [0, None])
def test_a_legacy_head_width_is_the_models_width_over_its_heads(zero: int | None) -> None:
    saved = {"d_model": 96, "num_heads": 4, "qk_head_dim": zero, "v_head_dim": zero, "num_kv_heads": 2}
    config = LadderConfig.from_json(saved)
    assert (config.qk_head_dim, config.v_head_dim) == (24, 24)


def test_unknown_keys_are_ignored() -> None:
    config = geometry()
    saved = {**config.to_json(), "made_up": [1], "mtp_depth": 2}
    assert LadderConfig.from_json(saved) == config


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_field_is_written_and_read_back(name: str) -> None:
    config = geometry(name)
    saved = json.loads(json.dumps(config.to_json()))
    assert set(saved) == {field.name for field in dataclasses.fields(LadderConfig)}
    assert LadderConfig.from_json(saved) == config


def test_no_written_field_falls_back_to_a_legacy_value() -> None:
    changed = geometry(qkv_conv_taps=4, out_vocab=11, engram_seed_heads=5, ladder_depths=(2, 5))
    changed = dataclasses.replace(changed, ladder_sample=True, ladder_order=(4, 0, 2, 1, 3))
    assert LadderConfig.from_json(changed.to_json()) == changed


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a random configuration that a ladder can have."""
    layers = draw(st.integers(2, 12))
    blocks = st.sets(st.integers(0, layers - 1))
    groups = draw(st.integers(1, 4))
    vocabulary = draw(st.integers(1, 1000))
    return {
        "num_layers": layers,
        "num_kv_heads": groups,
        "num_heads": groups * draw(st.integers(1, 4)),
        "qk_head_dim": 2 * draw(st.integers(1, 32)),
        "v_head_dim": draw(st.integers(1, 64)),
        "d_model": draw(st.integers(8, 1024)),
        "mhc_lanes": draw(st.integers(1, 5)),
        "vocab_size": vocabulary,
        "out_vocab": draw(st.integers(0, vocabulary)),
        "engram_layers": tuple(sorted(draw(blocks))),
        "global_layers": tuple(draw(blocks)),
        "engram_orders": tuple(draw(st.sets(st.integers(1, 4), min_size=1, max_size=3))),
        "qkv_conv_taps": draw(st.integers(0, 5)),
        "sliding_window": draw(st.just(0) | st.integers(5, 100)),
        "rope_theta": draw(st.floats(1, 1e6)),
    }


@given(fields())
def test_a_possible_configuration_survives_json(chosen: dict[str, Any]) -> None:
    config = LadderConfig(**chosen)
    assert LadderConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@given(fields())
def test_derived_widths_agree(chosen: dict[str, Any]) -> None:
    config = LadderConfig(**chosen)
    rows, columns = config.monarch_shape
    assert rows * columns == config.monarch_width >= config.d_model > config.monarch_width // 2
    assert columns in {rows, 2 * rows}
    assert config.qkv_width == config.q_width + config.k_width + config.v_width
    assert config.q_width * config.num_kv_heads == config.k_width * config.num_heads
    assert config.num_tables * config.table_width <= config.d_model
    assert config.num_tables == len(config.engram_orders) * config.tables_per_order
    assert config.logits_width == (config.out_vocab or config.vocab_size)
    sites = [config.site_of(block) for block in range(config.num_layers)]
    assert [site for site in sites if site is not None] == list(range(len(config.engram_layers)))
    for block in range(config.num_layers):
        assert config.window(block) == (0 if block in config.global_layers else config.sliding_window)


def test_derived_widths_at_full_size() -> None:
    config = LadderConfig()
    assert (config.tables_per_order, config.num_tables, config.table_width) == (3, 6, 128)
    assert (config.seed_stride, config.max_order) == (3, 3)
    assert (config.monarch_shape, config.monarch_width) == ((32, 32), 1024)
    assert (config.q_width, config.k_width, config.v_width, config.o_width) == (576, 96, 128, 768)
    assert [(config.probes(head), config.queries(head)) for head in HEADS] == [(4, 4)] * 3
    assert [config.window(block) for block in (3, 4, 19)] == [1024, 0, 0]
    assert [config.site_of(block) for block in (3, 4, 19)] == [0, None, 4]


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LadderConfig().d_model = 5  # type: ignore[misc]
