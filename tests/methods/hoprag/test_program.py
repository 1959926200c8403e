"""HopRAG on six articles: similarities worked out from the texts, the walk told, and a language model that decides."""

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from answer_notes import ranking

import gpu_rag
from gpu_rag.methods.hoprag import program as hop_program
from gpu_rag.methods.hoprag.asks import HOPS, Place, Ways, chosen, texts
from gpu_rag.methods.hoprag.batched import HopGraph, hop_graph
from gpu_rag.methods.hoprag.program import Params, question_words
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.choices import MASS, Choices
from gpu_rag.program.oracle import Gold, Oracle
from gpu_rag.text.keywords import keywords, names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Answer, Choice, Question, Rank, Request

QUESTION = "Who taught the designer of the Halden Bridge?"
OTHERS = ["When was the University of Loss founded?", "Which town lies on the river Ves?", "?", QUESTION]
Settings = dict[str, Any]
Build = Callable[..., gpu_rag.Index]


@pytest.fixture
def hops(build: Build, facts: Any) -> gpu_rag.Index:
    return build(facts, methods=["hoprag"], named=True)


def with_params(settings: Settings, **params: Any) -> Settings:
    """The paper's H and start, one request a vertex, and what is given."""
    return {**settings, "method": {"hoprag": {"entry": "edges", "hops": "single", **params}}}


def retrieve(index: gpu_rag.Index, settings: Settings, text: str = QUESTION, limit: int = 20) -> Answer:
    (answer,) = index.retrieve([text], method="hoprag", settings=settings, k=limit)
    assert answer.error is None, answer.error
    return answer


def jaccard(left: set[str] | frozenset[str], right: set[str] | frozenset[str]) -> float:
    return len(left & right) / max(len(left | right), 1)


def cosines(text: str, others: list[str]) -> np.ndarray:
    vectors = HashEmbedder().embed([text, *others])
    return vectors[1:].astype(np.float16).astype(np.float64) @ vectors[0].astype(np.float64)


def topics(index: gpu_rag.Index) -> list[set[str]]:
    """Keywords of the title and the subjects of the triples, a set a passage."""
    found = [set(keywords(row["title"])) for row in index.passages.to_pylist()]
    for row, relation in enumerate(index.relations.to_pylist()):
        for passage in relation["passages"]:
            found[passage].add(normalise_name(index.relation_text(row)[0]))
    return found


def vertex_sims(index: gpu_rag.Index, text: str, words: str) -> np.ndarray:
    texts = [f"{row['title']}\n{row['text']}" for row in index.passages.to_pylist()]
    sets = topics(index) if words == "names" else [keywords(t) for t in texts]
    asked = question_words(text, words)
    return (np.array([jaccard(asked, one) for one in sets]) + cosines(text, texts)) / 2


def edge_sims(index: gpu_rag.Index, graph: HopGraph, text: str, words: str) -> np.ndarray:
    of_edge = [graph.question_texts[q] for q in graph.question.tolist()]
    known = list(graph.keyword_ids)
    offsets, values = graph.edge_keywords.offsets.tolist(), graph.edge_keywords.values.tolist()
    sets = [{known[v] for v in values[a:b]} for a, b in zip(offsets, offsets[1:])]
    asked = question_words(text, words)
    return (np.array([jaccard(asked, one) for one in sets]) + cosines(text, of_edge)) / 2


def walked(index: gpu_rag.Index, text: str, top_k: int, n_hop: int, words: str) -> list[tuple[str, float]]:
    """The whole method in a few plain lines: (passage, H) best first."""
    graph = hop_graph(index)
    near, edge = vertex_sims(index, text, words), edge_sims(index, graph, text, words)
    target, indptr = graph.target.tolist(), graph.indptr.tolist()
    by_rank = [target[e] for e in sorted(range(len(edge)), key=lambda e: (-edge[e], e))]
    queue = list(dict.fromkeys(by_rank))[:top_k]
    count = dict.fromkeys(queue, 1)
    for _ in range(n_hop):
        following = []
        for v in queue:
            out = range(indptr[v], indptr[v + 1])
            if out:
                t = target[max(out, key=lambda e: (edge[e], -e))]
                if t not in count:
                    following.append(t)
                count[t] = count.get(t, 0) + 1
        queue = following
    total = sum(count.values())
    h = {index.passage_ids[v]: (near[v] + n / total) / 2 for v, n in count.items()}
    return sorted(h.items(), key=lambda item: (-item[1], item[0]))[:top_k]


