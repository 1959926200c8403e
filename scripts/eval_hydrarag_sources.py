"""HydraRAG over an incomplete graph, documents and web pages, without a capable model.

usage: python scripts/eval_hydrarag_sources.py FOLDER OUT [--part make|curve|switches|speed] [--shares 0,30,50,80,100]
       [--rows LABEL,...] [--half first|second|all] [--limit N] [--set SECTION.NAME=VALUE ...]

FOLDER: corpus.jsonl(.gz), questions.jsonl and, for the curve, kg_gold_evidences.tsv.gz (head, relation, tail). OUT:
what is made of them, once: a seeded half of the corpus as documents, the other half as HTML pages (the web), seeded
shares of the triples in hundredths, each within the next, and an index of each. Without triples: all documents, one
index. Asked are questions whose answer is not yes or no.

curve: answers on paths by share, and with sources left out ("documents" with the facts extracted from them).
switches: selector, refinement and verification off, one by one. speed: questions a second, 1, 64 and 256 together,
beside networkx, which lists the simple paths of the same questions (topics and depth are given to it) and ranks none.
Differences are to the first row, paired by question, with 95 % bootstrap intervals. Outcomes stay in OUT: what was
ended goes on there. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import networkx as nx

import gpu_rag
from gpu_rag import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_web
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.settings import merge, nested, parse_assignment
from gpu_rag.types import Answer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import eval_hydrarag as BASE

TRIPLES = "kg_gold_evidences.tsv.gz"
PAGE = "<html><head><meta charset='utf-8'><title>{0}</title></head><body><h1>{0}</h1><p>{1}</p></body></html>"
KG, DOCUMENTS, WEB = "kg", "extraction,documents", "web"
LEFT_OUT = {
    "all": f"{KG},{DOCUMENTS},{WEB}",
    "kg alone": KG,
    "without kg": f"{DOCUMENTS},{WEB}",
    "without documents": f"{KG},{WEB}",
    "without web": f"{KG},{DOCUMENTS}",
}
SWITCHES = [
    ("defaults", {}),
    ("selector off", {"selector": False}),
    ("refinement off", {"refinement": False}),
    ("pruning by relevance", {"pruning": "relevance"}),
]
HEADER = ("", "n", "found", "end", "hits@1", "difference found", "of end", "of hits@1", "ms processor")
BATCHES = (1, 64, 256)
MOST_S, MOST_PATHS = 2.0, 10_000  # of a question to networkx


# --- what is made -----------------------------------------------------------------------------------


def lines_of(path: Path) -> list[str]:
    """The lines of a text file, packed or not."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8").splitlines()


def make(folder: Path, out: Path) -> None:
    """Writes OUT/documents.jsonl, OUT/pages and OUT/questions.jsonl."""
    (out / "pages").mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for path in sorted(folder.glob("corpus.jsonl*")) for line in lines_of(path)]
    random.Random(0).shuffle(rows)
    documents, pages = (rows[0::2], rows[1::2]) if (folder / TRIPLES).is_file() else (rows, [])
    with (out / "documents.jsonl").open("w", encoding="utf-8") as file:
        for row in documents:
            file.write(json.dumps({key: row[key] for key in ("id", "title", "text")}, ensure_ascii=False) + "\n")
    for row in pages:
        page = PAGE.format(escape(row["title"]), escape(row["text"]))
        (out / "pages" / f"{row['id']}.html").write_text(page, encoding="utf-8")
    asked = [line for line in lines_of(folder / "questions.jsonl") if not is_yes_or_no(json.loads(line))]
    (out / "questions.jsonl").write_text("".join(f"{line}\n" for line in asked), encoding="utf-8")


def is_yes_or_no(row: dict[str, Any]) -> bool:
    """Whether a question's answer is yes or no, which is no node of a path."""
    return bool({"yes", "no"} & {str(answer).lower() for answer in row["answers"]})


