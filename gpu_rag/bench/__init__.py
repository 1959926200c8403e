"""Benchmarks of the graph ops against common libraries for the same work: `gpu-rag bench`.

An op is checked before it is timed; an op that fails its check is refused. Ops, peers and a plain memory copy take
turns in interleaved rounds of one run, so a noisy machine slows all of them equally: ratios are reliable, times are
not. The cases of an op are in the `bench` file of its folder, which is imported when the op is measured.
"""

OPS = ("pagerank", "bubble", "ego", "nearest")  # folders of gpu_rag.graph
