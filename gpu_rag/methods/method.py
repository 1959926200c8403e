"""A method as one object. A folder's `__init__` holds `METHODS = (Method(...), ...)` and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Hook = str | Any  # "module:attribute" or "module" of the method's package, imported when it is used; or the object

Shown = list[str | tuple[list[list[str]], list[str]]]


@dataclass(frozen=True)
class Tuned:
    """The outcome of `gpu-rag tune`. document: for --json; kept: parts of the file that `index.tuned` reads; shown:
    paragraphs, and tables as (rows, header)."""

    document: dict[str, Any]
    kept: Mapping[str, Mapping[str, Any]]
    shown: Shown


@dataclass(frozen=True)
class Method:
    """One method: its name, the stages that it reads, and a hook for each part of the product that asks about methods.

    Hooks that several methods of a package share stand at one of them.

    name: for users. needs: the stages that it reads. uses: other methods that it runs; where one of them is not
    installed, it is not there either. program: the module that defines `Params` (a dataclass),
    `retrieve(question, run, params)` and `program(question, run, params)`. It may define `check(index, params)`,
    called before a run, which raises for parameters that the index cannot serve; `config(index, params)`, further
    inputs of an answer; and `stands_for(index)`, the name of the method that runs in its place.

    settings: {section: its class}, on which stages of an index may depend; saved with the index. stages: a function
    without arguments that returns the index stages of this method alone; for these stages verify: {stage: check}, and
    narrow: {stage: what makes it for a part of the documents}, see `index.narrow`. explain: {step of a trace: words}.
    report: a module or object with `figures(report)` for the --json of a build, `summary(document)`, lines of text,
    and `section(document, page)`, HTML. relations: a function of an index that yields (subject, label, object,
    passages) of relations that this method alone has. commands: {name: a module like those of `cli`}. tune: {method
    that learns: a function (engine, questions with gold, methods given to choose among or None) -> `Tuned`}.
    profiles: {name: TOML file in the folder of the package}.

    inexact: families of graph ops that it runs and whose implementations may differ within a tolerance. ranks_as: the
    method whose ranking it has where no language model answers. standins: whether, without any passage, it ranks
    nodes by the texts that stand in for them. made_for: the kind of knowledge base that it is for, kg or skb. default:
    whether `index` builds it where none is named; compared: whether help shows it in a comparison; shown: whether
    `demo` takes it; auto: the higher, the sooner `auto` takes it, 0: never. order: its place in lists; methods of equal
    order stand by the name of their package.
    """

    name: str
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    program: str = "program"
    settings: Mapping[str, Hook] = field(default_factory=dict)
    stages: Hook = None
    verify: Hook = None
    narrow: Hook = None
    explain: Hook = None
    report: Hook = None
    relations: Hook = None
    commands: Mapping[str, Hook] = field(default_factory=dict)
    tune: Mapping[str, Hook] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=dict)
    inexact: tuple[str, ...] = ()
    ranks_as: str = ""
    standins: bool = False
    made_for: str = ""
    default: bool = False
    compared: bool = False
    shown: bool = False
    auto: int = 0
    order: int = 100
