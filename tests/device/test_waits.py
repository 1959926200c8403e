"""The host waits for the device only so often: each wait costs 10 to 20 us and drains the queue of launches.

A batch of a step waits as often for many questions as for a few, and no more often than is written here.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ragged_lists import ragged
from stand_in import CUDA, Copy, Device, stand_in
from test_methods import CPU, GPU, corpus, folder, questions

import gpu_rag
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import balls_by_words, checked, ego_balls, induced_subgraphs
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.graph.pagerank import matrix, personalized_pagerank, prepare
from gpu_rag.graph.paths.sets import PathSet, check_paths
from gpu_rag.graph.ragged import check_ragged, expand
from gpu_rag.graph.reach import EITHER, reachable, typed_graph
from gpu_rag.program.search import nearest_of
from gpu_rag.runtime import Step
from gpu_rag.sample import world_path
from gpu_rag.settings import merge
from gpu_rag.types import Question, Ragged

__all__ = ["corpus", "folder"]  # fixtures
MOST = {  # a batch, by step; what is loaded is not counted
    "dense": {"search_dense": 1},
    "ppr": {"rank_by_graph": 3},
    "hoprag": {"walk_hops": 4},
    "hoprag, as in its code": {"enter_hops": 10, "out_edges": 4, "near_vertices": 2},
    "bubblerag": {
        "search_dense": 1, "bubble_anchors": 2, "bubble_anchors_near": 6, "bubble_trees": 12,
        "bubble_neighbours": 1, "bubble_passages": 1, "bubble_walk": 3,
    },
    "higra-retriever": {"higra_search": 6, "higra_walk": 5},
    "higra-retriever, as in its paper": {"higra_search": 6, "higra_rank": 25},
    "hybgrag": {
        "kb_near_names": 2, "search_documents": 6, "kb_relations": 8, "kb_chains": 14, "reach_nodes": 19,
        "kb_walks": 7, "hybgrag_near": 25,
    },
    "hydrarag": {
        "match_mentions": 4, "kb_chains": 13, "kb_solve": 22, "kb_walks": 5, "worded_paths": 2, "question_graph": 16,
        "search_dense": 1, "start_paths": 5, "expand_paths": 7, "score_paths": 7, "join_paths": 7, "chain_paths": 10,
        "best_paths": 4, "passages_of": 6, "prune_paths": 2,
    },
}  # fmt: skip
UPLOADS, UP, DOWN = 15, 45_000, 13_000  # of a batch of a step at most: copies; bytes of a question, up and down
PAPERS = {"hoprag": {"entry": "edges"}, "higra-retriever": {"walk": "subgraph"}}
MORE = 1.15  # of all waits, if a batch is four times as large: only where a beam or a tile of queries begins to count


RUN = Step.run


class Waits:
    """The waits of each batch, by step; `elsewhere`: those outside all batches."""

    def __init__(self, device: Device):
        self.device = device
        self.of: dict[str, list[int]] = {}
        self.copies: dict[str, list[list[Copy]]] = {}

    def counted(self, step: Step[Any, Any, ..., Any], *given: Any) -> Any:
        """The answers of the step, counted."""
        waits, copies = len(self.device.syncs), len(self.device.copies)
        found = RUN(step, *given)
        self.of.setdefault(step.name, []).append(len(self.device.syncs) - waits)
        self.copies.setdefault(step.name, []).append(self.device.copies[copies:])
        return found

    def forget(self) -> None:
        self.device.forget()
        self.of.clear()
        self.copies.clear()

    @property
    def elsewhere(self) -> int:
        return len(self.device.syncs) - sum(map(sum, self.of.values()))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    with stand_in() as device:
        found = Waits(device)
        monkeypatch.setattr(Step, "run", lambda step, *given: found.counted(step, *given))
        yield found


def asked(index: gpu_rag.Index, method: str, asking: list[Question]) -> None:
    name, _, paper = method.partition(", ")
    settings = merge(GPU, {"method": {name: PAPERS[name]}}) if paper else GPU
    answers = list(index.retrieve(asking, method=name, settings=settings, k=5))
    assert not [answer.error for answer in answers if answer.error]


def times(n: int) -> list[Question]:
    """The questions, n times each."""
    return [Question(f"{one.id}-{copy}", one.text) for copy in range(n) for one in questions()]


@pytest.mark.parametrize("method", MOST)
def test_waits_of_a_batch_do_not_grow_with_its_questions(waits: Waits, folder: Path, method: str) -> None:
    """The same questions, once and four times: the batches are alike, but for their size."""
    index = gpu_rag.Index.open(folder)
    asked(index, method, questions())  # what is loaded and held stays
    found = []
    for n in (1, 4):
        waits.forget()
        asked(index, method, times(n))
        check_copies(waits.copies, n * len(questions()))
        assert waits.elsewhere == 0, "a wait outside of steps is one for each question"
        found.append({step: counts for step, counts in waits.of.items() if any(counts)})
        most = {step: max(counts) for step, counts in found[-1].items()}
        assert most.keys() == MOST[method].keys()
        assert not {step: count for step, count in most.items() if count > MOST[method][step]}
    few, many = ({step: len(counts) for step, counts in batches.items()} for batches in found)
    assert few == many
    assert sum(map(sum, found[1].values())) <= MORE * sum(map(sum, found[0].values()))


def check_copies(of: dict[str, list[list[Copy]]], n_questions: int) -> None:
    """Few copies a batch, few bytes a question."""
    for step, copies in ((step, copies) for step, batches in of.items() for copies in batches):
        size = {way: sum(copy.bytes for copy in copies if copy.to == way) for way in ("cuda", "cpu")}
        assert sum(copy.to == "cuda" for copy in copies) <= UPLOADS, (step, copies)
        assert size["cuda"] <= UP * n_questions and size["cpu"] <= DOWN * n_questions, (step, size)


@pytest.mark.parametrize("n", [1, 4])
def test_a_tile_of_ppr_crosses_twice_up_and_once_back(waits: Waits, folder: Path, n: int) -> None:
    """From the words, then the vectors and names of its questions to ranked ids; beside that go PageRank's sums and
    its proof."""
    index = gpu_rag.Index.open(folder)
    asked(index, "ppr", questions())
    waits.forget()
    asked(index, "ppr", times(n))
    found = {way: sorted(copy.where for copy in waits.device.copies if copy.to == way) for way in ("cuda", "cpu")}
    assert found == {
        "cuda": ["arrays.py:to_device"] * 2,
        "cpu": ["arrays.py:to_host", "inputs.py:teleport_of_prior", "matrix.py:check"],
    }
    sizes = [copy.bytes for copy in waits.device.copies if copy.to == "cuda"]
    assert max(sizes) < 4096 * 4 * n, "nothing has the size of the index"


def test_checks_and_pieces_wait_once(waits: Waits) -> None:
    device, n = waits.device, 6
    lists = device.put(Ragged(torch.tensor([1, 4, 0, 2, 5]), torch.tensor([0, 2, 2, 5])))
    paths = device.put(PathSet(*(torch.tensor([0, 0, 1]),) * 2, torch.ones(3, 2).int(), torch.zeros(3, 1).int()))
    mask = device.put(torch.tensor([True, False, True]))
    steps: dict[str, Callable[[], object]] = {
        "check_ragged": lambda: check_ragged(lists, "lists", n=n, device=CUDA),
        "check_sets": lambda: check_ragged(lists, "lists", n=n, device=CUDA, ascending=True),
        "expand": lambda: [*expand(lists.offsets[:-1], lists.offsets[1:])],
        "check_paths": lambda: check_paths(paths, 2, CUDA),
        "rows": lambda: paths.rows(mask),
        "rows of a slice": lambda: paths.rows(slice(1, 3)),
    }
    found = {}
    for name, step in steps.items():
        waits.forget()
        step()
        found[name] = len(device.syncs)
    assert found == dict.fromkeys(steps, 1) | {"rows of a slice": 0}


@pytest.mark.parametrize(("n_equal", "most"), [(0, 1), (100, 2), (1600, 20)])
def test_nearest_rows_of_two_tables_come_at_once(waits: Waits, n_equal: int, most: int) -> None:
    """Queries that see many equal rows are searched again, the others are not, and no rank differs."""
    drawn = torch.Generator().manual_seed(2)
    first, second = (torch.nn.functional.normalize(torch.randn(4000, 8, generator=drawn)) for _ in range(2))
    queries = torch.nn.functional.normalize(torch.randn(5, 8, generator=drawn))
    first[900 : 900 + n_equal] = queries[3]
    tables: dict[str, Any] = {"a": waits.device.put(first), "b": waits.device.put(second)}
    index: Any = SimpleNamespace(device="cuda", threads=1, vectors=tables.get, loaded=lambda _, load: load(index))
    found = nearest_of(index, ["a", "b"], waits.device.put(queries), 7)
    assert len(waits.device.syncs) <= most
    for top, base in zip(found, (first, second)):
        expected = nearest(queries, base, 7)
        assert torch.equal(top.ids, expected.ids) and torch.equal(top.scores, expected.scores)


def of_all(n: int) -> Ragged:
    return ragged([[*range(40)]] * n)


@pytest.mark.parametrize("batch", [2, 70])
def test_an_op_waits_for_its_sizes_alone(waits: Waits, batch: int) -> None:
    """Once for what is asked, then once a hop of a ball and a step of a walk; whatever the batch and the tiles.
    Words take one more for each 64 questions and where pushing ends, and their kernel's reference two a hop."""
    put, ring, drawn = waits.device.put, torch.arange(40), torch.Generator().manual_seed(1)
    graph = checked(put(csr_from_edges(ring, (ring * 7 + 1) % 40, 40)))
    typed = typed_graph(*put((ring, ring % 3, (ring * 7 + 1) % 40)), 40, 3)
    seeds, everything = put(ragged([[q % 40, (q + 9) % 40] for q in range(batch)])), put(of_all(batch))
    chains, ways = (put(ragged([[v] * (1 + q % 2) for q in range(batch)])) for v in (-1, EITHER))
    rows = torch.nn.functional.normalize(torch.randn(500, 8, generator=drawn))
    base, queries = put((rows, rows[:batch] + 0.01))
    scores = put(torch.randn(batch, 400, generator=drawn))
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "balls": (1 + 4, lambda: ego_balls(graph, seeds, 3)),
        "balls with a limit": (1 + 4, lambda: ego_balls(graph, seeds, 3, limit=9, include=[(0, 20), (24, 40)])),
        "balls by words": (3 + -(-batch // 64) + 2 * 2, lambda: balls_by_words(graph.csr, seeds, 2, None)),
        "blocks": (3, lambda: induced_subgraphs(graph, everything)),
        "walks": (1 + 2 + 1, lambda: reachable(typed, seeds, chains, ways)),
        "nearest": (1, lambda: nearest(queries, base, 5, tile=100)),
        "selection": (1, lambda: topk_rows(scores, 9)),
    }
    found = {}
    for name, (_, call) in calls.items():
        call()
        waits.forget()
        call()
        found[name] = len(waits.device.syncs)
    assert not waits.device.copies or {copy.to for copy in waits.device.copies} == {"cpu"}
    assert found == {name: most for name, (most, _) in calls.items()}


def test_pagerank_waits_for_its_proof_alone(waits: Waits) -> None:
    """And of a prior for its sums; no step is looked at on the way, and the factors of steps go over once."""
    ring = torch.arange(40)
    graph = prepare(waits.device.put(csr_from_edges(ring, (ring * 7 + 1) % 40, 40)))
    seeds = waits.device.put(Ragged(torch.tensor([0, 9]), torch.tensor([0, 1, 2])))
    for given, most in (({"prior": waits.device.put(torch.ones(2, 40))}, 2), ({"seeds": seeds}, 1)):
        personalized_pagerank(graph, **given)
        waits.forget()
        personalized_pagerank(graph, **given)
        own = ("matrix.py", "inputs.py:teleport_of_prior")  # seeds are checked on the host
        found = [where for _, where in waits.device.syncs if where.startswith(own)]
        assert len(found) == most, found
        assert "matrix.py:leap" not in [copy.where for copy in waits.device.copies]


def test_steps_replayed_as_a_graph_have_the_bits_of_steps(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call takes steps, the second records them, the third replays them from other seeds. The reference
    stands for Triton, and a wait while steps are recorded is refused."""
    ring, device = torch.arange(40), waits.device
    csr, found = csr_from_edges(ring, (ring * 7 + 1) % 40, 40), []
    calls = [device.put(Ragged(torch.tensor([a, a + 9]), torch.tensor([0, 1, 2]))) for a in (0, 0, 5)]
    for kernel in ("reference", "triton"):
        monkeypatch.setattr(matrix, "pick_implementation", lambda *_, kernel=kernel, **__: kernel)
        graph = prepare(device.put(csr))
        found.append([device.back(personalized_pagerank(graph, seeds)) for seeds in calls])
        assert device.replays == (2 if kernel == "triton" else 0)
    assert all(torch.equal(steps, replayed) for steps, replayed in zip(*found))
    assert not torch.equal(found[1][1], found[1][2])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the 440 passages of the sample's world, in which names are shared as in a corpus."""
    folder = tmp_path_factory.mktemp("world") / "ix"
    gpu_rag.build(
        world_path("corpus.jsonl"), folder, openie=world_path("openie.jsonl"), methods=list(TILES), settings=CPU
    )
    return folder


TILES = {"bubblerag": (26, 3600), "hoprag": (4, 800), "higra-retriever": (11, 1700)}  # waits, and ops on the device


@pytest.mark.slow
@pytest.mark.parametrize("method", TILES)
def test_a_tile_of_64_questions_waits_and_launches_little(waits: Waits, world: Path, method: str) -> None:
    """All steps of all rounds together, in which trees grow and edges are followed."""
    rows = map(json.loads, world_path("questions.jsonl").read_text("utf-8").splitlines())
    asking = [Question(str(i), f"{row['question']} ({i})") for i, row in enumerate([*rows] * 2)][:64]
    index = gpu_rag.Index.open(world)
    asked(index, method, asking)
    waits.forget()
    asked(index, method, asking)
    assert len(waits.device.syncs) <= TILES[method][0]
    assert sum(waits.device.launches.values()) <= TILES[method][1]
