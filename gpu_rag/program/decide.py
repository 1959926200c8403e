"""`decide`: the single entry point for every decision of a program, whoever makes it.

    chain = await decide(run, ANALYSE, question=question.text, topics=topics)
    (edge,) = await decide(run, HOP, question=question.text, options=texts, scores=scores)

The decider is a value of the run:
Rule      the rule of the Ask; for a Choose the best options by score or by cosine with the query.
Model     the language model: a typed reply under the schema of the Ask, or a choice, see `program.choose`. An
          unreadable reply gets one repair. An unusable reply is replaced by `unread` of the Ask, else by its rule, and
          is counted. A model that is not capable only makes choices, by its own scores.
Oracle    a perfect decider that errs with a given probability, see `program.oracle`; for evaluation only.

A run may limit its model requests (`Run.most_calls`). When they are used up, rules decide, and nothing is read.

Each decision is one note in the trace: "name/by", with `by` = rule, model, rank, oracle, only (there is one option) or
fallback (the rule, in place of an unusable reply); reading is noted as "name". A rule that takes none of the options,
or has no words, is not noted.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

import numpy as np

from gpu_rag.errors import UsageError
from gpu_rag.models.ask import Ask, Choose, Fields, Options, Taken, call, shown
from gpu_rag.models.llm.interface import LLM
from gpu_rag.program.choose import best, by_labels, by_rank, shuffled, whole
from gpu_rag.program.embed import check_texts
from gpu_rag.program.replies import Form, count, reply_to
from gpu_rag.program.run import Decider, Run
from gpu_rag.program.steps import similarity
from gpu_rag.runtime.gather import gather
from gpu_rag.text.lenient import Read
from gpu_rag.types import JsonSchema, Malformed

R = TypeVar("R")
DECIDERS = ("auto", "model", "rule")
DECISION_CALLS = 2  # a reply and its repair
_NOTE_CHARS = 120


@overload
async def decide(run: Run, ask: Choose, /, **fields: Any) -> list[int]: ...
@overload
async def decide(run: Run, ask: Ask[R], /, **fields: Any) -> R: ...
async def decide(run: Run, ask: Any, /, **fields: Any) -> Any:
    """The reply to an Ask, or the positions of a Choose, by the decider of the run; noted in the trace.

    Raises ContextOverflow when a prompt does not fit, RequestFailed when a request failed, UsageError for invalid
    fields of a Choose (of one with `show`, only where a model decides: it may read much of the index).
    """
    decider = decider_in(run, ask.reads if isinstance(ask, Ask) else "")
    if isinstance(ask, Choose):
        options = options_of(ask, fields)
        taken = await _chosen(run, decider, ask, options, fields)
        lines = tuple(options.texts[i][:_NOTE_CHARS] for i in taken.value)
        if options.texts and (lines or ask.rule is None or taken.by != "rule"):
            run.note(f"{options.name}/{taken.by}", len(options.texts), lines, taken.reply)
        if run.on_choice is not None:
            await run.on_choice(run, ask, fields, taken.value)
        return taken.value
    taken = await decider.reply(run, ask, fields)
    words = () if ask.words is None else tuple(call(ask.words, fields, taken.value))
    if not ask.reads and (words or ask.words is None or taken.by != "rule"):
        run.note(f"{ask.name}/{taken.by}", taken.n_candidates, words, taken.reply)
    elif ask.reads and taken.reply is not None:
        run.note(ask.name, 0, words, taken.reply)
    return taken.value


def only_rules(run: Run) -> bool:
    """Whether rules take all choices and nobody watches them, so that options which no rule takes need not be made."""
    return run.decider is RULE and run.on_choice is None


def decider_in(run: Run, reads: str) -> Decider:
    """The decider of a decision. Rules decide if too few requests are left for a reply and its repair."""
    if run.most_calls is not None and run.ctx.usage.llm_calls + DECISION_CALLS > run.most_calls:
        return RULE
    if reads:
        llm = run.models.llm
        return MODEL if llm is not None and (llm.capable or reads == "any") else RULE
    return run.decider


async def decide_all(
    run: Run, choose: Choose, several: Sequence[Fields], together: Callable[[], Awaitable[list[list[int]]]] | None
) -> list[list[int]]:
    """The positions of several choices. together: makes all of them in fewer requests, for a capable model."""
    if together is not None and decider_in(run, "") is MODEL and run.models.language_model.capable:
        taken = await together()
        if run.on_choice is not None:
            for fields, positions in zip(several, taken, strict=True):
                await run.on_choice(run, choose, fields, positions)
        return taken
    return list(await gather(*(decide(run, choose, **fields) for fields in several)))


def options_of(choose: Choose, fields: Fields) -> Options:
    """The options of a choice, checked. Raises UsageError."""
    texts, scores = tuple(fields["options"]), fields.get("scores")
    if choose.show is None:
        choose.slots(fields)  # report a wrong field, whoever decides
    k: int = fields.get("k", choose.k)
    if k < 1:
        raise UsageError("a choice takes at least one option", given=f"{choose.name} with k={k}", expected=">= 1")
    if scores is not None and (len(scores) != len(texts) or not np.isfinite(scores).all()):
        raise UsageError("a choice needs one finite score for each option", given=list(scores)[:8])
    check_texts([fields.get("query", ""), *texts])
    threshold: float = fields.get("threshold", choose.threshold)
    name = f"{choose.name}_{fields['step']}" if "step" in fields else choose.name
    return Options(name, texts, fields.get("query", ""), k, choose.none, threshold, scores)


async def _chosen(run: Run, decider: Decider, choose: Choose, options: Options, fields: Fields) -> Taken:
    if not options.texts:
        return Taken([], "only")
    if len(options.texts) == 1 and not options.allow_none:
        return Taken([0], "only")
    return await decider.choice(run, choose, options, fields)


@dataclass(frozen=True)
class Rule:
    """The decider that applies the rules."""

    async def reply(self, run: Run, ask: Ask[Any], fields: Fields) -> Taken:
        """The reply of the rule."""
        return Taken(await awaited(call(ask.rule, fields)), "rule")

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Fields) -> Taken:
        """The positions that the rule gives, else the best by score."""
        if choose.rule is not None:
            return Taken(list(await awaited(call(choose.rule, fields))), "rule")
        scores: Sequence[float] | np.ndarray | None = options.scores
        if scores is None:
            scores = await similarity((options.query, options.texts))
        return Taken(best(scores, options.k, options.threshold if options.allow_none else None), "rule")


@dataclass(frozen=True)
class Model:
    """The decider that asks the language model; rules decide if it cannot."""

    async def reply(self, run: Run, ask: Ask[Any], fields: Fields) -> Taken:
        """The typed reply of the model."""
        llm = run.models.language_model
        if not (llm.capable or ask.reads == "any"):
            return await RULE.reply(run, ask, fields)
        prompt, room, schema = ask.prompt_of(fields), ask.room(fields, llm), ask.schema_text(fields)
        rendered = shown(llm, prompt, ask.slots(fields), room)
        run.ctx.usage.cut += rendered.n_cut
        constraint = None if schema is None else JsonSchema(schema)
        form = Form(ask.name, constraint, room, ask.temperature, on_text=fields.get("on_text"))
        read, reply = await reply_to(run, prompt, rendered.text, form)
        value = ask.typed(read, fields, rendered.positions) if isinstance(read, Read) else read
        if not isinstance(value, Malformed):
            return Taken(value, "model", reply, len(rendered.positions))
        count(run, ask.name, "rule")
        if ask.unread is not None:
            return Taken(call(ask.unread, fields), "fallback", reply)
        return Taken((await RULE.reply(run, ask, fields)).value, "fallback", reply)

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Fields) -> Taken:
        """The positions that the model takes, or the rule if no packed text of the prompt fits."""
        prompt = choose.prompt_of(fields)
        slots = whole(run, prompt, choose.slots(fields), options)
        if slots is None:
            return await RULE.choice(run, choose, options, fields)
        order: Sequence[int] = range(len(options.texts))
        seen = options
        if choose.shuffled:
            order = shuffled(run, options.name, options.texts[0], len(options.texts))
            seen = replace(options, texts=tuple(options.texts[i] for i in order), rank=order)
        if not run.models.language_model.capable:
            if choose.plans:
                return await RULE.choice(run, choose, options, fields)
            ranked = await by_rank(run, prompt, slots, seen)
            if ranked is not None:
                return Taken([order[i] for i in ranked[0]], "rank", ranked[1])
        picked = await by_labels(run, prompt, slots, seen)
        if picked is not None:
            return Taken([order[i] for i in picked[0]], "model", picked[1])
        count(run, options.name, "rule")
        return Taken((await RULE.choice(run, choose, options, fields)).value, "fallback")


RULE, MODEL = Rule(), Model()


def decider_of(name: str, llm: LLM | None) -> Decider:
    """The decider of a setting. auto is the model if a capable one answers, else the rules.

    Raises UsageError for an unknown name, and for `model` without a language model.
    """
    if name not in DECIDERS:
        raise UsageError("unknown decider", given=name, expected=" | ".join(DECIDERS))
    if name == "model" and llm is None:
        raise UsageError("the decider model needs a language model", do="configure one, or use the decider rule")
    by_model = name == "model" or (name == "auto" and llm is not None and llm.capable)
    return MODEL if by_model else RULE


async def awaited(value: Any) -> Any:
    """The value itself, or its result if it is awaitable."""
    return await value if inspect.isawaitable(value) else value
