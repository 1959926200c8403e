"""BubbleRAG on six articles: its steps by rules and by a scripted model, what stands in for bad replies, batches."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
from answer_notes import chosen, ranking, role, verbs

import gpu_rag
from gpu_rag.evaluation.verify_answers import AnswerChecker
from gpu_rag.jobs import row_of
from gpu_rag.methods.bubblerag import anchors
from gpu_rag.methods.bubblerag.batched import Params, bubble_walk
from gpu_rag.methods.bubblerag.graph import bubble_graph
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.choices import Choices
from gpu_rag.program.decide import RULE
from gpu_rag.settings import merge
from gpu_rag.settings.check import fixed
from gpu_rag.types import Answer, JsonSchema, Question, Rank, Request

BORN = "Where was the designer of the Halden Bridge born?"
DESIGNED, CAME = "Halden Bridge - designed by - Marta Orlo", "Marta Orlo - born in - Tamsin"


@pytest.fixture
def index(build: Any, facts: Any) -> gpu_rag.Index:
    found: gpu_rag.Index = build(facts, methods=["bubblerag", "dense"])
    return found


@contextmanager
def constants(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Parameters that are settings; those that are fixed are changed in the block."""
    changed = {name: value for name, value in given.items() if name in fixed(Params)}
    with mock.patch.multiple(Params, **changed) if changed else nullcontext():
        yield {name: value for name, value in given.items() if name not in changed}


def retrieve(index: gpu_rag.Index, fast: Any, text: str = BORN, limit: int = 6, **params: Any) -> Answer:
    with constants(params) as given:
        settings = merge(fast, {"method": {"bubblerag": given}})
        (answer,) = index.retrieve([text], method="bubblerag", settings=settings, k=limit)
    assert answer.error is None, answer.error
    return answer


def ask(index: gpu_rag.Index, fast: Any, llm: ScriptedLLM, text: str = BORN, **settings: Any) -> Answer:
    (answer,) = index.answer(text, method="bubblerag", settings=merge(fast, settings), llm=llm)
    assert answer.error is None, answer.error
    return answer


def test_the_steps_without_a_model(index: gpu_rag.Index, fast: Any) -> None:
    """The designer's birth shares no name with the question; bubbles from both sub-questions meet at the designer."""
    answer = retrieve(index, fast)
    assert verbs(answer)[:4] == ["pre_retrieval", "keywords/rule", "groups/rule", "trees/first"]
    assert verbs(answer)[-1] == "bubble_passages" and "enough/rule" not in verbs(answer)
    assert chosen(answer, "keywords/rule") == (
        "name: Halden Bridge",
        "bound: Who is the designer of the Halden Bridge?",
        "open: Where was born?",
    )
    groups = [line.split(" ", 1) for line in chosen(answer, "groups/rule")]
    assert sum(float(weight) for weight, _ in groups) == pytest.approx(1, abs=0.02)
    assert "Halden Bridge: Halden Bridge" in [told for _, told in groups]
    assert any(DESIGNED in line for line in chosen(answer, "trees/first"))
    dense = index.retrieve([BORN], method="dense", settings=fast, k=6)[0]
    assert ranking(answer).index("d1") < ranking(dense).index("d1")
    assert len(answer.evidence) == 6  # the pre-retrieved ones fill up
    assert {"holds", "reached"} == {e.why.split()[0] for e in answer.evidence}


def test_paths_are_relations_that_the_passages_named_state(index: gpu_rag.Index, fast: Any) -> None:
    answer = retrieve(index, fast, limit=2)
    edges = [edge for path in answer.paths for edge in path.edges]
    assert ("Halden Bridge", "designed by", "Marta Orlo", "d0") in edges
    row = json.loads(json.dumps(row_of(answer)))
    checker = AnswerChecker(index)
    assert list(checker.check(row, row)) == [] and checker.n_edges == len(edges) > 1
    row["paths"][0]["edges"][0][3] = "d5"
    assert len(list(AnswerChecker(index).check(row, row))) == 1


def test_an_open_sub_question_is_looked_for_near_the_others(index: gpu_rag.Index, fast: Any) -> None:
    """Piet Ruyven was born too; only Marta Orlo is one relation away from the bridge's anchors."""
    near = chosen(retrieve(index, fast, near=1), "groups/rule")
    (open_,) = [line for line in near if "Where was born?" in line]
    assert "Piet" not in open_
    everywhere = chosen(retrieve(index, fast, relax=False), "groups/rule")
    (anywhere,) = [line for line in everywhere if "Where was born?" in line]
    assert anywhere != open_ and "born in" in anywhere


