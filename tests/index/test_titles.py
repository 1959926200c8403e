"""Edges of titles: which passages have one, and what it adds to a graph of four nodes worked by hand."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from titled import titled

from gpu_rag.graph.csr import csr_from_edges, row_of_entry
from gpu_rag.index.titles import MAX_PASSAGES, title_edges

KNOWN = pa.array(["jaws", "marta orlo", "jaws (book)", "jaws"])  # of equal names the first counts


def column(*titles: str) -> pa.ChunkedArray:
    return pa.chunked_array([list(titles)], pa.string())


def edges(*titles: str) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in title_edges(column(*titles), KNOWN))))


@pytest.mark.parametrize(
    ("title", "node"),
    [
        ("Jaws", 0),
        ("JAWS (film)", 0),
        ("Jaws (book)", 2),  # a name of its own comes before the one without brackets
        ("“Marta Orlo”", 1),
        ("Marta Orlo (born 1871) (painter)", None),
        ("Jaws 2", None),
        ("(film)", None),
        ("", None),
    ],
)
def test_a_title_names_an_entity(title: str, node: int | None) -> None:
    assert edges("Ves", title) == ([] if node is None else [(node, 1)])


def test_a_title_of_many_passages_says_nothing() -> None:
    few, many = ["Jaws"] * MAX_PASSAGES, ["Jaws"] * (MAX_PASSAGES + 1)
    assert edges(*few) == [(0, p) for p in range(MAX_PASSAGES)]
    assert edges(*many, "Marta Orlo") == [(1, MAX_PASSAGES + 1)]


def test_a_name_may_stand_for_another_node() -> None:
    nodes, passages = title_edges(column("Jaws", "Ves", "Marta Orlo"), KNOWN, np.array([7, 5, 4, 3]))
    assert (nodes.tolist(), passages.tolist()) == ([7, 5], [0, 2])


def test_the_weight_is_added_both_ways() -> None:
    """Entities 0 and 1, passages 2 and 3: entity 0 is mentioned in both, and passage 2 is about it, 3 about 1."""
    edges = [(0, 1, 1.0), (0, 2, 1.0), (0, 3, 0.5)]
    src, dst = (torch.tensor([edge[i] for edge in edges]) for i in (0, 1))
    csr = csr_from_edges(src, dst, 4, torch.tensor([edge[2] for edge in edges]))
    found = titled(csr, column("Jaws", "Marta Orlo"), KNOWN, 2)
    assert found.weight is not None
    entries = dict(zip(zip(row_of_entry(found).tolist(), found.indices.tolist()), found.weight.tolist()))
    expected = {(0, 1): 1.0, (0, 2): 16.0, (0, 3): 0.5, (1, 3): 15.0}
    assert entries == expected | {(b, a): weight for (a, b), weight in expected.items()}


def test_without_titles_the_graph_is_the_same() -> None:
    csr = csr_from_edges(torch.tensor([0]), torch.tensor([2]), 4)
    assert titled(csr, column("", "Ves"), KNOWN, 2) is csr
