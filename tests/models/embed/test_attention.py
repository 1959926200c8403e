"""Attention of the packaged embedders against its formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.models.embed import attention as module
from gpu_rag.models.embed.attention import attention, attention_into

HEADS, WIDTH = 3, 8


def drawn(texts: int, length: int, scale: float = 1.0) -> torch.Tensor:
    """Queries, keys and values; scale: of the scores."""
    values = np.random.default_rng(length).normal(size=(texts, length, 3, HEADS, WIDTH))
    values[:, :, :2] *= scale**0.5
    return torch.from_numpy(values)


def by_formula(qkv: torch.Tensor) -> torch.Tensor:
    query, key, value = qkv.double().unbind(2)
    scores = torch.einsum("tqhw,tkhw->thqk", query, key) / WIDTH**0.5
    return torch.einsum("thqk,tkhw->tqhw", scores.softmax(-1), value)


def made(qkv: torch.Tensor) -> torch.Tensor:
    out = torch.full(qkv[:, :, 0].shape, 7.0, dtype=qkv.dtype)
    attention_into(out, qkv)
    return out


@pytest.mark.parametrize("length", [1, 2, 7, 33, 110, 256, 300])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_attention_is_its_formula(length: int, dtype: torch.dtype, atol: float) -> None:
    qkv = drawn(5, length).to(dtype)
    torch.testing.assert_close(made(qkv).double(), by_formula(qkv), atol=atol, rtol=0.02)
    wrong = by_formula(qkv[:, :, [1, 0, 2]])  # a plausible wrong version: keys ask queries
    assert length == 1 or (made(qkv) - wrong).abs().max() > 0.05


def test_a_mask_hides_keys() -> None:
    qkv, shown = drawn(2, 9).float(), torch.arange(9) < 6
    made = attention(qkv, shown[None, None, None])[:, :6]
    torch.testing.assert_close(made.double(), by_formula(qkv[:, :6]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("scale", [80.0, 1000.0])
def test_scores_beyond_the_limits_of_bfloat16(scale: float) -> None:
    """e^score of one text overflows, or underflows in a whole row; the others keep their bits."""
    qkv = drawn(4, 20).to(torch.bfloat16)
    alone, large = made(qkv), drawn(1, 20, scale).to(torch.bfloat16)
    high, low = large.clone(), large.clone()
    high[:, :, :2], low[:, :, 0] = high[:, :, :2].abs(), -low[:, :, 0].abs()
    low[:, :, 1] = low[:, :, 1].abs()
    found = made(torch.cat([qkv[:2], high, low, qkv[2:]]))
    assert torch.equal(found[[0, 1, 4, 5]], alone)
    torch.testing.assert_close(found[2:4].double(), by_formula(torch.cat([high, low])), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("length", [1, 5, 64, 110, 256])
def test_bits_of_a_text_depend_on_no_other_text(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    qkv = drawn(9, length).to(torch.bfloat16)
    together = made(qkv)
    assert all(torch.equal(made(qkv[row : row + 1])[0], together[row]) for row in range(9))
    monkeypatch.setattr(module, "_SCORES", 4 * HEADS * length * length)
    assert torch.equal(made(qkv), together)
