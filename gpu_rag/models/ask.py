"""Decisions as values: an `Ask` has a typed reply, a prompt and a rule; a `Choose` picks among options.

A program states the question and its fields. The decider (a language model, the rule, an oracle) is a value of the run,
see `program.decide`; stages of an index use `Ask.request` and `Ask.read` instead.

Fields are the values that a decision rests on, often more than a prompt can show. Each callable of an Ask gets the
fields that it names as parameters:
rule    the reply without a model, within the bounds of the reply's type; it may await steps and other asks. The rule of
        an index stage takes and returns Arrow batches, because it handles millions of passages
show    the slots of the prompt; without it each slot has the field of its name
check   the model's reply, corrected, or `Refused`; `shown` has the positions of the packed texts that it saw
schema  the JSON Schema, if its options differ from question to question
gold    the reply of a perfect decider, or None; see `program.oracle`
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from gpu_rag.errors import UsageError
from gpu_rag.models.budget import reply_tokens
from gpu_rag.models.llm.interface import Model, fits
from gpu_rag.models.pack import SEPARATOR, overflow, pack
from gpu_rag.text.lenient import EXACT, Read, read_reply
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.structs import schema_of, struct_of
from gpu_rag.types import JsonSchema, Malformed, Reply, Request

R = TypeVar("R")
Fields = Mapping[str, Any]
OPTIONS = "options"  # the slot of a choice


@dataclass(frozen=True)
class Packed:
    """Texts for one slot of a prompt, as many as fit in the context.

    texts: in display order. rank: for each position its place in the order of keeping, 0 first; then only whole texts
    are shown. Without rank the first texts are kept, and the last one may be cut after a word.
    ending: a text after them that is never cut.
    """

    texts: Sequence[str]
    rank: Sequence[int] | None = None
    separator: str = SEPARATOR
    ending: str = ""


@dataclass(frozen=True)
class Refused:
    """A reply that can be read but not used, and the reason."""

    reason: str


@dataclass(frozen=True)
class Shown:
    """A rendered prompt. positions: positions of the packed texts in it; n_cut: number of tokens of packed texts left
    out."""

    text: str
    positions: tuple[int, ...] = ()
    n_cut: int = 0


@dataclass(frozen=True)
class Ask(Generic[R]):
    """One decision, see the module.

    name: in the trace and the counts. reply: a msgspec Struct, or str for plain text. prompt: "package:file", or a
    callable of the fields that returns a Prompt. max_tokens: token limit of the reply; 0 allows what its schema lets a
    model write; a field `max_tokens` takes precedence. words: the reply in words, for the trace. unread: the reply that
    replaces an unusable one; without it the rule decides. temperature: temperature of requests.
    reads: set for reading, which a language model does whoever decides: any model, or a capable one.
    """

    name: str
    reply: type[R]
    rule: Callable[..., Any]
    prompt: str | Callable[..., Prompt]
    show: Callable[..., Mapping[str, str | Packed]] | None = None
    check: Callable[..., R | Refused] | None = None
    schema: Callable[..., str] | None = None
    words: Callable[..., Sequence[str]] | None = None
    unread: Callable[..., R] | None = None
    gold: Callable[..., R | Awaitable[R | None] | None] | None = None
    max_tokens: int = 0
    temperature: float = 0.0
    reads: Literal["", "any", "capable"] = ""

    def prompt_of(self, fields: Fields) -> Prompt:
        """Prompt for these fields."""
        return read_prompt(self.prompt) if isinstance(self.prompt, str) else call(self.prompt, fields)

    def slots(self, fields: Fields) -> dict[str, str | Packed]:
        """Filled slots of the prompt."""
        if self.show is not None:
            return dict(call(self.show, fields))
        return {name: fields[name] for name in self.prompt_of(fields).fields}

    def schema_text(self, fields: Fields) -> str | None:
        """JSON Schema of the reply; None for plain text."""
        if self.schema is not None:
            return call(self.schema, fields)
        return None if self.reply is str else schema_of(self.reply)  # type: ignore[type-var, arg-type]

    def room(self, fields: Fields, llm: Model) -> int:
        """Token limit of the reply."""
        given: int = fields.get("max_tokens", self.max_tokens)
        schema = self.schema_text(fields)
        return given if given or schema is None else reply_tokens(llm, schema)

    def request(self, fields: Fields, llm: Model, seed: int = 0) -> Request:
        """Request of an index stage, under the schema and without packing: a text that is too long stays whole.

        fields: also `max_tokens`, if a setting gives it.
        """
        prompt, schema = self.prompt_of(fields), self.schema_text(fields)
        slots = {name: _joined(value) for name, value in self.slots(fields).items()}
        constraint = None if schema is None else JsonSchema(schema)
        return Request(prompt.system, prompt.render(**slots), constraint, self.room(fields, llm), seed=seed)

    def read(self, reply: Reply, fields: Fields, shown: Sequence[int] = ()) -> tuple[R | Malformed, str]:
        """Typed and checked reply and how it was read (exact | lenient | salvaged), or Malformed."""
        schema = self.schema_text(fields)
        parsed = read_reply(reply, None if schema is None else JsonSchema(schema))
        if isinstance(parsed, Malformed):
            return parsed, EXACT
        return self.typed(parsed, fields, shown), parsed.how

    def typed(self, parsed: Read, fields: Fields, shown: Sequence[int] = ()) -> R | Malformed:
        """The value that was read, converted to the type of the reply and checked."""
        try:
            value: Any = parsed.value if self.reply is str else struct_of(self.reply, parsed.value)  # type: ignore[type-var]
        except msgspec.ValidationError as error:
            return Malformed(str(error), str(parsed.value))
        checked = value if self.check is None else call(self.check, {**fields, "shown": tuple(shown)}, value)
        return Malformed(checked.reason, str(parsed.value)) if isinstance(checked, Refused) else checked


@dataclass(frozen=True)
class Choose:
    """A choice among options. Its reply is their positions, best first: 1 to k, or 0 to k if `none` is allowed.

    Reserved fields: `options` (texts), `query` (the rule compares it with the options), `scores` (one per option,
    instead of that cosine), `k`, `threshold` (least score if none is allowed), `step` (follows the name, for repeated
    choices). prompt: says what makes an option good; its slot `{{options}}` is filled here.
    rule: positions without a model; without it the best by score, ties to the earlier option.
    helps: (gold, position, **fields) -> whether a perfect decider may take that option; see `program.oracle`.
    plans: whether the choice is part of planning, which a model that is not capable leaves to the rule.
    shuffled: whether a model sees the options in a random order, so that taking the first ones tells nothing.
    """

    name: str
    prompt: str | Callable[..., Prompt]
    show: Callable[..., Mapping[str, str | Packed]] | None = None
    none: bool = False
    k: int = 1
    threshold: float = 0.3
    rule: Callable[..., Sequence[int] | Awaitable[Sequence[int]]] | None = None
    helps: Callable[..., bool | Awaitable[bool]] | None = None
    plans: bool = False
    shuffled: bool = False

    def prompt_of(self, fields: Fields) -> Prompt:
        """Prompt for these fields."""
        return read_prompt(self.prompt) if isinstance(self.prompt, str) else call(self.prompt, fields)

    def slots(self, fields: Fields) -> dict[str, str | Packed]:
        """Slots of the prompt except the options. Raises UsageError if the prompt has others, or none for options."""
        wanted = self.prompt_of(fields).fields
        names = wanted - {OPTIONS}
        given = dict(call(self.show, fields)) if self.show is not None else {n: fields[n] for n in names if n in fields}
        if names != given.keys() or OPTIONS not in wanted:
            raise UsageError(
                f"the fields do not fit the prompt of the choice {self.name}",
                given=sorted(given),
                expected=f"{sorted(names)}, and a slot {{{{{OPTIONS}}}}} in the prompt",
            )
        return given


@dataclass(frozen=True)
class Options:
    """Options of one choice. name: in the trace; scores: one per option, instead of the cosine with the query;
    threshold: least score if none is allowed; rank: see `Packed`."""

    name: str
    texts: tuple[str, ...]
    query: str
    k: int
    allow_none: bool
    threshold: float
    scores: Sequence[float] | None = None
    rank: Sequence[int] | None = None


@dataclass(frozen=True)
class Taken:
    """A decision. value: the reply, or positions; by: the decider, see `program.decide`; reply: reply of the model, if
    one was used; n_candidates: number of texts to be packed."""

    value: Any
    by: str
    reply: Reply | None = None
    n_candidates: int = 0


def read_prompt(name: str) -> Prompt:
    """Prompt of the name "package:file"."""
    package, _, file = name.partition(":")
    return Prompt.read(package, file)


def call(function: Callable[..., Any], fields: Fields, *first: Any) -> Any:
    """Result of the function, called with the fields that it names as parameters; with **kwargs, all fields."""
    names = _names(function, len(first))
    return function(*first, **(fields if names is None else {name: fields[name] for name in names if name in fields}))


@lru_cache(maxsize=1024)
def _names(function: Callable[..., Any], n_first: int) -> tuple[str, ...] | None:
    """Parameter names of a function after the first n_first; None if it has **kwargs."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters[n_first:])


