"""HiGraRetriever and HiGraAgent on six articles and on the sample corpus: seeds, switches, reading order, traces."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from answer_notes import chosen, ranking

import gpu_rag
from gpu_rag.evaluation.verify_answers import AnswerChecker
from gpu_rag.jobs import row_of
from gpu_rag.methods.higra import batched, retriever
from gpu_rag.methods.higra.batched import Params, Walked, higra_search, higra_walk
from gpu_rag.methods.higra.graph import HigraGraph, entity_options, higra_graph, passages_of_entities
from gpu_rag.methods.higra.rules import short_answer
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.sample import corpus_path, questions_path
from gpu_rag.settings import merge
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Answer, JsonSchema, Question, Request

BORN = "Where was the designer of the Halden Bridge born?"
METHODS = ("higra-retriever", "dual-agent", "higra-agent")


@pytest.fixture
def index(build: Any, facts: Any) -> gpu_rag.Index:
    found: gpu_rag.Index = build(facts, methods=METHODS)
    return found


def retrieve(index: gpu_rag.Index, fast: Any, text: str = BORN, limit: int = 6, **params: Any) -> Answer:
    settings = merge(fast, {"method": {"higra-retriever": params}})
    (answer,) = index.retrieve([text], method="higra-retriever", settings=settings, k=limit)
    return answer


def test_the_named_entity_is_the_seed_and_the_graph_takes_the_hop(index: gpu_rag.Index, fast: Any) -> None:
    """Marta Orlo's article shares no word with the question but "born"; only the bridge's relation leads there."""
    answer = retrieve(index, fast, walk="subgraph")
    assert chosen(answer, "seeds/rule") == ("Halden Bridge",)
    assert ranking(answer)[0] == "d0"
    off = retrieve(index, fast, graph_context=False)
    assert ranking(answer).index("d1") < ranking(off).index("d1")
    hybrid = index.retrieve([BORN], method="hybrid", settings=fast, k=6)[0]
    assert ranking(off) == ranking(hybrid)
    edges = [edge for path in answer.paths for edge in path.edges]
    assert ("Halden Bridge", "designed by", "Marta Orlo", "d0") in edges[:4]


def entity_rows(graph: HigraGraph) -> dict[str, int]:
    """Entity rows by normalised name, then by alias."""
    rows: dict[str, int] = {}
    for ways in ([[name] for name in graph.entities["name"].to_pylist()], graph.entities["aliases"].to_pylist()):
        for row, way in ((row, way) for row, names in enumerate(ways) for way in names):
            rows.setdefault(normalise_name(way), row)
    return rows


def by_walk(index: gpu_rag.Index, text: str, seeds: list[int], wrong: str = "") -> np.ndarray:
    """The score of each passage by PageRank on the whole graph, densely, by the formula of `batched`."""
    graph, vector = higra_graph(index), HashEmbedder().embed([text])[0].astype(float)
    n, total = graph.n_entities, graph.full_graph.n
    csr = graph.full_graph
    edges = np.zeros((total, total))
    edges[np.repeat(np.arange(total), np.diff(csr.indptr.numpy())), csr.indices.numpy()] = 1
    linked = edges[:n, n:].sum(1)
    for passage, title in enumerate(index.passages["title"].to_pylist()):
        if title.casefold() in entity_rows(graph) and wrong != "no titles":
            entity = entity_rows(graph)[title.casefold()]
            edges[entity, n + passage] += 15
            edges[n + passage, entity] += 15
    named, facts = np.zeros(n), np.zeros((2, n))
    for seed in seeds:
        named[seed] = 1 / max(linked[seed], 1)
    cosines = index.vectors("higra_relation_vectors").double().numpy() @ vector
    for relation in np.argsort(-cosines, kind="stable")[: 0 if wrong == "no facts" else 3]:
        for end in {int(side[relation]) for side in graph.ends}:
            facts[:, end] += max(cosines[relation], 0), 1
    mean = facts[0] / np.maximum(facts[1], 1)
    weights = sum(share * part / part.sum() for share, part in ((0.75, named), (0.25, mean)) if part.any())
    cosine = index.vectors("passage_vectors").double().numpy() @ vector
    ids, scores = index.bm25.search([text], index.n_passages)
    words = np.zeros(index.n_passages)
    words[ids[0][ids[0] >= 0]] = scores[0][ids[0] >= 0].astype(float) ** 2
    heat = np.exp(30 * (cosine - cosine.max()))
    passages = 0.8 * heat / heat.sum() + 0.2 * words / words.sum()
    titles = np.array([bool(title) and title in text for title in index.passages["title"].to_pylist()], float)
    assert titles.any()
    if wrong != "titles as no seeds":
        passages = 0.5 * passages + 0.5 * titles / titles.sum()
    mass = 0.0 if wrong == "no seeds" else 0.5
    pi = np.concatenate([mass * weights / weights.sum(), (1 - mass) * passages])
    degree = edges.sum(1, keepdims=True)
    step = np.where(degree > 0, edges / np.where(degree, degree, 1), pi)
    p = np.log(np.linalg.solve(np.eye(total) - 0.85 * step.T, 0.15 * pi)[n:].clip(1e-12))
    return np.asarray((p - p.min()) / np.ptp(p) + 0.1 * (cosine - cosine.min()) / np.ptp(cosine))


def test_the_walk_on_the_whole_graph_is_the_formula(index: gpu_rag.Index) -> None:
    seeds = [entity_rows(higra_graph(index))["halden bridge"]]
    vector = HashEmbedder().embed([BORN])[0].astype(np.float32)
    (found,) = higra_walk.run(index, [Walked(BORN, vector, tuple(seeds), ())], (0.85, 3, "hybrid", 6, (10.0, 10.0)))
    scores = np.zeros(6)
    scores[list(found.passages.rows)] = found.passages.scores
    assert scores == pytest.approx(by_walk(index, BORN, seeds), abs=2e-3)
    for wrong in ("no titles", "no facts", "no seeds", "titles as no seeds"):
        assert scores != pytest.approx(by_walk(index, BORN, seeds, wrong), abs=2e-3)
    assert (found.n_entities, found.n_passages) == (higra_graph(index).n_entities, 6)


@pytest.mark.parametrize("most", [1, 7, 1 << 24])
def test_the_best_relations_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(batched, "_SCORES", most)
    rng = np.random.default_rng(most)
    ranks = torch.from_numpy(rng.integers(0, 4, (2, 6)).astype(np.float32))  # many equal means
    subjects, objects = torch.from_numpy(rng.integers(0, 6, (2, 11)))
    for k in (0, 1, 5, 20):
        top = batched.best_relations(ranks, subjects, objects, k)
        for row, ids, scores in zip(ranks.tolist(), top.ids.tolist(), top.scores.tolist()):
            means = [(row[a] + row[b]) / 2 for a, b in zip(subjects.tolist(), objects.tolist())]
            best = sorted(range(11), key=lambda r: (-means[r], r))[:k]
            assert ids[:11] == best and scores[:11] == [means[r] for r in best] and set(ids[11:]) <= {-1}
    nothing = torch.zeros(0, dtype=torch.int64)
    assert batched.best_relations(ranks, nothing, nothing, 3).ids.tolist() == [[-1] * 3] * 2


def test_the_switches_do_what_they_say(index: gpu_rag.Index, fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert retrieve(index, fast, n_relations=0).paths == ()  # passages only
    assert len(retrieve(index, fast, n_relations=2).paths) == 2
    none = retrieve(index, fast, seed_threshold=9.0)  # then the first three
    assert none.evidence and not any(step.verb == "seeds/rule" for step in none.trace)
    few, more = (retrieve(index, fast, walk="subgraph", radius=radius) for radius in (0, 2))
    assert ranking(few) != ranking(more)
    assert ranking(retrieve(index, fast, limit=2)) == ranking(retrieve(index, fast))[:2]
    monkeypatch.setattr(Params, "fallback_seeds", 1)
    nobody = retrieve(index, fast, seed_threshold=9.0, radius=0)
    assert {edge[0] for path in nobody.paths for edge in path.edges}


def test_reading_order_is_fused_then_similar_then_the_rest(
    index: gpu_rag.Index, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Params, "n_similar", 0)
    fused = ranking(retrieve(index, fast, n_passages=6))
    similar = ranking(retrieve(index, fast, graph_context=False))
    for n, m in ((1, 2), (2, 3), (3, 0)):
        monkeypatch.setattr(Params, "n_similar", m)
        order = fused[:n] + [p for p in similar[:m] if p not in fused[:n]]
        order += [p for p in fused if p not in order]
        assert ranking(retrieve(index, fast, n_passages=n)) == order
        llm = ScriptedLLM(lambda _: json.dumps({"answers": ["x"], "evidence": "", "passages": []}))
        settings = merge(fast, {"method": {"higra-retriever": {"n_passages": n}}})
        (read,) = index.answer(BORN, method="higra-retriever", settings=settings, llm=llm)
        assert ranking(read) == order[: len(read.evidence)] and n <= len(read.evidence) <= n + m


def by_model(request: Request, labels: Sequence[str]) -> str:
    if isinstance(request.constraint, JsonSchema) and "chosen" in request.constraint.schema:
        return json.dumps({"chosen": list(labels)})
    return json.dumps({"answers": ["Tamsin"], "evidence": "it says so", "passages": [2, 1, 99]})


def test_a_capable_model_picks_seeds_or_none(index: gpu_rag.Index, fast: Any) -> None:
    llm = ScriptedLLM(lambda request: by_model(request, ["B", "A"]))
    (answer,) = index.answer(BORN, method="higra-retriever", settings=fast, llm=llm)
    assert len(chosen(answer, "seeds/model")) == 2 and (answer.status, answer.text) == ("answered", "Tamsin")
    listed = [line for line in llm.calls[0].prompt.split("<data>\n")[1].splitlines() if line[1:2] == "."]
    assert listed[0] == "A. Halden Bridge | Halden Bridge" and len(listed) > 5
    assert "Facts\n- Halden Bridge - " in llm.calls[1].prompt and "[1] " in llm.calls[1].prompt
    first = llm.calls[1].prompt.split("[1] ")[1].splitlines()[0]
    assert [e.title for e in answer.evidence[:2]][1] == first  # passage 2 was cited first, then 1; 99 is none
    (none,) = index.answer(
        BORN, method="higra-retriever", settings=fast, llm=ScriptedLLM(lambda request: by_model(request, []))
    )
    assert chosen(none, "seeds/model") == () and none.status == "answered" and none.paths  # the first three seed


def test_a_model_is_also_offered_the_rarest_entity_of_each_passage_that_the_walk_ranks_first(
    index: gpu_rag.Index, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(**params: Any) -> list[str]:
        settings = merge(fast, {"method": {"higra-retriever": params}})
        llm = ScriptedLLM(lambda request: by_model(request, []))
        index.answer(BORN, method="higra-retriever", settings=settings, llm=llm)
        return [line[3:] for line in llm.calls[0].prompt.split("<data>\n")[1].splitlines() if line[1:3] == ". "]

    whole = listed(walk="subgraph")  # the paper's candidates
    monkeypatch.setattr(Params, "n_nearest", 2)
    monkeypatch.setattr(Params, "n_bridges", 3)
    assert listed(walk="subgraph") == whole
    passages = [index.passage_ids.index(e.passage_id) for e in retrieve(index, fast).evidence[:3]]
    of = passages_of_entities(index)
    inside = [sorted((e for e in of if row in of[e]), key=lambda e: (len(of[e]), e)) for row in passages]
    options, titles = [line.split(" | ") for line in listed()], list(index.passage_titles)
    for place, is_right in ((0, True), (-1, False)):  # the commonest is wrong
        names = entity_options(index, [entities[place] for entities in inside], {})
        assert ([option[0] for option in options] == list(dict.fromkeys(whole[:2] + names))) is is_right
        shown = {name: titles[row] for name, row in reversed([*zip(names, passages)])}
        assert (options == [[o[0], *([shown[o[0]]] if o[0] in shown else [])] for o in options]) is is_right


def test_the_candidates_of_the_paper_are_the_nearest_by_rank(index: gpu_rag.Index, fast: Any) -> None:
    """The names in the question come first in the walk on the whole graph alone."""
    text = "Did Piet Ruyven, the Piet Ruyven of Loss, teach Marta Orlo?"
    (similar,) = higra_search.run(index, [(text, HashEmbedder().embed([text])[0].astype(np.float32))], ("hybrid",))
    by_rank, named = similar.entities.rows, similar.named
    assert by_rank[: len(named)] != named and len(named) == 2
    for walk, expected in (("subgraph", by_rank), ("whole", named)):
        llm = ScriptedLLM(lambda request: by_model(request, []))
        settings = merge(fast, {"method": {"higra-retriever": {"walk": walk}}})
        index.answer(text, method="higra-retriever", settings=settings, llm=llm)
        listed = [line[3:].split(" | ")[0] for line in llm.calls[0].prompt.splitlines() if line[1:3] == ". "]
        assert listed[: len(expected)] == entity_options(index, expected, {})


def test_picks_of_a_model_are_all_seeds_if_one_is_the_rules(
    index: gpu_rag.Index, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[Walked] = []

    def walk(walked: Walked, *rest: Any) -> Any:
        walks.append(walked)
        return higra_walk(walked, *rest)

    def seeds(labels: str, **params: Any) -> Sequence[int]:
        settings = merge(fast, {"method": {"higra-retriever": {"max_seeds": 1, **params}}})
        llm = ScriptedLLM(lambda request: by_model(request, labels))
        engine = index.engine(settings, llm=llm if labels else None)
        (answer,) = engine.run("higra-retriever", [Question("q", BORN)], retrieval_only=True).answers
        assert answer.error is None and len(llm.calls) == bool(labels)
        return walks[-1].seeds if walks else ()

    monkeypatch.setattr(retriever, "higra_walk", walk)
    by_rule = seeds("")
    assert len(by_rule) == 1 and seeds("A") == by_rule
    assert len(seeds("ABDEF")) == 5 and seeds("ABDEF")[0] == by_rule[0]  # max_seeds is the rule's
    assert seeds("ABCDEF") == seeds("CAB") == by_rule  # just the nearest
    assert seeds("BCDE") == by_rule  # none of them is
    walks.clear()
    assert seeds("BCDE", walk="subgraph") == ()  # the paper's walk takes what the model picks


def test_a_graph_without_entities_is_hybrid_search(build: Any, fast: Any) -> None:
    index = build({"d0": []}, methods=METHODS)
    answer = retrieve(index, fast)
    assert answer.status == "retrieved" and answer.error is None and answer.paths == ()
    hybrid = index.retrieve([BORN], method="hybrid", settings=fast, k=6)[0]
    assert ranking(answer) == ranking(hybrid)


@pytest.mark.parametrize(
    ("answer", "question", "short"),
    [
        ("The designer of the Halden Bridge was Marta Orlo", "Who is the designer of the Halden Bridge?", "Marta Orlo"),
        ("Marta Orlo", "Who is the designer of the Halden Bridge?", "Marta Orlo"),
        ("Marta Orlo was born in Tamsin", "Where did she live?", "Marta Orlo was born in Tamsin"),
        ("The answer is: Milan", "In which town was Antonio Salieri born?", "Milan"),
        ("Anna Stroud, the mayor of Kerling, who died", "Who led the town?", "Anna Stroud"),
        ("Tamsin, Loss. It is a port. It is old.", "Where did she live?", "Tamsin, Loss"),
        ("St. Mary of the Ves", "Which church is it?", "St. Mary of the Ves"),
        ("the", "Who?", "the"),
        ("It was", "What was it?", "It was"),
        ("is Tamsin", "Where?", "is Tamsin"),
    ],
)
def test_a_whole_sentence_is_cut_to_its_answer(answer: str, question: str, short: str) -> None:
    assert short_answer(answer, question) == short


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    folder = tmp_path_factory.mktemp("higra") / "ix"
    gpu_rag.build(corpus_path(), folder, methods=METHODS, settings={"models": {"embedder": "hash", "llm": "none"}})
    return gpu_rag.Index.open(folder)


def sample_questions() -> list[Question]:
    rows = [json.loads(line) for line in questions_path().read_text(encoding="utf-8").splitlines()]
    return [Question(row["id"], row["question"]) for row in rows]


def scripted_sample(request: Request) -> str:
    """A capable model that names the title of the first passage, and plans, asks and answers in turn."""
    if "chosen" in str(request.constraint):
        return '{"chosen": ["A"]}'
    if "You plan how" in request.system:
        steps = [{"id": 1, "subquestion": "Who is it?", "depends_on": []}]
        return json.dumps(
            {"subject": "it", "plan": [*steps, {"id": 2, "subquestion": "When was #1?", "depends_on": [1]}]}
        )
    if "You are a librarian" in request.system:
        title = request.prompt.split("[1] ")[1].splitlines()[0]
        return json.dumps({"answers": [title], "evidence": f"It is about {title}.", "passages": [1]})
    if "rewrite requests" in request.system:
        return '{"question": "Who is it?"}'
    begun = "[2]" not in request.prompt
    action = {"action": "ask_librarian", "subquestions": ["When was it?"], "answer": "", "evidence": []}
    return json.dumps(action if begun else {"action": "answer", "subquestions": [], "answer": "1902", "evidence": [2]})


def test_paths_over_aligned_entities_pass_verify_answers(sample: gpu_rag.Index) -> None:
    llm = ScriptedLLM(scripted_sample)
    settings = {"models": {"embedder": "hash"}}
    answers = sample.answer(sample_questions()[:5], method="higra-agent", settings=settings, llm=llm)
    rows = [row_of(answer) for answer in answers]
    checker = AnswerChecker(sample)
    assert [difference for row in rows for difference in checker.check(row, row)] == []
    assert checker.n_edges >= 20
    edge = rows[0]["paths"][0]["edges"][0]
    edge[0] = "Nobody"
    checker = AnswerChecker(sample)
    assert "no relation of the index is 'Nobody'" in next(checker.check(rows[0], rows[0])).what
