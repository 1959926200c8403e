"""A check, before any work, that what is preferred for the graph ops can be had."""

from __future__ import annotations

import torch

from gpu_rag.graph import backend, nearest_index, pagerank_job


def check_preferences(preferences: backend.Preferences, device: str) -> None:
    """Raises MissingBackend or UsageError where a preferred implementation is not installed or cannot take `device`."""
    with backend.preferring(preferences):
        pagerank_job.pick_on(torch.device(device))
        backend.pick_implementation(torch.device(device))
        nearest_index.pick_index(0)
