"""An LLM as judge of answers: does an answer say the same as one of the gold answers?

It writes a short reason and then the verdict, under a JSON schema. Equal answers to a question are judged once,
whichever methods gave them; a reply that is no verdict stays without one. A model that does not count as capable is
asked nothing. Papers call the share of correct answers by such a judge "accuracy".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from gpu_rag.engine import Engine
from gpu_rag.errors import RequestFailed
from gpu_rag.evaluation.metrics import token_f1
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import LLM, ApiKeys, OnReply
from gpu_rag.models.set import ModelSet
from gpu_rag.settings.sections import EvalSettings
from gpu_rag.text.lenient import read_reply
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.types import JsonSchema, Malformed, Reply, Request

MOST_GOLD = 50  # gold answers that are shown: those nearest to the answer by token F1
_SCHEMA = canonical_schema(
    {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "maxLength": 400},
            "verdict": {"enum": ["correct", "incorrect"]},
        },
        "required": ["reason", "verdict"],
        "additionalProperties": False,
    }
)


@dataclass(frozen=True)
class Claim:
    """A claim to judge: an answer to a question, beside the gold answers."""

    question: str
    gold: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Verdict:
    """The judge's word on a claim. correct: None where it gave no verdict. problem: then malformed (its reply cannot
    be read) or failed (no reply came, or the engine refused it), else empty."""

    correct: bool | None
    problem: str = ""
    reply: Reply | None = None


class Judge:
    """A model that judges claims. n_asked, n_from_cache, s: of all its calls. on_reply: hears of each reply."""

    def __init__(self, llm: LLM, settings: EvalSettings | None = None):
        self.llm, self.settings = llm, settings or EvalSettings()
        given = self.settings.judge_capable
        self.capable = llm.capable if given is None else given
        self.prompt = Prompt.read("gpu_rag.evaluation.prompts", "judge")
        self.on_reply: OnReply | None = None
        self.n_asked = self.n_from_cache = 0
        self.s = 0.0

    def request(self, claim: Claim) -> Request:
        """The request to the model. Texts are put on one line each, so that none of them looks like the next field."""
        gold = [_line(text) for text in _shown(claim)]
        fields = {"question": _line(claim.question), "gold": "\n".join(gold), "answer": _line(claim.answer)}
        text = self.prompt.render(**fields)
        return Request(self.prompt.system, text, JsonSchema(_SCHEMA), self.settings.judge_tokens)

    def verdicts(self, claims: Sequence[Claim]) -> list[Verdict]:
        """A verdict for each claim, in their order; equal claims are asked once, all of them in one call of the engine.

        Raises ModelError when the engine as a whole cannot go on; the replies that came until then are in its cache.
        """
        distinct = list(dict.fromkeys(claims))
        if not distinct:
            return []
        started = perf_counter()
        replies = self.llm.complete([self.request(claim) for claim in distinct], self.on_reply)
        self.s += perf_counter() - started
        self.n_asked += len(distinct)
        self.n_from_cache += sum(isinstance(reply, Reply) and reply.from_cache for reply in replies)
        said = {claim: read_verdict(reply) for claim, reply in zip(distinct, replies, strict=True)}
        return [said[claim] for claim in claims]


def read_verdict(reply: Reply | RequestFailed) -> Verdict:
    """The verdict of a reply; never a guess from what is no verdict."""
    if isinstance(reply, RequestFailed):
        return Verdict(None, "failed")
    found = read_reply(reply, JsonSchema(_SCHEMA))
    if isinstance(found, Malformed):
        return Verdict(None, "malformed", reply)
    return Verdict(found.value["verdict"] == "correct", "", reply)


def _line(text: str) -> str:
    return " ".join(text.split())


def _shown(claim: Claim) -> Sequence[str]:
    """The gold answers that fit a prompt; of very many (a graph's) the nearest to the answer, best first."""
    if len(claim.gold) <= MOST_GOLD:
        return claim.gold
    return sorted(claim.gold, key=lambda gold: -token_f1(claim.answer, [gold]))[:MOST_GOLD]


def claim_order(claim: Claim) -> str:
    """A fixed order of claims that has nothing to do with the order of a file."""
    return sha256("\n".join((claim.question, claim.answer, *claim.gold)).encode("utf-8", "surrogatepass")).hexdigest()


@contextmanager
def open_judge(engine: Engine, *, replies: Path | None = None, api_key: ApiKeys = None) -> Iterator[Judge]:
    """The judge that the engine's settings name: `eval.judge`, or the model that answers.

    replies: a file that keeps its replies. Raises UsageError (no model), MissingBackend, ModelError, StorageError.
    """
    settings = engine.settings.eval
    with ExitStack() as stack:
        if engine.models.has_llm() and not settings.judge:
            llm = engine.models.llm()  # which the engine closes
            if replies is not None and not isinstance(llm, CachedLLM):
                llm = CachedLLM(llm, replies)
                stack.callback(llm.file.close)
        else:
            spec = settings.judge or engine.settings.models.llm
            of_judge = replace(engine.settings.models, llm=spec, capable=settings.judge_capable)
            workers = None if spec.startswith("http") else engine.models.open_workers  # a server is nobody's worker
            models = ModelSet(of_judge, replies, api_key=api_key, vllm=engine.settings.vllm, workers=workers)
            stack.enter_context(closing(models))
            llm = models.llm()
        yield Judge(llm, settings)
