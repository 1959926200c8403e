"""HybGRAG's retrieval on knowledge bases with questions whose answers are nodes: modules, critics, iterations.

usage: python scripts/eval_hybgrag.py prepare DATA OUT
       python scripts/eval_hybgrag.py scores NAME=INDEX=QUESTIONS [...] [--part PART] [--set KEY=VALUE ...]
       python scripts/eval_hybgrag.py collect INDEX QUESTIONS EXPERIENCES.jsonl [--most N]
       python scripts/eval_hybgrag.py medicine PRIMEKG_INDEX docs/benchmarks/data/hybgrag-medicine.jsonl

prepare: makes knowledge bases and question files out of the public MetaQA, PrimeKG and 2WikiMultiHopQA data in DATA:
OUT/metaqa, OUT/primekg and OUT/2wiki (folders for `gpu-rag index --skb`), OUT/*.tune.jsonl and OUT/*.test.jsonl (every
second question).
scores: hit@1, hit@5, recall@20 and MRR, with paired differences (percentile bootstrap over questions). main: the text
module, the graph module, one iteration, the loop without a model, and the loop with an oracle for a critic; the
share of confident wrong answers (the question says the relations, by the trace, and the first node is wrong);
order: nearer nodes first against cosine alone, of radius 2 and 1, with either critic; iterations: the loop of 1 to 4
with either critic; ablations: other parameters, and optimal routing between the modules.
collect: runs the loop with the oracle and writes its actions with their feedback, for `method.hybgrag.experiences`.
medicine: asks the default way. Right: the first node is joined with the entity of the question by the relation of its
kind; refused: no node; harmful: where a treatment is asked for, a node that is contraindicated and nothing else.
No language model takes part: the decider is similarity. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rag import Index, load_questions
from gpu_rag.evaluation.bootstrap import interval, resample_means
from gpu_rag.evaluation.metrics import hit_at, recall_at, reciprocal_rank
from gpu_rag.index.knowledge_base import KnowledgeBase, name_key
from gpu_rag.methods.hybgrag.lessons import Lessons
from gpu_rag.methods.hybgrag.retrieve import retrieve_by
from gpu_rag.methods.hybgrag.router import router_of
from gpu_rag.methods.hybgrag.state import TEXT, History, Params
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.documents import search_documents
from gpu_rag.program.knowledge_base.views import kb_of, ranked_nodes
from gpu_rag.program.oracle import Gold, Oracle
from gpu_rag.program.run import Run
from gpu_rag.settings import parse_assignment
from gpu_rag.types import Answer, Draft, Question

MEASURES = ("hit@1", "hit@5", "recall@20", "mrr")
TAILS = {
    "directed_by": "person",
    "written_by": "person",
    "starred_actors": "person",
    "release_year": "year",
    "in_language": "language",
    "has_genre": "genre",
    "has_tags": "tag",
    "has_imdb_rating": "rating",
    "has_imdb_votes": "votes",
}
ANSWERS = {
    "movie": "movie",
    "actor": "person",
    "director": "person",
    "writer": "person",
    "year": "year",
    "language": "language",
    "genre": "genre",
    "tags": "tag",
    "imdbrating": "rating",
    "imdbvotes": "votes",
}
ABLATIONS: list[tuple[str, dict[str, Any]]] = [
    ("defaults", {}),
    ("order by cosine alone", {"order": "cosine"}),
    ("radius 1", {"radius": 1}),
    ("one relation a topic", {"n_relations": 1}),
    ("three relations a topic", {"n_relations": 3}),
    ("simple feedback", {"feedback": "simple"}),
]


# --- preparing -------------------------------------------------------------------------------------


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, packed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def halves(out: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every second question to tune with, the others to test with."""
    write_rows(out / f"{name}.tune.jsonl", rows[::2])
    write_rows(out / f"{name}.test.jsonl", rows[1::2])


def prepare_metaqa(data: Path, out: Path) -> None:
    """Nodes are (type, name): the type by the relation. Questions lose the brackets that mark their topic entity."""
    triples = [line.split("\t")[:3] for line in lines_of(data / "kg.tsv.gz")]
    edges = [(f"movie:{head}", relation, f"{TAILS[relation]}:{tail}") for head, relation, tail in triples]
    ids = sorted({end for head, _, tail in edges for end in (head, tail)})
    nodes = [{"id": id, "type": id.split(":", 1)[0], "name": id.split(":", 1)[1]} for id in ids]
    write_rows(out / "metaqa" / "nodes.jsonl", nodes)
    write_rows(out / "metaqa" / "edges.jsonl", [{"src": h, "relation": r, "dst": t} for h, r, t in edges])
    known = set(ids)
    for hops in (1, 2, 3):
        rows = [json.loads(line) for line in lines_of(data / f"questions_{hops}hop_500.jsonl")]
        for row in rows:
            type = ANSWERS[row["qtype"].split("_")[-1]]
            row["answer_ids"] = [id for answer in row["answers"] if (id := f"{type}:{answer}") in known]
            row["question"] = row["question"].replace("[", "").replace("]", "")
        kept = [{k: row[k] for k in ("id", "question", "answer_ids")} for row in rows if row["answer_ids"]]
        halves(out, f"metaqa_{hops}hop", kept)


