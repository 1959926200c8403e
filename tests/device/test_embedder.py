"""The embedder's batches on the stand-in device: how many tokens, how many waits, and that rows do not change."""

from typing import Any

import numpy as np
import pytest
import torch
from stand_in import Device, OnDevice, stand_in

from gpu_rag.models.embed import mean_pooling
from gpu_rag.models.embed.mean_pooling import LENGTH_STEP, MeanPoolingEmbedder

CLS, SEP, PAD, DIMS = 1, 2, 0, 6


@pytest.fixture(autouse=True)
def plain_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in cannot wrap tensors of inference mode."""
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)


class Encoder:
    """A hidden state of each token by its number, its place and those of its text."""

    def __call__(self, tokens: torch.Tensor, places: torch.Tensor, attend: Any) -> torch.Tensor:
        powers = torch.arange(1, DIMS + 1, device=tokens.device)
        hidden = (tokens[:, None] * powers % 7).float() + places[:, None] % 5
        return hidden + attend(hidden[:, None, None, :].expand(-1, 3, 1, -1)).flatten(1)


def embedder(kind: str) -> Any:
    made: Any = MeanPoolingEmbedder.__new__(MeanPoolingEmbedder)
    made._torch_device, made.dim, made._model = torch.device(kind), DIMS, Encoder()
    made._cls, made._sep, made._pad, made.max_tokens = CLS, SEP, PAD, 64
    made._prefix, made._centre = "", None
    return made


@pytest.fixture(autouse=True)
def attention(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The mean of a text's values in place of attention; the shapes of those batches that have a mask."""
    shapes: list[tuple[int, ...]] = []

    def mean(qkv: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        values = qkv[:, :, 2]
        if mask is None:
            return values.mean(1, keepdim=True).expand_as(values)
        shapes.append(tuple(values.shape[:2]))
        keep = mask[:, 0, 0, :, None, None].float()
        return ((values * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True)).expand_as(values)

    monkeypatch.setattr(mean_pooling, "attention", mean)
    monkeypatch.setattr(mean_pooling, "attention_into", lambda out, qkv: out.copy_(mean(qkv)))
    return shapes


def ids(n: int) -> list[list[int]]:
    r = np.random.default_rng(n)
    return [[CLS, *r.integers(3, 90, int(size)).tolist(), SEP] for size in r.integers(1, 60, n)]


def test_a_batch_has_its_tokens_and_a_call_one_wait(attention: list[tuple[int, ...]]) -> None:
    """Whatever the number of texts; each batch is one upload of tokens and one of masks."""
    with stand_in() as device:
        made, rows = embedder("cuda"), ids(3000)
        found = made.embed_ids(rows)
        tokens = {size * length for size, length in attention}
        assert all(mean_pooling.GPU_TOKENS - 64 < n <= mean_pooling.GPU_TOKENS for n in tokens)
        assert len(device.syncs) == 1
        assert [copy.to for copy in device.copies] == ["cuda"] * 2 * len(attention) + ["cpu"]
    assert found.dtype == np.float32 and np.allclose(np.linalg.norm(found, axis=1), 1)
    np.testing.assert_allclose(found, embedder("cpu").embed_ids(rows), atol=1e-6)


def test_shapes_depend_on_a_text_alone(device: Device, attention: list[tuple[int, ...]]) -> None:
    made, rows = embedder("cuda"), ids(40)
    whole = made.embed_ids(rows)
    alone = np.concatenate([made.embed_ids([row]) for row in rows])
    np.testing.assert_array_equal(whole, alone)
    of_length: dict[int, set[int]] = {}
    for size, length in attention:
        of_length.setdefault(length, set()).add(size)
    assert all(len(sizes) == 1 and length % LENGTH_STEP == 0 for length, sizes in of_length.items())
    assert isinstance(made._padded(rows[:1], 64), OnDevice) and made.embed_ids([]).shape == (0, DIMS)
