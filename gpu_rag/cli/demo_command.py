"""The command `gpu-rag demo`: the chains that each method finds, a few checked answers, and one chain."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.options import add_settings, api_key, names, settings_of
from gpu_rag.cli.progress import Bars
from gpu_rag.errors import UsageError
from gpu_rag.methods.registry import marked, uses_graph

if TYPE_CHECKING:
    from gpu_rag.engine import Engine
    from gpu_rag.evaluation.compare import Comparison
    from gpu_rag.settings import Settings
    from gpu_rag.sources.questions import QuestionRow
    from gpu_rag.types import Answer

HELP = "Index the larger sample, count the chains that each method finds, answer ten questions, and show a chain."
EXAMPLE = "gpu-rag demo --out demo-index"
MEASURE = "whole@5"
READ = 2  # passages that a small model reads
Show = Callable[[str], None]
Scores = dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    folder, methods = Path("demo-index"), ",".join(marked("shown"))
    parser.add_argument("--out", type=Path, default=folder, metavar="DIR", help=f"the index folder ({folder})")
    parser.add_argument("--method", default=methods, metavar="M[,M...]", help=f"methods to compare ({methods})")
    parser.add_argument(
        "--questions", type=int, default=10, metavar="N", help="number of one-hop questions to answer (10)"
    )
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Run the main job from start to end."""
    from gpu_rag import Index, load_questions
    from gpu_rag.sample import world_path

    started = time.perf_counter()
    show: Show = (lambda text: None) if options.json else partial(print, flush=True)
    methods = sorted(names(options.method), key=uses_graph)
    if uses_graph(methods[0]) or not uses_graph(methods[-1]):
        expected = "a method without a graph, and one that searches a graph"
        raise UsageError("nothing to compare", given=f"--method {options.method}", expected=expected)
    settings, out = settings_of(options).changed("models", decider="rule"), options.out
    llm = "smollm2" if settings.models.llm == "none" else settings.models.llm
    rows, _ = load_questions(world_path("questions.jsonl"))
    show("1. Indexing 440 passages, with ready triples as a capable model would extract them")
    counts = _index(out, methods, settings.changed("index", extractor="import"), show)
    index, replies = Index.open(out), _beside(out, ".replies.sqlite")
    engine = index.engine(settings.changed("models", llm=llm), replies=replies, api_key=api_key(settings))
    with closing(engine.models):
        show(f"\n2. For how many of {len(rows)} questions of 2 to 4 hops are all gold passages among the first 5?")
        comparison = _compare(engine, methods, rows, show)
        best, words = _best(comparison, methods)
        _difference(comparison.scores[best], comparison.scores[words], f"{best} - {words}", show)
        plain = [method for method in methods if not uses_graph(method)]
        answers = _answer(engine, plain[-1], options.questions, show)
        show(f"\n4. A chain that {best} finds: passages, facts that join them, sentences that bear on the question")
        chain = _chain(engine, comparison, rows, (best, words), show)
        show(f"\n5. Beside: the same passages with triples by {settings.index.extractor}")
        other = _beside(out, f"-{settings.index.extractor}")
        _index(other, (best,), settings, show)
        alone = _compare(Index.open(other).engine(settings), (best,), rows, show)
        pair = _difference(alone.scores[best], comparison.scores[words], f"{best} - {words}", show)
    wall_s = time.perf_counter() - started
    document = {
        "counts": counts,
        "eval": comparison.document,
        "chain": chain,
        "extracted": {"extractor": settings.index.extractor, "methods": alone.document["methods"], "paired": pair},
        "answers": answers,
        "wall_s": wall_s,
    }
    return 0, document, _closing(out, best, wall_s)


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)


def _index(out: Path, methods: Sequence[str], settings: Settings, show: Show) -> dict[str, int]:
    """Build or resume an index of the sample. Returns its counts."""
    from gpu_rag import build
    from gpu_rag.sample import world_path

    ready = world_path("openie.jsonl") if settings.index.extractor == "import" else ()
    with Bars() as bars:
        report = build(
            world_path("corpus.jsonl"), out, methods=methods, openie=ready, settings=settings, progress=bars
        ).report
    assert report is not None
    counts = {name: report.count(name) for name in ("passages", "entities", "relations", "mentions")}
    shown = ", ".join(f"{n:,} {name}" for name, n in counts.items() if n)  # a stage that was not built counts 0
    show(f"   {shown} in {report.wall_s:.1f} s: {out}")
    return counts


def _compare(engine: Engine, methods: Sequence[str], rows: Sequence[QuestionRow], show: Show) -> Comparison:
    """Scores of retrieval. Prints a line for each method as it ends."""
    from gpu_rag.evaluation.compare import compare
    from gpu_rag.evaluation.metrics import whole_at

    gold = {row.question.id: row.gold_ids for row in rows}
    scores: dict[str, list[float]] = {}
    document_of = dict(zip(engine.index.passage_ids, engine.index.passage_doc_ids))

    def on_answer(method: str, answer: Answer) -> None:
        ranking = [document_of[evidence.passage_id] for evidence in answer.evidence]
        scores.setdefault(method, []).append(whole_at(ranking, gold[answer.question_id], 5))
        if len(scores[method]) == len(rows):
            n = int(sum(scores[method]))
            show(f"   {method:<16}{n:>3} of {len(rows)}  {'#' * n}")

    return compare(engine, methods, rows, retrieval_only=True, at=(5,), on_answer=on_answer)