def prepare_primekg(data: Path, questions: Path, out: Path) -> None:
    """Relations by name; nodes without a type are "entity". Questions whose answers are among the nodes."""
    rows = [json.loads(line) for line in lines_of(data / "nodes.jsonl.gz")]
    nodes = [{"id": row["id"], "type": row["type"] or "entity", "name": row["name"]} for row in rows]
    edges = [line.split("\t")[:3] for line in lines_of(data / "kg.tsv.gz")]
    write_rows(out / "primekg" / "nodes.jsonl", nodes)
    write_rows(out / "primekg" / "edges.jsonl", [{"src": h, "relation": r, "dst": t} for h, r, t in edges])
    known = {row["id"] for row in nodes}
    asked = [json.loads(line) for line in lines_of(questions)]
    kept = []
    for row in asked:
        gold = [id for answer in row["answer_ids"] if (id := f"n{answer}") in known]
        if gold:
            kept.append({"id": row["id"], "question": row["question"], "answer_ids": gold})
    halves(out, "primekg", kept)


def prepare_2wiki(data: Path, out: Path) -> None:
    """Entities with the paragraph of their title as text; edges of the gold evidences, which hold the answers, and of
    two extractions (as written, and with names resolved). Questions whose answer is a node: yes and no are none."""
    texts = {name_key(row["title"]): row["text"] for row in map(json.loads, lines_of(data / "corpus.jsonl.gz"))}
    gold = [line.split("\t")[:3] for line in lines_of(data / "kg_gold_evidences.tsv.gz")]
    resolved = {row["id"]: row for row in map(json.loads, lines_of(data / "kg_resolved_entities.jsonl.gz"))}
    types = {name_key(row["name"]): row["type"].lower() for row in resolved.values()}
    found = [line.split("\t")[:3] for line in lines_of(data / "kg_resolved_triples.tsv.gz")]
    noise = [(resolved[h]["name"], r, resolved[t]["name"]) for h, r, t in found if h in resolved and t in resolved]
    noise += [tuple(t) for row in map(json.loads, lines_of(data / "openie.jsonl.gz")) for t in row["triples"]]
    names: dict[str, str] = {}
    edges = dict.fromkeys((name_key(h), r, name_key(t)) for h, r, t in (*gold, *noise) if h.strip() and t.strip())
    for h, _, t in (*gold, *noise):
        for name in (h, t):
            names.setdefault(name_key(name), name.strip())
    kept = {end for h, _, t in edges for end in (h, t) if end}
    nodes = [
        {"id": key, "type": types.get(key, "entity"), "name": names[key], "text": texts.get(key, "")}
        for key in sorted(kept)
    ]
    write_rows(out / "2wiki" / "nodes.jsonl", nodes)
    rows = [{"src": h, "relation": r, "dst": t} for h, r, t in edges if h in kept and t in kept]
    write_rows(out / "2wiki" / "edges.jsonl", rows)
    asked = []
    for row in map(json.loads, lines_of(data / "questions.jsonl")):
        ids = sorted({name_key(answer) for answer in row["answers"]} & kept)
        if ids:
            asked.append({"id": row["id"], "question": row["question"], "answer_ids": ids})
    halves(out, "2wiki", asked)
    told = sum(bool(node["text"]) for node in nodes)
    print(f"2wiki: {len(nodes)} nodes, {told} with a text, {len(rows)} edges, {len(asked)} questions")


# --- scores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """One question set over its index. gold: question id to node ids."""

    name: str
    index: Index
    asked: list[Question]
    gold: dict[str, list[str]]

    @classmethod
    def read(cls, text: str) -> Questions:
        """NAME=INDEX=QUESTIONS."""
        name, index, path = text.split("=", 2)
        rows, _ = load_questions(path)
        gold = {row.question.id: list(map(str, row.meta["answer_ids"])) for row in rows}
        return cls(name, Index.open(index), [row.question for row in rows], gold)

    def oracle(self, **options: Any) -> Oracle:
        """A decider that knows the gold nodes."""
        return Oracle({id: Gold(nodes=tuple(nodes)) for id, nodes in self.gold.items()}, **options)

    def run(self, params: Mapping[str, Any], *, oracle: bool | Oracle = False, program: Any = None) -> list[Answer]:
        """Answers by retrieval alone."""
        engine = self.index.engine({"method": {"hybgrag": dict(params)}})
        decider = self.oracle() if oracle is True else oracle or None
        answers = engine.run(
            "hybgrag", self.asked, limit=5, retrieval_only=True, program=program, decider=decider
        ).answers
        engine.models.close()
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            raise SystemExit(f"{len(failed)} questions failed: {failed[0]}")
        return answers

    def scored(self, answers: Sequence[Answer]) -> np.ndarray:
        """f64[questions, measures]."""
        pairs = [([node.id for node in answer.nodes], self.gold[answer.question_id]) for answer in answers]
        return np.array(
            [(hit_at(r, g, 1), hit_at(r, g, 5), recall_at(r, g, 20), reciprocal_rank(r, g)) for r, g in pairs]
        )


