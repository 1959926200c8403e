"""Wording of HopRAG's trace steps, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {
    "hop_entry/*": "passages where the walk begins",
    "hops": "ways on from {n} passages, by one request",
    "hop_prune": "passages visited on the walk, and near, of {n}",
    "hop_*": "hop {0}: where it leads, of {n}",
}