@pytest.mark.parametrize("words", ["names", "all"])
@pytest.mark.parametrize(("top_k", "n_hop"), [(1, 2), (2, 0), (2, 4), (20, 4)])
def test_the_ranking_is_the_formula(hops: gpu_rag.Index, fast: Settings, words: str, top_k: int, n_hop: int) -> None:
    params = with_params(fast, top_k=top_k, n_hop=n_hop, keywords=words)
    for text in (QUESTION, OTHERS[0]):
        answer = retrieve(hops, params, text)
        expected = walked(hops, text, top_k, n_hop, words)
        assert ranking(answer) == [name for name, _ in expected]
        assert [e.score for e in answer.evidence] == pytest.approx([h for _, h in expected], abs=1e-6)


def test_parameters_matter_here(hops: gpu_rag.Index) -> None:
    """Else the test above would pass whatever they did."""
    runs = [walked(hops, QUESTION, k, n, words) for k, n, words in ((2, 4, "names"), (2, 0, "names"), (2, 4, "all"))]
    assert len({tuple(run) for run in runs}) == len(runs)


def by_random_walk(index: gpu_rag.Index, text: str, wrong: str = "") -> dict[str, float]:
    """The score of each passage by the formula at the head of `batched`, densely."""
    graph, near = hop_graph(index), vertex_sims(index, text, "names")
    n = graph.n_vertices
    edges = np.zeros((n, n))
    edges[np.repeat(np.arange(n), np.diff(graph.indptr.numpy())), graph.target.numpy()] = 1
    edges = edges if wrong == "one way" else np.maximum(edges, edges.T)
    ids, scores = index.bm25.search([text], n)
    words = np.zeros(n)
    words[ids[0][ids[0] >= 0]] = scores[0][ids[0] >= 0].astype(float) ** 2
    heat = np.exp(60 * (near - near.max()))
    share = 0.4 if words.any() and wrong != "no words" else 0.0
    pi = (1 - share) * heat / heat.sum() + share * words / max(words.sum(), 1e-300)
    titles = np.array([bool(title) and title in text for title in index.passages["title"].to_pylist()], float)
    if titles.any() and wrong != "titles as no seeds":
        pi = 0.5 * pi + 0.5 * titles / titles.sum()
    degree = edges.sum(1, keepdims=True)
    step = np.where(degree > 0, edges / np.where(degree, degree, 1), pi)
    damping = 0.0 if wrong == "no walk" else 0.5
    p = np.log(np.linalg.solve(np.eye(n) - damping * step.T, (1 - damping) * pi).clip(1e-12))
    scored = (p - p.min()) / np.ptp(p) + 0.5 * (near - near.min()) / np.ptp(near)
    return dict(zip(index.passage_ids, scored.tolist()))


def test_the_random_walk_is_the_formula(hops: gpu_rag.Index, fast: Settings) -> None:
    wrong, ways = set[str](), ("one way", "no words", "no walk", "titles as no seeds")
    for text in (QUESTION, *OTHERS[:2]):
        answer = retrieve(hops, fast, text)
        found = {e.passage_id: e.score for e in answer.evidence}
        assert found == pytest.approx(by_random_walk(hops, text), abs=2e-3)
        assert [s.verb for s in answer.trace] == ["hop_entry/walk", "hop_prune"]
        for way in ways:
            wrong |= {way} if found != pytest.approx(by_random_walk(hops, text, way), abs=2e-3) else set()
    assert wrong == set(ways)


def test_names_of_a_question() -> None:
    assert question_words(QUESTION, "names") == {"halden bridge"}
    assert question_words(QUESTION, "all") == {"halden bridge", "taught", "designer"}
    assert question_words("which town has a lighthouse?", "names") == keywords("which town has a lighthouse?") != set()
    assert question_words("?", "names") == frozenset()
    assert names('Who wrote "The Ves" in 1904?') <= keywords('Who wrote "The Ves" in 1904?')


