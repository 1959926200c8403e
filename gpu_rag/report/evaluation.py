"""Report of a comparison: verdict, scores, differences, costs, breakdowns, and questions with disagreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_rag.evaluation.compare import TRUTHFUL, Comparison
from gpu_rag.evaluation.judge import KINDS
from gpu_rag.evaluation.kb import KG_MEASURES, SKB_MEASURES
from gpu_rag.index.metadata import in_words
from gpu_rag.methods.registry import uses_graph
from gpu_rag.report.page import example, heading, intervals, page, paragraph, stacked_bars, table
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Evidence

N_EXAMPLES = 8
MAX_ALL_PAIRS = 4  # methods; with more, only pairs with the first one are shown
KB_MEASURES = frozenset(SKB_MEASURES + KG_MEASURES)


def verdict(document: dict[str, Any], measure: str) -> str:
    """Whether and by how much the graph helped, in words: the best graph method against the best other."""
    scored = {name: entry[measure] for name, entry in document["methods"].items() if entry.get(measure) is not None}
    graph = [name for name in scored if uses_graph(name)]
    others = [name for name in scored if name not in graph]
    if not graph or not others:
        return f"No verdict on the graph: {measure} needs a method with a graph and one without."
    best, rival = (max(names, key=lambda name: scored[name]) for names in (graph, others))
    pair, sign = document["paired"].get(f"{best} - {rival}"), 1
    if pair is None:
        pair, sign = document["paired"][f"{rival} - {best}"], -1
    difference = pair[measure]
    diff = sign * difference["diff"]
    low, high = sorted((sign * difference["low"], sign * difference["high"]))
    interval = f"95 % interval [{low:+.3f}, {high:+.3f}], {document['n']} questions"
    by = f"{measure} of {best} against {rival}: {diff:+.3f}, {interval}"
    if low > 0:
        return f"The graph helped here. {by}."
    if high < 0:
        return f"The graph did not help here, it hurt. {by}."
    return f"It cannot be shown that the graph helped here. {by}."


def main_measure(document: dict[str, Any], of_all: Sequence[str] = ()) -> str:
    """The main measure: recall@5 if measured, else the middle cut-off, else f1. Over a knowledge base it is hit@1 or
    answer_on_path, if all questions have it.

    of_all: the measures that all questions have.
    """
    first = next(iter(document["methods"].values()))
    for name in ("hit@1", "answer_on_path"):
        if name in of_all:
            return name
    recalls = [name for name, value in first.items() if name.startswith("recall@") and value is not None]
    if "hit@1" in first:  # recall@20 is then of nodes
        recalls = [name for name in recalls if name not in KB_MEASURES]
    if not recalls:
        return "f1"
    return "recall@5" if "recall@5" in recalls else recalls[len(recalls) // 2]


def evaluation_page(
    comparison: Comparison, rows: Sequence[QuestionRow], document_of: dict[str, str], title: str
) -> str:
    """The page as HTML. document_of: {passage id: document id}."""
    document = comparison.document
    first = next(iter(comparison.scores.values()))
    measure = main_measure(document, [name for name, scores in first.items() if len(scores) == len(rows)])
    measures = [n for n in first if not n.startswith("retrieval_f1")]
    measures = [n for n in measures if any(e.get(n) is not None for e in document["methods"].values())]
    sections = [
        paragraph(verdict(document, measure), "verdict"),
        heading("Scores"),
        _scores(document, measures),
        *(_score_plot(document, name) for name in measures),
        heading("Paired differences"),
        _differences(document, measures, measure),
        heading("Costs"),
        _costs(document),
        *_judge_section(document),
        heading("By hops and by type"),
        *_breakdowns(comparison, rows, measure),
        heading("Where the methods differ most"),
        *_disagreements(comparison, rows, document_of, measure),
    ]
    methods = ", ".join(document["methods"])
    scope = f"{document['n']} questions" + (f" where {document['where']}" if "where" in document else "")
    return page(title, f"{scope}; {methods}; means with 95 % bootstrap intervals", sections)


def score_cell(entry: dict[str, Any], name: str) -> str:
    """A measure of a method with its interval, or "-" if it has none. entry: a method in the document of `eval`."""
    value, ci = entry.get(name), entry["ci95"].get(name)
    if value is None:
        return "-"
    return f"{value:.3f} [{ci[0]:.3f}, {ci[1]:.3f}]" if ci else f"{value:.3f}"


def score_rows(document: dict[str, Any], measures: Sequence[str]) -> list[list[str]]:
    """One row per method with its measures."""
    return [[m, *(score_cell(entry, name) for name in measures)] for m, entry in document["methods"].items()]


def difference_rows(document: dict[str, Any], measures: Sequence[str]) -> tuple[list[list[str]], str]:
    """(one row per pair of methods with its paired differences, words for the caption about the pairs shown).

    With more than MAX_ALL_PAIRS methods, only pairs with the first one are shown.
    """
    (first, *others), pairs, which = document["methods"], list(document["paired"]), ""
    if len(others) >= MAX_ALL_PAIRS:
        pairs, which = [f"{name} - {first}" for name in others], f"; pairs against {first} only, all are in eval --json"
    rows = []
    for pair in pairs:
        cells = (document["paired"][pair].get(name) for name in measures)
        rows.append([pair, *(f"{c['diff']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}]" if c else "-" for c in cells)])
    return rows, which


def _scores(document: dict[str, Any], measures: Sequence[str]) -> str:
    ends = [
        [entry["failed"], "-" if entry["unsupported"] is None else entry["unsupported"]]
        for entry in document["methods"].values()
    ]
    rows = [[*row, *end] for row, end in zip(score_rows(document, measures), ends)]
    return table(["method", *measures, "failed", "unsupported"], rows)


def _score_plot(document: dict[str, Any], measure: str) -> str:
    rows = []
    for name, entry in document["methods"].items():
        if entry.get(measure) is not None:
            low, high = entry["ci95"].get(measure, (entry[measure], entry[measure]))
            rows.append((name, entry[measure], low, high))
    return intervals(measure, rows, -1.0 if measure == TRUTHFUL else 0.0)


def _differences(document: dict[str, Any], measures: Sequence[str], measure: str) -> str:
    if not document["paired"]:
        return paragraph("One method: nothing to compare.", "dim")
    rows, which = difference_rows(document, measures)
    differences = [document["paired"][row[0]].get(measure) for row in rows]
    lines = [[*row, f"{m['wins']:.0f} / {m['losses']:.0f}" if m else "-"] for row, m in zip(rows, differences)]
    points = [(row[0], m["diff"], m["low"], m["high"]) for row, m in zip(rows, differences) if m]
    reach = max((max(abs(low), abs(high)) for _, _, low, high in points), default=0.1)
    header = ["methods", *measures, f"wins / losses ({measure})"]
    return table(header, lines) + intervals(f"difference in {measure}{which}", points, -reach, reach)


def _costs(document: dict[str, Any]) -> str:
    header = ["method", "LLM calls", "prompt tokens", "cached", "generated", "LLM s", "embedding s", "graph s"]
    header += ["wall s", "questions / s", "seconds per correct answer"]
    rows, bars = [], []
    for name, entry in document["methods"].items():
        correct = (entry["em"] or 0) * document["n"]
        calls = [f"{entry[key]:,.1f}" for key in ("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens")]
        seconds = [f"{entry[key]:,.2f}" for key in ("llm_s", "embed_s", "graph_s", "wall_s")]
        rate = f"{document['n'] / entry['wall_s']:,.1f}" if entry["wall_s"] else "-"
        rows.append([name, *calls, *seconds, rate, f"{entry['wall_s'] / correct:,.2f}" if correct else "-"])
        known = {"LLM": entry["llm_s"], "embedding": entry["embed_s"], "graph and search": entry["graph_s"]}
        other_s = max(entry["wall_s"] - sum(known.values()), 0.0)
        bars.append((name, {**known, "everything else": other_s}))
    note = paragraph("Calls and tokens are means a question; seconds are totals of the run.", "dim")
    return table(header, rows) + note + stacked_bars("where the time went", bars, "s")


def _scores_of(comparison: Comparison, rows: Sequence[QuestionRow], measure: str) -> dict[str, list[float]]:
    """The measure of each question by method; 0 for questions without gold, which the callers leave out."""
    if measure in KB_MEASURES:
        return {method: scores[measure] for method, scores in comparison.scores.items()}
    scored = [bool(row.gold_ids if measure.startswith("recall@") else row.answers) for row in rows]
    values = {method: iter(scores.get(measure, ())) for method, scores in comparison.scores.items()}
    return {method: [next(numbers, 0.0) if has else 0.0 for has in scored] for method, numbers in values.items()}


def _breakdowns(comparison: Comparison, rows: Sequence[QuestionRow], measure: str) -> list[str]:
    scores = _scores_of(comparison, rows, measure)
    parts = []
    for key in ("hops", "type"):
        groups: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            if (row.gold_ids or measure in KB_MEASURES) and key in row.meta:
                groups.setdefault(str(row.meta[key]), []).append(i)
        if not groups:
            continue
        lines = [
            [name, len(members), *(f"{sum(s[i] for i in members) / len(members):.3f}" for s in scores.values())]
            for name, members in sorted(groups.items())
        ]
        parts.append(table([key, "questions", *(f"{m} {measure}" for m in scores)], lines))
    return parts or [paragraph("The questions say neither hops nor type.", "dim")]


def _disagreements(
    comparison: Comparison, rows: Sequence[QuestionRow], document_of: dict[str, str], measure: str
) -> list[str]:
    scores = _scores_of(comparison, rows, measure)
    if len(scores) < 2:
        return [paragraph("One method: nothing to compare.", "dim")]
    spread = [max(s[i] for s in scores.values()) - min(s[i] for s in scores.values()) for i in range(len(rows))]
    chosen = [i for i in sorted(range(len(rows)), key=lambda i: (-spread[i], i)) if spread[i] > 0][:N_EXAMPLES]
    if not chosen:
        return [paragraph(f"No question has different {measure} under different methods.", "dim")]
    shown = []
    for i in chosen:
        row, methods = rows[i], []
        for method, answers in comparison.answers.items():
            items = [(_titled(e), e.text[:160], document_of[e.passage_id] in row.gold_ids) for e in answers[i].evidence]
            methods.append((method, scores[method][i], answers[i].text, items[:5]))
        shown.append(example(row.question.text, row.answers[0] if row.answers else "", measure, methods))
    return shown


def _titled(evidence: Evidence) -> str:
    return f"{evidence.title} ({in_words(evidence.metadata)})" if evidence.metadata else evidence.title


def _judge_section(document: Mapping[str, Any]) -> list[str]:
    """The section about the judge, from the document of `eval --json`; [] without a judge."""
    if "judge" not in document:
        return []
    judge = document["judge"]
    if not judge["capable"]:
        return [heading("The judge"), paragraph(f"None: {judge['doubts'][0]}.", "verdict")]
    rows = [[KINDS[kind], f["n"], f["right"], f["unread"]] for kind, f in judge["check"].items()]
    doubts = [paragraph(f"The verdicts are not to be trusted: {doubt}.", "verdict") for doubt in judge["doubts"]]
    account = f"{judge['model']}: {judge['asked']:,} claims judged, {judge['from_cache']:,} of them in an earlier run"
    return [
        heading("The judge"),
        *doubts,
        paragraph(f"{account}, in {judge['s']:.1f} s."),
        table(["checked on", "claims", "verdict right", "no verdict"], rows),
    ]
