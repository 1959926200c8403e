"""What HydraRAG's answers rest on without a language model: gold relations, kinds of sources, topics, and time.

usage: python scripts/eval_hydrarag_evidence.py NAME=INDEX=QUESTIONS [...] [--half first|second|all] [--limit N]
       [--method hydrarag,hydrarag-e] [--set SECTION.NAME=VALUE ...]

Of every set and method: the overlap of the relations of the paths that are left with those of the gold path (Tan et al.
2025, appendix B.3: shared relations / relations of the gold path), for questions that say one (`path`, `sparql`,
`inferential_chains`), over all questions and over those whose first answer node is right; whether every gold triple
is on these paths; the kinds of sources that verify the answer ("none": no path holds it); questions of one topic
beside those of several; seconds by service and by verb. Prints Markdown tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rag import Index
from gpu_rag.index.knowledge_base import name_key
from gpu_rag.settings import nested, parse_assignment
from gpu_rag.types import Answer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import eval_hydrarag as BASE

_PREDICATE = re.compile(r"(?<=\s)ns:((?:\w+\.){2,}\w+)(?=\s)")


@dataclass(frozen=True)
class Gold:
    """What a question says of its reasoning: relations and, where it has them, triples (head, relation, tail)."""

    relations: frozenset[str]
    triples: frozenset[tuple[str, ...]]


def gold_of(row: dict[str, Any]) -> Gold:
    """The gold path of a question: PathQuestion's path, CWQ's query, WebQSP's chain; empty where there is none."""
    triples = frozenset(tuple(map(name_key, triple)) for triple in row.get("path") or ())
    if triples:
        return Gold(frozenset(relation for _, relation, _ in triples), triples)
    chains = row.get("inferential_chains") or ()
    named = [*_PREDICATE.findall(row.get("sparql") or ""), *(relation for chain in chains for relation in chain or ())]
    return Gold(frozenset(map(name_key, named)), frozenset())


def left_of(answer: Answer) -> Gold:
    """The relations and triples of the paths that an answer rests on."""
    triples = frozenset(tuple(map(name_key, edge[:3])) for path in answer.paths for edge in path.edges)
    return Gold(frozenset(relation for _, relation, _ in triples), triples)


def overlap(gold: Gold, left: Gold) -> float:
    """Share of the gold relations that the paths have."""
    return len(gold.relations & left.relations) / len(gold.relations)


def is_right(answer: Answer, row: Any) -> bool:
    """Whether the first answer node is a gold answer."""
    return bool(answer.nodes) and name_key(answer.nodes[0].name) in row.answers


def class_of(answer: Answer) -> str:
    """The kinds of sources that verify an answer: those of the paths that are left, and those that support them."""
    told = [kinds for step in answer.trace if step.verb == "verified_by" for kinds in [step.chosen]]
    return " + ".join(kind for kind in ("kg", "document", "web") if told and kind in told[-1]) or "none"


def gold_line(name: str, pairs: Sequence[tuple[Answer, Any]], gold: dict[str, Gold]) -> list[str]:
    """One row of the first table."""
    with_gold = [(a, gold[r.question.id]) for a, r in pairs if gold[r.question.id].relations]
    shares = [overlap(one, left_of(answer)) for answer, one in with_gold]
    whole = [one.triples <= left_of(answer).triples for answer, one in with_gold if one.triples]
    if not shares:
        return [name, "0", *["-"] * 5]
    bins = [sum(s == 0 for s in shares), sum(0 < s < 1 for s in shares), sum(s == 1 for s in shares)]
    counts = (f"{count / len(shares):.3f}" for count in bins)
    return [name, str(len(shares)), f"{np.mean(shares):.3f}", *counts, f"{np.mean(whole):.3f}" if whole else "-"]


def topics_lines(name: str, pairs: Sequence[tuple[Answer, Any]]) -> list[list[str]]:
    """Rows of the table of topics: questions with one gold topic, and with several."""
    groups: dict[str, list[tuple[Answer, Any]]] = defaultdict(list)
    for answer, row in pairs:
        if row.topics:
            groups["one" if len(row.topics) == 1 else "several"].append((answer, row))
    lines = []
    for label, some in sorted(groups.items()):
        part = BASE.Run([r for _, r in some], [a for a, _ in some], 0, 0)
        ever = [BASE.share(part.ever(a, r, step) for a, r in some) for step in BASE.STEPS]
        end = BASE.share(part.last(a, r, "w_max") for a, r in some)
        lines.append([name, label, str(len(some)), *ever, end, part.hits()])
    return lines


def cost_line(name: str, index: Index, rows: list[Any], method: str, settings: dict[str, Any]) -> list[str]:
    """Milliseconds a question on the clock by service, and the dearest verbs; the run is a new one."""
    engine = index.engine(settings)
    result = engine.run(method, [row.question for row in rows], retrieval_only=True)
    engine.models.close()
    ms = {verb: 1000 * stats.s / len(rows) for verb, stats in result.stats.steps.items()}
    by_service: Counter[str] = Counter()
    for verb, stats in result.stats.steps.items():
        by_service[stats.service] += ms[verb]
    rest = 1000 * result.wall_s / len(rows) - sum(by_service.values())
    dearest = ", ".join(f"`{verb}` {ms[verb]:.1f}" for verb in sorted(ms, key=lambda verb: -ms[verb])[:4])
    return [name, *(f"{by_service[s]:.1f}" for s in ("graph", "embed", "text", "llm")), f"{rest:.1f}", dearest]


def main() -> None:
    """Reads the command line."""
    options = BASE.parser_of(__doc__).parse_args()
    settings = nested([parse_assignment(text) for text in options.set])
    golds: list[list[str]] = []
    classes: list[list[str]] = []
    topics: list[list[str]] = []
    costs: list[list[str]] = []
    for text in options.sets:
        name, folder, questions = text.split("=")
        index, rows = Index.open(folder), BASE.read(Path(questions), options.half, options.limit)
        raw = [json.loads(line) for line in Path(questions).read_text(encoding="utf-8").splitlines()]
        gold = {row["id"]: gold_of(row) for row in raw}
        for method in options.method.split(","):
            label = f"{name}, {method}"
            done = BASE.run(index, rows, method, settings)
            pairs = list(zip(done.answers, done.rows))
            right = [(a, r) for a, r in pairs if is_right(a, r)]
            golds += [gold_line(f"{label}, all", pairs, gold), gold_line(f"{label}, right", right, gold)]
            for which, some in (("all", pairs), ("right", right)):
                counted = Counter(class_of(a) for a, _ in some)
                told = ", ".join(f"{kinds} {n / len(some):.3f}" for kinds, n in sorted(counted.items()))
                classes.append([f"{label}, {which}", str(len(some)), told])
            topics += topics_lines(label, pairs)
            costs.append(cost_line(label, index, rows, method, settings))
    print("\nRelations of the gold path among those of the paths that are left")
    BASE.table(("", "n", "mean overlap", "none", "some", "all", "all gold triples"), golds)
    print("\nWhat verifies the answer")
    BASE.table(("", "n", "shares"), classes)
    print("\nGold topics")
    BASE.table(("", "topics", "n", *(f"any phase, {step}" for step in BASE.STEPS), "at the end", "hits@1"), topics)
    print("\nMilliseconds a question (clock), second run of the same questions")
    BASE.table(("", "graph", "embed", "text", "llm", "programs", "the dearest verbs"), costs)


if __name__ == "__main__":
    main()
