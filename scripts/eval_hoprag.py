"""HopRAG's retrieval on several question sets: beside dense and BM25 at equal size, ablations, and what hops can reach.

usage: python scripts/eval_hoprag.py NAME=INDEX=QUESTIONS [...] [--part scores|ablations|reach]

scores: recall@k and retrieval F1@k of hoprag, dense and bm25, each set, the mean over sets and pooled over questions,
with paired differences (percentile bootstrap over questions; of the mean over sets, questions are drawn within sets).
ablations: the mean over k of both, for other top_k, n_hop, entries and keywords; decisions and queue lengths by hop.
reach: the share of gold passages among the first five and twenty hits, within 1 to 3 hops of them, and visited.
No language model takes part: the decider is similarity. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rag import Index, load_questions
from gpu_rag.evaluation.bootstrap import interval, resample_means
from gpu_rag.evaluation.compare import check_gold, score
from gpu_rag.evaluation.kb import KbGold
from gpu_rag.methods.hoprag.batched import HopGraph, hop_graph
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer

AT = (2, 4, 8, 12, 16, 20)
MEASURES = [*(f"recall@{k}" for k in AT), *(f"retrieval_f1@{k}" for k in AT)]
BASELINES = ("dense", "bm25")
BY_HOPS: dict[str, Any] = {"entry": "vertices", "inherit": 0.0}  # the published code: hops also by similarity
ABLATIONS: list[tuple[str, dict[str, Any]]] = [
    ("defaults: top_k 20, a random walk", {}),
    ("hops by similarity: n_hop 4", BY_HOPS),
    ("hops by similarity, inherited", {"entry": "vertices"}),
    *((f"n_hop {n}", {**BY_HOPS, "n_hop": n}) for n in (0, 1, 2, 3)),
    *((f"top_k {k}", {**BY_HOPS, "top_k": k}) for k in (2, 4, 8, 12, 16)),
    ("entry edges", {**BY_HOPS, "entry": "edges"}),
    ("keywords all", {**BY_HOPS, "keywords": "all"}),
    ("entry edges, keywords all (the paper's letter)", {**BY_HOPS, "entry": "edges", "keywords": "all"}),
]


@dataclass(frozen=True)
class Questions:
    """One question set over its index."""

    name: str
    index: Index
    rows: list[QuestionRow]

    def run(self, method: str, params: dict[str, Any]) -> tuple[list[Answer], np.ndarray]:
        """Answers by retrieval alone, and f64[questions, measures]."""
        engine = self.index.engine({"method": {method: params}})
        answers = engine.run(method, [r.question for r in self.rows], limit=max(AT), retrieval_only=True).answers
        by_name = score(engine, answers, self.rows, AT, True, KbGold(self.index, self.rows))
        engine.models.close()
        return answers, np.array([by_name[name] for name in MEASURES]).T


def stratified(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Resampled means over sets of the mean in each set."""
    return np.mean([resample_means(part, seed) for seed, part in enumerate(parts)], axis=0)


