"""What the dialogue of Seeker and Librarian costs: requests, tokens, seconds and batch sizes by stage.

usage: python scripts/bench_dialogue.py INDEX QUESTIONS [--method higra-agent] [--limit 10] [--llm smollm2]
           [--driver rounds|streaming] [--record REPLIES.jsonl]

--llm scripted: a stand-in for a capable model that replies at once: the plan of the rules, the first entity as seed,
the title of the first passage as the Librarian's answer, and an answer after every sub-question of the plan was asked.
It shows the requests and batches of a run with a capable model; its tokens are estimates, its seconds are none.
--record: write the model's replies down; --llm replay:REPLIES.jsonl then repeats them. `rows_sha256` is the same for
runs whose rows are equal in all but seconds and the hash of the settings, which names the model.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpu_rag import Index, load_questions
from gpu_rag.jobs import row_of
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.interface import LLM, OnReply
from gpu_rag.models.llm.replay import RecordingLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.text.rules.decomposition import fill, plan_by_rules
from gpu_rag.types import Answer, Reply, Request

STAGES = {
    "You rewrite requests": "clarify",
    "You plan how": "plan",
    "You pick the entities": "seeds",
    "You are a librarian": "librarian",
    "A librarian answers simple": "seeker",
    "No more can be asked": "forced answer",
    "You answer questions from passages": "librarian (short answers)",
}


def stage_of(request: Request) -> str:
    """The stage that a request belongs to, by its static part."""
    return next((stage for words, stage in STAGES.items() if words in request.system), "other")


class Counting:
    """An engine that books what another is asked, by stage: requests, tokens, seconds, and the size of each batch."""

    def __init__(self, llm: LLM):
        self.llm, self.name, self.content_hash = llm, llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        self.stages: dict[str, dict[str, float]] = defaultdict(
            lambda: {"requests": 0, "prompt_tokens": 0, "generated_tokens": 0}
        )
        self.batches: list[dict[str, Any]] = []

    def count_tokens(self, text: str) -> int:
        """As the engine counts."""
        return self.llm.count_tokens(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Any]:
        """What the engine replies, in order."""
        started = time.perf_counter()
        replies = self.llm.complete(requests, on_reply)
        sizes: dict[str, int] = defaultdict(int)
        for request, reply in zip(requests, replies):
            stage = stage_of(request)
            sizes[stage] += 1
            self.stages[stage]["requests"] += 1
            if isinstance(reply, Reply):
                self.stages[stage]["prompt_tokens"] += reply.n_prompt
                self.stages[stage]["generated_tokens"] += reply.n_generated
        self.batches.append({"size": len(requests), "s": round(time.perf_counter() - started, 3), **sizes})
        return replies

    def close(self) -> None:
        """Free the engine."""
        self.llm.close()


def scripted(request: Request) -> str:
    """The stand-in for a capable model."""
    stage, prompt = stage_of(request), request.prompt
    if stage == "seeds":
        return '{"chosen": ["A"]}'
    if stage == "clarify":
        return json.dumps({"question": "What is " + prompt.split("Text: ")[1].splitlines()[0]})
    question = re.findall(r"^Question: (.*)$", prompt, re.MULTILINE)[-1]
    plan = plan_by_rules(question)
    if stage == "plan":
        steps = [{"id": s.id, "subquestion": s.question, "depends_on": list(s.depends_on)} for s in plan.steps]
        return json.dumps({"subject": plan.subject, "plan": steps})
    if stage == "librarian":
        title = prompt.split("[1] ")[1].splitlines()[0]
        return json.dumps({"answers": [title], "evidence": f"The passage {title} says so.", "passages": [1]})
    answers = re.findall(r"^answers: (.*)$", prompt, re.MULTILINE)
    if stage == "seeker" and len(answers) < len(plan.steps):
        order = [s for s in plan.steps if not s.depends_on] + [s for s in plan.steps if s.depends_on]
        known = {step.id: answer for step, answer in zip(order, answers)}
        asks = [fill(step.question, known) for step in order[len(answers) :] if set(step.depends_on) <= known.keys()]
        return json.dumps({"action": "ask_librarian", "subquestions": asks, "answer": "", "evidence": []})
    final = {"answer": answers[-1], "evidence": [len(answers)]}
    return json.dumps({"action": "answer", "subquestions": [], **final} if stage == "seeker" else final)


def rows_hash(answers: Sequence[Answer]) -> str:
    """SHA-256 of all rows without their seconds and their `config_hash`."""
    rows = [row_of(answer) for answer in answers]
    for row in rows:
        del row["config_hash"]
        row["trace"] = [{key: value for key, value in step.items() if key != "s"} for step in row["trace"]]
        row["usage"] = {key: value for key, value in row["usage"].items() if not key.endswith("_s")}
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def engine_of(spec: str, record: Path | None) -> LLM:
    """The stand-in, or what `load_llm` makes of `spec`; with `record` its replies are written there."""
    llm: LLM = ScriptedLLM(scripted) if spec == "scripted" else load_llm(spec, device="cpu")
    return llm if record is None else RecordingLLM(llm, record)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--method", default="higra-agent")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--llm", default="smollm2")
    parser.add_argument("--driver", choices=("rounds", "streaming"), default="rounds")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    index = Index.open(options.index)
    questions = [row.question for row in load_questions(options.questions, options.limit)[0]]
    llm = Counting(engine_of(options.llm, options.record))
    engine = index.engine({"runtime": {"driver": options.driver}}, llm=llm)
    engine.run(options.method, questions[:1], retrieval_only=True)  # loads the embedder and compiles
    result = engine.run(options.method, questions)
    status: dict[str, int] = defaultdict(int)
    for answer in result.answers:
        status[answer.status] += 1
    verbs = {
        verb: {"calls": s.n_calls, "s": round(s.s, 3), "batch_sizes": {str(k): n for k, n in s.batch_sizes.items()}}
        for verb, s in result.stats.steps.items()
    }
    document = {
        "method": options.method,
        "llm": options.llm,
        "driver": options.driver,
        "questions": len(questions),
        "status": status,
        "rows_sha256": rows_hash(result.answers),
        "malformed": sum(answer.usage.malformed for answer in result.answers),
        "cut_tokens": sum(answer.usage.cut for answer in result.answers),
        "wall_s": round(result.wall_s, 2),
        "outside_executors_s": round(result.stats.overhead_s, 3),
        "rounds": result.stats.n_rounds,
        "stages": {stage: dict(counts) for stage, counts in llm.stages.items()},
        "verbs": verbs,
        "llm_batches": llm.batches,
        "machine": platform.machine(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
