"""The kernels pass the checks of scripts/device_check.py on its tiny cases, under Triton's interpreter."""

import pytest
import torch
from kernel_device import NEEDS_INTERPRETER, Script

OPS = ("ppr_step", "ppr_step_fp16", "msbfs_or", "minplus_relax", "ragged_gather_dot_topk")


@pytest.mark.parametrize("op", [pytest.param(op, marks=NEEDS_INTERPRETER) for op in OPS])
def test_checks_hold_on_tiny_cases(script: Script, op: str) -> None:
    device_check = script("device_check")
    (make,) = device_check.cases(op, torch.device("cpu"), True)
    result = device_check.check(make())
    assert result["ok"], result
