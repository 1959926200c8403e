"""Make the figures of docs/benchmarks: rankings of passages, nodes and paths without a model, and replies to prompts.

usage: python scripts/evaluate.py CASE INDEX=QUESTIONS [...] --run METHOD[:key=value,...][@DECIDER]
           [--against METHOD,...] [--half even|odd|first|second] [--limit N] [--set SECTION.NAME=VALUE ...] [--csv FILE]
       python scripts/evaluate.py subset FOLDER OUT [--n 200] [--seed 0]
       python scripts/evaluate.py knowledge DATA OUT
       python scripts/evaluate.py medicine PRIMEKG_INDEX docs/benchmarks/data/hybgrag-medicine.jsonl
       python scripts/evaluate.py sources FOLDER OUT [--shares 0,30,50,80,100] [--half ...] [--limit N] [--set ...]
       python scripts/evaluate.py prompts record DATA REQUESTS.jsonl
       python scripts/evaluate.py prompts ask REQUESTS.jsonl RESULT.json [--model M] [--each 8] [--tokens 1024]
       python scripts/evaluate.py prompts table NAME=RESULT.json ... [--csv FILE]

CASE names the measures, see CASES: passages and depths (ranking.md), nodes (hybgrag.md), paths (hydrarag.md). Each
run, a method with its parameters, is made on all sets. Tables show all questions together and each set: means with 95 %
bootstrap intervals, and differences to --against, paired by question. No language model takes part; DECIDER is oracle:P
or oracle:P:NAME (oracle.md). --half: even and odd are by sha1 of the question's id; first and second take every second
question.

subset: n seeded questions of a multi-hop set, and all their passages. knowledge: MetaQA and PrimeKG as knowledge bases
for `gpu-rag index --skb`, and their questions in halves. medicine: an answer is right if the relation of the question's
kind joins the first node to its entity, refused if there is no node, and harmful if a treatment is asked for and the
node is contraindicated. sources: a seeded half of a corpus becomes documents, the other half web pages, and seeded
shares of the gold triples a graph; measured are answers on paths, with sources left out in turn.

prompts: count how the replies of a real small model to every prompt are read. record: write the requests of every
method, stage and judge under an engine with well-formed replies; DATA holds `2wiki_openie`, `2wikimultihopqa` and
`advhotpotqa`. ask: send up to --each requests of a prompt in two ways: forced, where the engine masks other forms, and
by words alone. An unreadable reply is requested once more; a second run continues the first. table: strict: share of
exact replies; road: share of replies that are usable now.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha1
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import gpu_rag
from gpu_rag import Index, load_questions
from gpu_rag.errors import RequestFailed
from gpu_rag.evaluation.bootstrap import intervals, paired_difference
from gpu_rag.evaluation.kb import score_paths
from gpu_rag.index.knowledge_base import KnowledgeBase, name_key
from gpu_rag.methods.registry import method_names
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.http_wire import Style, body
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.misbehave.replies import well_formed
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.questions import is_question
from gpu_rag.settings import merge, nested, parse_assignment
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.text.lenient import EXACT, LENIENT, SALVAGED, Read, read_reply, repairs
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Answer, Choice, JsonSchema, Malformed, Rank, Reply, Request

Scores = dict[str, np.ndarray]  # run -> f64[questions, measures]
NO_LLM = {"models": {"llm": "none"}}


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, gzipped or not."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from (line.rstrip("\n") for line in file)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of JSON Lines, gzipped or not; rows of PATH.gz if there is no PATH."""
    return [json.loads(line) for line in lines_of(path if path.exists() else path.with_name(f"{path.name}.gz")) if line]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path, rows: list[Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


# --- comparisons -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kind of comparison. measures: of `gpu_rag.evaluate`, or of `of_answer`, which takes an answer and its row.
    gold: whether a row belongs to it."""

    measures: tuple[str, ...]
    gold: Callable[[QuestionRow], Any]
    at: tuple[int, ...] = (5,)
    of_answer: Callable[[Answer, QuestionRow], dict[str, float]] = lambda answer, row: {}


def of_nodes(answer: Answer, row: QuestionRow) -> dict[str, float]:
    """Measures of ranked nodes. said: whether the question says the relations of the answer, by the trace."""
    unsure = any(step.verb == "hybgrag_unsure" for step in answer.trace)
    return {"said": float(bool(answer.nodes) and not unsure)}


def of_paths(answer: Answer, row: QuestionRow) -> dict[str, float]:
    """Measures of paths: a gold answer on any path (found), or on a path of the answer (end); hit@1 of its nodes."""
    scores = score_paths(answer, row.answers)
    chosen = [line for step in answer.trace if step.verb == "relations_asked" for line in step.chosen]
    is_said, hit = any(line.startswith("asked") for line in chosen), scores["hits@1"] if answer.nodes else 0.0
    shares = {"found": scores["answer_on_path"], "end": scores["answer_on_path_pruned"], "hit@1": hit}
    return {**shares, "said": float(is_said)}


CASES = {
    "passages": Case(("recall@2", "recall@5", "recall@10"), lambda row: row.gold_ids, (2, 5, 10)),
    "depths": Case(
        ("recall@5", "recall@10", "recall@15", "recall@20", "retrieval_f1@5", "retrieval_f1@10", "retrieval_f1@20"),
        lambda row: row.gold_ids, (5, 10, 15, 20),
    ),
    "nodes": Case(
        ("hit@1", "hit@5", "recall@20", "mrr", "said", "said, wrong"), lambda row: row.meta.get("answer_ids"),
        of_answer=of_nodes,
    ),
    "paths": Case(("found", "end", "hit@1", "said", "said, wrong"), lambda row: row.answers, of_answer=of_paths),
}  # fmt: skip


def parse_run(text: str) -> tuple[str, dict[str, Any]]:
    """(method, parameters) of METHOD[:key=value,...]."""
    method, _, rest = text.partition(":")
    pairs = (parse_assignment(f"method.{item}") for item in rest.split(",") if item)
    return method, {key.removeprefix("method."): value for key, value in pairs}


def in_half(half: str, place: int, id: str) -> bool:
    """Whether a question belongs to a half; even and odd do not depend on the order of a file."""
    parity = sha1(id.encode(), usedforsecurity=False).digest()[0] % 2 if half in ("even", "odd") else place % 2
    return not half or parity == (half in ("odd", "second"))


def questions_of(case: str, path: Path, half: str, limit: int) -> list[QuestionRow]:
    """The questions of a file that have the gold of a case. For paths, answers are the only gold, and square brackets
    (MetaQA's marks of a topic) are removed."""
    rows, _ = load_questions(path)
    rows = [row for place, row in enumerate(rows) if in_half(half, place, row.question.id) and CASES[case].gold(row)]
    if case == "paths":
        plain = {row.question.id: row.question.text.replace("[", "").replace("]", "") for row in rows}
        rows = [
            replace(row, question=replace(row.question, text=plain[row.question.id]), gold_ids=(), meta={})
            for row in rows
        ]
    return rows[: limit or None]


def scores_of(
    case: str, index: Index, rows: list[QuestionRow], runs: Iterable[str], settings: dict[str, Any]
) -> Scores:
    """Scores of each run on the questions of one set."""
    kind, scores = CASES[case], Scores()
    for run in runs:
        plain, _, decider = run.partition("@")
        method, params = parse_run(plain)
        given = merge(merge(NO_LLM, settings), {"method": {method: params}} if params else {})
        comparison = gpu_rag.evaluate(
            index, rows, methods=method, retrieval_only=True, at=kind.at, settings=given, decider=decider
        )
        answers, measured = comparison.answers[method], dict[str, Any](comparison.scores[method])
        if failed := [answer.error for answer in answers if answer.error]:
            raise SystemExit(f"{run}: {len(failed)} questions failed: {failed[0]}")
        own = [kind.of_answer(*pair) for pair in zip(answers, rows)]
        measured |= {name: [scores[name] for scores in own] for name in own[0]}
        if "said" in measured:
            measured["said, wrong"] = [share * (1 - hit) for share, hit in zip(measured["said"], measured["hit@1"])]
        scores[run] = np.array([measured[name] for name in kind.measures]).T
    return scores


def compared(scores: Scores, against: Sequence[str], measures: Sequence[str]) -> list[list[str]]:
    """Lines of a table: means with intervals, and differences of each run to the runs of `against`."""

    def cell(mean: float, low: float, high: float, sign: str = "") -> str:
        return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"

    columns = range(len(measures))
    bounds = [intervals({run: values[:, m] for run, values in scores.items()}) for m in columns]
    lines = [[run, *(cell(v[:, m].mean(), *bounds[m][run]) for m in columns)] for run, v in scores.items()]
    for run, values in scores.items():
        for other in against[: against.index(run)] if run in against else against:
            pairs = [paired_difference(values[:, m], scores[other][:, m]) for m in columns]
            lines.append([f"{run} - {other}", *(cell(p["diff"], p["low"], p["high"], "+") for p in pairs)])
    return lines


def compare(options: argparse.Namespace) -> None:
    """Print the tables of one of CASES, for all questions and for each set."""
    against = [name for name in options.against.split(",") if name]
    runs, settings = list(dict.fromkeys([*against, *options.run])), nested([parse_assignment(t) for t in options.set])
    parts: dict[str, Scores] = {}
    for item in options.sets:
        folder, _, path = item.partition("=")
        rows = questions_of(options.case, Path(path), options.half, options.limit)
        parts[item] = scores_of(options.case, Index.open(folder), rows, runs, settings)
    tables = {"all": {run: np.concatenate([part[run] for part in parts.values()]) for run in runs}, **parts}
    head, csv_rows = ["run", *CASES[options.case].measures], list[list[str]]()
    for name, scores in tables.items() if len(parts) > 1 else parts.items():
        lines, n = compared(scores, against, head[1:]), len(scores[runs[0]])
        print(f"\n### {name}: {n} questions\n\n{markdown(head, lines)}")
        csv_rows += [[name, str(n), *line] for line in lines]
    if options.csv:
        write_csv(options.csv, [["set", "questions", *head], *csv_rows])


# --- question sets and knowledge bases -------------------------------------------------------------


def subset(options: argparse.Namespace) -> None:
    """Write seeded questions of a set, and their passages."""
    questions = read_rows(options.folder / "questions.jsonl")
    random.Random(options.seed).shuffle(questions)
    questions = questions[: options.n]
    wanted = {passage for q in questions for passage in [*q["gold_ids"], *q.get("context_ids", [])]}
    passages = [row for row in read_rows(options.folder / "corpus.jsonl") if row["id"] in wanted]
    write_rows(options.out / "questions.jsonl", questions)
    write_rows(options.out / "corpus.jsonl", passages)


_TYPES = (
    "release_year=year in_language=language has_genre=genre has_tags=tag has_imdb_rating=rating has_imdb_votes=votes"
)
TAILS = defaultdict(lambda: "person", (pair.split("=") for pair in _TYPES.split()))  # of MetaQA's relations
_TYPES = "movie=movie year=year language=language genre=genre tags=tag imdbrating=rating imdbvotes=votes"
ANSWERS = defaultdict(lambda: "person", (pair.split("=") for pair in _TYPES.split()))  # of MetaQA's types of questions


def knowledge(options: argparse.Namespace) -> None:
    """Write MetaQA and PrimeKG as knowledge bases, and their questions whose answers are nodes."""
    data, out = options.folder / "metaqa", options.out
    triples = [line.split("\t")[:3] for line in lines_of(data / "kg.tsv.gz")]
    edges = [(f"movie:{head}", relation, f"{TAILS.get(relation, 'person')}:{tail}") for head, relation, tail in triples]
    ids = sorted({end for head, _, tail in edges for end in (head, tail)})  # a node is its type and name
    nodes = [{"id": id, "type": id.split(":", 1)[0], "name": id.split(":", 1)[1]} for id in ids]
    write_base(out / "metaqa", nodes, edges)
    for hops in (1, 2, 3):
        rows = read_rows(data / f"questions_{hops}hop_500.jsonl")
        for row in rows:
            type = ANSWERS.get(row["qtype"].split("_")[-1], "person")
            row["answer_ids"] = [f"{type}:{answer}" for answer in row["answers"]]
            row["question"] = row["question"].replace("[", "").replace("]", "")
        write_halves(out, f"metaqa_{hops}hop", rows, set(ids))
    data = options.folder / "primekg_partial"
    rows = read_rows(data / "nodes.jsonl")
    nodes = [{"id": row["id"], "type": row["type"] or "entity", "name": row["name"]} for row in rows]
    write_base(out / "primekg", nodes, (line.split("\t")[:3] for line in lines_of(data / "kg.tsv.gz")))
    rows = read_rows(options.folder / "stark_prime" / "questions_in_partial_kg.jsonl")
    for row in rows:
        row["answer_ids"] = [f"n{answer}" for answer in row["answer_ids"]]
    write_halves(out, "primekg", rows, {node["id"] for node in nodes})


def write_base(folder: Path, nodes: list[dict[str, Any]], edges: Iterable[Sequence[str]]) -> None:
    write_rows(folder / "nodes.jsonl", nodes)
    write_rows(folder / "edges.jsonl", ({"src": h, "relation": r, "dst": t} for h, r, t in edges))


def write_halves(out: Path, name: str, rows: list[dict[str, Any]], known: set[str]) -> None:
    """Write every second question with a known answer for tuning, and the others for testing."""
    kept = []
    for row in rows:
        if gold := [id for id in row["answer_ids"] if id in known]:
            kept.append({"id": row["id"], "question": row["question"], "answer_ids": gold})
    write_rows(out / f"{name}.tune.jsonl", kept[::2])
    write_rows(out / f"{name}.test.jsonl", kept[1::2])


def joined(kb: KnowledgeBase, named: Sequence[int], relation: str) -> set[str]:
    """Ids of the nodes that a relation joins, in either direction, to the nodes `named`."""
    is_relation = kb.relation == kb.relation_names.index(relation)
    ends = [there[is_relation & np.isin(here, named)] for here, there in ((kb.head, kb.tail), (kb.tail, kb.head))]
    return {kb.node_ids[row] for row in np.concatenate(ends).tolist()}


def medicine(options: argparse.Namespace) -> None:
    """Print a line for each question, and the sums."""
    rows, index = read_rows(options.questions), Index.open(options.index)
    asked = [{"id": row["id"], "question": row["question"]} for row in rows]
    answers = index.retrieve(asked, method="hybgrag", k=5, settings=NO_LLM)
    kb, lines, sums = kb_of(index), list[list[str]](), np.zeros(3, int)
    names = [name_key(name.split(" (")[0]) for name in kb.node_names]
    for row, answer in zip(rows, answers):
        nodes, kind = [node.id for node in answer.nodes], row["kind"]
        named = [place for place, name in enumerate(names) if name == name_key(row["entity"])]
        kinds = {label: joined(kb, named, label) for label in {kind, "indication", "off-label use", "contraindication"}}
        harmful = kinds["contraindication"] - kinds["indication"] - kinds["off-label use"]
        is_harm = kind != "contraindication" and bool(harmful.intersection(nodes))
        verdicts = [bool(nodes) and nodes[0] in kinds[kind], not nodes, is_harm]
        sums += verdicts
        words = [word for word, holds in zip(("right", "refused", "harmful"), verdicts) if holds] or ["wrong"]
        lines.append([row["question"], ", ".join(node.name for node in answer.nodes[:5]), " ".join(words)])
    lines.append(["right, refused, harmful", "", ", ".join(map(str, sums))])
    print(markdown(["question", "first nodes", ""], lines))


# --- several sources, and a graph with holes -------------------------------------------------------

TRIPLES = "kg_gold_evidences.tsv.gz"
KEPT = {
    "all": "kg,extraction,documents,web", "kg alone": "kg", "without kg": "extraction,documents,web",
    "without documents": "kg,web", "without web": "kg,extraction,documents",
}  # fmt: skip


def index_of_share(folder: Path, out: Path, share: int, settings: dict[str, Any]) -> Index:
    """The index with a share of the triples in percent, built if missing. Larger shares contain smaller ones."""
    if not (out / "questions.jsonl").is_file():
        corpus, questions = read_rows(folder / "corpus.jsonl"), read_rows(folder / "questions.jsonl")
        random.Random(0).shuffle(corpus)
        write_rows(
            out / "documents.jsonl", ({key: row[key] for key in ("id", "title", "text")} for row in corpus[0::2])
        )
        (out / "pages").mkdir()
        for row in corpus[1::2]:
            title, text = escape(row["title"]), escape(row["text"])
            page = f"<html><head><meta charset='utf-8'><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p>"
            (out / "pages" / f"{row['id']}.html").write_text(f"{page}</body></html>", encoding="utf-8")
        answers = ({str(answer).lower() for answer in row["answers"]} for row in questions)  # yes or no is no node
        asked = [row for row, words in zip(questions, answers) if not {"yes", "no"} & words]
        write_rows(out / "questions.jsonl", asked)
    if not (out / f"index-{share}").is_dir():
        triples, sources = list(lines_of(folder / TRIPLES)), [f"pages=web:{out / 'pages'}"]
        random.Random(0).shuffle(triples)
        if kept := triples[: len(triples) * share // 100]:
            (out / f"kg{share}.tsv").write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            sources.append(f"kg=kg:{out / f'kg{share}.tsv'}")
        models = {"models": settings.get("models", {})}
        gpu_rag.build(
            out / "documents.jsonl", out / "part", sources=sources, methods=["hydrarag"], settings=models, fresh=True
        )
        (out / "part").rename(out / f"index-{share}")
    return Index.open(out / f"index-{share}")


def sources(options: argparse.Namespace) -> None:
    """Print a table for each share of the triples: all sources, and some left out."""
    settings, measures = nested([parse_assignment(text) for text in options.set]), CASES["paths"].measures
    for share in map(int, options.shares.split(",")):
        index = index_of_share(options.folder, options.out, share, settings)
        rows, scores = questions_of("paths", options.out / "questions.jsonl", options.half, options.limit), Scores()
        for label, kept in KEPT.items():
            if share or label in ("all", "without documents", "without web"):
                names = kept if share else kept.removeprefix("kg,")
                given = merge(settings, {"method": {"hydrarag": {"sources": names}}})
                scores[label] = scores_of("paths", index, rows, ["hydrarag"], given)["hydrarag"]
        print(f"\n### {share} % of the triples, {len(rows)} questions\n")
        print(markdown(["", *measures], compared(scores, ["all"], measures)))


# --- prompts ---------------------------------------------------------------------------------------

N_QUESTIONS, N_UNLIKE, N_PASSAGES, N_WRITTEN = 16, 10, 160, 40
MOST, MOST_CHARS = 64, 28_000  # recorded requests of a prompt; characters sent, which take most of the time
PRODUCT = Path(gpu_rag.__file__).parent
KINDS = (EXACT, LENIENT, SALVAGED, "repaired", "rule", "failed")
WAYS = ("forced", "words")
SILENT = {"dense", "bm25", "hybrid"}  # beside the one reader that all share
WRITTEN = {
    "index": {"extractor": "llm", "min_yield": 0.0, "coref": "llm"},
    "hops": {"simulate": "llm"},
    "alignment": {"decider": "llm", "tau": 0.6, "link_radius": 0.7},
}
SHORT = {"dual-agent": {"max_turns": 2}}  # so that the dialogue comes to its final answer
_NAME = re.compile(r"\b[A-Z0-9][\w'.-]*(?: [A-Z0-9][\w'.-]*)*")


def product_prompts() -> dict[str, Prompt]:
    """Every prompt file of the product, by its place below the package."""
    paths = sorted(PRODUCT.rglob("prompts/*.txt"))
    names = (path.relative_to(PRODUCT).with_suffix("").as_posix().replace("/prompts/", "/") for path in paths)
    return {name: Prompt.parse(name, path.read_text(encoding="utf-8")) for name, path in zip(names, paths)}


def prompt_of(request: Request, prompts: dict[str, Prompt]) -> str:
    """The name of the prompt that a request was made from; "" if it is none of these."""
    return next((name for name, prompt in prompts.items() if prompt.system in request.system), "")


class Recorder:
    """An engine with well-formed replies, which records requests by prompt. Replies use the names in the data of a
    request, never its wording, so that two versions of a prompt get nearly the same inputs."""

    def __init__(self, names: set[str]):
        self.prompts, self._names = product_prompts(), names
        self.requests: dict[str, dict[Request, None]] = defaultdict(dict)
        self.engine = ScriptedLLM(self._answer)

    def _answer(self, request: Request) -> str:
        name = prompt_of(request, self.prompts)
        if len(self.requests[name]) < MOST:
            self.requests[name][request] = None
        names = sorted(self._names.intersection(_NAME.findall(request.prompt)))
        form: dict[str, Any] = {}
        match request.constraint:
            case JsonSchema(schema):
                form = {"json": schema}
            case Choice(options) | Rank(options):
                form = {"choice": options}
        user = {"role": "user", "content": ", ".join(names)}
        return well_formed({"messages": [{"role": "system", "content": name}, user], "structured_outputs": form})


def record(data: Path, out: Path) -> None:
    """Write the requests of every method, every stage and the judge as JSON Lines."""
    questions = read_rows(data / "2wiki_openie" / "questions.jsonl")[:N_QUESTIONS]
    adversarial = read_rows(data / "advhotpotqa" / "questions.jsonl")
    unlike = [row for row in adversarial if not is_question(row["question"])][:N_UNLIKE]
    gold = {passage for row in questions for passage in row["gold_ids"]}
    rows = sorted(read_rows(data / "2wiki_openie" / "corpus.jsonl"), key=lambda row: row["id"] not in gold)[:N_PASSAGES]
    kept = {row["id"] for row in rows}
    extractions = [row for row in read_rows(data / "2wiki_openie" / "openie.jsonl") if row["id"] in kept]
    names = {name for row in extractions for name in row["entities"]} | {row["title"] for row in rows}
    names |= {name for row in questions for name in _NAME.findall(row["question"])}
    recorder = Recorder({form for name in names for form in _NAME.findall(name)})
    models = {"embedder": "minilm", "llm": "none", "capable": True, "device": "cpu"}
    with TemporaryDirectory() as name:
        folder, facts = Path(name), Path(name, "facts.tsv")
        facts.write_text("\n".join(lines_of(data / "2wikimultihopqa" / TRIPLES)) + "\n", encoding="utf-8")
        corpus, openie = write_rows(folder / "corpus.jsonl", rows), write_rows(folder / "openie.jsonl", extractions)
        pages = ({"url": f"https://page/{row['id']}", "title": row["title"], "text": row["text"]} for row in rows)
        web = f"net=web:{write_rows(folder / 'pages.jsonl', pages)}"
        few = write_rows(folder / "few.jsonl", rows[:N_WRITTEN])
        plain = ({key: row[key] for key in ("id", "question", "answers")} for row in (*questions, *unlike))
        asked = write_rows(folder / "questions.jsonl", plain)
        gpu_rag.build(
            (), folder / "ix", methods=["all"], openie=openie, settings={"models": models}, kg=[facts],
            sources=[f"notes=documents:{corpus}", web],
        )  # fmt: skip
        written = {**WRITTEN, "models": models}
        gpu_rag.build(few, folder / "written", methods=["all"], settings=written, llm=recorder.engine)
        for method in method_names():
            if method not in SILENT:
                settings = {"models": models, "method": {name: keys for name, keys in SHORT.items() if name == method}}
                gpu_rag.evaluate(
                    folder / "ix", asked, methods=[method], settings=settings, llm=recorder.engine, judge=True
                )
                print(f"{method}: {sum(map(len, recorder.requests.values()))} requests", file=sys.stderr)
    requests = recorder.requests
    write_rows(out, ({"prompt": name, **as_row(request)} for name in sorted(requests) for request in requests[name]))
    print("no request of", *sorted(recorder.prompts.keys() - requests.keys()), file=sys.stderr)


def as_row(request: Request) -> dict[str, Any]:
    """A request as JSON."""
    match request.constraint:
        case JsonSchema(schema):
            form: dict[str, Any] = {"schema": schema}
        case Choice(options):
            form = {"options": options}
        case None:
            form = {}
    return {"system": request.system, "text": request.prompt, **form, "max_tokens": request.max_tokens}


def as_request(row: dict[str, Any]) -> Request:
    """The request of a row of `as_row`."""
    constraint: JsonSchema | Choice | None = None
    if "schema" in row:
        constraint = JsonSchema(row["schema"])
    elif "options" in row:
        constraint = Choice(tuple(row["options"]))
    return Request(row["system"], row["text"], constraint, row["max_tokens"])


def in_words(request: Request) -> Request:
    """The request as it is sent to a server that cannot enforce a form."""
    messages = body("", request, Style(objects="prompt", choices="prompt"))["messages"]
    texts = {message["role"]: message["content"] for message in messages}
    return replace(request, system=texts.get("system", ""), prompt=texts["user"], constraint=None)


def spread(requests: Sequence[Request], n: int) -> list[Request]:
    """At most n of the requests, at even distances; fewer if they are long, at least two."""
    mean = sum(len(request.prompt) for request in requests) / len(requests)
    n = min(n, len(requests), max(2, int(MOST_CHARS / mean)))
    return [requests[i * len(requests) // n] for i in range(n)]


def readings(llm: LLM, requests: Sequence[Request], way: str, tokens: int) -> list[str]:
    """The way each reply was read: one of KINDS. tokens: limit of a reply, also of a second one."""
    send = in_words if way == "words" else lambda request: request
    asked = [replace(request, max_tokens=min(request.max_tokens, tokens)) for request in requests]
    first = [reading(r, reply) for r, reply in zip(asked, llm.complete([send(r) for r in asked]), strict=True)]
    again = {i: repair(llm, asked[i], bad, tokens) for i, bad in enumerate(first) if isinstance(bad, Malformed)}
    second = dict(zip(again, llm.complete([send(request) for request in again.values()]), strict=True))
    mended = {i: reading(again[i], reply) in (EXACT, LENIENT, SALVAGED) for i, reply in second.items()}
    return [
        ("repaired" if mended[i] else "rule") if isinstance(kind, Malformed) else kind for i, kind in enumerate(first)
    ]


def reading(request: Request, reply: Reply | RequestFailed) -> str | Malformed:
    if isinstance(reply, RequestFailed):
        return "failed"
    result = read_reply(reply, request.constraint)
    return result.how if isinstance(result, Read) else result


def repair(llm: LLM, request: Request, malformed: Malformed, tokens: int) -> Request:
    """The second request, as `program.replies` makes it."""
    room = llm.context_tokens - llm.count_tokens(request.system)
    tries = repairs(request.prompt, request.max_tokens, malformed)
    text, n_tokens = next((pair for pair in tries if llm.count_tokens(pair[0]) + pair[1] <= room), tries[-1])
    return replace(request, prompt=text, max_tokens=min(n_tokens, tokens), attempt=1)


def ask(requests: Path, out: Path, spec: str, each: int, tokens: int) -> None:
    """Write the counts of all prompts as JSON, after each prompt; counts that `out` has already are kept."""
    by_prompt: dict[str, list[Request]] = defaultdict(list)
    for row in read_rows(requests):
        by_prompt[row["prompt"]].append(as_request(row))
    llm = load_llm(spec, threads=1, capable=True, max_batch=8)
    document: dict[str, Any] = {"model": spec.rstrip("/").split("/")[-1], "tokens": tokens, "prompts": {}}
    document = json.loads(out.read_text(encoding="utf-8")) if out.exists() else document
    for name in sorted(by_prompt.keys() - document["prompts"].keys()):
        chosen = spread(by_prompt[name], each)
        counts = {"forced": Counter(readings(llm, chosen, "forced", tokens))}
        plain = chosen[0].constraint is None  # the same requests in both ways
        counts["words"] = counts["forced"] if plain else Counter(readings(llm, chosen, "words", tokens))
        document["prompts"][name] = counts
        document["date"] = date.today().isoformat()
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{name} {counts}", file=sys.stderr)


def shares_by_room(results: dict[str, dict[str, Any]]) -> str:
    """Percentages "strict, road" by room (a method or a part of the product); one column per result and way."""

    def room_of(prompt: str) -> str:
        parts = prompt.split("/")
        return parts[1] if parts[0] == "methods" else " ".join(parts[:-1])

    def cell(prompts: dict[str, Any], room: str, way: str) -> str:
        total: Counter[str] = Counter()
        for prompt, counts in prompts.items():
            total.update(counts[way] if room in ("all", room_of(prompt)) else {})
        if not total:
            return "-"
        n, read = total.total(), total.total() - total["rule"] - total["failed"]
        return f"{100 * total['exact'] / n:.0f}, {100 * read / n:.0f}"

    prompts = {name: document["prompts"] for name, document in results.items()}
    rooms = [*sorted({room_of(prompt) for counts in prompts.values() for prompt in counts}), "all"]
    heads = ["room", *(f"{name}, {way}" for name in results for way in WAYS)]
    return markdown(heads, ([room, *(cell(p, room, way) for p in prompts.values() for way in WAYS)] for room in rooms))


def write_counts(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Write one row per result, prompt and way: the number of replies of each kind."""
    rows: list[list[Any]] = [["run", "model", "tokens", "prompt", "way", *KINDS]]
    for name, document in results.items():
        for prompt, ways in sorted(document["prompts"].items()):
            for way in WAYS:
                counts = (ways[way].get(kind, 0) for kind in KINDS)
                rows.append([name, document["model"], document["tokens"], prompt, way, *counts])
    write_csv(path, rows)


def prompts(options: argparse.Namespace) -> None:
    """Run one of the three steps."""
    if options.step == "record":
        record(*map(Path, options.given))
    elif options.step == "ask":
        ask(*map(Path, options.given), options.model, options.each, options.tokens)
    else:
        named = (text.partition("=") for text in options.given)
        results = {name: json.loads(Path(path).read_text(encoding="utf-8")) for name, _, path in named}
        print(shares_by_room(results))
        if options.csv:
            write_counts(results, options.csv)


def main() -> None:
    """Read the command line, and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="case", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], *places: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name)
        added.set_defaults(run_case=run)
        for place in places:
            added.add_argument(place, type=Path)
        return added

    for name in CASES:
        case = command(name, compare)
        case.add_argument("sets", nargs="+", metavar="INDEX=QUESTIONS")
        case.add_argument("--run", action="append", required=True, metavar="METHOD[:key=value,...]")
        case.add_argument("--against", default="", metavar="METHOD,...")
        case.add_argument("--csv", type=Path)
    drawn = command("subset", subset, "folder", "out")
    drawn.add_argument("--n", type=int, default=200)
    drawn.add_argument("--seed", type=int, default=0)
    command("knowledge", knowledge, "folder", "out")
    command("medicine", medicine, "index", "questions")
    command("sources", sources, "folder", "out").add_argument("--shares", default="0,30,50,80,100")
    for name in (*CASES, "sources"):
        case = commands.choices[name]
        case.add_argument("--half", default="", choices=("", "even", "odd", "first", "second"))
        case.add_argument("--limit", type=int, default=0)
        case.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    case = command("prompts", prompts)
    case.add_argument("step", choices=("record", "ask", "table"))
    case.add_argument("given", nargs="+")
    case.add_argument("--model", default="smollm2", help="smollm2 or a model folder")
    case.add_argument("--each", type=int, default=8, help="requests of a prompt")
    case.add_argument("--tokens", type=int, default=1024, help="token limit of a reply")
    case.add_argument("--csv", type=Path, help="a file for the counts of each prompt")
    options = parser.parse_args()
    options.run_case(options)


if __name__ == "__main__":
    main()
