"""Low-precision products are within their proved error, for rows of any length; the error is not idle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.graph.common import low_precision as module
from gpu_rag.graph.common.low_precision import fastest_dtype, low_precision_rows, rounding_of, slack_of

DTYPES = [torch.float32, torch.bfloat16]


def rows(n: int, dims: int, seed: int, spread: float) -> torch.Tensor:
    """Lengths from 10^-spread to 10^spread."""
    r = np.random.default_rng(seed)
    return torch.from_numpy((r.normal(size=(n, dims)) * 10 ** r.uniform(-spread, spread, (n, 1))).astype(np.float32))


def excess(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """The largest distance of products beyond their bound, and the largest share of the bound that is used."""
    asked, held = low_precision_rows(left, dtype), low_precision_rows(right, dtype)
    product = (asked.rows @ held.rows.T).double().numpy()
    away = np.abs(product - (left.double() @ right.double().T).numpy())
    bound = slack_of(asked, held)[:, None] + rounding_of(dtype) * np.abs(product)
    return float((away - bound).max()), float((away / bound).max())


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 999), st.sampled_from([1, 3, 64, 300]), st.sampled_from([0.0, 3.0, 12.0, 30.0]), st.booleans())
def test_products_are_within_their_bound(dtype: torch.dtype, seed: int, dims: int, spread: float, half: bool) -> None:
    left, right = rows(9, dims, seed, spread), rows(40, dims, seed + 1, min(spread, 3.0))
    beyond, _ = excess(left, right.half() if half else right, dtype)
    assert not beyond > 0


def test_the_bound_of_bf16_is_used() -> None:
    used = [excess(rows(50, 64, seed, 0.0), rows(50, 64, seed + 1, 0.0), torch.bfloat16)[1] for seed in range(4)]
    assert 0.05 < max(used) < 1, "a bound that is never near is not tested"


def test_a_bound_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "to_bf16", lambda raw, out, length, error: (right(raw, out, length, error), error.fill(0))
    )
    beyond = [excess(rows(50, 64, s, 0.0), 50 * rows(50, 64, s + 1, 0.0), torch.bfloat16)[0] for s in range(4)]
    assert max(beyond) > 0


right = module.to_bf16


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_that_may_overflow_have_no_bound(dtype: torch.dtype) -> None:
    huge = torch.full((2, 4), 1e25)
    slack = slack_of(low_precision_rows(torch.cat([huge, huge * 0]), dtype), low_precision_rows(huge, dtype))
    assert slack[:2].tolist() == [np.inf] * 2


def test_rows_that_are_not_finite_are_seen() -> None:
    for value in (torch.nan, torch.inf):
        vectors = torch.ones(3, 5)
        vectors[1, 4] = value
        for dtype in DTYPES:
            assert not low_precision_rows(vectors, dtype).is_finite and low_precision_rows(vectors[:1], dtype).is_finite


def test_bf16_is_that_of_torch() -> None:
    vectors = torch.cat([rows(50, 33, 5, 20.0), torch.tensor([[0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8] + [0.0] * 29])])
    for given_rows in (vectors, (vectors.clamp(-6e4, 6e4)).half()):
        assert torch.equal(low_precision_rows(given_rows, torch.bfloat16).rows, given_rows.bfloat16())


def test_the_dtype_is_by_the_instructions_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, dtype in (
        ({}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found, raising=False)
        assert fastest_dtype() == dtype