def _best(comparison: Comparison, methods: Sequence[str]) -> tuple[str, str]:
    """The best method that searches a graph, and the best that does not."""
    share = {method: comparison.document["methods"][method][MEASURE] for method in methods}
    graph = [method for method in methods if uses_graph(method)]
    return max(graph, key=share.__getitem__), max(set(methods) - set(graph), key=share.__getitem__)


def _difference(first: Scores, second: Scores, words: str, show: Show) -> dict[str, float]:
    """The paired difference in questions whose whole chain is found."""
    from gpu_rag.evaluation.bootstrap import paired_difference

    pair = paired_difference(first[MEASURE], second[MEASURE])
    points = " to ".join(f"{100 * pair[end]:+.1f}" for end in ("low", "high"))
    gained = int(pair["wins"] - pair["losses"])
    show(f"   {words}: {gained:+d} questions, {100 * pair['diff']:+.1f} points; paired 95 % interval {points}")
    return pair


def _chain(
    engine: Engine,
    comparison: Comparison,
    rows: Sequence[QuestionRow],
    methods: tuple[str, str],
    show: Show,
) -> dict[str, Any]:
    """The question of most hops whose chain the graph finds and words do not; of several, the first."""
    from gpu_rag.report.chain import DEPTH, chain_of, chain_text

    graph, words = (comparison.scores[method][MEASURE] for method in methods)
    n = max(range(len(rows)), key=lambda i: (graph[i] - words[i], len(rows[i].gold_ids)))
    row = rows[n]
    result = engine.run(methods[0], [row.question], limit=DEPTH, retrieval_only=True, support=True)
    others = {method: answers[n] for method, answers in comparison.answers.items() if not uses_graph(method)}
    stops = chain_of(engine.index, row.gold_ids, row.answers, {methods[0]: result.answers[0], **others})
    show(textwrap.indent(chain_text(row.question.text, row.answers[0], stops), "   "))
    return {"question": row.question.text, "stops": [dict(vars(stop)) for stop in stops]}


def _answer(engine: Engine, method: str, n: int, show: Show) -> list[dict[str, Any]]:
    """Answers by the model to questions of one hop, each checked against its sentence and the gold answer."""
    from gpu_rag import load_questions
    from gpu_rag.evaluation.metrics import normalise_answer
    from gpu_rag.jobs import row_of
    from gpu_rag.sample import world_path

    rows = load_questions(world_path("one-hop.jsonl"))[0][:n]
    if not rows:
        return []
    reader = engine.models.describe("llm")["name"]
    show(f"\n3. {len(rows)} questions of one hop in one batch: {method} finds, {reader} reads")
    result = engine.run(method, [row.question for row in rows], limit=READ)
    done, n_right = [], 0
    for answer, row in zip(result.answers, rows):
        record = row_of(answer)
        record["gold"] = list(row.answers)
        done.append(record)
        words = f" {normalise_answer(answer.text or '')} "
        right = any(f" {normalise_answer(gold)} " in words for gold in row.answers)
        n_right += right
        mark = "failed" if answer.status == "failed" else answer.grounding.status
        show(f"   {'right' if right else 'wrong'}, {mark:<12}{row.question.text}")
        words = textwrap.shorten(answer.text or "no answer", 72, placeholder=" ...")
        show(f"   {'':19}{words}  (gold: {row.answers[0]})")
        texts = {item.passage_id: item for item in answer.evidence}
        for sentence in answer.grounding.sentences:
            item = texts[sentence.passage_id]
            quoted = textwrap.shorten(item.text[sentence.start : sentence.end], 72, placeholder=" ...")
            show(f"   {'':19}> {quoted}  [{item.title}]")
    n_supported = sum(answer.grounding.status == "supported" for answer in result.answers)
    show(f"   {n_right} of {len(rows)} are right; {n_supported} are supported by a sentence. {result.wall_s:.1f} s")
    return done


def _closing(out: Path, method: str, wall_s: float) -> str:
    program = "gpu-rag" if which("gpu-rag") else shlex.quote(str(Path(sys.prefix) / "bin" / "gpu-rag"))
    return "\n".join(
        [
            f"\nDone in {wall_s:.0f} s. The index is the folder {out}. Next:",
            f'  {program} ask {out} "Which river does the Iron Bridge cross?" --method {method} --explain',
            f"  {program} sample my-sample      # these passages, questions and triples as files, and a knowledge base",
            "For answers to questions of several hops, connect a capable model: a folder, or a server that",
            "speaks OpenAI's protocol, such as vLLM on your machine:",
            f'  {program} ask {out} "Your question" --set models.llm=http://127.0.0.1:8000/v1#MODEL',
            "Your own files, in half a minute:",
            f"  {program} index YOUR_FOLDER --out your-index",
            f'  {program} ask your-index "YOUR QUESTION"',
        ]
    )
