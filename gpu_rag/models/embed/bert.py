"""A BERT encoder without padding: tokens of many texts lie end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gpu_rag.errors import ModelError
from gpu_rag.models.device import pack_linear_layers, room_for
from gpu_rag.models.pretrained import needing_transformers

Attend = Callable[[torch.Tensor], torch.Tensor]  # [T, 3, heads, width] -> [T, heads, width]
TILE = 128  # tokens per matrix product on a CPU
EXPECTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


class BertEncoder(torch.nn.Module):
    """Last hidden states of BERT (Devlin et al. 2019), for inference.

    x_0 = norm(word + place + type 0); per layer a = norm(x + W_o attend(W_qkv x)), x' = norm(a + W_2 gelu(W_1 a)).
    On a CPU everything but attention is computed for 128 tokens at a time. The shape of a matrix product decides its
    rounding, so one shape for all gives a token the same bits in any batch.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, no_room: str):
        """Load config.json and model.safetensors of a folder. Raises MissingBackend, ModelError.

        no_room: advice if the device has too little memory.
        """
        super().__init__()
        config, weights = _read(folder)
        self.dim, self.heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        self._eps, self._tile = float(config["layer_norm_eps"]), TILE if device.type == "cpu" else 0
        try:
            self.embeddings = _Embeddings(_Part(weights, "embeddings."), self._eps)
            self.layers = torch.nn.ModuleList(
                _Layer(_Part(weights, f"encoder.layer.{i}."), self._eps) for i in range(config["num_hidden_layers"])
            )
        except (KeyError, RuntimeError) as error:
            given = f"{folder}: {error}"
            raise ModelError(
                "the embedding model could not be loaded", given=given, expected="weights of BERT"
            ) from error
        with room_for(str(folder), no_room):
            self.to(device, dtype).requires_grad_(False).eval()
        pack_linear_layers(self)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden states [T, D]. tokens, places: i64[T], a token and its position in its text; T is a multiple of 128 on
        a CPU.

        attend: attention of each token over its own text, from queries, keys and values.
        """
        x = self._by_tile(self.embeddings, tokens, places)
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            mixed = attend(self._by_tile(layer.query_key_value, x).view(len(x), 3, self.heads, -1))
            x = self._by_tile(layer, mixed.reshape(len(x), self.dim), x)
        return x

    def _by_tile(self, compute: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        if not self._tile:
            return compute(*inputs)
        return torch.cat([compute(*parts) for parts in zip(*(rows.split(self._tile) for rows in inputs))])


class _Part:
    """Weights whose names begin with `prefix`."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str):
        self._weights, self._prefix = weights, prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[self._prefix + name]

    def linear(self, *names: str) -> torch.nn.Linear:
        """Linear layers of these names as one, with concatenated outputs."""
        weight = torch.cat([self[f"{name}.weight"] for name in names])
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        layer.weight = torch.nn.Parameter(weight)
        layer.bias = torch.nn.Parameter(torch.cat([self[f"{name}.bias"] for name in names]))
        return layer

    def norm(self, name: str, eps: float) -> torch.nn.LayerNorm:
        weight = self[f"{name}.weight"]
        layer = torch.nn.LayerNorm(weight.shape, eps, device="meta")
        layer.weight, layer.bias = torch.nn.Parameter(weight), torch.nn.Parameter(self[f"{name}.bias"])
        return layer


class _Embeddings(torch.nn.Module):
    def __init__(self, part: _Part, eps: float):
        super().__init__()
        self.words = torch.nn.Parameter(part["word_embeddings.weight"])
        types = part["token_type_embeddings.weight"]
        self.places = torch.nn.Parameter(part["position_embeddings.weight"] + types[0])
        self.norm = part.norm("LayerNorm", eps)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words[tokens] + self.places[places])  # type: ignore[no-any-return]


class _Layer(torch.nn.Module):
    def __init__(self, part: _Part, eps: float):
        super().__init__()
        self.query_key_value = part.linear(*(f"attention.self.{name}" for name in ("query", "key", "value")))
        self.mixed, self.mixed_norm = (
            part.linear("attention.output.dense"),
            part.norm("attention.output.LayerNorm", eps),
        )
        self.wide, self.narrow = part.linear("intermediate.dense"), part.linear("output.dense")
        self.norm = part.norm("output.LayerNorm", eps)

    def forward(self, mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = self.mixed_norm(self.mixed(mixed) + x)
        return self.norm(self.narrow(F.gelu(self.wide(x))) + x)  # type: ignore[no-any-return]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Checked configuration, and the weights by name."""
    with needing_transformers():
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError("the embedding model could not be loaded", given=f"{folder}: {error}") from error
    given = {name: config.get(name, expected) for name, expected in EXPECTED.items()}
    if given != EXPECTED:
        raise ModelError("another kind of model than BERT", given=f"{folder}: {given}", expected=EXPECTED)
    return config, weights