async def text_module(question: Question, run: Run, params: Params) -> Draft:
    """Dense search over the documents, and nothing else."""
    (vector,) = await embed([question.text])
    found = await search_documents(vector, params.n_nodes)
    return Draft(None, status="unsupported", nodes=ranked_nodes(kb_of(run.index), found))


async def graph_module(question: Question, run: Run, params: Params) -> Draft:
    """What the first action of the rules leads to in the graph, and nothing else."""
    (vector,) = await embed([question.text])
    router = await router_of(question.text, vector, run, params)
    action = await router.route(History(question.text))
    if action is None or action.module == TEXT:
        return Draft(None, status="unsupported")
    found = await retrieve_by(action, vector, kb_of(run.index), params)
    return Draft(None, status="unsupported", nodes=ranked_nodes(kb_of(run.index), found))


def cell(values: np.ndarray, sign: str = "") -> str:
    """A mean with its interval."""
    low, high = interval(resample_means(values, 0))
    return f"{values.mean():{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def table(title: str, lines: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Prints one Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def line_of(name: str, values: np.ndarray, more: Sequence[str] = ()) -> list[str]:
    """One row of a table."""
    return [name, *(cell(column) for column in values.T), *more]


def main_part(sets: Sequence[Questions], params: Mapping[str, Any]) -> None:
    """The five ways, and the differences that matter."""
    for one in sets:
        found = {
            "text module (dense)": one.scored(one.run(params, program=text_module)),
            "graph module alone": one.scored(one.run(params, program=graph_module)),
            "hybgrag, no critic": one.scored(one.run({**params, "iterations": 1})),
            "hybgrag, rules for a critic": one.scored(answers := one.run(params)),
            "hybgrag, oracle critic": one.scored(one.run(params, oracle=True)),
        }
        lines = [line_of(name, values) for name, values in found.items()]
        base = found["hybgrag, no critic"]
        for name in ("hybgrag, rules for a critic", "hybgrag, oracle critic"):
            lines.append([f"{name} - no critic", *(cell(column, "+") for column in (found[name] - base).T)])
        more = found["hybgrag, rules for a critic"] - found["text module (dense)"]
        lines.append(["rules - text module", *(cell(column, "+") for column in more.T)])
        table(f"{one.name}: {len(one.asked)} questions", lines, ["", *MEASURES])
        sure = np.array([bool(a.nodes) and not any(s.verb == "hybgrag_unsure" for s in a.trace) for a in answers])
        wrong = sure & (found["hybgrag, rules for a critic"][:, 0] == 0)
        print(f"\nthe question says the relations: {sure.mean():.3f}, and the first node is wrong: {wrong.mean():.3f}")


def order_part(sets: Sequence[Questions], params: Mapping[str, Any]) -> None:
    """Nearer nodes first, against the two ways to rank by cosine alone."""
    for one in sets:
        lines = []
        for oracle in (False, True):
            critic = "oracle" if oracle else "rules"
            found = {
                "cosine": one.scored(one.run({**params, "order": "cosine"}, oracle=oracle)),
                "cosine, radius 1": one.scored(one.run({**params, "order": "cosine", "radius": 1}, oracle=oracle)),
                "distance": one.scored(one.run({**params, "order": "distance"}, oracle=oracle)),
            }
            lines += [line_of(f"{name}, {critic}", values) for name, values in found.items()]
            for base in ("cosine", "cosine, radius 1"):
                difference = found["distance"] - found[base]
                lines.append([f"distance - {base}, {critic}", *(cell(column, "+") for column in difference.T)])
        table(f"{one.name}: order", lines, ["", *MEASURES])


def n_iterations(answers: Sequence[Answer]) -> float:
    """Actions a question."""
    return float(np.mean([sum(step.verb.startswith("hybgrag_action_") for step in a.trace) for a in answers]))


def iterations_part(sets: Sequence[Questions], params: Mapping[str, Any]) -> None:
    """1 to 4 iterations, by rules and by the oracle."""
    for one in sets:
        lines = []
        for oracle in (False, True):
            for n in (1, 2, 3, 4):
                answers = one.run({**params, "iterations": n}, oracle=oracle)
                name = f"{'oracle' if oracle else 'rules'}, at most {n}"
                lines.append(line_of(name, one.scored(answers), [f"{n_iterations(answers):.2f}"]))
        table(f"{one.name}: iterations", lines, ["critic", *MEASURES, "actions a question"])


