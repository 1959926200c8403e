"""The cost of an answer job: tokens and seconds by service, predicted from questions that are really answered."""

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
from gpu_rag.jobs import Tally, read_rows, row_of
from gpu_rag.plan.compare import KINDS, Comparison, compared, read_plan, write_plan
from gpu_rag.program.decide import RULE
from gpu_rag.types import Question, Reply

DEFAULT_SAMPLE = 5
PLANNED = {"vector_cache_gib": 0.0}  # changes to [models]: with cached vectors embedding would look free
REPLY_BYTES = 300  # stored in the cache besides a reply's text
SERVICES = {"llm": "llm_s", "embedding": "embed_s", "graph": "graph_s"}
SECONDS = tuple(SERVICES.values())
COUNTS = ("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens")
KEYS = ("per_question", "asked_ids", "config", "load_s", "first_use")


def plan_path(answers: Path) -> Path:
    """The plan of an answers file, beside it."""
    return answers.with_name(answers.name + ".plan.json")


def _plain(config: Mapping[str, Any]) -> Any:
    """A configuration as read back from JSON, where tuples are lists."""
    return json.loads(canonical_json(config))


def predict(plan: Mapping[str, Any], ids: Sequence[str]) -> dict[str, float]:
    """The predicted cost of the questions with these ids. Questions that the plan answered cost no LLM time again."""
    each, first_use, n = plan["per_question"], plan["first_use"] if ids else {}, len(ids)
    n_new = len(set(ids) - set(plan["asked_ids"]))
    counts = {name: round(each[name] * n) for name in (*COUNTS, "disk_bytes")}
    seconds = {
        name: each[name] * (n_new if name == "llm_s" else n) + first_use.get(name, 0.0)
        for name in (*SECONDS, "other_s")
    }
    return {**counts, **seconds, "wall_s": plan["load_s"] + sum(seconds.values()) if ids else 0.0}


def plan_answers(
    engine: Engine,
    method: str,
    questions: Sequence[Question],
    out: Path,
    *,
    n_sample: int = DEFAULT_SAMPLE,
    where: str = "",
) -> dict[str, Any]:
    """The plan of a job that answers the `questions` without a row in the answers file `out`. It is also written
    beside `out`.

    A random sample of n_sample questions is answered through the engine's reply cache, so the job does not ask them
    again. Questions that an earlier plan asked are not chosen. `engine` must embed without a vector cache, or embedding
    looks free.
    """
    reset_peak_memory()
    started = time.perf_counter()
    rows = read_rows(out) if out.exists() else iter(())
    kept = {row["id"] for row in rows if row["status"] != "failed"} & {question.id for question in questions}
    questions = [question for question in questions if question.id not in kept]
    config = _plain(engine.config(method, where=where))  # loads the models
    earlier = read_plan(plan_path(out), KEYS)
    before = set(earlier["asked_ids"]) if earlier is not None and earlier["config"] == config else set()
    pool = [q for q in questions if q.id not in before] or list(questions)
    chosen = random.Random(engine.settings.runtime.seed).sample(range(len(pool)), min(n_sample, len(pool)))
    sample = [pool[i] for i in sorted(chosen)]
    first, warm = (engine.run(method, sample, retrieval_only=True, where=where, decider=RULE) for _ in range(2))
    load_s = max(time.perf_counter() - started - first.wall_s - warm.wall_s, 0.0)
    replies: list[Reply | RequestFailed] = []
    engine.on_reply = replies.append
    try:
        result = engine.run(method, sample, where=where)
    finally:
        engine.on_reply = None
    n, n_fresh = len(questions), sum(not (isinstance(reply, Reply) and reply.from_cache) for reply in replies)
    done, before_use, after_use = (Tally.of(run.answers) for run in (result, first, warm))
    notes = [f"extrapolated from {done.n} of {n:,} questions"] if n > done.n else []
    if n_fresh:
        notes.append(f"the LLM was asked {n_fresh} times at once; one that takes more at once is faster than this")
    elif replies:
        notes.append("all replies of the sample were in the cache, so the LLM's time is not known")
    each = {name: float(done.usage[name]) / max(done.n, 1) for name in (*COUNTS, *SECONDS)}
    each["other_s"] = max(0.0, result.wall_s / max(done.n, 1) - sum(each[name] for name in SECONDS))
    each["llm_s"] *= len(replies) / n_fresh if n_fresh else 1  # cached replies took no time
    texts = [json.dumps(row_of(answer), ensure_ascii=False) for answer in result.answers]
    texts += [reply.text for reply in replies if isinstance(reply, Reply)]
    stored = sum(len(text.encode("utf-8", "replace")) for text in texts) + REPLY_BYTES * len(replies)
    document: dict[str, Any] = {
        "method": method,
        "todo": n,
        "sample": len(sample),
        "asked_ids": sorted(before | {a.question_id for a in result.answers if a.status != "failed"}),
        "statuses": done.statuses,
        "per_question": {**each, "disk_bytes": stored / max(done.n, 1)},
        "load_s": load_s,
        "first_use": {
            name: max(0.0, before_use.usage[name] - after_use.usage[name]) for name in ("embed_s", "graph_s")
        },
    }
    document.update(predict(document, [q.id for q in questions]))
    document.update(peak_memory_bytes=peak_memory_bytes(), notes=notes, config=config, kept=len(kept), out=str(out))
    document["plan_s"] = time.perf_counter() - started
    write_plan(plan_path(out), document)
    return document


class PlannedAnswers:
    """The plan of an answer job, if there is one, and the job's memory and disk use from here on."""

    def __init__(self, out: Path, replies: Path):
        """Read the plan beside `out`. Raises BadInput if it is not a plan."""
        self.path, self._files = plan_path(out), (out, replies)
        self._plan = read_plan(self.path, KEYS)
        self._before = self._bytes()
        reset_peak_memory()

    def _bytes(self) -> int:
        return sum(file.stat().st_size for file in self._files if file.exists())

    def compare(
        self, ids: Sequence[str], config: Mapping[str, Any], usage: Mapping[str, float], wall_s: float
    ) -> tuple[Comparison | None, str]:
        """The comparison of this run's questions and summed cost with the plan, by service, and a remark.

        The comparison is None if nothing was planned or answered, or if the plan belongs to another job; the remark
        says so.
        """
        if self._plan is None or not ids:
            return None, ""
        if self._plan["config"] != _plain(config):
            return None, f"{self.path} is of other settings: not compared"
        try:
            return self._compared(ids, usage, wall_s), ""
        except (LookupError, TypeError, ValueError, AttributeError):
            return None, f"{self.path} is no plan that --plan has written: not compared"

    def _compared(self, ids: Sequence[str], usage: Mapping[str, float], wall_s: float) -> Comparison:
        assert self._plan is not None
        predicted, actual = predict(self._plan, ids), {**usage, "wall_s": wall_s}
        seconds = {name: (predicted[key], actual[key]) for name, key in {**SERVICES, "wall": "wall_s"}.items()}
        tokens = {kind: (predicted[f"{kind}_tokens"], usage[f"{kind}_tokens"]) for kind in KINDS}
        memory = (self._plan["peak_memory_bytes"], peak_memory_bytes())
        return compared(seconds, tokens, memory, (predicted["disk_bytes"], self._bytes() - self._before))
