"""What programs say to models: `ask` an LLM, `choose` among candidates, `embed` texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.program.decider import SLOT, Decision, decide, resolve_decider
from gpu_rag.program.model_calls import model_executors, reply_hash
from gpu_rag.program.packer import SEPARATOR, fits, overflow, pack
from gpu_rag.runtime.call import Call
from gpu_rag.runtime.trace import Context, Slot
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import parse_json
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply, Request

if TYPE_CHECKING:
    from gpu_rag.models.llm import LLM

__all__ = ["ModelSettings", "ModelVerbs", "model_executors", "reply_hash", "resolve_decider"]

REPAIR = "\n\nAn earlier reply could not be read: {reason}\nReply again, in exactly the form asked for."
_REASON_CHARS = 200


@dataclass(frozen=True)
class ModelSettings:
    """What the model verbs of a run share. threshold: least cosine of a choice that may be empty, where a prompt does
    not bring its own. temperature: of every request."""

    llm: LLM | None
    decider: str = "auto"
    threshold: float = 0.3
    temperature: float = 0.0

    def __post_init__(self) -> None:
        resolve_decider(self.decider, self.llm)
        if not -1.0 <= self.threshold <= 1.0:
            raise UsageError("the threshold is a cosine", given=self.threshold, expected="-1 to 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError("the temperature cannot be negative", given=self.temperature, expected=">= 0")

    @property
    def decides_by(self) -> str:
        """llm | similarity."""
        return resolve_decider(self.decider, self.llm)


class ModelVerbs:
    """The model verbs of ONE question: replies are noted in its trace, malformed ones and cut tokens in its costs."""

    __slots__ = ("ctx", "settings")

    def __init__(self, ctx: Context, settings: ModelSettings):
        self.ctx, self.settings = ctx, settings

    @property
    def llm(self) -> LLM:
        """The language model. Raises UsageError where none is configured."""
        if self.settings.llm is None:
            raise UsageError(
                "this step needs a language model and none is configured", do="choose one with --set models.llm=MODEL"
            )
        return self.settings.llm

    async def ask(
        self,
        prompt: Prompt,
        fields: Mapping[str, str],
        *,
        schema: str | None,
        max_tokens: int,
        evidence: Sequence[str] | None = None,
        slot: str = "evidence",
        name: str = "ask",
    ) -> str | dict[str, Any] | Malformed:
        """The reply to `prompt`: its text, or the JSON object where `schema` (canonical JSON Schema text) is given.

        evidence: texts, best first, that the packer puts into `{{slot}}` as far as they fit. A reply that is not valid
        under the schema gets one repair try, then Malformed is returned; each is counted. name: in the trace.
        Raises ContextOverflow when the prompt does not fit, RequestFailed when the request failed.
        """
        if evidence is not None:
            text, _, _ = self.pack(prompt, fields, slot, evidence, max_tokens=max_tokens)
        else:
            text = prompt.render(**fields)
            if not fits(self.llm, prompt.system, text, max_tokens):
                n_tokens = self.llm.count_tokens(prompt.system) + self.llm.count_tokens(text)
                raise overflow(self.llm, prompt, n_tokens, max_tokens)
        return await self.ask_text(prompt, text, schema=schema, max_tokens=max_tokens, name=name)

    async def ask_text(
        self, prompt: Prompt, text: str, *, schema: str | None, max_tokens: int, name: str = "ask"
    ) -> str | dict[str, Any] | Malformed:
        """`ask` with a user text that is rendered already (by `pack`, when a program must know what was shown)."""
        at = self.ctx.slot
        if schema is None:
            reply = await self.request(prompt.system, text, None, max_tokens=max_tokens, slot=at)
            self.note(name, 0, (), reply)
            return reply.text
        first = await self.request(prompt.system, text, JsonSchema(schema), max_tokens=max_tokens, slot=at)
        value = parse_json(first.text, schema)
        if not isinstance(value, Malformed):
            self.note(name, 0, (), first)
            return value
        text = self.repair(name, prompt, text, first, value, max_tokens)
        again = await self.request(prompt.system, text, JsonSchema(schema), max_tokens=max_tokens, slot=at, attempt=1)
        value = parse_json(again.text, schema)
        if isinstance(value, Malformed):
            self.note_malformed(name, again)
        else:
            self.note(name, 0, (), again)
        return value

    async def choose(
        self,
        prompt: Prompt,
        fields: Mapping[str, str],
        options: Sequence[str],
        *,
        query: str,
        k: int = 1,
        allow_none: bool = False,
        threshold: float | None = None,
        similarity: Sequence[float] | None = None,
        name: str = "choose",
    ) -> list[int]:
        """Positions of the best options, best first: 1 to k, or 0 to k with `allow_none`. See `decider` for the rules.

        prompt: says what makes an option good; its slot `{{options}}` is filled here, the others by `fields`.
        query: what similarity compares the options with; similarity: a score for each option in place of that cosine;
        threshold: the least score with `allow_none`. Only options that fit the context can be chosen by an LLM.
        """
        if k < 1:
            raise UsageError("a choice takes at least one option", given=f"k={k}", expected=">= 1")
        wanted, given = set(prompt.fields), {*fields, SLOT}
        if wanted != given or SLOT in fields:
            raise UsageError(
                f"the fields do not fit the prompt {prompt.name} of a choice",
                given=sorted(fields),
                expected=f"{sorted(wanted - {SLOT})}, and a slot {{{{{SLOT}}}}} in the prompt",
            )
        if similarity is not None and (len(similarity) != len(options) or not np.isfinite(similarity).all()):
            raise UsageError("a choice needs one finite score for each option", given=list(similarity)[:8])
        _check_texts([query, *options])
        if threshold is None:
            threshold = self.settings.threshold
        return await decide(
            self, Decision(name, prompt, fields, tuple(options), query, k, allow_none, threshold, similarity)
        )

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]."""
        _check_texts(texts)
        return await Call("embed", (), tuple(texts))

    def pack(
        self,
        prompt: Prompt,
        fields: Mapping[str, str],
        slot: str,
        evidence: Sequence[str],
        *,
        max_tokens: int,
        separator: str = SEPARATOR,
        ending: str = "",
    ) -> tuple[str, int, int]:
        """THE packer for this model, see `packer.pack`; what was cut is added to the question's costs."""
        packed = pack(
            prompt,
            fields,
            slot,
            evidence,
            llm=self.llm,
            max_tokens=max_tokens,
            separator=separator,
            ending=ending,
        )
        self.ctx.usage.cut += packed[2]
        return packed

    async def request(
        self,
        system: str,
        text: str,
        constraint: JsonSchema | Choice | Rank | None,
        *,
        max_tokens: int,
        slot: Slot | None = None,
        attempt: int = 0,
    ) -> Reply:
        """One model request, without packing, parsing or note. slot: that of the first try, for a repair's seed."""
        _check_texts([system, text])
        if self.settings.llm is None:
            raise UsageError(
                "this step needs a language model and none is configured", do="choose one with --set models.llm=MODEL"
            )
        seed = self.ctx.request_seed(self.ctx.slot if slot is None else slot, attempt)
        return await Call(
            "llm", (), Request(system, text, constraint, max_tokens, self.settings.temperature, seed, attempt)
        )

    def repair(self, name: str, prompt: Prompt, text: str, reply: Reply, malformed: Malformed, max_tokens: int) -> str:
        """Note a malformed reply; the user text of the next try, with the reason where that still fits."""
        self.note_malformed(name, reply)
        reason = (
            f"it was cut off at {reply.n_generated} tokens" if reply.finish_reason == "length" else malformed.reason
        )
        longer = text + REPAIR.format(reason=reason[:_REASON_CHARS])
        return longer if fits(self.llm, prompt.system, longer, max_tokens) else text

    def note_malformed(self, name: str, reply: Reply) -> None:
        """Count and note a reply that could not be read."""
        self.ctx.usage.malformed += 1
        self.note(f"{name}/malformed", 0, (), reply)

    def note(self, name: str, n_candidates: int, chosen: tuple[str, ...], reply: Reply | None) -> None:
        """Note a decision with the hash of the reply that it came from."""
        self.ctx.note(name, n_candidates, chosen, "" if reply is None else reply_hash(reply.text))


def _check_texts(texts: Sequence[str]) -> None:
    """Refuse here what a tokenizer would choke on later, with the whole batch."""
    for text in texts:
        if not isinstance(text, str):
            raise UsageError("a model reads text", given=type(text).__name__, expected="str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInput(
                "a text is not valid Unicode", given=ascii(text[:40]), do="remove lone surrogates"
            ) from error