def test_switches_do_what_they_say(index: gpu_rag.Index, fast: Any) -> None:
    words = chosen(retrieve(index, fast, specialise=False), "keywords/rule")
    assert words == ("name: Halden Bridge", "concept: designer", "concept: born")
    assert len(chosen(retrieve(index, fast, n_trees=1), "trees/first")) == 1
    assert len(retrieve(index, fast, budget=1).paths) <= 1
    still = retrieve(index, fast, depth=0)
    assert not [v for v in verbs(still) if v.startswith("expand")]
    grown = retrieve(index, fast, depth=1, pick_threshold=-1.0, n_trees=1)
    assert len(chosen(grown, "expand_1_1/rule")) > 0
    assert len(grown.paths[0].edges) > len(retrieve(index, fast, depth=0, n_trees=1).paths[0].edges)
    assert len(chosen(retrieve(index, fast, pick_threshold=-1.0, max_picks=2), "expand_1_1/rule")) <= 2
    assert not chosen(retrieve(index, fast, pick_threshold=1.0), "expand_1_1/rule")
    trees = retrieve(index, fast, passages="trees", n_trees=1, depth=0)
    tree_first = [e.why.startswith("holds") for e in trees.evidence]
    assert tree_first == sorted(tree_first, reverse=True) and not all(tree_first)


def test_trees_are_ranked_by_the_score_or_kept_in_order(index: gpu_rag.Index, fast: Any) -> None:
    def scores(**params: Any) -> list[float]:
        answer = retrieve(index, fast, n_trees=10, **params)
        (lines,) = [step.chosen for step in answer.trace if step.verb == f"trees/{params['rank']}"]
        return [float(re.findall(r"score ([\d.]+)", line)[0]) for line in lines]

    ranked, first = scores(rank="score"), scores(rank="first")
    assert ranked == sorted(first, reverse=True) and first != ranked
    by_event = scores(rank="first", cover_first=False)
    assert by_event != first
    assert retrieve(index, fast, rank="first").evidence == retrieve(index, fast).evidence  # auto, nothing was weighed


def test_alpha_moves_the_first_tree_between_or_and_and(index: gpu_rag.Index, fast: Any) -> None:
    def first(alpha: float) -> tuple[float, float]:
        line = chosen(retrieve(index, fast, alpha=alpha, rank="score", budget=50, n_trees=1), "trees/score")[0]
        (cost,), (gone,) = re.findall(r"cost ([\d.]+)", line), re.findall(r"missing ([\d.]+)", line)
        return float(cost), float(gone)

    found = [first(alpha) for alpha in (0.0, 0.5, 1.0, 5.0, 50.0)]
    costs, gone = [cost for cost, _ in found], [missed for _, missed in found]
    assert costs == sorted(costs) and gone == sorted(gone, reverse=True)
    assert gone[0] > gone[-1] == 0 and costs[0] < costs[-1]


def test_without_facts_the_nearest_passages_are_the_evidence(build: Any, facts: Any, fast: Any) -> None:
    bare = build({name: [] for name in facts}, methods=["bubblerag", "dense"])
    assert set(ranking(retrieve(bare, fast))) == set(facts)  # by the restart of the walk
    answer = retrieve(bare, fast, passages="trees")
    dense = bare.retrieve([BORN], method="dense", settings=fast, k=6)[0]
    assert [e.passage_id for e in answer.evidence] == [e.passage_id for e in dense.evidence]
    assert answer.paths == () and "groups/rule" not in verbs(answer) and chosen(answer, "trees/first") == ()


def test_where_nothing_meets_the_anchors_are_the_trees(build: Any, facts: Any, fast: Any) -> None:
    apart = build(facts, methods=["bubblerag"])
    answer = retrieve(apart, fast, hops=0, n_trees=9, specialise=False)
    assert "trees/alone" in verbs(answer) and len(chosen(answer, "trees/alone")) >= 2
    assert answer.evidence


