"""Benchmarks of the graph ops against the libraries that people use for the same work: `gpu-rag bench`.

An op is checked before it is timed, and one that fails its check is refused. Ops, peers and a plain memory copy take
turns in interleaved rounds of one run, so that a noisy machine slows all of them alike: ratios hold where times do not.
An op's cases lie in the `bench` file of its folder, which is imported when the op is measured.
"""

OPS = {
    "pagerank": "pagerank:cases",
    "blocks-pagerank": "local_pagerank:cases",
    "bubble": "bubble:cases",
    "ego": "ego:cases",
    "reach": "reach:reach_cases",
    "intersect": "reach:intersect_cases",
    "components": "components:cases",
    "groups": "cluster:groups_cases",
    "clusters": "cluster:clusters_cases",
    "join": "join:cases",
    "nearest": "nearest:cases",
    "paths": "paths:cases",
    "rrf": "fuse:cases",
    "frontier": "frontier:frontier_cases",
    "top-edges": "frontier:top_edges_cases",
}  # folder of gpu_rag.graph, and the function of its bench file
