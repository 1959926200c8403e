"""The cost of an answer job: tokens and seconds by service, from questions that are really answered."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
N_RETRIEVED = 64  # questions of one retrieval batch, which is what most of a job's batches hold
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


def predict(plan: Mapping[str, Any], asked: Sequence[str]) -> dict[str, float]:
    """The cost of the questions with these ids by a plan. Those that the plan answered cost the LLM no time again."""
    each, n = plan["per_question"], len(asked)
    n_new = len(set(asked) - set(plan["asked_ids"]))
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
    again; questions that an earlier plan asked are not chosen. Retrieval of up to 64 questions tells how its cost
    falls in larger batches. `engine` must embed afresh (no vector cache), or embedding looks free.
    """
    reset_peak_memory()
    started = time.perf_counter()
    config = plain(engine.config(method))  # loads the models
    earlier = read_plan(plan_path(out), KEYS)
    before = set(earlier["asked_ids"]) if earlier is not None and earlier["config"] == config else set()
    pool = [q for q in questions if q.id not in before] or list(questions)
    seed = engine.settings.runtime.seed
    sample, batch = _drawn(pool, n_sample, seed), _drawn(questions, N_RETRIEVED, seed)
    first = _Run.of(engine, method, sample, retrieval_only=True)
    load_s = time.perf_counter() - started - first.seconds()
    few = _Run.of(engine, method, sample, retrieval_only=True)
    many = _Run.of(engine, method, batch, retrieval_only=True)
    done = _Run.of(engine, method, sample)
    each = _per_question(done, few, many)
    first_use = {name: max(0.0, first.mean(name) - few.mean(name)) * len(sample) for name in RETRIEVAL}
    document: dict[str, Any] = {
        "method": method,
        "todo": len(questions),
        "sample": len(sample),
        "asked_ids": sorted(before | {a.question_id for a in done.answers if a.status != "failed"}),
        "statuses": {name: sum(a.status == name for a in done.answers) for name in STATUSES},
        "per_question": each,
        "load_s": max(load_s, 0.0),
        "first_use": first_use,
    }
    document.update(predict(document, [q.id for q in questions]))
    document.update(peak_memory_bytes=peak_memory_bytes(), notes=_notes(done, len(questions)), config=config)
    document.update(kept=kept, out=str(out), plan_s=time.perf_counter() - started)
    write_plan(plan_path(out), document)
    return document


def _drawn(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """n of the questions, in their order."""
    return [questions[i] for i in sorted(random.Random(seed).sample(range(len(questions)), min(n, len(questions))))]


@dataclass
class _Run:
    """One run of an engine over some questions. fresh: replies that were in no cache."""

    answers: list[Answer] = field(default_factory=list)
    wall_s: float = 0.0
    fresh: int = 0
    replies: int = 0
    reply_bytes: int = 0

    @classmethod
    def of(cls, engine: Engine, method: str, questions: Sequence[Question], *, retrieval_only: bool = False) -> _Run:
        run = cls()

        def heard(reply: Reply | RequestFailed) -> None:
            run.replies += 1
            run.fresh += not (isinstance(reply, Reply) and reply.from_cache)
            run.reply_bytes += REPLY_BYTES + (
                len(reply.text.encode("utf-8", "replace")) if isinstance(reply, Reply) else 0
            )

        engine.on_reply = heard
        try:
            result = engine.run(method, questions, retrieval_only=retrieval_only)
        finally:
            engine.on_reply = None
        run.answers, run.wall_s = result.answers, result.wall_s
        return run

    def mean(self, name: str) -> float:
        """Of a field of usage, a question."""
        return sum(getattr(a.usage, name) for a in self.answers) / max(len(self.answers), 1)

    def seconds(self) -> float:
        """Inside services, a run."""
        return sum(self.mean(name) for name in SECONDS) * len(self.answers)


def _per_question(done: _Run, few: _Run, many: _Run) -> dict[str, float]:
    each = {name: done.mean(name) for name in (*COUNTS, *SECONDS)}
    if 0 < done.fresh < done.replies:  # the cache took no time
        each["llm_s"] *= done.replies / done.fresh
    for name in RETRIEVAL:
        alone, batched = few.mean(name), many.mean(name)
        if 0 < batched < alone:  # a larger batch costs less a question
            each[name] *= batched / alone
    each["other_s"] = max(0.0, many.wall_s - many.seconds()) / max(len(many.answers), 1)
    rows = sum(len(json.dumps(row_of(a), ensure_ascii=False).encode("utf-8", "replace")) for a in done.answers)
    each["disk_bytes"] = (rows + done.reply_bytes) / max(len(done.answers), 1)
    return each


def _notes(done: _Run, n: int) -> list[str]:
    notes = [f"extrapolated from {len(done.answers)} of {n:,} questions"] if n > len(done.answers) else []
    if done.replies and not done.fresh:
        notes.append("all replies of the sample were in the cache, so the LLM's time is not known")
    elif done.fresh:
        notes.append(f"the LLM was asked {done.fresh} times at once; one that takes more at once is faster than this")
    return notes