def shown(llm: Model, prompt: Prompt, slots: Mapping[str, str | Packed], max_tokens: int) -> Shown:
    """Prompt with its slots filled; as many packed texts as leave room for a reply of `max_tokens`.

    Raises ContextOverflow if it does not fit even without packed texts.
    """
    plain = {name: value for name, value in slots.items() if isinstance(value, str)}
    packed = [(name, value) for name, value in slots.items() if not isinstance(value, str)]
    if not packed:
        return Shown(_whole(llm, prompt, plain, max_tokens))
    (slot, texts) = packed[0]
    rank = range(len(texts.texts)) if texts.rank is None else texts.rank
    order = sorted(range(len(texts.texts)), key=rank.__getitem__)

    def taken(positions: Sequence[int]) -> tuple[str, int, int]:
        chosen = [texts.texts[i] for i in positions]
        form = {"separator": texts.separator, "ending": texts.ending}
        return pack(prompt, plain, slot, chosen, llm=llm, max_tokens=max_tokens, **form)  # type: ignore[arg-type]

    text, n_kept, n_cut = taken(order)
    if texts.rank is None:
        return Shown(text, tuple(order[:n_kept]), n_cut)
    kept = sorted(order[: max(1, n_kept - 1) if n_cut else n_kept])  # whole texts only: drop the text that was cut
    return Shown(taken(kept)[0], tuple(kept), n_cut)


def _whole(llm: Model, prompt: Prompt, fields: Mapping[str, str], max_tokens: int) -> str:
    """Rendered prompt. Raises ContextOverflow if it does not fit."""
    text = prompt.render(**fields)
    if not fits(llm, prompt.system, text, max_tokens):
        n_tokens = llm.count_tokens(prompt.system) + llm.count_tokens(text)
        raise overflow(llm, prompt, n_tokens, max_tokens)
    return text


def _joined(value: str | Packed) -> str:
    return value if isinstance(value, str) else value.separator.join(value.texts)