def index_of(folder: Path, out: Path, share: int, settings: dict[str, Any]) -> Index:
    """The index with a share of the triples, in hundredths; built where it is not there yet."""
    if not (out / "questions.jsonl").is_file():
        make(folder, out)
    found, part = out / f"index-{share}", out / "part"
    if not found.is_dir():
        sources = []
        if (folder / TRIPLES).is_file():
            sources.append(f"pages=web:{out / 'pages'}")
            triples = lines_of(folder / TRIPLES)
            random.Random(0).shuffle(triples)
            if kept := triples[: len(triples) * share // 100]:
                (out / f"kg{share}.tsv").write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
                sources.append(f"{KG}=kg:{out / f'kg{share}.tsv'}")
        shutil.rmtree(part, ignore_errors=True)
        for other in sorted(out.glob("index-*"))[:1]:
            shutil.copytree(other, part)  # the same documents and pages
        models = {"models": settings.get("models", {})}
        gpu_rag.build(out / "documents.jsonl", part, sources=sources, methods=["hydrarag"], settings=models)
        part.rename(found)
    return Index.open(found)


# --- curve and switches -----------------------------------------------------------------------------


def compared(
    index: Index, rows: list[Any], settings: dict[str, Any], changes: Sequence[Any], kept: Path
) -> Iterator[list[str]]:
    """One row a change of the method's settings: n, shares, differences to the first row, milliseconds. kept: the
    outcomes of changes that were measured before are read from there, the others written."""
    first: list[list[bool]] = []
    for label, change in changes:
        asked = json.dumps([merge(settings, change), [row.question.id for row in rows]], sort_keys=True)
        file = kept / f"{label.replace(' ', '-')}-{sha256(asked.encode()).hexdigest()[:12]}.json"
        if not file.is_file():
            done = BASE.run(index, rows, "hydrarag", merge(settings, {"method": {"hydrarag": change}}))
            pairs = list(zip(done.answers, done.rows))
            steps = [[done.ever(a, r, "found"), done.last(a, r, "w_max"), done.hit(a, r)] for a, r in pairs]
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({"outcomes": list(zip(*steps)), "ms": round(1000 * done.cpu_s / len(rows))}))
        said = json.loads(file.read_text())
        first = first or said["outcomes"]
        differences = [BASE.difference(now, before) for now, before in zip(said["outcomes"], first)]
        shares = [BASE.share(some) for some in said["outcomes"]]
        yield [
            label,
            str(len(rows)),
            *shares,
            *(differences if label != changes[0][0] else ("", "", "")),
            str(said["ms"]),
        ]


def sources_of(index: Index) -> list[tuple[str, dict[str, Any]]]:
    """The rows of LEFT_OUT that say something of an index."""
    there = {source.name for source in kb_of(index).sources} | {DOCUMENTS.partition(",")[2]}
    pages = "kb_web" in index.stages and index.loaded("kb_web", load_web)[0].num_rows
    has = {KG: KG in there, WEB: bool(pages)}
    rows = []
    for label, names in LEFT_OUT.items():
        kept = [name for name in names.split(",") if has.get(name, True)]
        if kept and all(has[kind] for kind in (KG, WEB) if kind in label):
            rows.append((label, {"sources": ",".join(kept)}))
    return rows


# --- speed ------------------------------------------------------------------------------------------


def networked(kb: KnowledgeBase) -> nx.Graph:
    """All triples as networkx' graph."""
    graph = nx.Graph()
    graph.add_edges_from(zip(kb.head.tolist(), kb.tail.tolist()))
    return graph


def n_listed(graph: nx.Graph, topics: Sequence[int], depth: int) -> tuple[int, bool]:
    """The number of simple paths through all topics of at most `depth` hops a topic; whether the search was ended."""
    if not topics:
        return 0, False
    ends = set(topics[-1:]) if len(topics) > 1 else set(graph) - set(topics)
    until, n = time.perf_counter() + MOST_S, 0
    for path in nx.all_simple_paths(graph, topics[0], ends, cutoff=depth * len(topics)):
        n += set(topics) <= set(path)
        if n >= MOST_PATHS or time.perf_counter() > until:
            return n, True
    return n, False


