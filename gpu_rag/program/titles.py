"""Heavy edges between passages and the nodes of their titles: a passage is about its title, others mention it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import torch

from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.index.index import Index
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import CSR

MOST_PASSAGES = 10  # per title; a title of more passages does not tell their topic
_BRACKET = re.compile(r"\s*\([^()]*\)\s*$")


def titled(index: Index, csr: CSR, known: Mapping[str, int], first: int, weight: float) -> CSR:
    """`csr`, symmetric, with `weight` added between each passage and the node that its title names.

    known: nodes by normalised name; first: the node of passage 0. The same `csr` is returned if no title names a node.
    """
    found = title_edges(index, known)
    if not weight or not found:
        return csr
    rows, columns = row_of_entry(csr), csr.indices.long()
    once = rows < columns
    weights = torch.ones(csr.m, device=rows.device) if csr.weight is None else csr.weight
    named, passages = torch.tensor(found, device=rows.device).T
    added = torch.full(named.shape, weight, device=rows.device)
    pairs = ((rows[once], named), (columns[once], passages + first), (weights[once], added))
    src, dst, summed = (torch.cat(pair) for pair in pairs)
    return csr_from_edges(src, dst, csr.n, summed)


def title_edges(index: Index, known: Mapping[str, int]) -> list[tuple[int, int]]:
    """(node, passage) of each passage whose title is a known name, with or without its final bracket. Titles of more
    than MOST_PASSAGES passages are skipped."""
    titles = index.passages["title"].to_pylist()
    shared = Counter(titles)
    found = []
    for passage, title in enumerate(titles):
        if title and shared[title] <= MOST_PASSAGES:
            names = normalise_name(title), normalise_name(_BRACKET.sub("", title))
            found += [(known[name], passage) for name in names if name in known][:1]
    return found
