"""The ceiling of a method's retrieval: the gold that remains at each stage if every choice is perfect.

An oracle (`program.oracle`) decides with the gold passages of each question: it takes the options that lead to gold,
or none. A decision without gold, such as the wording of keywords, is made by rule. Each stage is the share of a
question's gold documents that are
index     in the index, and match `--where`
graph     among the passages that the method's own structure reached, such as a walk, evidence graphs, or the
          neighbourhood of seeds; a method without choices has no such stage
reached   there, or among the first REACHED of the ranking
recall@k  among the first k passages that are kept
prompt    among the passages that the shared reader shows, whole and within the model's context if a model is given

A walk from all passages sees all of them, so `reached` is then determined by its ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpu_rag.engine import Engine
from gpu_rag.errors import ContextOverflow, UsageError
from gpu_rag.evaluation.kb import KbGold
from gpu_rag.evaluation.metrics import ranked_documents, recall_at
from gpu_rag.evaluation.spool import Spool
from gpu_rag.index.index import Index
from gpu_rag.methods.registry import load_method, needs
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.pack import pack
from gpu_rag.program.decide import RULE
from gpu_rag.program.oracle import Gold, Oracle
from gpu_rag.program.reader import passage_block
from gpu_rag.program.run import Run, content
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Answer, Draft, Evidence, Question

REACHED = 100


def oracle_of(rows: Sequence[QuestionRow], p: float = 1.0, base: KbGold | None = None, **options: Any) -> Oracle:
    """An oracle for questions with known answers, right with probability p. base: knows the answer nodes of a knowledge
    base; options: further arguments of the oracle. Raises UsageError."""

    def gold_of(row: QuestionRow) -> Gold:
        nodes = tuple(base.nodes(row)) if base is not None and base.is_skb(row) else ()
        return Gold(frozenset(row.gold_ids), row.answers, row.meta, nodes)

    return Oracle({row.question.id: gold_of(row) for row in rows}, p, **options)


def check_ceiling(method: str) -> None:
    """Raise UsageError for a method that ranks nodes of a knowledge base."""
    if "kb" in needs(method):
        raise UsageError(
            "gold passages do not show the right choices",
            given=f"the ceiling of {method}",
            expected="methods that rank passages",
            do="leave out --ceiling, or the method",
        )


def ceiling_scores(
    engine: Engine,
    method: str,
    rows: Sequence[QuestionRow],
    at: Sequence[int],
    *,
    retrieval_only: bool = True,
    where: str = "",
) -> dict[str, list[float]]:
    """Scores by stage of the rows with gold passages, see the module. `choices` is the number of the oracle's choices.
    `failed` is 1 for a question that failed; its shares are 0 from `graph` on. Raises UsageError as `check_ceiling`."""
    check_ceiling(method)
    rows = [row for row in rows if row.gold_ids]
    gold_of = {row.question.id: frozenset(row.gold_ids) for row in rows}
    oracle, in_index, saw = oracle_of(rows), dict[str, frozenset[str]](), dict[str, set[str]]()
    module = load_method(method)

    async def program(question: Question, run: Run, params: Any) -> Draft:
        documents = run.index.passage_doc_ids
        in_index[question.id] = gold_of[question.id].intersection(documents)

        def on_saw(passages: Iterable[int]) -> None:
            saw.setdefault(question.id, set()).update(documents[row] for row in passages)

        support = await module.retrieve(question, replace(run, decider=oracle, on_saw=on_saw), params)
        return Draft(None, support.evidence, (), "unsupported")

    limit = max(REACHED, *at)
    questions = [row.question for row in rows]
    spool = Spool([question.id for question in questions])
    engine.run(
        method,
        questions,
        limit=limit,
        retrieval_only=True,
        decider=RULE,
        program=program,
        where=where,
        on_answer=spool.add,
        keep=False,
    )
    documents_of = shown_documents(engine.index, rows)
    llm = None if retrieval_only or not engine.models.has_llm() else engine.models.llm()
    scores: dict[str, list[float]] = {}
    for answer, row in zip(spool, rows):
        ranking = documents_of(answer.evidence, row)
        seen = [*saw.get(row.question.id, ()), *ranking[:REACHED]]
        shown = documents_of(answer.evidence[: n_shown(engine, answer, llm)], row)
        stages = {"index": list(in_index.get(row.question.id, ()))}
        stages |= {"graph": list(saw.get(row.question.id, ()))} if saw else {}
        stages |= {"reached": seen, **{f"recall@{k}": ranking[:k] for k in at}, "prompt": shown}
        for name, documents in stages.items():
            scores.setdefault(name, []).append(recall_at(documents, row.gold_ids, max(len(documents), 1)))
        scores.setdefault("choices", []).append(oracle.n_decisions[row.question.id])
        scores.setdefault("failed", []).append(float(answer.status == "failed"))
    return scores


def shown_documents(
    index: Index, rows: Sequence[QuestionRow]
) -> Callable[[Sequence[Evidence], QuestionRow], list[str]]:
    """A function of evidence and its question: the documents of the passages, each at the rank of its best passage. A
    copy of a passage of gold documents stands for these, since evidence holds no copies. Copies have equal metadata, so
    that `--where` keeps all or none."""
    document_of = dict(zip(index.passage_ids, index.passage_doc_ids))
    gold = {id for row in rows for id in row.gold_ids}
    of_gold = [row for row, document in enumerate(index.passage_doc_ids) if document in gold]
    holders: dict[Hashable, list[str]] = {}
    for passage in index.evidence(of_gold, [0.0] * len(of_gold), ""):
        holders.setdefault(content(passage), []).append(document_of[passage.passage_id])

    def documents(passage: Evidence, row: QuestionRow) -> list[str]:
        same = [document for document in holders.get(content(passage), ()) if document in row.gold_ids]
        return same or [document_of[passage.passage_id]]

    return lambda evidence, row: ranked_documents([id for passage in evidence for id in documents(passage, row)])


def n_shown(engine: Engine, answer: Answer, llm: LLM | None) -> int:
    """The number of an answer's passages that the shared reader shows whole."""
    evidence = answer.evidence[: engine.settings.reader.passages]
    if llm is None:
        return len(evidence)
    blocks = [passage_block(i, e) for i, e in enumerate(evidence, 1)]
    prompt, fields = Prompt.read("gpu_rag.program.prompts", "reader"), {"question": answer.question}
    try:
        _, n, n_cut = pack(prompt, fields, "passages", blocks, llm=llm, max_tokens=engine.settings.reader.max_tokens)
    except ContextOverflow:  # the question alone is too long
        return 0
    return n - 1 if n_cut and n else n
