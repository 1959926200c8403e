"""Recall of methods and settings pooled over several question sets, with paired intervals; the best setting of a half.

usage: python scripts/eval_pooled.py INDEX[,OTHER]=QUESTIONS [...] --run METHOD[:key=value,...] [--run ...]
           [--half all|dev|test] [--against METHOD,...] [--choose recall@5] [--ceiling]
           [--csv FILE]

A run is a method with its parameters; @NAME=value stands for a constant of its batched.py or of its parameters, as in
bubblerag:@ANCHOR_SHARE=1, which leaves out a part of the method. OTHER: an index of the same corpus that was built
another way; the runs are made on it too, and called "RUN on the other". Questions of all sets count alike. --half: by
the parity of sha1(question id), so that it never depends on order. --choose MEASURE: prints the run that is best on the
development half by it (ties: recall@10, then the earlier run), and then it, the first run and those of --against on the
other half.
--ceiling: the shares of gold by stage when a perfect chooser chooses, see gpu_rag.evaluation.ceiling, and recall@20.
--csv: also writes each run, and its difference to the first of --against, to a file.
Prints a Markdown table and, as the last line, one JSON document, with the means of each set.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha1
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from gpu_rag import Index, load_questions
from gpu_rag.evaluation.bootstrap import intervals, paired_difference
from gpu_rag.evaluation.ceiling import ceiling_scores
from gpu_rag.evaluation.compare import check_gold, score
from gpu_rag.evaluation.kb import KbGold
from gpu_rag.methods.registry import load_method
from gpu_rag.settings import parse_assignment
from gpu_rag.sources.questions import QuestionRow

AT = (2, 5, 10)
MEASURES = tuple(f"recall@{k}" for k in AT)
STAGES = ("reached", *MEASURES, "recall@20", "prompt")
ON_OTHER = " on the other"
Scores = dict[str, np.ndarray]  # run -> f64[questions, measures]


def parse_run(text: str) -> tuple[str, dict[str, Any]]:
    """(method, parameters) of METHOD[:key=value,...]."""
    method, _, rest = text.partition(":")
    pairs = (parse_assignment(f"method.{item}") for item in rest.split(",") if item)
    return method, {key.removeprefix("method."): value for key, value in pairs}


@contextmanager
def constants(method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parameters that are settings; the constants among them have the given values in the block."""
    program = load_method(method)
    with ExitStack() as stack:
        for name in [key.removeprefix("@") for key in params if key.startswith("@")]:
            place = import_module(f"{program.__package__}.batched") if name.isupper() else program.Params  # type: ignore[attr-defined]
            stack.enter_context(mock.patch.object(place, name, params[f"@{name}"]))
        yield {key: value for key, value in params.items() if not key.startswith("@")}


def is_dev(row: QuestionRow) -> bool:
    """Whether a question is of the development half."""
    return sha1(row.question.id.encode(), usedforsecurity=False).digest()[0] % 2 == 0


def scores_of(index: Index, rows: list[QuestionRow], runs: list[str], ceiling: bool) -> Scores:
    """Recall of each run on the questions of one set, or its ceiling by stage."""
    check_gold(rows, set(index.documents["id"].to_pylist()))
    found: Scores = {}
    for run in runs:
        method, given = parse_run(run)
        with constants(method, given) as params:
            engine = index.engine({"method": {method: params}})
            if ceiling:
                shares = ceiling_scores(engine, method, rows, (*AT, 20))
                found[run] = np.array([shares[name] for name in STAGES]).T
            else:
                questions = [row.question for row in rows]
                answers = engine.run(method, questions, limit=max(AT), retrieval_only=True).answers
                per_question = score(engine, answers, rows, AT, True, KbGold(index, rows))
                found[run] = np.array([per_question[name] for name in MEASURES]).T
            engine.models.close()
    return found


