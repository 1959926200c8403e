"""Merging labels in torch alone: the part of clustering and grouping that runs on any device."""

from __future__ import annotations

import torch

JUMPS = 3  # between two looks


def merge_labels(label: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Labels after joining the groups of a[p] and b[p] for every p: i64[N], again the smallest member of each group.

    label: i64[N], each row's smallest group member (label[label] = label); a, b: i64[P] rows. A root is hooked below
    the least root beside it and chains are shortened, until no pair differs; integers, so schedules cannot matter.
    """
    while True:
        a, b = label[a], label[b]  # roots, in this round and all later ones
        differ = (a != b).nonzero()[:, 0]
        if not differ.shape[0]:
            return label
        a, b = a[differ], b[differ]
        label = label.clone()
        label.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        label = flattened(label)


def flattened(label: torch.Tensor) -> torch.Tensor:
    """Every row's root, i64[N]: label[.. label[row] ..] to its end. label[row] <= row. A chain of up to 2^JUMPS rows is
    shortened before the host looks, and waits."""
    while True:
        for _ in range(JUMPS):
            label = label[label]
        further = label[label]
        if torch.equal(further, label):
            return label
        label = further
