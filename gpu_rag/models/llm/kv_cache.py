"""Keys and values of a batch in buffers of their final size, and CPU attention that reads them without copies.

transformers' own dynamic cache copies all keys and values at every generated token, and its attention on CPU repeats
them once per query head; together that took half of the time of a batch of long prompts. This module imports
transformers: import it only in an engine that has checked that transformers is installed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import sdpa_mask

from gpu_rag.errors import ModelError

CPU_ATTENTION = "gpu_rag_cpu"


def register_cpu_attention() -> str:
    """Register grouped-query attention without repetition in transformers. Returns the name to load models with."""
    AttentionInterface.register(CPU_ATTENTION, _attend)
    AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
    return CPU_ATTENTION


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(scaling Q K^T + mask) V, with key heads shared by groups of query heads. [B, H, L, D] -> [B, L, H, D]."""
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=scaling,
        is_causal=bool(causal) and attention_mask is None and query.shape[2] > 1,
        enable_gqa=True,
    )
    return out.transpose(1, 2).contiguous(), None


Prefix = list[tuple[torch.Tensor, torch.Tensor]]


class BufferedLayer(DynamicLayer):
    """A cache layer: `keys` and `values` are views of the filled part of buffers [rows, heads, length, D]."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, length: int):
        super().__init__()
        self._rows, self._length = rows, length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        heads = key_states.shape[1]
        self._keys = key_states.new_empty(self._rows, heads, self._length, key_states.shape[-1])
        self._values = value_states.new_empty(self._rows, heads, self._length, value_states.shape[-1])
        self.keys, self.values = self._keys[:, :, :0], self._values[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        self.keys, self.values = self._keys[:, :, :end], self._values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        end = self.keys.shape[-2]
        self._keys, self._values = self._keys[indices], self._values[indices]
        self.keys, self.values = self._keys[:, :, :end], self._values[:, :, :end]


def new_cache(config: Any, rows: int, length: int, prefix: Prefix | None = None) -> Any:
    """A cache for `rows` sequences of at most `length` tokens that all begin with `prefix`.

    prefix: keys and values [1, heads, P, D] per layer, or None. Layers with full attention get a buffer; layers with a
    sliding window keep their own kind, and then no prefix can be given. Raises ModelError for a model whose layers have
    another kind of state (recurrent ones), because left padding would change it.
    """
    cache: Any = DynamicCache(config=config)
    kinds = {type(layer) for layer in cache.layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        do = "serve this model with vLLM and give its http:// address"
        raise ModelError("a model with layers that are not attention", given=names, do=do)
    cache.layers = [BufferedLayer(rows, length) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if prefix is not None:
        for layer, (keys, values) in zip(cache.layers, prefix, strict=True):
            layer.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1))
    return cache


def shares_prefixes(config: Any) -> bool:
    """Whether every layer of the model attends to the whole text, so that a shared prefix can be reused."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


def as_prefix(cache: Any) -> Prefix:
    """Keys and values of a cache of one row, for `new_cache`."""
    return [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]


def select_rows(cache: Any, rows: Sequence[int]) -> Any:
    """A new cache whose row i is row rows[i] of `cache`, which is unchanged."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(torch.tensor(rows, device=cache.layers[0].keys.device))
    return chosen
