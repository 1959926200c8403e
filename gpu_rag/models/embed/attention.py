"""Attention of BERT: each token of a text over all tokens of this text."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_SCORES = 1 << 19  # scores that are computed together: they stay in the processor's cache
_MAX_LENGTH = 256  # torch is as fast for longer texts
_LEAST, _MOST = 1e-36, 1e36  # sums of e^score that bfloat16 holds well


def attention(qkv: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(q k^T / sqrt(width)) v, [texts, length, heads, width], of q, k, v: [texts, length, 3, heads, width].

    mask: bool, broadcast to [texts, heads, length, length]; True where a key counts.
    """
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


def attention_into(out: torch.Tensor, qkv: torch.Tensor) -> None:
    """`attention` on a CPU, written to `out`; the bits of a text do not depend on the other texts.

    In bfloat16 by products over many heads, with scores in bfloat16 and e^score without the largest score taken off:
    torch's own attention takes up to three times as long. A text whose sums of e^score are too large or small for this
    is left to torch.
    """
    n_texts, length, _, heads, width = qkv.shape
    if qkv.dtype != torch.bfloat16 or length > _MAX_LENGTH:
        out[:] = attention(qkv)
        return
    step = max(1, _SCORES // (heads * length * length))
    for start in range(0, n_texts, step):
        part, made = qkv[start : start + step], out[start : start + step]
        query, key, value = part.permute(2, 0, 3, 1, 4).reshape(3, -1, length, width)
        scores = torch.baddbmm(qkv.new_zeros(1), query, key.transpose(1, 2), beta=0, alpha=width**-0.5)
        weights = scores.exp_()
        sums = weights.sum(2, keepdim=True)
        mixed = torch.bmm(weights, value).div_(sums)
        made[:] = mixed.view(-1, heads, length, width).transpose(1, 2)
        is_held = ((sums > _LEAST) & (sums < _MOST)).view(len(part), -1).all(1)
        if not is_held.all():
            made[~is_held] = attention(part[~is_held])