def table(scores: Scores, against: list[str], measures: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Markdown lines, and the same as a document: means with intervals, and paired differences."""
    lines = [f"| run | {' | '.join(measures)} |", "|---|" + "---|" * len(measures)]
    document: dict[str, Any] = {"runs": {}, "paired": {}}
    low_high = [intervals({run: values[:, m] for run, values in scores.items()}) for m in range(len(measures))]
    for run, values in scores.items():
        cells = [(float(values[:, m].mean()), *low_high[m][run]) for m in range(len(measures))]
        lines.append(f"| {run} | " + " | ".join(f"{c:.3f} [{a:.3f}, {b:.3f}]" for c, a, b in cells) + " |")
        document["runs"][run] = dict(zip(measures, cells))
    for run in scores:
        first = against[: against.index(run)] if run in against else against
        for other in [name for name in [*first, run + ON_OTHER] if name in scores]:
            pairs = [paired_difference(scores[run][:, m], scores[other][:, m]) for m in range(len(measures))]
            shown = " | ".join(f"{p['diff']:+.3f} [{p['low']:+.3f}, {p['high']:+.3f}]" for p in pairs)
            lines.append(f"| {run} - {other} | {shown} |")
            document["paired"][f"{run} - {other}"] = dict(zip(measures, pairs))
    return lines, document


def as_rows(document: dict[str, Any], other: str) -> list[list[Any]]:
    """A table of the runs of a document, each with its differences to another one."""
    measures = list(next(iter(document["runs"].values())))
    parts = [(name, f"{name} - {other}", "low", "high") for name in measures]
    found: list[list[Any]] = [["run", "questions", *(cell for part in parts for cell in part)]]
    for run, means in document["runs"].items():
        pairs = document["paired"].get(f"{run} - {other}")
        cells: list[str] = []
        for name in measures:
            cells.append(f"{means[name][0]:.3f}")
            cells += [f"{pairs[name][key]:+.3f}" if pairs else "" for key in ("diff", "low", "high")]
        found.append([run, document["n"], *cells])
    return found


def choose(scores: Scores, runs: list[str], measure: str) -> str:
    """The best run by a measure; ties by recall@10, then the earlier."""
    at, last = MEASURES.index(measure), len(MEASURES) - 1
    return max(runs, key=lambda run: (round(scores[run][:, at].mean(), 9), round(scores[run][:, last].mean(), 9)))


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="INDEX[,OTHER]=QUESTIONS")
    parser.add_argument("--run", action="append", required=True, metavar="METHOD[:key=value,...]")
    parser.add_argument("--half", choices=("all", "dev", "test"), default="all")
    parser.add_argument("--against", default="dense,bm25,hybrid,ppr")
    parser.add_argument("--choose", choices=MEASURES)
    parser.add_argument("--ceiling", action="store_true")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    if options.ceiling and options.choose:
        parser.error("a ceiling chooses no run: leave out --ceiling or --choose")
    against = [name for name in options.against.split(",") if name]
    runs = list(dict.fromkeys([*against, *options.run]))
    parts: list[Scores] = []
    dev: list[bool] = []
    for item in options.sets:
        folder, _, questions = item.partition("=")
        rows = [row for row in load_questions(Path(questions))[0] if row.gold_ids]
        if options.half != "all" and not options.choose:
            rows = [row for row in rows if is_dev(row) == (options.half == "dev")]
        print(f"{folder}: {len(rows)} questions", file=sys.stderr)
        first, *other = folder.split(",")
        found = scores_of(Index.open(first), rows, runs, options.ceiling)
        for path in other:
            again = scores_of(Index.open(path), rows, options.run, options.ceiling)
            found.update({run + ON_OTHER: values for run, values in again.items()})
        parts.append(found)
        dev.extend(map(is_dev, rows))
    pooled = {run: np.concatenate([part[run] for part in parts]) for run in parts[0]}
    mask = np.array(dev)
    shown = ~mask if options.choose else np.ones_like(mask)
    document: dict[str, Any] = {}
    if options.choose:
        on_dev = {run: values[mask] for run, values in pooled.items()}
        chosen = choose(on_dev, options.run, options.choose)
        print(f"chosen on {int(mask.sum())} development questions by {options.choose}: {chosen}\n")
        document["chosen"] = chosen
        pooled = {run: pooled[run][shown] for run in dict.fromkeys([*against, options.run[0], chosen])}
    measures = STAGES if options.ceiling else MEASURES
    lines, compared = table(pooled, against, measures)
    document.update(compared, n=len(next(iter(pooled.values()))), sets={})
    for item, found, kept in zip(options.sets, parts, np.split(shown, np.cumsum([len(one[runs[0]]) for one in parts]))):
        means = {run: values[kept].mean(0).round(4).tolist() for run, values in found.items()}
        document["sets"][item.partition("=")[0]] = {"n": int(kept.sum()), **means}
    print("\n".join(lines))
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(as_rows(document, against[0] if against else ""))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
