"""Peers: their names, the libraries that they need, and graphs in the form of igraph."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec

import numpy as np

from gpu_rag.bench.case import MAX_ALONE, Peer

DISTRIBUTIONS = {"faiss": "faiss-cpu", "sklearn": "scikit-learn", "torch_geometric": "torch-geometric"}
NETWORKX_NODES = 100_000  # graphs are dictionaries: larger ones take minutes to build

Given = ParamSpec("Given")


def peer(
    name: str, needs: str = "", one_thread: bool = False
) -> Callable[[Callable[Given, Peer]], Callable[Given, Peer]]:
    """Name the peer that a function makes. The function is not called if the module `needs` is not installed, or, with
    `one_thread`, if OpenMP has more threads: they wait for one another, and on shared cores igraph was five times
    slower with two than with one."""

    def named(make: Callable[Given, Peer]) -> Callable[Given, Peer]:
        @wraps(make)
        def made(*given: Given.args, **options: Given.kwargs) -> Peer:
            if needs and find_spec(needs) is None:
                distribution = DISTRIBUTIONS.get(needs, needs)
                note = f"{name} is not installed: pip install {distribution}, or 'gpu-rag[bench]'"
                return Peer(name, note=note, missing=True)
            if one_thread and not single_openmp_thread():
                threads = os.environ.get("OMP_NUM_THREADS", "not set")
                note = (
                    f"not timed: OMP_NUM_THREADS is {threads}, and more than one thread slows igraph down; set it to 1"
                )
                return Peer(name, note=note)
            return replace(make(*given, **options), name=name)

        return made

    return named


def alone(inputs: Callable[[int, int], Any], run: Callable[[Any], Any], note: str = "") -> Peer:
    """A peer that takes one question at a time: `run` is called for each input."""
    return Peer(
        "", inputs, lambda given: [run(question) for question in given], note, max_questions=MAX_ALONE, alone=True
    )


def single_openmp_thread() -> bool:
    """Whether OpenMP libraries were started with one thread."""
    return os.environ.get("OMP_NUM_THREADS") == "1"


def igraph_of(matrix: Any, directed: bool = True) -> Any:
    """The igraph graph of a sparse matrix's entries, without their values."""
    import igraph

    entries = matrix.tocoo()
    return igraph.Graph(matrix.shape[0], edges=np.stack([entries.row, entries.col], 1), directed=directed)
