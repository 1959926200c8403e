"""A check, before any work, that what is preferred for the graph ops can be had."""

from __future__ import annotations

import torch

from gpu_rag.graph.common import backend
from gpu_rag.graph.nearest import index as nearest_index
from gpu_rag.graph.pagerank import job as pagerank_job


def check_preferences(preferences: backend.Preferences, device: str) -> None:
    """Raises MissingBackend or UsageError where a preferred implementation is not installed or cannot take `device`."""
    taken(preferences, device)


def taken(preferences: backend.Preferences, device: str) -> dict[str, str]:
    """What runs each family of ops on `device`: {"pagerank", "ops", "neighbours"}. Raises as `check_preferences`."""
    with backend.preferring(preferences):
        return {
            "pagerank": pagerank_job.pick_on(torch.device(device)),
            "ops": backend.pick_implementation(torch.device(device)),
            "neighbours": nearest_index.pick_index(0)[0],
        }
