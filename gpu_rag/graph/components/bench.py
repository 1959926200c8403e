"""The cases `components`, `groups` and `clusters`: a whole graph, table or set of vectors is grouped in one call."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import Case, Checked, Config, Peer, missing_peer
from gpu_rag.bench.graphs import csr_on
from gpu_rag.bench.measure import torch_threads
from gpu_rag.graph.cluster import cluster_bytes, exact_groups, radius_clusters
from gpu_rag.graph.components import connected_components
from gpu_rag.graph.pagerank.bench import measured_graphs
from gpu_rag.graph.pagerank.bench_reference import adjacency
from gpu_rag.types import CSR, Ragged

KEYS = 3  # of a row
DIMS = 384
EPS = 0.2  # cosine distance
MEMBERS = 4  # of a planted cluster
SPREAD = 0.3  # length of the noise that is added to a cluster's centre
MOST_CLUSTERED = 100_000  # rows: the time of a call grows with their square
COMPARED_ROWS = 10_000  # with all pairs: by the check, and by scikit-learn
NETWORKX_NODES = 100_000
ROWS = 1000  # of a block of products in the check
WHOLE = (1,)  # batches: one call for everything


def components(config: Config) -> Iterator[Case]:
    """Connected components of a graph."""
    for name, csr in measured_graphs(config):
        yield _components_case(name, csr, config)


def _components_case(name: str, csr: CSR, config: Config) -> Case:
    held, matrix = csr_on(csr, torch.device(config.device)), adjacency(csr)
    return Case(
        "components",
        pick_implementation(held.indptr.device, family="components"),
        {"graph": name, "n": csr.n, "m": csr.m},
        _everything,
        lambda nothing: connected_components(held),
        lambda result, count: check_labels(result, _components(matrix)),
        lambda batch: 4 * csr.m + 16 * csr.n,
        lambda batch: 8 * csr.m + 40 * csr.n,
        lambda: [_scipy_components(matrix), _igraph(matrix), _networkx(matrix)],
        WHOLE,
    )


def groups(config: Config) -> Iterator[Case]:
    """Rows with three keys each, a few rows to a key."""
    for n in config.sizes:
        yield _groups_case(n, config)


def _groups_case(n: int, config: Config) -> Case:
    keys = torch.randint(2 * n, (n, KEYS), generator=torch.Generator().manual_seed(config.seed))
    offsets, device = torch.arange(n + 1) * KEYS, torch.device(config.device)
    held, matrix = Ragged(keys.flatten().to(device), offsets.to(device)), _shared_keys(keys.numpy())
    return Case(
        "groups",
        pick_implementation(device),
        {"n": n, "m": n * KEYS},
        _everything,
        lambda nothing: exact_groups(held),
        lambda result, count: check_labels(result, _components(matrix)[:n]),
        lambda batch: 8 * n * KEYS + 16 * n,
        lambda batch: 40 * n * KEYS + 40 * n,
        lambda: [_scipy_components(matrix, n), _python(keys.tolist())],
        WHOLE,
    )


def clusters(config: Config) -> Iterator[Case]:
    """DBSCAN of unit vectors around planted centres, at most 100,000 of them."""
    for n in sorted({min(n, MOST_CLUSTERED) for n in config.sizes}):
        yield _clusters_case(n, config)


def _clusters_case(n: int, config: Config) -> Case:
    vectors = planted(n, config.seed)
    held = vectors.to(config.device)

    def run(nothing: object) -> torch.Tensor:
        with torch_threads(config.threads):
            return radius_clusters(held, EPS)

    return Case(
        "clusters",
        pick_implementation(held.device),
        {"n": n, "dims": DIMS},
        _everything,
        run,
        lambda result, count: check_clusters(result, vectors),
        lambda batch: 4 * n * DIMS + 8 * n,
        lambda batch: cluster_bytes(n, DIMS),
        lambda: [_sklearn(vectors.numpy())],
        WHOLE,
    )


def _everything(start: int, count: int) -> None:
    """The input of an op that holds its input."""


def planted(n: int, seed: int) -> torch.Tensor:
    """f32[n, DIMS], unit rows: MEMBERS around each random centre, at a cosine of about 0.92 with one another."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(-(-n // MEMBERS), DIMS, generator=generator))
    noise = torch.nn.functional.normalize(torch.randn(n, DIMS, generator=generator))
    return torch.nn.functional.normalize(centres.repeat_interleave(MEMBERS, 0)[:n] + SPREAD * noise)


def check_labels(result: Any, wanted: np.ndarray) -> Checked:
    """The same groups, whatever their labels; -1 is no group."""
    found = torch.as_tensor(result).cpu().numpy()
    if found.shape != wanted.shape:
        return Checked(False, f"the shape is {found.shape} instead of {wanted.shape}")
    if not np.array_equal(found < 0, wanted < 0):
        return Checked(False, "other rows are left out")
    pairs = np.unique(np.stack([found, wanted]), axis=1).shape[1]
    if pairs != len(np.unique(found)) or pairs != len(np.unique(wanted)):
        return Checked(False, "the groups are other ones")
    return Checked(True)