def test_a_model_chooses_among_the_questions(hops: gpu_rag.Index, fast: Settings) -> None:
    def say(request: Request) -> str:
        return "A" if isinstance(request.constraint, Choice) else "Piet Ruyven"

    llm = ScriptedLLM(say)
    settings = with_params({**fast, "models": {**fast["models"], "decider": "model"}}, top_k=3, n_hop=2)
    (answer,) = hops.answer(QUESTION, method="hoprag", settings=settings, llm=llm)
    assert (answer.status, answer.text) == ("answered", "Piet Ruyven")
    # the first option is the nearest edge: the walk is that of similarity
    assert ranking(answer) == ranking(retrieve(hops, with_params(fast, top_k=3, n_hop=2)))
    choices = [request for request in llm.calls if isinstance(request.constraint, Choice)]
    assert len({request.system for request in choices}) == 1 and "{{" not in choices[0].system
    for request in choices:
        assert QUESTION in request.prompt and request.constraint.options[-1] == "none"  # type: ignore[union-attr]
        assert re.search(r"^A\. \S", request.prompt, re.MULTILINE) and "none. none of these" in request.prompt
    lengths = [s.n_candidates for s in answer.trace if re.fullmatch(r"hop_\d", s.verb)]
    decisions = [s for s in answer.trace if re.fullmatch(r"hop_\d/model", s.verb)]
    assert len(decisions) == len(choices) == sum(lengths) and all(s.reply_hash for s in decisions)
    assert llm.batches == [*lengths, 1]  # all choices of a round in one batch, then the reader


def test_none_is_no_hop_and_counts_stay(hops: gpu_rag.Index, fast: Settings) -> None:
    llm = ScriptedLLM(lambda request: "none" if isinstance(request.constraint, Choice) else "unknown")
    settings = with_params({**fast, "models": {**fast["models"], "decider": "model"}}, top_k=3, n_hop=4)
    (answer,) = hops.answer(QUESTION, method="hoprag", settings=settings, llm=llm)
    expected = walked(hops, QUESTION, 3, 0, "names")
    assert [e.score for e in answer.evidence] == pytest.approx([h for _, h in expected], abs=1e-6)
    assert [s.verb for s in answer.trace if re.fullmatch(r"hop_\d", s.verb)] == ["hop_1"]


def test_a_small_model_ranks_and_n_options_bounds_what_it_sees(
    hops: gpu_rag.Index, fast: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Params, "n_options", 1)

    def say(request: Request) -> str:
        return request.constraint.options[0] if isinstance(request.constraint, Rank) else "unknown"

    llm = ScriptedLLM(say, capable=False)
    settings = with_params({**fast, "models": {**fast["models"], "decider": "model"}}, top_k=6, n_hop=1)
    (answer,) = hops.answer(QUESTION, method="hoprag", settings=settings, llm=llm)
    ranked = [request for request in llm.calls if isinstance(request.constraint, Rank)]
    assert ranked and all(len(request.constraint.options) == 2 for request in ranked)  # type: ignore[union-attr]
    similar = retrieve(hops, with_params(fast, top_k=6, n_hop=1))
    assert [e.passage_id for e in answer.evidence] == ranking(similar)[:5]  # the reader's five


