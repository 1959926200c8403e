"""Merging labels in torch alone: the part of clustering and grouping that runs on any device."""

from __future__ import annotations

import torch


def merge_labels(label: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Labels after joining the groups of a[p] and b[p] for every p: i64[N], again the smallest member of each group.

    label: i64[N], each row's smallest group member (label[label] = label); a, b: i64[P] rows. A root is hooked below
    the least root beside it and chains are shortened, until no pair differs; integers, so schedules cannot matter.
    """
    while True:
        a, b = label[a], label[b]  # roots, in this round and all later ones
        differ = a != b
        if not bool(differ.any()):
            return label
        a, b = a[differ], b[differ]
        label = label.clone()
        label.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        jumped = label[label]
        while not torch.equal(jumped, label):
            label, jumped = jumped, jumped[jumped]