def ablations_part(sets: Sequence[Questions], params: Mapping[str, Any]) -> None:
    """Other parameters by both critics; what an optimal choice between the modules would have."""
    for one in sets:
        lines = []
        for name, changed in ABLATIONS:
            for oracle in (False, True):
                values = one.scored(one.run({**params, **changed}, oracle=oracle))
                lines.append(line_of(f"{name}, {'oracle' if oracle else 'rules'}", values))
        text = one.scored(one.run(params, program=text_module))
        hybrid = one.scored(one.run({**params, "iterations": 1}))
        lines.append(line_of("optimal routing between the modules, one iteration", np.maximum(text, hybrid)))
        table(f"{one.name}: ablations", lines, ["", *MEASURES])


def collect(index: str, questions: str, out: Path, most: int) -> None:
    """Verified pairs of action and feedback, at most `most`: the kinds of feedback in turn, so that rare ones stay."""
    one, lessons = Questions.read(f"collect={index}={questions}"), Lessons()
    one.run({}, oracle=one.oracle(watch=lessons.watch))
    rows = lessons.document(experiences=most)["experiences"]
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{out}: {len(rows)} experiences with {len(one.asked)} questions")


def joined(kb: KnowledgeBase, named: Sequence[int], relation: str) -> set[str]:
    """Ids of the nodes that the relation joins, either way, with some nodes."""
    of = kb.relation == kb.relation_names.index(relation)
    ends = [there[of & np.isin(here, named)] for here, there in ((kb.head, kb.tail), (kb.tail, kb.head))]
    return {kb.node_ids[row] for row in np.concatenate(ends).tolist()}


def medicine(index: str, questions: Path) -> None:
    """A line for each question, and the sums."""
    rows = [json.loads(line) for line in lines_of(questions)]
    asked = [Question(row["id"], row["question"]) for row in rows]
    opened = Index.open(index)
    answers = opened.engine({"models": {"llm": "none"}}).run("hybgrag", asked, limit=5, retrieval_only=True).answers
    kb, lines, sums = kb_of(opened), list[list[str]](), np.zeros(3, int)
    names = [name_key(name.split(" (")[0]) for name in kb.node_names]
    for row, answer in zip(rows, answers):
        nodes, kind = [node.id for node in answer.nodes], row["kind"]
        named = [at for at, name in enumerate(names) if name == name_key(row["entity"])]
        kinds = {of: joined(kb, named, of) for of in {kind, "indication", "off-label use", "contraindication"}}
        harmful = kinds["contraindication"] - kinds["indication"] - kinds["off-label use"]
        is_harm = kind != "contraindication" and bool(harmful.intersection(nodes))
        verdicts = [bool(nodes) and nodes[0] in kinds[kind], not nodes, is_harm]
        sums += verdicts
        said = [word for word, holds in zip(("right", "refused", "harmful"), verdicts) if holds]
        lines.append([row["question"], ", ".join(node.name for node in answer.nodes[:5]), " ".join(said) or "wrong"])
    table("Medicine", [*lines, ["right, refused, harmful", "", ", ".join(map(str, sums))]], ["", "first nodes", ""])


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare")
    prepare.add_argument("data", type=Path)
    prepare.add_argument("out", type=Path)
    scores = commands.add_parser("scores")
    scores.add_argument("sets", nargs="+")
    scores.add_argument("--part", choices=("main", "order", "iterations", "ablations"), default="main")
    scores.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of hybgrag")
    gather = commands.add_parser("collect")
    gather.add_argument("index")
    gather.add_argument("questions")
    gather.add_argument("out", type=Path)
    gather.add_argument("--most", type=int, default=30)
    treat = commands.add_parser("medicine")
    treat.add_argument("index")
    treat.add_argument("questions", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare_metaqa(options.data / "metaqa", options.out)
        asked = options.data / "stark_prime" / "questions_in_partial_kg.jsonl"
        prepare_2wiki(options.data / "2wikimultihopqa", options.out)
        prepare_primekg(options.data / "primekg_partial", asked, options.out)
    elif options.command == "collect":
        collect(options.index, options.questions, options.out, options.most)
    elif options.command == "medicine":
        medicine(options.index, options.questions)
    else:
        params = {key.split(".", 1)[1]: value for key, value in (parse_assignment(f"p.{t}") for t in options.set)}
        parts = {"main": main_part, "order": order_part, "iterations": iterations_part, "ablations": ablations_part}
        parts[options.part]([Questions.read(text) for text in options.sets], params)


if __name__ == "__main__":
    main()
