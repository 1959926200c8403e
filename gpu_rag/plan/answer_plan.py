"""The cost of an answer job: tokens and seconds by service, from questions that are really answered."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_rag.engine import Engine
from gpu_rag.errors import RequestFailed
from gpu_rag.index.folder import canonical_json
from gpu_rag.index.memory import peak_memory_bytes, reset_peak_memory
from gpu_rag.jobs import STATUSES, row_of
from gpu_rag.plan.compare import read_plan, write_plan
from gpu_rag.types import Answer, Question, Reply

DEFAULT_SAMPLE = 5
REPLY_BYTES = 300  # what the cache stores with a reply's text
SECONDS = ("llm_s", "embed_s", "graph_s")
COUNTS = ("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens")
RETRIEVAL = ("embed_s", "graph_s")
KEYS = ("per_question", "asked_ids", "config", "load_s", "first_use")


def plan_path(answers: Path) -> Path:
    """The plan of an answers file, beside it."""
    return answers.with_name(answers.name + ".plan.json")


def plain(config: Mapping[str, Any]) -> Any:
    """A configuration as it is read back from JSON: a tuple is a list."""
    return json.loads(canonical_json(config))


def predict(plan: Mapping[str, Any], ids: Sequence[str]) -> dict[str, float]:
    """The cost of the questions with these ids by a plan. Those that the plan answered cost the LLM no time again."""
    each, n = plan["per_question"], len(ids)
    n_new = len(set(ids) - set(plan["asked_ids"]))
    found: dict[str, float] = {name: round(each[name] * n) for name in (*COUNTS, "disk_bytes")}
    found.update({name: each[name] * (n_new if name == "llm_s" else n) for name in (*SECONDS, "other_s")})
    if n:
        found.update({name: found[name] + plan["first_use"][name] for name in RETRIEVAL})
    found["wall_s"] = plan["load_s"] + sum(found[name] for name in (*SECONDS, "other_s")) if n else 0.0
    return found


def plan_answers(
    engine: Engine,
    method: str,
    questions: Sequence[Question],
    out: Path,
    *,
    n_sample: int = DEFAULT_SAMPLE,
    kept: int = 0,
) -> dict[str, Any]:
    """The plan of a job that answers `questions`, also written beside the answers file `out`; `kept`: answered before.

    n_sample questions, drawn at random, are answered through the engine's reply cache, so the job does not ask them
    again; questions that an earlier plan asked are not chosen. `engine` must embed afresh (no vector cache), or
    embedding looks free.
    """
    reset_peak_memory()
    started = time.perf_counter()
    config = plain(engine.config(method))  # loads the models
    earlier = read_plan(plan_path(out), KEYS)
    before = set(earlier["asked_ids"]) if earlier is not None and earlier["config"] == config else set()
    pool = [q for q in questions if q.id not in before] or list(questions)
    chosen = random.Random(engine.settings.runtime.seed).sample(range(len(pool)), min(n_sample, len(pool)))
    sample = [pool[i] for i in sorted(chosen)]
    first, warm = (engine.run(method, sample, retrieval_only=True) for _ in range(2))
    load_s = max(time.perf_counter() - started - first.wall_s - warm.wall_s, 0.0)
    replies: list[Reply | RequestFailed] = []
    engine.on_reply = replies.append
    try:
        result = engine.run(method, sample)
    finally:
        engine.on_reply = None
    done = result.answers
    first_use = {name: max(0.0, _sum(first.answers, name) - _sum(warm.answers, name)) for name in RETRIEVAL}
    document: dict[str, Any] = {
        "method": method,
        "todo": len(questions),
        "sample": len(sample),
        "asked_ids": sorted(before | {a.question_id for a in done if a.status != "failed"}),
        "statuses": {name: sum(a.status == name for a in done) for name in STATUSES},
        "per_question": _per_question(done, replies, result.wall_s),
        "load_s": load_s,
        "first_use": first_use,
    }
    document.update(predict(document, [q.id for q in questions]))
    document.update(peak_memory_bytes=peak_memory_bytes(), notes=_notes(replies, len(done), len(questions)))
    document.update(config=config, kept=kept, out=str(out), plan_s=time.perf_counter() - started)
    write_plan(plan_path(out), document)
    return document


def _sum(answers: Sequence[Answer], name: str) -> float:
    return float(sum(getattr(a.usage, name) for a in answers))


def _n_fresh(replies: Sequence[Reply | RequestFailed]) -> int:
    """Replies that were in no cache."""
    return sum(not (isinstance(reply, Reply) and reply.from_cache) for reply in replies)


def _per_question(
    answers: Sequence[Answer], replies: Sequence[Reply | RequestFailed], wall_s: float
) -> dict[str, float]:
    n, fresh = max(len(answers), 1), _n_fresh(replies)
    each = {name: _sum(answers, name) / n for name in (*COUNTS, *SECONDS)}
    each["other_s"] = max(0.0, wall_s / n - sum(each[name] for name in SECONDS))
    if 0 < fresh < len(replies):  # the cache took no time
        each["llm_s"] *= len(replies) / fresh
    texts = [json.dumps(row_of(a), ensure_ascii=False) for a in answers]
    texts += [reply.text for reply in replies if isinstance(reply, Reply)]
    stored = sum(len(text.encode("utf-8", "replace")) for text in texts) + REPLY_BYTES * len(replies)
    each["disk_bytes"] = stored / n
    return each


def _notes(replies: Sequence[Reply | RequestFailed], n_done: int, n: int) -> list[str]:
    notes = [f"extrapolated from {n_done} of {n:,} questions"] if n > n_done else []
    fresh = _n_fresh(replies)
    if replies and not fresh:
        notes.append("all replies of the sample were in the cache, so the LLM's time is not known")
    elif fresh:
        notes.append(f"the LLM was asked {fresh} times at once; one that takes more at once is faster than this")
    return notes
