"""Benchmarks of the graph ops against the libraries that people use for the same work: `gpu-rag bench`.

An op is checked before it is timed, and one that fails its check is refused. Ops, peers and a plain memory copy take
turns in interleaved rounds of one run, so that a noisy machine slows all of them alike: ratios hold where times do not.
"""
