"""The upstream package, wrapped: ladders in, NumPy arrays out.

Upstream is imported when an :class:`Upstream` is made: this module can be imported without it.
Trees of parameters are flat dictionaries here, keyed by the names that a checkpoint uses.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HEADS", "Floats", "Ids", "Outputs", "Params", "Upstream"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Params = dict[str, Floats]
Outputs = dict[str, Floats]

HEADS = ("confidence", "embedding", "router")


class Upstream:
    """The parts of upstream that the tests compare with; the configuration type is its own."""

    def __init__(self) -> None:
        """Import upstream.

        Raises:
            ImportError: it is not installed, or not with its JAX parts.
        """
        # Every shape is compiled for a single run, so that compiling quickly is what counts.
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        self._jax: Any = importlib.import_module("jax")
        self._architecture: Any = importlib.import_module("needle.model.architecture")
        self._checkpoints: Any = importlib.import_module("needle.model.checkpoints")
        self._finetune: Any = importlib.import_module("needle.model.finetune")
        self._run: Any = importlib.import_module("needle.model.run")

    def config(self, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """A configuration with every field set by hand.

        Upstream's configurations remember only the fields they were given, and saving one loses
        the rest.
        """
        return self._architecture.TransformerConfig(**{**self.defaults(), **fields})

    def defaults(self) -> dict[str, Any]:
        """Upstream's default of every configuration field."""
        kind = self._architecture.TransformerConfig
        return {name: getattr(kind, name) for name in kind.__dataclass_fields__}

    def from_saved(self, saved: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """The configuration that a checkpoint's ``config`` entry means."""
        return self._architecture.TransformerConfig.from_saved(dict(saved))

    def shapes(self, config: Any) -> dict[str, tuple[int, ...]]:  # noqa: ANN401
        """Names and shapes of what upstream's initialiser makes, all heads among them."""
        model = self._architecture.SimpleAttentionNetwork(config)
        tokens = np.ones((1, 2), np.int32)

        def touch(net: Any, tokens: Any) -> tuple[Any, ...]:  # noqa: ANN401
            cells = net.hidden_cells(tokens)
            return tuple(getattr(net, f"{head}_head")(cells) for head in HEADS)

        def draw(key: Any) -> Any:  # noqa: ANN401
            return model.init(key, tokens, method=touch)["params"]

        shapes = self._jax.eval_shape(draw, self._jax.random.PRNGKey(0))
        paths, _ = self._jax.tree_util.tree_flatten_with_path(shapes)
        return {"/".join(part.key for part in path): tuple(leaf.shape) for path, leaf in paths}

    def forward(self, config: Any, params: Params, tokens: Ids) -> Outputs:  # noqa: ANN401
        """Plain logits, and what the heads see and say, for ids [B, T].

        The parts are put together as the methods of :meth:`entry_points` do, in one pass over a
        batch that holds the ids twice, with padding seen and masked: compiling takes most of the
        time here.

        Returns:
            ``logits`` [B, T, V], where every id is ordinary; ``cells`` [B, T, depth + 1, C], where
            padding is masked; and [B, n] for every head that ``params`` holds.
        """
        architecture, numpy = self._architecture, self._jax.numpy
        present = [head for head in HEADS if f"{head}_head/probes" in params]
        count, length = tokens.shape

        def everything(net: Any, tokens: Any) -> dict[str, Any]:  # noqa: ANN401
            plain = numpy.tile(architecture.make_causal_mask(length), (count, 1, 1, 1))
            padding = architecture.make_padding_mask(tokens, config.pad_token_id)
            mask, twice = (
                numpy.concatenate([plain, plain & padding]),
                numpy.concatenate([tokens, tokens]),
            )
            x0, pairs = net._input_embeddings(twice), net._engram_kv(twice, mask, quant=False)  # noqa: SLF001
            rope = net._rope(length)  # noqa: SLF001
            x, hidden = net.stack(x0, mask=mask, rope=rope, engram_kv=pairs, collect_hidden=True)
            cells = numpy.stack([x0, *hidden], axis=2)[count:]
            rows = net.embedding.embedding[: config.out_vocab or config.vocab_size]
            out = {"logits": x[:count] @ rows.T, "cells": cells}
            for head in present:
                got = getattr(net, f"{head}_head")(cells, tokens != config.pad_token_id)
                out[head] = got[0] if head == "embedding" else got
            return out

        out = self._apply(config, params, tokens, everything)
        return {name: np.asarray(value, np.float32) for name, value in out.items()}

    def entry_points(self, config: Any, params: Params, tokens: Ids) -> Outputs:  # noqa: ANN401
        """Logits and two heads' outputs for ids [B, T], from what upstream's programs call."""
        methods = {
            "logits": "__call__",
            "confidence": "forward_confidence",
            "embedding": "forward_embedding",
        }
        out = {name: self._apply(config, params, tokens, method) for name, method in methods.items()}
        out["confidence"] = out["confidence"][:, None]
        return {name: np.asarray(value, np.float32) for name, value in out.items()}

    def _apply(self, config: Any, params: Params, tokens: Ids, method: Any) -> Any:  # noqa: ANN401
        model = self._architecture.SimpleAttentionNetwork(config)

        def apply(tree: Any, tokens: Any) -> Any:  # noqa: ANN401
            return model.apply({"params": tree}, tokens, method=method)

        tree = self._checkpoints.unflatten(params)
        return self._jax.jit(apply)(tree, tokens.astype(np.int32))

    def generate(
        self,
        config: Any,  # noqa: ANN401
        params: Params,
        prompt: list[int],
        count: int,
    ) -> list[int]:
        """Greedy continuation of bos + ``prompt``, at most ``count`` ids, without eos."""
        model = self._architecture.SimpleAttentionNetwork(config)
        tree = self._jax.tree.map(self._jax.numpy.asarray, self._checkpoints.unflatten(params))
        text = self._run.generate(model, tree, _IdText(), " ".join(map(str, prompt)), count, stream=False)
        return [int(word) for word in text.split()]

    def slice(self, config: Any, params: Params, depth: int) -> tuple[Any, Params]:  # noqa: ANN401
        """Configuration and parameters of the slice to ``depth``, which is below the full one."""
        tree = self._checkpoints.unflatten(params)
        sliced = self._architecture.ladder_slice(tree, config, depth)
        return self._architecture.ladder_config(config, depth), self._flat(sliced)

    def order(self, num_layers: int) -> tuple[int, ...]:
        """The order in which the blocks of a ladder join it."""
        return tuple(self._architecture.ladder_order(num_layers))

    def kept(self, num_layers: int, depth: int) -> tuple[int, ...]:
        """The blocks that a depth keeps."""
        return tuple(self._architecture.ladder_layer_indices(num_layers, depth))

    def save(self, path: Path, config: Any, params: Params, step: int | None = 0) -> None:  # noqa: ANN401
        """Write a checkpoint with upstream's writer."""
        checkpoint = {
            "format_version": self._run.CHECKPOINT_FORMAT_VERSION,
            "params": self._checkpoints.unflatten(params),
            "config": dict(vars(config)),
            "step": step,
        }
        self._checkpoints.write_checkpoint(path, checkpoint)

    def load(self, path: Path) -> tuple[Any, Params]:
        """Read a checkpoint with upstream's reader, and its checks."""
        params, config = self._run.load_checkpoint(str(path))
        return config, self._flat(params)

    def fields(self, config: Any) -> dict[str, Any]:  # noqa: ANN401
        """Every field of a configuration, sequences as tuples."""
        values = {name: getattr(config, name) for name in self.defaults()}
        return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

    def save_adapter(self, path: Path, factors: Mapping[str, tuple[Floats, Floats]], scale: float) -> None:
        """Write an adapter, {tensor name: (A, B)}, with upstream's writer."""
        lora = {name: {"A": a, "B": b} for name, (a, b) in factors.items()}
        rank = next(a.shape[-1] for a, _ in factors.values())
        adapter = {
            "lora": lora,
            "scale": scale,
            "base": "base.safetensors",
            "rank": rank,
            "seed": 0,
        }
        self._checkpoints.write_adapter(path, adapter)

    def adapter_targets(self, params: Params) -> list[str]:
        """Names of the tensors that upstream trains an adapter for."""
        paths = self._finetune.lora_target_paths(self._checkpoints.unflatten(params))
        return ["/".join(path) for path in paths]

    def fold(self, params: Params, path: Path) -> Params:
        """Read an adapter with upstream's reader and fold it."""
        adapter = self._checkpoints.read_adapter(path)
        lora = {tuple(name.split("/")): factors for name, factors in adapter["lora"].items()}
        tree = self._checkpoints.unflatten(params)
        return self._flat(self._finetune.merge_lora(tree, lora, adapter["scale"]))

    def _flat(self, tree: Any) -> Params:  # noqa: ANN401
        return {name: np.array(value, np.float32) for name, value in self._checkpoints.flatten(tree).items()}


class _IdText:
    """A tokenizer whose text is ids, separated by blanks."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        """Text of ids."""
        return " ".join(map(str, ids))
