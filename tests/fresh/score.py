"""Score hydrarag and hybgrag, deciding by rules, on fresh questions over twenty-one knowledge bases.

usage: python tests/fresh/score.py DATA OUT [--set fms] [--graph company,...] [--limit N] [--method M,...]
    [--gold] [--perfect] [--without RULES,...]

DATA is the folder of benchmark data with `zsre` and `primekg_partial`; OUT keeps the indexes and `rows.jsonl`. The
graphs `company` and `music` are invented and lie beside this file, with two further sources each whose facts may
differ; so are `harbour`, `orchestra` and `clinic`, for the second set, `college` and `space`, for the fourth,
`festival`, `rescue` and `railway`, for the fifth, `league`, `press` and `survey`, for the sixth, `seedbank`, `clocks`
and `courts`, for the seventh, and `zoo`, `embassies` and `kitchens`, for the eighth. --set names sets by the letters
that begin their ids; the third set (`tu`), the fourth (`vw`), the fifth (`xy`), the sixth (`za`), the seventh (`bc`)
and the eighth (`de`), written by people who had not seen the rules, are left out unless asked for. The questions hold
no text of the data: a template's names are sha1 hashes of nodes' names, filled in at run time.
Gold is an expression that `Graph.gold` computes from the edges alone; --gold prints it and its question.
--perfect: the expression is the reply of a perfect reader, see `perfect`; the questions that it cannot say are counted
apart. --without switches families of rules off, see WITHOUT.

A question is right if its answers are gold: for a count the number; for one name, or where any will do, the first
answer; for lists F1 >= .8; without gold the status `unsupported`, or no answers. The answers of a row are its text,
split at semicolons, lines, commas and "and", else its nodes: all of them where the status is `answered`, else as many
as gold has, which is lenient. harmful: the first answer is contraindicated, offered: some answer or node is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from typing import Any

import gpu_rag
from gpu_rag.program.knowledge_base import chain_reader, chains, reading, spoken
from gpu_rag.program.knowledge_base.query import Query
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.types import Question

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from perfect import PLAIN, PerfectReader, Unsayable, said  # noqa: E402

SETS = {"f": "questions", "m": "medicine", "s": "second set", "t": "third set", "u": "third set, medicine"}
SETS |= {"v": "fourth set", "w": "fourth set, medicine", "x": "fifth set", "y": "fifth set, medicine"}
SETS |= {"z": "sixth set", "a": "sixth set, medicine", "b": "seventh set", "c": "seventh set, medicine"}
SETS |= {"d": "eighth set", "e": "eighth set, medicine"}
VERDICTS = ("right", "wrong answered", "wrong retrieved", "refused")
NUMBER = re.compile(r"\d+(\.\d+)?")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
INVENTED = "company,music,harbour,orchestra,clinic,college,space,festival,rescue,railway,league,press,survey"
INVENTED += ",seedbank,clocks,courts,zoo,embassies,kitchens"  # graphs beside this file
FURTHER = ("register", "gazette", "handbook", "bulletin", "manifest", "almanac", "playbill", "yearbook", "logbook")
FURTHER += ("circular", "timetable", "ledger", "programme", "annual", "catalogue", "newsletter", "memoir")
FURTHER += ("fieldbook", "inventory", "digest", "guidebook", "accessions", "docket", "herald")
FURTHER += ("stockbook", "pamphlet", "whitebook", "dispatch", "guide", "tattler")  # further sources
WITHOUT: dict[str, tuple[Any, str, Any]] = {  # families of rules: (module, name, what stands for it)
    "direction": (chain_reader, "AGAINST", 1.0),
    "one-way": (chains, "_one_way", list),
    "converse": (chain_reader, "converse_of", lambda groups: frozenset()),
    "meaning": (reading, "MEANS", 0.0),
    "type": (reading, "TYPE", 0.0),
    "unread": (chains, "_unread", lambda *_: ()),
    "conditions": (spoken, "_conditions", lambda *_: set()),
    "statements": (spoken, "statements_in", lambda text: []),
}
Edge = tuple[str, str, str, str]  # head, relation, tail, provenance


def rows_of(path: Path) -> Iterator[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from (line.rstrip("\n").split("\t") for line in file)


def edges_of(graph: str, data: Path) -> list[Edge]:
    """The edges of a graph, by names; a provenance is given by the further sources alone."""
    if graph == "zsre":
        return [(row[0], row[1], row[2], "") for row in rows_of(data / "zsre/kg_facts.tsv.gz")]
    if graph == "medicine":
        base = data / "primekg_partial"
        nodes = (json.loads(row[0]) for row in rows_of(base / "nodes.jsonl.gz"))
        name = {node["id"]: node["name"] for node in nodes}
        return [(name[row[0]], row[1], name[row[2]], "") for row in rows_of(base / "kg.tsv.gz")]
    files = [HERE / f"{graph}{part}.tsv" for part in ("", *(f"-{name}" for name in FURTHER))]
    return [(h, r, t, "".join(rest)) for file in files if file.exists() for h, r, t, *rest in rows_of(file)]


class Graph:
    """Gold answers from the edges, in plain Python. Names are compared in lower case.

    An expression is a name, "$x" for a name of the template, or a list whose first item is an operation:
    [">", r, s] tails and ["<", r, s] heads of edges r whose other end is in s, ["-", r, s] both; ["and" | "or", s, t];
    ["minus", s, t]; ["no", r, s]: those of s without an edge r; ["more" | "less", r, value, s]: those of s with a
    literal r that is more or less; ["max" | "min", r, s]: by literal r; ["most", ">" | "<", r, s]: with most edges;
    ["at", source, s]: s by the edges of one source; ["latest", r, s]: tails by the newest provenance; ["count", s];
    ["any"]: all names; ["nothing"].
    """

    def __init__(self, edges: list[Edge]) -> None:
        self.edges = [(h.casefold(), r, t.casefold(), p) for h, r, t, p in edges]
        self.names = {sha1(n.casefold().encode()).hexdigest()[:12]: n for h, _, t, _ in edges for n in (h, t)}
        self.tails: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.heads: dict[tuple[str, str], set[str]] = defaultdict(set)
        for head, relation, tail, _ in self.edges:
            self.tails[relation, head].add(tail)
            self.heads[relation, tail].add(head)

    def literal(self, relation: str, name: str) -> float | str | None:
        values = self.tails[relation, name]
        if not values:
            return None
        value = min(values)
        return float(value) if NUMBER.fullmatch(value) else value

    def gold(self, expression: Any, names: dict[str, str]) -> Any:
        """A set of names in lower case, or the number of ["count", s]."""
        if isinstance(expression, str):
            return {names[expression[1:]].casefold() if expression.startswith("$") else expression.casefold()}
        op, *rest = expression
        if op == "nothing":
            return set()
        if op == "any":
            return {name for head, _, tail, _ in self.edges for name in (head, tail)}
        if op == "at":
            return Graph([edge for edge in self.edges if edge[3].startswith(rest[0])]).gold(rest[1], names)
        if op == "count":
            return len(self.gold(rest[0], names))
        if op in ("and", "or", "minus"):
            sets = [self.gold(part, names) for part in rest]
            combine = {"and": set.intersection, "or": set.union, "minus": set.difference}[op]
            return combine(*sets)
        relation, some = rest[-2 if op not in ("more", "less") else 0], self.gold(rest[-1], names)
        if op in "<>-":
            ends = [self.tails] * (op in ">-") + [self.heads] * (op in "<-")
            return {name for side in ends for here in some for name in side[relation, here]}
        if op == "no":
            return {here for here in some if not self.tails[relation, here] | self.heads[relation, here]}
        if op == "latest":
            dated = [(p[-10:], t) for h, r, t, p in self.edges if h in some and r == relation and DATE.match(p[-10:])]
            return {tail for day, tail in dated if day == max(dated)[0]}
        if op == "most":
            side = self.tails if rest[0] == ">" else self.heads
            return best({here: len(side[relation, here]) for here in some}, max)
        values = {here: value for here in some if (value := self.literal(relation, here)) is not None}
        if op in ("max", "min"):
            return best(values, max if op == "max" else min)
        limit: Any = float(rest[1]) if NUMBER.fullmatch(rest[1]) else rest[1]
        return {here for here, value in values.items() if (value > limit if op == "more" else value < limit)}


def best(values: dict[str, Any], extreme: Any) -> set[str]:
    return {name for name, value in values.items() if value == extreme(values.values())}


def questions_of(graph: str, knowledge: Graph) -> list[dict[str, Any]]:
    """Questions with names filled in, `gold`, and for medicine `harm`: contraindicated names that are not gold."""
    asked = []
    for row in (json.loads(line) for file in sorted(HERE.glob("*.jsonl")) for line in file.open(encoding="utf-8")):
        if row.get("graph") != graph:  # world.jsonl: questions over the sample
            continue
        fill = row.get("fill", {})
        names = {slot: knowledge.names[key] for slot, key in fill.items()}
        row["question"] = row["question"].format(**{slot: PLAIN.sub("", name) for slot, name in names.items()})
        row["expression"] = row["gold"], names
        row["gold"] = knowledge.gold(row["gold"], names)
        row["harm"] = knowledge.gold(row.get("harm", ["nothing"]), names) - (row["gold"] if row.get("harm") else set())
        asked.append(row)
    return asked


def write_turtle(edges: list[Edge], path: Path) -> None:
    """The graph as Turtle: things and relations with labels, types, and literals of XML Schema's types."""
    iri = {
        name: f"<http://fresh.example/{number}>"
        for number, name in enumerate(sorted({x for e in edges for x in e[:3]}))
    }
    lines = [f"{iri[name]} <http://www.w3.org/2000/01/rdf-schema#label> {json.dumps(name)} ." for name in iri]
    for head, relation, tail, _ in edges:
        schema = "date" if DATE.fullmatch(tail) else "integer" if tail.isdigit() else ""
        end = f'"{tail}"^^<http://www.w3.org/2001/XMLSchema#{schema}>' if schema else iri[tail]
        lines.append(f"{iri[head]} {'a' if relation == 'type' else iri[relation]} {end} .")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_base(edges: list[Edge], folder: Path) -> None:
    """The graph as a folder of nodes with types and edges; dates and numbers are nodes."""
    folder.mkdir(exist_ok=True)
    types = {head: tail for head, relation, tail, _ in edges if relation == "type"}
    facts = [edge for edge in edges if edge[1] != "type"]
    names = sorted({name for edge in facts for name in (edge[0], edge[2])})
    kinds = {
        name: types.get(name, "date" if DATE.fullmatch(name) else "number" if name.isdigit() else "entity")
        for name in names
    }
    nodes = ({"id": name, "type": kind, "name": name} for name, kind in kinds.items())
    lines = ({"src": head, "relation": relation, "dst": tail} for head, relation, tail, _ in facts)
    for file, rows in (("nodes.jsonl", nodes), ("edges.jsonl", lines)):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build(graph: str, edges: list[Edge], data: Path, out: Path) -> None:
    main = [edge for edge in edges if not edge[3]]
    out.mkdir(parents=True, exist_ok=True)
    if graph == "zsre":
        sources = [f"facts=kg:{data / 'zsre/kg_facts.tsv.gz'}"]
    elif graph == "medicine":
        sources = [f"primekg_partial=kg:{data / 'primekg_partial'}"]
    else:
        others = {name: HERE / f"{graph}-{name}.tsv" for name in FURTHER}
        sources = [f"{name}=kg:{file}" for name, file in others.items() if file.exists()]
        path = out / (f"{graph}.ttl" if graph == "company" else graph)
        (write_turtle if graph == "company" else write_base)(main, path)
        sources.insert(0, f"{graph}=kg:{path}")
    gpu_rag.build((), out / f"{graph}.index", methods=["hybgrag", "hydrarag"], sources=sources, llm="none")


