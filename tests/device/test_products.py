"""Products of f16 with sums in f32, on the stand-in: within the error that proofs take, and results as exact."""

import pytest
import torch
from stand_in import Device

from gpu_rag.graph.common import dots
from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.nearest.torch_path import F16_ERROR

ROWS, DIMS = 400, 48


def rows_and_queries(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """f16 rows and f32 queries of length `scale`; some components are far smaller than the others."""
    drawn = torch.randn(ROWS + 20, DIMS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn[:, ::5] *= 1e-4
    drawn[:, 1::7] *= 1e-7
    unit = torch.nn.functional.normalize(drawn, dim=1)
    return unit[:ROWS].half(), (scale * unit[ROWS:]).float()


def error(device: Device, scale: float) -> tuple[float, float]:
    """The largest error of `products`, and the one that is taken for it."""
    base, queries = rows_and_queries(scale)
    there = device.put(base)
    found = device.back(dots.products(device.put(queries), there)).double()
    lengths = queries.double().norm(dim=1).max() * base.double().norm(dim=1).max()
    slack = dots.products_slack(there) * lengths + F16_ERROR * DIMS**0.5 * base.double().norm(dim=1).max()
    return float((found - queries.double() @ base.double().T).abs().max()), float(slack)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 3e4])
def test_products_are_within_their_bound(device: Device, scale: float) -> None:
    found, most = error(device, scale)
    assert found <= most and device.launches["mm"] == 1


def test_the_bound_sees_a_part_left_out(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries in f16 alone miss it."""
    monkeypatch.setattr(dots, "LOW", 2.0**60)  # what is left of a low part that f16 can hold is nothing
    plain = torch.Tensor.half
    monkeypatch.setattr(torch.Tensor, "half", lambda tensor: plain(tensor.clamp(-60000, 60000)))
    found, most = error(device, 1.0)
    assert found > most


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-20, 3e4, 1e6])
def test_nearest_rows_are_those_of_the_cpu(device: Device, scale: float) -> None:
    """Also of queries that f16 cannot hold, whose fast scores say nothing."""
    base, queries = rows_and_queries(scale)
    expected = nearest(queries, base, 7)
    found = device.back(nearest(device.put(queries), device.put(base), 7, tile=100))
    assert torch.equal(found.ids, expected.ids) and torch.equal(found.scores, expected.scores)
    assert device.launches["mm"]
