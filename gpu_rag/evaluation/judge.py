"""An LLM as judge of answers: does an answer mean the same as one of the gold answers? Controls check the judge itself.

The judge writes a short reason and then the verdict, under a JSON schema. Equal answers to a question are judged once,
whichever methods gave them. An unreadable reply gives no verdict. A model that does not count as capable is not asked.
Papers call the share of correct answers by such a judge "accuracy".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gpu_rag.engine import Engine
from gpu_rag.errors import RequestFailed, UsageError
from gpu_rag.evaluation.metrics import exact_match, normalise_answer, token_f1
from gpu_rag.models.ask import Ask
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import LLM, ApiKeys, OnReply
from gpu_rag.models.set import ModelSet
from gpu_rag.settings.sections import EvalSettings
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer, Malformed, Reply, Request

MIN_RIGHT = 0.8  # minimum share of a kind of control; below it the verdicts cannot be trusted
KINDS = {
    "planted_right": "planted right answers",
    "planted_wrong": "planted wrong answers",
    "exact": "answers equal to a gold answer",
}
_TOKENS = {"prompt_tokens": "n_prompt", "cached_tokens": "n_cached", "generated_tokens": "n_generated"}
MAX_TRIED = 100  # answers of other questions that are tried as a wrong one; also claims for each planted one
MAX_GOLD = 50  # gold answers shown: those nearest to the answer by token F1


@dataclass(frozen=True)
class Claim:
    """A claim to judge: an answer to a question, with the gold answers."""

    question: str
    gold: tuple[str, ...]
    answer: str


class Judgement(Struct, frozen=True):
    """A judge's reply: a short reason, then the verdict."""

    reason: Annotated[str, Meta(max_length=400)]
    verdict: Literal["correct", "incorrect"]


def by_match(claim: Claim) -> Judgement:
    """Correct if the answer equals a gold answer after normalisation (em = 1)."""
    equal = exact_match(claim.answer, claim.gold)
    return Judgement("compared by their words", "correct" if equal else "incorrect")


JUDGE = Ask(
    "judge",
    Judgement,
    rule=by_match,
    prompt="gpu_rag.evaluation.prompts:judge",
    show=lambda claim: {  # one line per text, so that no text looks like the next field
        "question": _line(claim.question),
        "gold": "\n".join(_line(text) for text in _shown(claim)),
        "answer": _line(claim.answer),
    },
)


@dataclass(frozen=True)
class Verdict:
    """The judge's verdict on a claim. correct: None if there is no verdict. problem: then malformed (unreadable reply)
    or failed (no reply, or refused by the engine); else empty."""

    correct: bool | None
    problem: str = ""
    reply: Reply | None = None


class Judge:
    """A model that judges claims. n_asked, n_from_cache, s: totals of its calls. on_reply: called with each reply."""

    def __init__(self, llm: LLM, settings: EvalSettings | None = None):
        self.llm, self.settings = llm, settings or EvalSettings()
        given = self.settings.judge_capable
        self.capable = llm.capable if given is None else given
        self.on_reply: OnReply | None = None
        self.n_asked = self.n_from_cache = 0
        self.s = 0.0

    def request(self, claim: Claim) -> Request:
        """The request to the model."""
        return JUDGE.request({"claim": claim, "max_tokens": self.settings.judge_tokens}, self.llm)

    def verdicts(self, claims: Sequence[Claim]) -> list[Verdict]:
        """A verdict for each claim, in their order. Equal claims are asked once, and all in one call of the engine.

        Raises ModelError when the whole engine fails; the replies received until then are in its cache.
        """
        distinct = list(dict.fromkeys(claims))
        if not distinct:
            return []
        started = perf_counter()
        replies = self.llm.complete([self.request(claim) for claim in distinct], self.on_reply)
        self.s += perf_counter() - started
        self.n_asked += len(distinct)
        self.n_from_cache += sum(isinstance(reply, Reply) and reply.from_cache for reply in replies)
        verdicts = {claim: read_verdict(reply) for claim, reply in zip(distinct, replies, strict=True)}
        return [verdicts[claim] for claim in claims]


def read_verdict(reply: Reply | RequestFailed) -> Verdict:
    """The verdict of a reply. An unreadable reply is never guessed."""
    if isinstance(reply, RequestFailed):
        return Verdict(None, "failed")
    judgement, _ = JUDGE.read(reply, {})
    if isinstance(judgement, Malformed):
        return Verdict(None, "malformed", reply)
    return Verdict(judgement.verdict == "correct", "", reply)