def perfect_answers(index: gpu_rag.Index, method: str, asked: list[dict[str, Any]]) -> list[gpu_rag.Answer]:
    """The answers to questions that are read perfectly. Rules read those without an answer. A question that a query
    cannot say has the answer `failed`."""
    kb, queries, cannot = kb_of(index), dict[str, Query](), set[str]()
    for row in asked:
        expression, names = row["expression"]
        try:
            if expression != ["nothing"]:
                read = said(expression, names, kb)
                queries[row["id"]] = Query(read.topics, True, read.operations)
        except Unsayable:
            cannot.add(row["id"])
    engine = index.engine({"models": {"llm": "none"}})
    questions = [Question(row["id"], row["question"]) for row in asked]
    run = engine.run(method, questions, retrieval_only=True, decider=PerfectReader(queries))
    for answer in run.answers:
        assert answer.error is None, answer.error
    return [replace(a, status="failed", nodes=()) if row["id"] in cannot else a for a, row in zip(run.answers, asked)]


def judged(asked: dict[str, Any], answer: gpu_rag.Answer) -> dict[str, Any]:
    """A row of the result: the verdict, the answers it rests on, and what harm was offered."""
    gold = asked["gold"]
    wanted = 1 if isinstance(gold, int) or asked.get("any") else len(gold)
    nodes = [node.name.casefold() for node in answer.nodes]
    text = (answer.text or "").casefold().strip(" .")
    if text:
        shown = [text] if isinstance(gold, int) or text in gold else re.split(r"\s*(?:;|\n|,\s|\sand\s)\s*", text)
    else:
        shown = nodes if answer.status == "answered" else nodes[: max(wanted, 1)]
    refused = answer.status in ("unsupported", "failed") or not shown
    if isinstance(gold, int):
        right = not refused and re.findall(r"\d+", shown[0]) == [str(gold)]
    elif wanted == 1 and gold:
        right = not refused and shown[0] in gold
    else:
        common = len(gold & set(shown))
        right = (refused if not gold else not refused) and (
            not gold or 2 * common / (len(gold) + len(set(shown))) >= 0.8
        )
    wrong = "wrong answered" if answer.status == "answered" else "wrong retrieved"
    return {
        **{key: asked[key] for key in ("id", "graph", "kind", "question")},
        "pair": asked.get("pair"),
        "method": answer.method,
        "status": answer.status,
        "verdict": "right" if right else "refused" if refused else wrong,
        "harmful": not refused and shown[0] in asked["harm"],
        "offered": not asked["harm"].isdisjoint([*nodes, *shown]),
        "gold": gold if isinstance(gold, int) else sorted(gold),
        "shown": shown,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    for method in sorted({row["method"] for row in rows}):
        for letter, name in SETS.items():
            some = [row for row in rows if row["method"] == method and row["id"][0] == letter]
            if not some:
                continue
            print(f"\n{method}, {name}\n| kind | n | {' | '.join(VERDICTS)} | harmful | offered |\n|---|{'--:|' * 7}")
            for kind in dict.fromkeys([*(row["kind"] for row in some), *(row["graph"] for row in some), "all"]):
                part = [row for row in some if kind in (row["kind"], row["graph"], "all")]
                counts = Counter(row["verdict"] for row in part)
                harm = [sum(row[key] for row in part) for key in ("harmful", "offered")]
                print(
                    f"| {kind} | {len(part)} | {' | '.join(str(n) for n in [*(counts[v] for v in VERDICTS), *harm])} |"
                )
            pairs: dict[int, list[bool]] = defaultdict(list)
            for row in some:
                if row["pair"]:
                    pairs[row["pair"]].append(row["verdict"] == "right")
            if pairs:
                print(f"pairs with both right: {sum(all(both) for both in pairs.values())} of {len(pairs)}")


def main() -> None:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("\n\n")[1][7:])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", default="fms")
    parser.add_argument("--graph", default=f"{INVENTED},zsre,medicine")
    parser.add_argument("--method", default="hydrarag,hybgrag")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--gold", action="store_true")
    parser.add_argument("--perfect", action="store_true")
    parser.add_argument("--without", default="")
    options = parser.parse_args()
    for module, name, value in (WITHOUT[family] for family in filter(None, options.without.split(","))):
        setattr(module, name, value)
    results = []
    for graph in options.graph.split(","):
        edges = edges_of(graph, options.data)
        asked = [row for row in questions_of(graph, Graph(edges)) if row["id"][0] in options.set][: options.limit]
        if not asked:
            continue
        if options.gold:
            for row in asked:
                gold = row["gold"] if isinstance(row["gold"], int) else sorted(row["gold"])
                print(
                    row["id"],
                    row["kind"],
                    row["question"],
                    gold,
                    f"harm {len(row['harm'])}" if row["harm"] else "",
                    sep=" | ",
                )
            continue
        build(graph, edges, options.data, options.out)
        with gpu_rag.Index.open(options.out / f"{graph}.index") as index:
            for method in options.method.split(","):
                if options.perfect:
                    answers = perfect_answers(index, method, asked)
                else:
                    answers = list(index.answer([row["question"] for row in asked], method=method, llm="none"))
                results += [judged(row, answer) for row, answer in zip(asked, answers, strict=True)]
    if results:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in results)
        (options.out / "rows.jsonl").write_text(lines, encoding="utf-8")
        print_table(results)


if __name__ == "__main__":
    main()