def test_a_passage_rises_by_the_hops_that_could_lead_to_it_and_did(
    hops: gpu_rag.Index, fast: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(entry: str = "walk", **oracle: Any) -> dict[str, float]:
        engine = hops.engine(with_params(fast, entry=entry, top_k=6, n_hop=1))
        deciding = Oracle({"q": Gold(frozenset(gold))}, **oracle)
        given = {"retrieval_only": True, "decider": deciding if gold else None}
        (answer,) = engine.run("hoprag", [Question("q", QUESTION)], limit=6, **given).answers
        return {e.passage_id: e.score for e in answer.evidence}

    gold: set[str] = set()
    plain, by_counts = scores(), scores("edges")
    last = min(plain, key=plain.__getitem__)
    gold = {hops.passage_doc_ids[hops.passage_ids.index(last)]}
    assert scores(only="other") == plain  # that decision is the rule's
    assert scores() == plain  # the graph holds it least likely: no trust
    monkeypatch.setattr(Choices, "trust", lambda self, ranking: 1.0 if self.made else 0.0)
    raised = scores()
    gain = raised.pop(last) - plain[last]
    shares = [MASS * n / (n + 1) for n in range(1, 6)]  # an oracle takes it whenever it is offered
    assert any(gain == pytest.approx(share) for share in shares)
    assert raised == {id: score for id, score in plain.items() if id != last}
    assert scores("edges")[last] > by_counts[last]  # the paper's H counts visits alone


def joint(
    index: gpu_rag.Index, fast: Settings, say: Callable[[Request], str], **llm: Any
) -> tuple[Answer, ScriptedLLM]:
    engine = ScriptedLLM(say, **llm)
    settings = with_params({**fast, "models": {**fast["models"], "decider": "model"}}, hops="joint", top_k=6, n_hop=1)
    (answer,) = index.answer(QUESTION, method="hoprag", settings=settings, llm=engine)
    return answer, engine


@patch.object(hop_program, "shuffled", lambda run, name, first, n: list(range(n)))
def test_one_request_a_round_hops_as_one_a_vertex_does(hops: gpu_rag.Index, fast: Settings) -> None:
    """The first way of each place is the nearest edge, so this is the walk of similarity."""

    def say(request: Request) -> str:
        firsts = re.findall(r"^From .*\n(\d+)\. ", request.prompt, re.MULTILINE)
        return json.dumps({"ways": list(map(int, firsts))}) if firsts else "unknown"

    similar = retrieve(hops, with_params(fast, top_k=6, n_hop=1), limit=5)
    whole, engine = joint(hops, fast, say)
    assert len(engine.calls) == 2 and ranking(whole) == ranking(similar)  # the hops, and the reader
    assert [e.score for e in whole.evidence] == [e.score for e in similar.evidence]
    numbers = re.findall(r"^(\d+)\. ", engine.calls[0].prompt, re.MULTILINE)
    assert numbers == [str(i) for i in range(1, len(numbers) + 1)] and engine.calls[0].prompt.count("\nFrom ") > 2
    asking = engine.calls[0]
    needed = sum(map(engine.count_tokens, (asking.system, asking.prompt))) + asking.max_tokens
    for fewer in (4, 60):  # too small for all places
        narrow, engine = joint(hops, fast, say, context_tokens=needed - fewer)
        asked = [re.findall(r"^From (.*)$", r.prompt, re.MULTILINE) for r in engine.calls if "\nFrom " in r.prompt]
        assert len(asked) > 1 and all(len(places) == len(set(places)) for places in asked)
        assert ranking(narrow) == ranking(whole)
        (hop,) = (step for step in whole.trace if step.verb == "hop_1")
        assert [*chain(*asked)] == [line.split(" -> ")[0] for line in hop.chosen if not line.endswith("none")]


def test_ways_of_a_reply_are_the_first_of_each_place() -> None:
    places = [Place("A", ["a", "b"], [0, 1]), Place("B", ["c"], [0]), Place("C", ["d", "e", "f"], [2, 0, 1])]
    assert chosen(Ways((6, 2, 1, 99)), places) == [[1], [], [1]]
    assert chosen(Ways(()), places) == [[], [], []]
    assert texts(places)[2] == "From C\n4. f\n5. d\n6. e"
    every = {"places": places}
    assert HOPS.rule(entry="walk", **every) == Ways(()) and HOPS.rule(entry="edges", **every) == Ways((1, 3, 5))


def test_sentences_are_vertices_and_passages_are_evidence(build: Build, facts: Any, fast: Settings) -> None:
    settings = {**fast, "hops": {"granularity": "sentence"}}
    index = build(facts, ["hoprag"], True, settings)
    assert hop_graph(index).n_vertices == 11 and index.n_passages == 6
    assert ranking(retrieve(index, settings))[0] == "d0"  # by the random walk over sentences
    answer = retrieve(index, with_params(settings, top_k=4))
    assert len(ranking(answer)) == len(set(ranking(answer))) and len(answer.evidence) <= 4
    for e in answer.evidence:
        assert e.text in index.passages["text"].to_pylist()
    assert {s.verb for s in answer.trace} >= {"hop_entry/edges", "hop_1", "hop_prune"}


def test_a_corpus_without_questions_still_retrieves(build: Build, fast: Settings) -> None:
    index = build({}, methods=["hoprag"])
    assert len(hop_graph(index).target) == 0
    assert len(ranking(retrieve(index, fast))) == 6
    assert ranking(retrieve(index, with_params(fast))) == []