GOOD: dict[str, str | Callable[[Request], str]] = {
    "enough": "A",
    "keywords": json.dumps({"keywords": ["Halden  Bridge", "designer", "place of birth", "designer"]}),
    "specialise": json.dumps({"changes": [{"number": 2, "keyword": "Halden Bridge designed by"}]}),
    "relax": json.dumps({"changes": [{"number": 3, "keyword": "born in"}, {"number": 8, "keyword": "nothing"}]}),
    "expand": json.dumps({"chosen": []}),
    "answer": "Tamsin.",
    "reader": "unknown",
}


def grouped(*groups: tuple[str, float, Sequence[str]]) -> Callable[[Request], str]:
    """A reply that puts the candidates of these texts into groups."""

    def reply(request: Request) -> str:
        listed = dict(re.findall(r"^(\d+)\. (.+?) \| (?:entity|relation) \| ", request.prompt, re.MULTILINE))
        number = {text: int(i) for i, text in listed.items()}
        rows = [
            {"concept": c, "weight": w, "candidates": [number[t] for t in texts if t in number]}
            for c, w, texts in groups
        ]
        return json.dumps({"groups": rows})

    return reply


GROUPS = grouped(("the bridge", 1.0, ["Halden Bridge"]), ("its birth", 0.5, [CAME]))


def scripted(**changed: str | Callable[[Request], str]) -> ScriptedLLM:
    replies = {**GOOD, "groups": GROUPS, **changed}

    def answer(request: Request) -> str:
        said = replies[role(request, "bubblerag")]
        return said if isinstance(said, str) else said(request)

    return ScriptedLLM(answer)


def prompts(llm: ScriptedLLM, name: str) -> list[str]:
    return [request.prompt for request in llm.calls if role(request, "bubblerag") == name]


def test_a_capable_model_takes_every_step(index: gpu_rag.Index, fast: Any) -> None:
    llm = scripted()
    answer = ask(index, fast, llm)
    assert (answer.status, answer.text) == ("answered", "Tamsin")
    assert chosen(answer, "enough/model") == ("no, more has to be found",)
    assert chosen(answer, "specialise/model") == ("designer -> Halden Bridge designed by",)
    assert chosen(answer, "relax/model") == ("place of birth -> born in",)
    told = ("name: Halden Bridge", "concept: designer", "concept: place of birth")
    assert chosen(answer, "keywords/model") == told
    assert chosen(answer, "groups/model") == ("0.67 the bridge: Halden Bridge", f"0.33 its birth: {CAME}")
    first = chosen(answer, "trees/score")[0]
    assert "missing 0.00" in first and DESIGNED in first and CAME in first
    assert "1. Halden Bridge\n2. designer\n3. place of birth" in prompts(llm, "specialise")[0]
    assert "2. Halden Bridge designed by" in prompts(llm, "relax")[0] and "[1] " in prompts(llm, "relax")[0]
    assert "Evidence so far\n" in prompts(llm, "expand")[0]
    (read,) = prompts(llm, "answer")
    assert (
        read.startswith("<data>\nFacts\n- ")
        and f"- {CAME}" in read
        and "[6] " in read
        and read.endswith("Short answer:")
    )
    assert answer.usage.malformed == 0 and not prompts(llm, "reader")
    assert {path.source for path in answer.paths} == {"graph"}
    (edges,) = [path.edges for path in answer.paths[:1]]
    assert ("Marta Orlo", "born in", "Tamsin", "d1") in edges


def test_enough_ends_early_unless_the_reader_finds_nothing(index: gpu_rag.Index, fast: Any) -> None:
    llm = scripted(enough="B", reader="Tamsin")
    answer = ask(index, fast, llm)
    assert answer.text == "Tamsin" and verbs(answer) == ["pre_retrieval", "enough/model", "read"]
    assert len(llm.calls) == 2 and len(answer.evidence) == 5 and answer.paths == ()
    assert "[5] " in prompts(llm, "enough")[0] and "[6] " not in prompts(llm, "enough")[0]
    on = ask(index, fast, scripted(enough="B"))
    assert on.text == "Tamsin" and "groups/model" in verbs(on)
    with constants({"n_before": 0}):
        none = ask(index, fast, scripted(enough="B"))
    assert "enough/model" not in verbs(none) and none.text == "Tamsin"