def cell(values: np.ndarray, resampled: np.ndarray, sign: str = "") -> str:
    """A mean with its interval."""
    low, high = interval(resampled)
    return f"{values:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def table(title: str, lines: list[list[str]], header: Sequence[str]) -> None:
    """Prints one Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def scores(sets: Sequence[Questions]) -> None:
    """Every set, the mean over sets, and all questions pooled."""
    found = {m: [s.run(m, {})[1] for s in sets] for m in ("hoprag", *BASELINES)}
    groups = [(f"{s.name}: {len(s.rows)} questions, {s.index.n_passages:,} passages", [i]) for i, s in enumerate(sets)]
    groups.append((f"Mean over the {len(sets)} sets", list(range(len(sets)))))
    for title, members in groups:
        one_table(title, {m: [parts[i] for i in members] for m, parts in found.items()})
    pooled = {m: [np.concatenate(parts)] for m, parts in found.items()}
    one_table(f"All {len(pooled['hoprag'][0])} questions pooled", pooled)


def one_table(title: str, found: dict[str, list[np.ndarray]]) -> None:
    """Methods, then differences, for recall and for retrieval F1; the last column is the mean over the cut-offs."""
    for label, columns in (("recall", range(len(AT))), ("retrieval F1", range(len(AT), len(MEASURES)))):
        lines = []
        for name, parts in found.items():
            means = np.mean([p.mean(0) for p in parts], axis=0)[list(columns)]
            lines.append([name, *(f"{x:.3f}" for x in means), f"{means.mean():.3f}"])
        for other in BASELINES:
            parts = [(a - b)[:, list(columns)] for a, b in zip(found["hoprag"], found[other])]
            with_mean = [np.column_stack([p, p.mean(1)]) for p in parts]
            drawn, means = stratified(with_mean), np.mean([p.mean(0) for p in with_mean], axis=0)
            lines.append([f"hoprag - {other}", *(cell(m, d, "+") for m, d in zip(means, drawn.T))])
        table(f"{title}: {label}", lines, [label, *(f"@{k}" for k in AT), "mean"])


def queue_lengths(answers: Sequence[Answer]) -> list[float]:
    """Mean queue length of each hop; a walk that has ended has queues of length 0."""
    lengths: list[list[int]] = []
    for answer in answers:
        lengths.append([step.n_candidates for step in answer.trace if re.fullmatch(r"hop_\d+", step.verb)])
    longest = max(map(len, lengths), default=0)
    return np.mean([row + [0] * (longest - len(row)) for row in lengths], axis=0).tolist() if longest else []


def ablations(sets: Sequence[Questions]) -> None:
    """Other parameters, the mean over sets; decisions by hop of the defaults."""
    lines, dense = [], [s.run("dense", {})[1] for s in sets]
    lines.append(["dense", *_means(dense), "", ""])
    for name, params in ABLATIONS:
        runs = [s.run("hoprag", params) for s in sets]
        n_visited = np.mean([sum(queue_lengths(answers)) for answers, _ in runs])
        lines.append([name, *_means([values for _, values in runs]), f"{n_visited:.1f}", _difference(runs, dense)])
    table(
        "Ablations (mean over sets)", lines,
        ["run", "recall, mean over k", "recall@20", "F1, mean over k", "decisions", "recall - dense, mean over k"],
    )  # fmt: skip
    lines = []
    for s in sets:
        lengths = queue_lengths(s.run("hoprag", {**BY_HOPS, "n_hop": 5})[0])
        total = np.cumsum(lengths)
        batches = [f"{length * len(s.rows):.0f}" for length in lengths]
        lines.append([s.name, *(f"{x:.2f}" for x in lengths), *(f"{x:.1f}" for x in total[:4]), ", ".join(batches)])
    header = ["set", *(f"queue {i}" for i in range(1, 6)), *(f"decisions, n_hop {i}" for i in range(1, 5)), "batches"]
    table("Decisions and queues by hop", lines, header)


def _means(parts: Sequence[np.ndarray]) -> list[str]:
    mean = np.mean([part.mean(0) for part in parts], axis=0)
    return [f"{mean[: len(AT)].mean():.3f}", f"{mean[len(AT) - 1]:.3f}", f"{mean[len(AT) :].mean():.3f}"]


def _difference(runs: Sequence[tuple[Any, np.ndarray]], dense: Sequence[np.ndarray]) -> str:
    parts = [(a - b)[:, : len(AT)].mean(1, keepdims=True) for (_, a), b in zip(runs, dense)]
    return cell(np.mean([p.mean() for p in parts]), stratified(parts)[:, 0], "+")


def reach(sets: Sequence[Questions]) -> None:
    """Shares of the gold passages, means over questions."""
    lines = []
    for s in sets:
        graph = hop_graph(s.index)
        rows = {name: row for row, name in enumerate(s.index.passage_doc_ids)}
        gold = [{rows[g] for g in row.gold_ids} for row in s.rows]
        start = s.run("hoprag", {**BY_HOPS, "n_hop": 0})[0]
        firsts = [[s.index.passage_ids.index(e.passage_id) for e in answer.evidence] for answer in start]
        told = [visited(answer) for answer in s.run("hoprag", BY_HOPS)[0]]
        titles = s.index.passages["title"].to_pylist()
        hit = [len(g & {r for r in g if titles[r] in t}) / len(g) for g, t in zip(gold, told) if g]
        line = [s.name]
        for k in (5, 20):
            line += [f"{np.mean(x):.3f}" for x in zip(*(near(graph, f[:k], g) for f, g in zip(firsts, gold) if g))]
        lines.append([*line, f"{np.mean(hit):.3f}"])
    columns = [f"{what} {k}" for k in (5, 20) for what in ("first", "1 hop of", "2 hops of", "3 hops of")]
    table("Gold passages within reach", lines, ["set", *columns, "visited by the walk"])


def visited(answer: Answer) -> set[str]:
    """Titles that a walk met."""
    found: set[str] = set()
    for step in answer.trace:
        if step.verb.startswith("hop_entry"):
            found.update(step.chosen)
        elif re.fullmatch(r"hop_\d+", step.verb):
            found.update(told.rsplit(" -> ", 1)[1] for told in step.chosen)
    return found


def near(graph: HopGraph, first: Sequence[int], gold: set[int]) -> list[float]:
    """Shares of gold in `first`, and within 1, 2 and 3 hops along any edges (passages as vertices)."""
    indptr, target = graph.indptr.tolist(), graph.target.tolist()
    ball, shares = set(first), [len(gold & set(first)) / len(gold)]
    for _ in range(3):
        ball |= {target[e] for v in ball for e in range(indptr[v], indptr[v + 1])}
        shares.append(len(gold & ball) / len(gold))
    return shares


def main() -> None:
    """Reads the arguments and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME=INDEX=QUESTIONS")
    parser.add_argument("--part", choices=("scores", "ablations", "reach"))
    options = parser.parse_args()
    sets = []
    for given in options.sets:
        name, folder, file = given.split("=")
        index = Index.open(folder)
        rows, _ = load_questions(Path(file))
        check_gold(rows, set(index.documents["id"].to_pylist()))
        sets.append(Questions(name, index, rows))
    for part in (scores, ablations, reach):
        if options.part in (None, part.__name__):
            part(sets)


if __name__ == "__main__":
    main()