def check_clusters(result: Any, vectors: torch.Tensor) -> Checked:
    """The clusters that all pairs in f64 give; of more than COMPARED_ROWS rows those that were planted, which lie so
    far apart that they are the same."""
    n = len(vectors)
    if n <= COMPARED_ROWS:
        return check_labels(result, _clusters_by_products(vectors))
    planted_label = np.arange(n) // MEMBERS
    return check_labels(result, np.where(np.bincount(planted_label)[planted_label] > 1, planted_label, -1))


def _components(matrix: Any) -> np.ndarray:
    """Labels by minimum labels that spread along all entries until nothing changes: slow and plain."""
    entries = matrix.tocoo()
    label = np.arange(matrix.shape[0])
    while True:
        before = label.copy()
        np.minimum.at(label, entries.row, before[entries.col])
        np.minimum.at(label, entries.col, before[entries.row])
        label = label[label]
        if np.array_equal(label, before):
            return label


def _shared_keys(keys: np.ndarray) -> Any:
    """Rows and keys as the nodes of one bipartite matrix, rows first."""
    from scipy.sparse import csr_matrix

    n = len(keys)
    rows, size = np.repeat(np.arange(n), keys.shape[1]), n + int(keys.max()) + 1
    return csr_matrix((np.ones(keys.size, np.int8), (rows, n + keys.ravel())), shape=(size, size))


def _clusters_by_products(vectors: torch.Tensor) -> np.ndarray:
    """Components of all pairs within EPS, by blocks of products in f64: two rows are enough for a core row."""
    from scipy.sparse import csr_matrix

    wide = vectors.double()
    links = [
        (wide[i : i + 1000] @ wide.T >= 1 - EPS).nonzero() + torch.tensor([i, 0]) for i in range(0, len(wide), 1000)
    ]
    rows, columns = torch.cat(links).T.numpy()
    label = _components(csr_matrix((np.ones(len(rows), np.int8), (rows, columns)), shape=(len(wide), len(wide))))
    return np.where(np.bincount(rows, minlength=len(wide)) > 1, label, -1)


def _scipy_components(matrix: Any, kept: int | None = None) -> Peer:
    from scipy.sparse.csgraph import connected_components as weak

    return Peer(
        "scipy", _everything,
        lambda nothing: weak(matrix, directed=True, connection="weak")[1][:kept],
    )  # fmt: skip


def _igraph(matrix: Any) -> Peer:
    if find_spec("igraph") is None:
        return missing_peer("igraph", "igraph")
    import igraph

    entries = matrix.tocoo()
    graph = igraph.Graph(matrix.shape[0], edges=np.stack([entries.row, entries.col], 1))
    return Peer("igraph", _everything, lambda nothing: graph.connected_components().membership)


def _networkx(matrix: Any) -> Peer:
    if find_spec("networkx") is None:
        return missing_peer("networkx", "networkx")
    if matrix.shape[0] > NETWORKX_NODES:
        return Peer("networkx", note=f"not timed above {NETWORKX_NODES:,} nodes")
    import networkx as nx

    graph = nx.from_scipy_sparse_array(matrix)

    def run(nothing: Any) -> np.ndarray:
        label = np.zeros(matrix.shape[0], np.int64)
        for number, nodes in enumerate(nx.connected_components(graph)):
            label[list(nodes)] = number
        return label

    return Peer("networkx", _everything, run)


def _python(keys: list[list[int]]) -> Peer:
    """A dictionary of first rows, and union-find."""

    def run(nothing: Any) -> np.ndarray:
        root = list(range(len(keys)))
        first: dict[int, int] = {}
        for row, own in enumerate(keys):
            for key in own:
                a, b = row, first.setdefault(key, row)
                while root[a] != a:
                    root[a] = a = root[root[a]]
                while root[b] != b:
                    root[b] = b = root[root[b]]
                root[max(a, b)] = min(a, b)
        for row in range(len(root)):
            root[row] = root[root[row]]
        return np.array(root)

    return Peer("Python dict", _everything, run)


def _sklearn(vectors: np.ndarray) -> Peer:
    if find_spec("sklearn") is None:
        return missing_peer("scikit-learn DBSCAN", "scikit-learn")
    if len(vectors) > COMPARED_ROWS:
        return Peer("scikit-learn DBSCAN", note=f"not timed above {COMPARED_ROWS:,} rows")
    from sklearn.cluster import DBSCAN

    return Peer(
        "scikit-learn DBSCAN", _everything,
        lambda nothing: DBSCAN(eps=EPS, min_samples=2, metric="cosine", n_jobs=1).fit(vectors).labels_,
    )  # fmt: skip