def test_passages_that_do_not_fit_are_not_judged(index: gpu_rag.Index, fast: Any) -> None:
    def judged(room: int) -> tuple[list[str], Answer]:
        llm = scripted(enough="B", reader="Tamsin")
        llm.context_tokens = room
        (found,) = index.answer(BORN, method="bubblerag", settings=fast, llm=llm)
        return prompts(llm, "enough"), found

    shown, answer = judged(560)
    whole = [e for e in answer.evidence if any(e.text in prompt for prompt in shown)]
    assert len(shown) == 1 and 0 < len(whole) < 5
    assert shown[0].rsplit("\n\nQuestion: ")[0].endswith(f"{whole[-1].text}\n</data>")  # none of them is cut
    assert answer.text == "Tamsin" and answer.usage.cut > 0
    assert judged(400)[0] == []


BAD = "not what was asked"


@pytest.mark.parametrize(
    ("changed", "verb", "malformed"),
    [
        ({"keywords": BAD}, "keywords/fallback", 2),
        ({"keywords": json.dumps({"keywords": []})}, "keywords/fallback", 0),
        ({"keywords": json.dumps({"keywords": [" ", "\t"]})}, "keywords/fallback", 0),
        ({"specialise": BAD}, "specialise/fallback", 2),
        ({"relax": json.dumps({"changes": [{"number": 0, "keyword": "x"}]})}, "relax/fallback", 2),
        ({"groups": BAD}, "groups/fallback", 2),
        ({"groups": json.dumps({"groups": []})}, "groups/fallback", 0),
        ({"groups": grouped(("empty", 1.0, []))}, "groups/fallback", 0),
        (
            {"groups": json.dumps({"groups": [{"concept": "c", "weight": 1, "candidates": [999]}]})},
            "groups/fallback",
            0,
        ),
        ({"expand": BAD}, "expand_1_1/fallback", None),
    ],
)
def test_what_stands_in_for_a_reply_that_cannot_be_used(
    index: gpu_rag.Index, fast: Any, changed: dict[str, Any], verb: str, malformed: int | None
) -> None:
    llm = scripted(**changed)
    if "keywords" in changed:  # the rules' candidates are others: sort what there is
        llm = scripted(**changed, groups=json.dumps({"groups": []}))
    answer = ask(index, fast, llm)
    assert answer.text == "Tamsin" and verb in verbs(answer)
    if malformed is not None:
        assert answer.usage.malformed == malformed
    else:
        assert answer.usage.malformed >= 2
    if "specialise" in changed:
        assert "2. designer\n" in prompts(llm, "relax")[0]
    if "relax" in changed:
        assert "3. place of birth\n" in prompts(llm, "groups")[0]


def test_groups_are_scaled_and_twelve_at_most_by_a_model(index: gpu_rag.Index, fast: Any) -> None:
    same = [("g", 0.0, ["Halden Bridge"]), ("h", 0.0, [CAME])]
    assert [line[:4] for line in chosen(ask(index, fast, scripted(groups=grouped(*same))), "groups/model")] == [
        "0.50"
    ] * 2
    many = [(f"g{i}", 1 / (i + 1), ["Halden Bridge"]) for i in range(16)]
    assert len(chosen(ask(index, fast, scripted(groups=grouped(*many))), "groups/model")) == 12


def test_retrieval_alone_does_not_end_at_what_was_found_before(index: gpu_rag.Index, fast: Any) -> None:
    llm = scripted(enough="B", reader="Tamsin")
    (answer,) = index.engine(fast, llm=llm).run("bubblerag", [Question("q", BORN)], retrieval_only=True).answers
    assert not [v for v in verbs(answer) if v.startswith(("enough", "answer"))] and answer.text is None and answer.paths


@pytest.mark.parametrize("kind", ["capable", "small", "small decides", "rule", "given"])
def test_retrieval_alone_leaves_choices_to_a_model_that_decides(index: gpu_rag.Index, fast: Any, kind: str) -> None:
    def picked(request: Request) -> str:
        return request.constraint.options[0] if isinstance(request.constraint, Rank) else '{"chosen": []}'

    llm = scripted(expand=picked)
    llm.capable = not kind.startswith("small")
    decider = {"small decides": "model", "rule": "rule"}.get(kind, "auto")
    engine = index.engine(merge(fast, {"models": {"decider": decider}}), llm=llm)
    options: dict[str, Any] = {"retrieval_only": True, "decider": RULE if kind == "given" else None}
    (answer,) = engine.run("bubblerag", [Question("q", BORN)], **options).answers
    asks = kind in ("capable", "small decides")
    assert answer.error is None and answer.text is None and answer.usage.llm_calls == len(llm.calls)
    assert (len(llm.calls) > 0) == asks == engine.asks_model(**options)
    assert ("keywords/model" in verbs(answer)) == (kind == "capable")
    assert ("expand_1_1/rank" in verbs(answer)) == (kind == "small decides")
    assert (answer.config_hash == engine.config_hash("bubblerag", retrieval_only=True, decider=RULE)) != asks


