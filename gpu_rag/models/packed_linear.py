"""Linear layers whose bfloat16 weights are laid out once for the CPU's matrix units.

With plain weights the layout is redone at every call, which at the few rows of a decoding step costs as much as the
product itself. The results are those of the same kernels on the same numbers.
"""

from __future__ import annotations

import torch


class PackedLinear(torch.nn.Module):
    """y = x W^T + b with W in the layout of oneDNN. For inference on CPU in bfloat16."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: bf16[..., in]; returns bf16[..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def pack_linear_layers(model: torch.nn.Module) -> int:
    """Replace every bfloat16 torch.nn.Linear of a model on CPU, where torch and processor can; returns how many."""
    ops = torch.ops.mkldnn
    known = hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise")
    if not (known and ops._is_mkldnn_bf16_supported()):
        return 0
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.is_cpu:
                setattr(parent, name, PackedLinear(child))
                count += 1
    return count