def _line(text: str) -> str:
    return " ".join(text.split())


def _shown(claim: Claim) -> Sequence[str]:
    """The gold answers that fit a prompt; of very many (in a graph) the nearest to the answer, best first."""
    if len(claim.gold) <= MAX_GOLD:
        return claim.gold
    return sorted(claim.gold, key=lambda gold: -token_f1(claim.answer, [gold]))[:MAX_GOLD]


def claim_order(claim: Claim) -> str:
    """A fixed sort key of claims that does not depend on file order."""
    return sha256("\n".join((claim.question, claim.answer, *claim.gold)).encode("utf-8", "surrogatepass")).hexdigest()


@contextmanager
def open_judge(engine: Engine, *, replies: Path | None = None, api_key: ApiKeys = None) -> Iterator[Judge]:
    """The judge of the engine's settings: `eval.judge`, or else the model that answers.

    replies: a file that stores its replies. Raises UsageError (no model), MissingBackend, ModelError, StorageError.
    """
    settings = engine.settings.eval
    with ExitStack() as stack:
        if engine.models.has_llm() and not settings.judge:
            llm = engine.models.llm()  # the engine closes it
            if replies is not None and not isinstance(llm, CachedLLM):
                llm = CachedLLM(llm, replies)
                stack.callback(llm.file.close)
        else:
            spec = settings.judge or engine.settings.models.llm
            of_judge = replace(engine.settings.models, llm=spec, capable=settings.judge_capable, revision="")
            models = ModelSet(of_judge, replies, api_key=api_key, vllm=engine.settings.vllm)
            stack.enter_context(closing(models))
            llm = models.llm()
        yield Judge(llm, settings)


# --- the answers of a comparison, and controls ------------------------------------------------------

Controls = dict[str, list[Claim]]


def judge_answers(
    judge: Judge, answers: Mapping[str, Sequence[Answer]], rows: Sequence[QuestionRow]
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]], dict[str, Any]]:
    """(scores by method, costs and counts by method, facts about the judge).

    Scores are of the questions with answers, in their order: 1 for correct, else 0. Two kinds of answers need no judge:
    an answer equal to a gold answer after normalisation (em = 1) is correct, and an unanswered question is not. A claim
    without a verdict scores 0 and is counted. All claims and controls are asked together. A judge that is not capable
    is not asked and gives no scores. Raises UsageError, ModelError.
    """
    check_rows(rows)
    if not judge.capable:
        return {method: [] for method in answers}, {method: {} for method in answers}, _about(judge, {}, {})
    claims = {method: [_claim(a, r) for a, r in zip(given, rows) if r.answers] for method, given in answers.items()}
    controls = plant(rows, judge.settings.controls)
    controls["exact"] = exact_claims(answers, rows, judge.settings.controls)
    asked = [claim for claims_of in claims.values() for claim in claims_of if isinstance(claim, Claim)]
    planned = list(dict.fromkeys([*asked, *(claim for claims_of in controls.values() for claim in claims_of)]))
    verdicts = dict(zip(planned, judge.verdicts(planned), strict=True))
    scores = {
        method: [float(c if isinstance(c, float) else bool(verdicts[c].correct)) for c in claims_of]
        for method, claims_of in claims.items()
    }
    entries = {method: _entry(claims_of, verdicts, len(rows)) for method, claims_of in claims.items()}
    return scores, entries, _about(judge, controls, verdicts)


def check_rows(rows: Sequence[QuestionRow]) -> None:
    """Raise UsageError if no question has an answer."""
    if not any(row.answers for row in rows):
        raise UsageError("there is nothing to judge by", given="questions without answers", do="leave out --judge")


def _claim(answer: Answer, row: QuestionRow) -> Claim | float:
    """The claim to judge, or the score if a rule decides it."""
    if answer.status != "answered" or answer.text is None or not answer.text.strip():
        return 0.0
    claim = Claim(row.question.text, tuple(row.answers), answer.text)
    return 1.0 if by_match(claim).verdict == "correct" else claim