def test_neighbours_are_shown_and_picked_up_to_their_limits(index: gpu_rag.Index, fast: Any) -> None:
    def shown(**params: Any) -> tuple[int, Answer]:
        def first(request: Request) -> str:
            most = ["A", "B", "C"][: params.get("max_picks", 5)]
            return json.dumps({"chosen": most}) if isinstance(request.constraint, JsonSchema) else most[0]

        llm = scripted(groups=grouped(("the bridge", 1.0, ["Halden Bridge"])), expand=first)
        with constants(params) as given:
            answer = ask(index, fast, llm, method={"bubblerag": given})
        options = re.findall(r"^[A-Z]\. ", prompts(llm, "expand")[0], re.MULTILINE)
        return len(options), answer

    whole, _ = shown(n_trees=1)
    assert whole == 3  # what the bridge has: designed by, crosses, stands at
    assert shown(n_trees=1, n_neighbours=2)[0] == 2
    _, three = shown(n_trees=1, depth=1, max_picks=3)
    _, one = shown(n_trees=1, depth=1, max_picks=1)
    assert len(chosen(three, "expand_1_1/model")) == 3 and len(chosen(one, "expand_1_1/model")) == 1


@pytest.mark.parametrize("n", [1, 3, 6])
def test_no_more_passages_are_read_than_asked_for(index: gpu_rag.Index, fast: Any, n: int) -> None:
    llm = scripted()
    answer = ask(index, fast, llm, method={"bubblerag": {"n_passages": n}})
    assert len(answer.evidence) == n
    (read,) = prompts(llm, "answer")
    assert f"[{n}] " in read and f"[{n + 1}] " not in read


def by_walk(index: gpu_rag.Index, text: str, nodes: list[int], anchors: list[int], wrong: str = "") -> dict[str, float]:
    """The score of each passage by the formula at the head of `batched`, densely. nodes: of the evidence graphs."""
    graph, vector = bubble_graph(index), HashEmbedder().embed([text])[0].astype(float)
    n = graph.n + index.n_passages
    edges = np.zeros((n, n))
    for relation, ends in enumerate(zip(*index.relation_ends)):
        for end in ends:
            edges[index.n_entities + relation, end] = edges[end, index.n_entities + relation] = 1
    offsets, of = graph.passages.offsets.tolist(), graph.passages.values.tolist()
    for node in range(graph.n):
        for passage in of[offsets[node] : offsets[node + 1]]:
            edges[node, graph.n + passage] = edges[graph.n + passage, node] = 1
    for passage, title in enumerate(index.passages["title"].to_pylist()):
        if title.casefold() in index.entity_rows and wrong != "no titles":
            entity = index.entity_rows[title.casefold()]
            edges[entity, graph.n + passage] += 15
            edges[graph.n + passage, entity] += 15
    cosine = index.vectors("passage_vectors").double().numpy() @ vector
    ids, scores = index.bm25.search([text], index.n_passages)
    words = np.zeros(index.n_passages)
    words[ids[0][ids[0] >= 0]] = scores[0][ids[0] >= 0].astype(float) ** 2
    heat = np.exp(30 * (cosine - cosine.max()))
    passages = 0.8 * heat / heat.sum() + 0.2 * words / words.sum()
    titles = np.array([bool(title) and title in text for title in index.passages["title"].to_pylist()], float)
    if wrong != "titles as no seeds":
        passages = 0.5 * passages + 0.5 * titles / titles.sum()
    named = [row for name, row in index.entity_rows.items() if name in text.casefold()]
    assert named and titles.any()
    weights = np.zeros(graph.n)
    shares = (0.2, 0.4, 0.4) if wrong != "no names" else (1 / 3, 2 / 3, 0.0)
    for some, share in zip((nodes, anchors if wrong != "no anchors" else nodes, named), shares):
        size = {v: 1 if wrong == "common nodes count as much" else max(offsets[v + 1] - offsets[v], 1) for v in some}
        for node in some:
            weights[node] += share / size[node] / sum(1 / n for n in size.values())
    mass = 0.0 if wrong == "no trees" else 0.5
    pi = np.concatenate([mass * weights / weights.sum(), (1 - mass) * passages])
    degree = edges.sum(1, keepdims=True)
    step = np.where(degree > 0, edges / np.where(degree, degree, 1), pi)
    p = np.log(np.linalg.solve(np.eye(n) - 0.9 * step.T, 0.1 * pi)[graph.n :].clip(1e-12))
    scored = (p - p.min()) / np.ptp(p) + 0.05 * (cosine - cosine.min()) / np.ptp(cosine)
    return dict(enumerate(scored.tolist()))  # type: ignore[arg-type]


