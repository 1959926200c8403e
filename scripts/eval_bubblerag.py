"""Recall of BubbleRAG beside the baselines, its ablations, and what its graph steps cost; paired intervals.

usage: python scripts/eval_bubblerag.py INDEX=QUESTIONS [...] [--part scores|ablations|cost]

scores: all questions pooled, each set, and the two halves by the parity of sha1(question id): the rules without a model
were chosen on the first ("development"). ablations: one parameter changed at a time, all questions. cost: milliseconds
of processor time a question in each step, all questions as one batch and one by one. No model takes part.
Prints Markdown and, as the last line, one JSON document.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from gpu_rag import Index, load_questions
from gpu_rag.evaluation.metrics import ranked_documents, recall_at
from gpu_rag.runtime.step import Step

AT = (5, 10, 15)
AGAINST = ["dense", "hybrid", "ppr"]
ABLATIONS = {
    "the defaults": "",
    "without specialisation (names and content words)": "specialise=false",
    "without relaxation (open sub-questions looked for everywhere)": "relax=false",
    "trees in the order of events (`cover_first=false`)": "cover_first=false",
    "ranked by the score (`rank=score`)": "rank=score",
    "ranked by the score, trees in the order of events": "rank=score,cover_first=false",
    "passages in the paper's order (`passages=trees`)": "passages=trees",
    "all three of the paper": "rank=score,cover_first=false,passages=trees",
    **{f"budget {b}": f"budget={b}" for b in (5, 20, 50)},
    **{f"budget {b}, ranked by the score": f"budget={b},rank=score" for b in (5, 20, 50)},
    **{f"budget {b}, ranked, order of events": f"budget={b},rank=score,cover_first=false" for b in (5, 20, 50)},
    **{f"alpha {a}, ranked by the score": f"alpha={a},rank=score" for a in ("0.1", "2.0", "5.0")},
    **{f"alpha {a}, ranked, order of events": f"alpha={a},rank=score,cover_first=false" for a in ("0.1", "2.0", "5.0")},
    **{f"depth {d}": f"depth={d}" for d in (0, 2, 4, 8)},
    "one tree": "n_trees=1",
    "ten trees": "n_trees=10",
}


def pooled_script() -> ModuleType:
    """scripts/eval_pooled.py with the cut-offs of this page."""
    path = Path(__file__).with_name("eval_pooled.py")
    spec = importlib.util.spec_from_file_location("eval_pooled", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.AT, module.MEASURES = AT, tuple(f"recall@{k}" for k in AT)
    return module  # type: ignore[no-any-return]


def recalls(pooled: Any, index: Index, rows: list[Any], runs: list[str]) -> dict[str, np.ndarray]:
    """{run: recall at each cut-off f64[questions, len(AT)]} on one set."""
    document_of = dict(zip(index.passage_ids, index.passage_doc_ids))
    found = {}
    for run in runs:
        method, params = pooled.parse_run(run)
        engine = index.engine({"method": {method: params}, "models": {"llm": "none"}})
        answers = engine.run(method, [row.question for row in rows], limit=max(AT), retrieval_only=True).answers
        engine.models.close()
        if failed := [answer for answer in answers if answer.status == "failed"]:
            raise SystemExit(f"{run}: {failed[0].question_id} failed, {failed[0].error}")
        ranked = [ranked_documents([document_of[e.passage_id] for e in answer.evidence]) for answer in answers]
        found[run] = np.array([[recall_at(r, row.gold_ids, k) for k in AT] for r, row in zip(ranked, rows)])
    return found


def run_of(params: str) -> str:
    """A run as eval_pooled names it."""
    return f"bubblerag:{params}" if params else "bubblerag"


def compared(pooled: Any, sets: list[tuple[Index, list[Any]]], runs: list[str], against: list[str]) -> dict[str, Any]:
    """Recall of runs on all sets, with tables pooled, by half and by set."""
    parts = [recalls(pooled, index, rows, runs) for index, rows in sets]
    dev = np.array([pooled.is_dev(row) for _, rows in sets for row in rows])
    all_ = {run: np.concatenate([part[run] for part in parts]) for run in runs}
    document = {}
    views = {"pooled": all_, "development half": {r: v[dev] for r, v in all_.items()}}
    views["other half"] = {r: v[~dev] for r, v in all_.items()}
    views.update({str(index.path.name): part for (index, _), part in zip(sets, parts)})
    for name, scores in views.items():
        lines, document[name] = pooled.table(scores, against)
        print(f"\n### {name} ({len(scores[runs[0]])})\n\n" + "\n".join(lines))
    return document


def ablations(pooled: Any, sets: list[tuple[Index, list[Any]]]) -> dict[str, Any]:
    """One table, differences to the defaults."""
    runs = [run_of(params) for params in ABLATIONS.values()]
    parts = [recalls(pooled, index, rows, list(dict.fromkeys(runs))) for index, rows in sets]
    scores = {name: np.concatenate([p[run] for p in parts]) for name, run in zip(ABLATIONS, runs)}
    lines, document = pooled.table(scores, [next(iter(ABLATIONS))])
    print("\n".join(lines))
    return document  # type: ignore[no-any-return]


def cost(sets: list[tuple[Index, list[Any]]], rounds: int = 5) -> dict[str, Any]:
    """Milliseconds of processor time a question in each step, median of rounds: {set: {step: [batch, alone]}}."""
    seconds: dict[str, list[float]] = {}
    run = Step.run

    def timed(step: Step[Any, Any, Any, Any], *given: Any) -> list[Any]:
        began = time.process_time()
        found = run(step, *given)
        if step.name.startswith("bubble"):
            seconds.setdefault(step.name, []).append(time.process_time() - began)
        return found

    Step.run = timed  # type: ignore[method-assign, assignment]
    document: dict[str, Any] = {}
    for index, rows in sets:
        found: dict[str, list[float]] = {}
        for live in (len(rows), 1):
            engine = index.engine({"runtime": {"max_live": live}, "models": {"llm": "none"}})
            questions, each = [row.question for row in rows], {}
            for i in range(rounds + 1):
                seconds.clear()
                engine.run("bubblerag", questions, retrieval_only=True, limit=max(AT))
                for name, values in seconds.items() if i else ():  # the first round compiles and loads
                    each.setdefault(name, []).append(1000 * sum(values) / len(rows))
            for name, values in each.items():
                found.setdefault(name, []).append(median(values))
            engine.models.close()
        print(f"\n{index.path.name} ({len(rows)} questions)\n\n| step | one batch | one by one |\n|---|---|---|")
        found["all"] = [sum(values[i] for values in found.values()) for i in (0, 1)]
        print("\n".join(f"| {name} | {a:.2f} | {b:.2f} |" for name, (a, b) in found.items()))
        document[str(index.path.name)] = found
    Step.run = run  # type: ignore[method-assign]
    return document


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="INDEX=QUESTIONS")
    parser.add_argument("--part", choices=("scores", "ablations", "cost"), default="scores")
    options = parser.parse_args()
    sets = []
    for item in options.sets:
        folder, _, questions = item.partition("=")
        rows = [row for row in load_questions(Path(questions))[0] if row.gold_ids]
        print(f"{folder}: {len(rows)} questions", file=sys.stderr)
        sets.append((Index.open(folder), rows))
    pooled = pooled_script()
    if options.part == "scores":
        document = compared(pooled, sets, [*AGAINST, "bubblerag"], AGAINST)
    else:
        document = ablations(pooled, sets) if options.part == "ablations" else cost(sets)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
