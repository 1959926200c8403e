"""HydraRAG's search without a language model on question sets over knowledge graphs: is an answer on a path, and where.

usage: python scripts/eval_hydrarag.py NAME=INDEX=QUESTIONS [...] [--part phases|ablations|sources]
       [--half first|second|all] [--limit N] [--method hydrarag|hydrarag-e] [--set method.hydrarag.NAME=VALUE ...]
       [--decider rule|oracle:P]

Topics come out of the question's text; MetaQA's square brackets around its topic are taken out before. For every set:
answer_on_path (a gold answer is an entity of a path) of all questions after each step of each phase, by hops where the
set says them; the phase that ended the search; hits@1 of the answer nodes, and how many are wrong though the question
says the relations, by the trace; the subgraph's sizes; milliseconds.
ablations: one row a change of the settings, and `hydrarag-e`. sources: pruning by relevance alone, and one row a source
left out. Both with differences to their first row, paired by question, and 95 % bootstrap intervals. What answers rest
on and what they cost: eval_hydrarag_evidence.py. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpu_rag import Index
from gpu_rag.api.evaluations import decider_of
from gpu_rag.evaluation.bootstrap import paired_difference
from gpu_rag.index.knowledge_base import name_key
from gpu_rag.program.oracle import Gold, Oracle
from gpu_rag.settings import nested, parse_assignment
from gpu_rag.types import Answer, Question

PHASES = ("initial", "refined", "predicted", "together")
STEPS = ("found", "w1", "w2", "w_max")
ABLATIONS: list[tuple[str, dict[str, Any]]] = [
    ("defaults", {}),
    ("hydrarag-e", {}),
    *((f"d_max {d}", {"d_max": d}) for d in (1, 2, 4)),
    ("one phase", {"phases": 1}),
    ("two phases", {"phases": 2}),
    ("pruning by relevance", {"pruning": "relevance"}),
    ("w1 20", {"w1": 20}),
    ("w1 300", {"w1": 300}),
    ("w_max 1", {"w_max": 1}),
    ("matches 1", {"matches": 1}),
]
_SIZE = re.compile(r"(\w+): (\d+) nodes, (\d+) edges, (\d+) triples")


NO_GOLD = Gold(frozenset())


@dataclass(frozen=True)
class Row:
    """One question with its gold. topics: names of the gold topics, for the share that is found; gold: of an oracle."""

    question: Question
    answers: frozenset[str]
    hops: int
    topics: frozenset[str]
    gold: Gold = NO_GOLD


def read(path: Path, half: str, limit: int) -> list[Row]:
    """The questions of a file; of a half, every second one."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = rows[0::2] if half == "first" else rows[1::2] if half == "second" else rows
    found = []
    for row in rows[: limit or None]:
        topic = row.get("topic_entity") or []
        names = [topic] if isinstance(topic, str) else topic.values() if isinstance(topic, dict) else topic
        text = row["question"].replace("[", "").replace("]", "")
        answers = frozenset(name_key(str(answer)) for answer in row["answers"])
        gold = Gold(frozenset(row.get("gold_ids", ())), tuple(map(str, row["answers"])), row)
        found.append(
            Row(Question(row["id"], text), answers, row.get("hops") or 0, frozenset(map(name_key, names)), gold)
        )
    return found


def on_path(answer: Answer, row: Row, phase: str, step: str) -> bool | None:
    """Whether a gold answer was among the entities; None where the phase did not run."""
    for pool in answer.pools:
        if pool.name == f"{phase} {step}":
            return any(name_key(entity) in row.answers for entity in pool.entities)
    return None


def noted(answer: Answer, verb: str) -> list[tuple[str, ...]]:
    """What the steps of a name chose."""
    return [step.chosen for step in answer.trace if step.verb == verb]


def share(found: Iterable[bool]) -> str:
    """A share, or a dash for none."""
    values = list(found)
    return f"{mean(values):.3f}" if values else "-"