def test_the_walk_from_the_trees_is_the_formula(index: gpu_rag.Index) -> None:
    nodes = [index.entity_rows["halden bridge"], index.entity_rows["ves"], index.n_entities + 1]
    anchors = [index.entity_rows["tamsin"], index.entity_rows["halden bridge"]]
    vector = HashEmbedder().embed([BORN])[0].astype(np.float32)
    (found,) = bubble_walk.run(index, [(BORN, vector, tuple(nodes), tuple(anchors))], (6,))
    scores = dict(zip(found.rows, found.scores))
    assert scores == pytest.approx(by_walk(index, BORN, nodes, anchors), abs=2e-3)
    alike = "common nodes count as much"
    for wrong in ("no titles", "titles as no seeds", alike, "no trees", "no anchors", "no names"):
        assert scores != pytest.approx(by_walk(index, BORN, nodes, anchors, wrong), abs=2e-3)


def test_as_many_entities_as_relations_are_shown(index: gpu_rag.Index, fast: Any) -> None:
    """For each keyword, also where all relations are nearer to it than any entity."""
    llm = scripted()
    with constants({"n_anchors": 3}):
        ask(index, fast, llm)
    (shown,) = prompts(llm, "groups")
    lines = re.findall(r"^\d+\. .+? \| (entity|relation) \| .+ \| ([\d, ]+)$", shown, re.MULTILINE)
    for keyword in "123":
        kinds = [kind for kind, numbers in lines if keyword in numbers.split(", ")]
        assert (kinds.count("entity"), kinds.count("relation")) == (3, 3)


def test_candidates_count_as_a_choice_the_nearest_of_each_keyword_first(
    index: gpu_rag.Index, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model that takes the nearest of each keyword would seem to say something new."""
    pools: list[tuple[int, ...]] = []
    offered: list[list[int]] = []

    async def candidates(*given: Any) -> Any:
        rankings = await inner(*given)
        pools.extend(ranking.rows for ranking in rankings)
        return rankings

    inner = anchors._candidates
    monkeypatch.setattr(anchors, "_candidates", candidates)
    monkeypatch.setattr(Choices, "add", lambda self, run, options, *_: offered.append(list(options)))
    ask(index, fast, scripted())
    nearest = {rows[0] for rows in pools}
    assert len(nearest) > 1 and set(offered[0][: len(nearest)]) == nearest
    assert set(offered[0]) == {v for rows in pools for v in rows}


def test_a_model_without_trust_leaves_the_ranking_without_a_model(
    index: gpu_rag.Index, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace has no decisions of the rules for that ranking."""

    def scores(trust: float) -> list[tuple[str, float]]:
        monkeypatch.setattr(Choices, "trust", lambda self, ranking: trust if self.made else 0.0)
        answer = ask(index, fast, scripted(expand='{"chosen": ["A", "B"]}'))
        assert not [verb for verb in verbs(answer) if verb.endswith("/rule")]
        return [(e.passage_id, e.score) for e in answer.evidence]

    without = scores(0.0)
    assert without == [(e.passage_id, e.score) for e in retrieve(index, fast, limit=len(without)).evidence] != []
    assert scores(1e-12) != without  # any trust lets the walk begin at what was chosen
    assert max(score for _, score in scores(1.0)) > max(score for _, score in without)