def plant(rows: Sequence[QuestionRow], n: int) -> Controls:
    """Claims with a known verdict: a question's own first gold answer, and the first gold answer of another question.

    At most n of each kind, chosen by hash, so the choice does not depend on order. A planted wrong answer is the next
    one that has no word in common with any gold answer of its question; a question without such an answer among the
    next MAX_TRIED gets none.
    """
    own = [Claim(row.question.text, tuple(row.answers), row.answers[0]) for row in rows if row.answers]
    own = sorted(own, key=claim_order)
    wrong: list[Claim] = []
    for place, claim in enumerate(own[: MAX_TRIED * n]):
        if len(wrong) == n:
            break
        others = (own[(place + step) % len(own)].answer for step in range(1, min(len(own), MAX_TRIED)))
        donor = next((text for text in others if normalise_answer(text) and token_f1(text, claim.gold) == 0), None)
        if donor is not None:
            wrong.append(Claim(claim.question, claim.gold, donor))
    return {"planted_right": own[:n], "planted_wrong": wrong}


def exact_claims(answers: Mapping[str, Sequence[Answer]], rows: Sequence[QuestionRow], n: int) -> list[Claim]:
    """At most n answers with em = 1, chosen by hash. They need no judge, but the judge should agree."""
    exact = {
        Claim(row.question.text, tuple(row.answers), answer.text)
        for given in answers.values()
        for answer, row in zip(given, rows)
        if answer.text and row.answers and _claim(answer, row) == 1.0
    }
    return sorted(exact, key=claim_order)[:n]


def _entry(claims: Sequence[Claim | float], verdicts: Mapping[Claim, Verdict], n: int) -> dict[str, Any]:
    """Counts and costs of one method, as if it had been judged alone."""
    asked = [verdicts[claim] for claim in claims if isinstance(claim, Claim)]
    replies = [verdict.reply for verdict in asked if verdict.reply is not None]
    entry: dict[str, Any] = {
        "judge_exact": sum(claim == 1.0 for claim in claims) / len(claims),
        "judge_unanswered": sum(claim == 0.0 for claim in claims) / len(claims),
        "judge_malformed": sum(verdict.problem == "malformed" for verdict in asked),
        "judge_failed": sum(verdict.problem == "failed" for verdict in asked),
        "judge_llm_calls": len(asked) / n,
    }
    entry.update({f"judge_{name}": sum(getattr(r, field) for r in replies) / n for name, field in _TOKENS.items()})
    return entry


def _about(judge: Judge, controls: Controls, verdicts: Mapping[Claim, Verdict]) -> dict[str, Any]:
    """Facts about the judge: its model, how it was asked, and its results on the controls."""
    check = {kind: _checked([verdicts[c] for c in claims], kind) for kind, claims in controls.items()}
    return {
        "model": judge.llm.name,
        "content_hash": judge.llm.content_hash,
        "capable": judge.capable,
        "prompt": JUDGE.prompt_of({}).digest[:16],
        "asked": judge.n_asked,
        "from_cache": judge.n_from_cache,
        "s": judge.s,
        "check": check,
        "doubts": _doubts(judge, check),
    }


def _checked(verdicts: Sequence[Verdict], kind: str) -> dict[str, int]:
    """{"n", "right": right verdicts, "unread": controls without a verdict}."""
    wanted = kind != "planted_wrong"
    return {
        "n": len(verdicts),
        "right": sum(verdict.correct is wanted for verdict in verdicts),
        "unread": sum(verdict.correct is None for verdict in verdicts),
    }


def _doubts(judge: Judge, check: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Reasons not to trust the verdicts; empty if there are none."""
    if not judge.capable:
        do = "set eval.judge to a model that is, or eval.judge_capable=true"
        return [f"{judge.llm.name} is not held to be capable of judging and was not asked: {do}"]
    doubts = []
    if not (check["planted_right"]["n"] and check["planted_wrong"]["n"]):
        doubts.append("the questions gave no right or no wrong answers to plant, so the judge was not checked")
    for kind, counts in check.items():
        if counts["right"] < MIN_RIGHT * counts["n"]:
            doubts.append(f"it was right about {counts['right']} of {counts['n']} {KINDS[kind]}")
    return doubts


def unread(document: Mapping[str, Any]) -> tuple[int, int]:
    """(claims without a verdict, claims that needed one) of all methods of an evaluation's document."""
    entries = [entry for entry in document["methods"].values() if entry.get("judge") is not None]
    lost = sum(entry["judge_malformed"] + entry["judge_failed"] for entry in entries)
    return lost, round(sum(entry["judge_llm_calls"] for entry in entries) * document["n"])