@dataclass(frozen=True)
class Run:
    """A finished run over one set."""

    rows: list[Row]
    answers: list[Answer]
    wall_s: float
    cpu_s: float

    def last(self, answer: Answer, row: Row, step: str) -> bool:
        """answer_on_path after a step of the phase that ended the search."""
        found = [on_path(answer, row, phase, step) for phase in PHASES]
        return bool([one for one in found if one is not None][-1:] == [True])

    def ever(self, answer: Answer, row: Row, step: str) -> bool:
        """answer_on_path after a step of any phase."""
        return any(on_path(answer, row, phase, step) for phase in PHASES)

    def hit(self, answer: Answer, row: Row) -> bool:
        """Whether the first answer node is a gold answer."""
        return bool(answer.nodes) and name_key(answer.nodes[0].name) in row.answers

    def sure(self, answer: Answer) -> bool:
        """Whether the question says the relations of the answer, by the trace."""
        return any(line.startswith("asked") for told in noted(answer, "relations_asked") for line in told)

    def hits(self) -> str:
        """hits@1 of the answer nodes."""
        return share(self.hit(a, r) for a, r in zip(self.answers, self.rows))


def run(index: Index, rows: list[Row], method: str, settings: dict[str, Any], p: float | None = None) -> Run:
    """One run without a language model: by rules, or by an oracle that is right with probability p."""
    engine = index.engine(settings)
    oracle = None if p is None else Oracle({row.question.id: row.gold for row in rows}, p)
    cpu = time.process_time()
    result = engine.run(method, [row.question for row in rows], retrieval_only=True, decider=oracle)
    used = time.process_time() - cpu
    engine.models.close()
    failed = [a for a in result.answers if a.error]
    if failed:
        print(f"\nfailed: {len(failed)}, such as {failed[0].question_id}: {failed[0].error}")
    if oracle is not None and len(rows) > 1:
        print(f"\ndecided by rule, for want of gold: {', '.join(sorted(oracle.by_rule))}")
    return Run(rows, result.answers, result.wall_s, used)


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Prints one Markdown table."""
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def phases(name: str, done: Run) -> None:
    """All figures of one run."""
    pairs = list(zip(done.answers, done.rows))
    print(f"\n### {name}: {len(pairs)} questions, hits@1 {done.hits()}")
    topics = [
        bool(
            row.topics
            & {name_key(n) for told in noted(a, "topics") for t in told for n in t.split(" -> ")[1].split(", ")}
        )
        for a, row in pairs
        if row.topics
    ]
    counts = Counter(step.n_candidates for a, _ in pairs for step in a.trace if step.verb == "topics")
    print(f"\na gold topic found: {share(topics)}; topics a question: {dict(sorted(counts.items()))}")
    table(("phase", "reached", *STEPS), (_phase(phase, pairs) for phase in PHASES))
    by_hop = defaultdict(list)
    for a, row in pairs:
        by_hop[row.hops].append((a, row))
    lines = []
    for hops, some in sorted(by_hop.items()):
        part = Run([r for _, r in some], [a for a, _ in some], 0, 0)
        ever = (share(part.ever(a, r, step) for a, r in some) for step in STEPS)
        lines.append(
            (str(hops or "all"), str(len(some)), *ever, share(part.last(a, r, "w_max") for a, r in some), part.hits())
        )
    table(("hops", "n", *(f"any phase, {step}" for step in STEPS), "at the end", "hits@1"), lines)
    ended = Counter(told[0] for a, _ in pairs for told in noted(a, "phase"))
    print(f"\nended: {dict(ended)}")
    wrong = [not done.hit(a, r) for a, r in pairs]
    print(
        f"\nan answer node: {share(bool(a.nodes) for a, _ in pairs)}, of these wrong: "
        f"{share(one and bool(a.nodes) for one, (a, _) in zip(wrong, pairs))} of all; the question says the relations: "
        f"{share(done.sure(a) for a, _ in pairs)}, of these wrong: "
        f"{share(one and done.sure(a) for one, (a, _) in zip(wrong, pairs))} of all"
    )
    sizes = defaultdict(list)
    for a, _ in pairs:
        for told in noted(a, "evidence_subgraph")[:1]:
            for text in told:
                for step, *values in _SIZE.findall(text):
                    sizes[step].append([int(v) for v in values])
    table(
        ("subgraph of the first phase", "nodes, median", "mean", "edges, median", "mean", "triples, median", "mean"),
        (
            (step, *(f"{f([v[i] for v in values]):,.0f}" for i in range(3) for f in (median, mean)))
            for step, values in sizes.items()
        ),
    )
    n = max(len(pairs), 1)
    graph = 1000 * sum(a.usage.graph_s for a, _ in pairs) / n
    print(
        f"\nms a question: {graph:.1f} of graph work (wall), {1000 * done.wall_s / n:.1f} in all (wall), "
        f"{1000 * done.cpu_s / n:.1f} processor time"
    )


def _phase(phase: str, pairs: Sequence[tuple[Answer, Row]]) -> tuple[str, ...]:
    reached = sum(on_path(a, r, phase, "found") is not None for a, r in pairs)
    shares = []
    for step in STEPS:
        found = [on_path(a, r, phase, step) for a, r in pairs]
        shares.append(share(bool(one) for one in found if one is not None))
    return (phase, str(reached), *shares)


def ablations(
    name: str, index: Index, rows: list[Row], method: str, given: dict[str, Any], changes: Sequence[Any]
) -> None:
    """One row a change of the settings."""
    lines, first = [], None
    for label, change in changes:
        of = label if label == "hydrarag-e" else method
        settings = {**given, "method": {of: {**given.get("method", {}).get(method, {}), **change}}}
        done = run(index, rows, of, settings)
        pairs = list(zip(done.answers, done.rows))
        ever = (share(done.ever(a, r, step) for a, r in pairs) for step in STEPS)
        ends, hits = [done.last(a, r, "w_max") for a, r in pairs], [done.hit(a, r) for a, r in pairs]
        first = first or (ends, hits)
        against = (
            difference(now, before) if label != changes[0][0] else "" for now, before in zip((ends, hits), first)
        )
        lines.append((label, *ever, share(ends), share(hits), *against, f"{1000 * done.cpu_s / len(rows):.0f}"))
    print(f"\n### {name}: {len(rows)} questions")
    both = ("at the end", "hits@1", "difference at the end", "of hits@1")
    table(("", *(f"any phase, {step}" for step in STEPS), *both, "ms processor"), lines)


def difference(now: Sequence[bool], before: Sequence[bool]) -> str:
    """The mean difference, paired by question, with its interval."""
    found = paired_difference([float(one) for one in now], [float(one) for one in before])
    return f"{found['diff']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What the scripts over question sets share on their command lines."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="NAME=INDEX=QUESTIONS")
    parser.add_argument("--half", choices=("first", "second", "all"), default="all")
    parser.add_argument("--method", default="hydrarag")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    return parser


def main() -> None:
    """Reads the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", choices=("phases", "ablations", "sources"), default="phases")
    parser.add_argument("--decider", default="rule", help="who decides, of the part `phases`")
    options = parser.parse_args()
    _, p = decider_of(options.decider)
    settings = nested([parse_assignment(text) for text in options.set])
    for text in options.sets:
        name, folder, questions = text.split("=")
        index, rows = Index.open(folder), read(Path(questions), options.half, options.limit)
        run(index, rows[:1], options.method, settings)  # loads models and graphs
        if options.part == "phases":
            phases(name, run(index, rows, options.method, settings, p))
            continue
        if options.part == "ablations":
            changes: Sequence[Any] = ABLATIONS
        else:
            from gpu_rag.index.knowledge_base.load import load_kb

            names = [source.name for source in index.loaded("kb", load_kb).sources]
            names = list(dict.fromkeys([*names, "documents"]))
            changes = [
                ("all", {}),
                ("all, pruning by relevance", {"pruning": "relevance"}),
                *((f"without {n}", {"sources": ",".join(m for m in names if m != n)}) for n in names),
            ]
        ablations(name, index, rows, options.method, settings, changes)


if __name__ == "__main__":
    main()