def given(kb: KnowledgeBase, answer: Answer) -> tuple[list[int], int]:
    """The topics (the first node of each name) and the depth that the trace of an answer says."""
    said = {step.verb: step.chosen for step in answer.trace if step.verb in ("topics", "analysis")}
    nodes = [kb.named(line.split(" -> ")[0])[:1] for line in said["topics"]]
    depth = re.search(r"predicted depth: (\d+)", "\n".join(said["analysis"]))
    assert depth is not None
    return list(dict.fromkeys(node for some in nodes for node in some)), int(depth[1])


def speed(index: Index, rows: list[Any], settings: dict[str, Any]) -> Iterator[list[str]]:
    """Rows of questions a second and processor milliseconds a question, of HydraRAG and of networkx."""
    kb = kb_of(index)
    graphs = ",".join(source.name for source in kb.sources if source.name in (KG, "extraction"))
    for label, sources in (("HydraRAG, all sources", "all"), ("HydraRAG, graphs alone", graphs)):
        engine = index.engine(merge(settings, {"method": {"hydrarag": {"sources": sources}}}))
        questions = [row.question for row in rows]
        engine.run("hydrarag", questions[:2], retrieval_only=True)
        for size in BATCHES:
            answers, cpu, begun = [], time.process_time(), time.perf_counter()
            some = questions[: min(len(questions), 32)] if size == 1 else questions
            for first in range(0, len(some), size):
                answers += engine.run("hydrarag", some[first : first + size], retrieval_only=True).answers
            wall, used = time.perf_counter() - begun, time.process_time() - cpu
            yield [
                f"{label}, {size} at a time",
                str(len(some)),
                f"{len(some) / wall:.2f}",
                f"{1000 * used / len(some):.0f}",
                "",
            ]
        engine.models.close()
    graph, found = networked(kb), []
    cpu, begun = time.process_time(), time.perf_counter()
    for answer in answers:
        found.append(n_listed(graph, *given(kb, answer)))
    wall, used = time.perf_counter() - begun, time.process_time() - cpu
    note = (
        f"{sum(n for n, _ in found) / len(found):,.0f} paths a question; {sum(ended for _, ended in found)} ended early"
    )
    yield [
        "networkx, paths alone",
        str(len(found)),
        f"{len(found) / wall:.2f}",
        f"{1000 * used / len(found):.0f}",
        note,
    ]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=("make", "curve", "switches", "speed"), default="curve")
    parser.add_argument("--shares", default="0,30,50,80,100")
    parser.add_argument("--rows", default="", help="some rows alone, with commas between")
    parser.add_argument("--half", choices=("first", "second", "all"), default="all")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    options = parser.parse_args()
    settings = nested([parse_assignment(text) for text in options.set])
    for share in map(int, options.shares.split(",")):
        index = index_of(options.folder, options.out, share, settings)
        if options.part == "make":
            continue
        rows = BASE.read(options.out / "questions.jsonl", options.half, options.limit)
        print(f"\n### {share} % of the triples: {kb_of(index).n_edges} edges, {kb_of(index).n} nodes")
        if options.part == "speed":
            BASE.table(("", "questions", "a second", "ms processor", ""), speed(index, rows, settings))
        else:
            changes = sources_of(index) if options.part == "curve" else SWITCHES
            changes = [change for change in changes if not options.rows or change[0] in options.rows.split(",")]
            BASE.run(index, rows[:1], "hydrarag", settings)  # loads models and graphs
            BASE.table(HEADER, compared(index, rows, settings, changes, options.out / f"outcomes-{share}"))


if __name__ == "__main__":
    main()
