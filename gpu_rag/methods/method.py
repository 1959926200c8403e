"""The description of a method. The `__init__` of its folder holds only `METHODS = (Method(...), ...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Hook = str | Any  # "module:attribute" or "module" in the method's package, imported on use; or the object itself

Shown = list[str | tuple[list[list[str]], list[str]]]


@dataclass(frozen=True)
class Tuned:
    """The result of `gpu-rag tune`. document: for --json; kept: parts of the file that `index.tuned` reads; shown:
    paragraphs, and tables as (rows, header)."""

    document: dict[str, Any]
    kept: Mapping[str, Mapping[str, Any]]
    shown: Shown


@dataclass(frozen=True)
class Method:
    """One method: its name, the stages that it reads, and hooks for the other parts of the product.

    Hooks that several methods of a package share are given in one of them.

    name: shown to users. needs: stages that it reads. uses: other methods that it runs; if one of them is not
    installed, this method is not available either. program: the module that defines `Params` (a dataclass)
    and `retrieve(question, run, params)`. The module may also define `program(question, run, params)`, which answers
    (by default the shared reader reads the retrieved passages); `check(index, params)`, which is called before a run
    and raises for parameters that the index cannot serve; `config(index, params)`, further inputs of an answer; and
    `stands_for(index)`, the name of the method that runs in its place.

    settings: {section: its class}; index stages may depend on them, and they are saved with the index. stages: a
    function without arguments that returns the index stages of this method alone. verify: {stage: check} for these
    stages. narrow: {stage: its masks under a filter of documents}, see `index.narrow.Narrow`. explain: {step
    of a trace: words}.
    report: a module or object with `figures(report)`, for the --json of a build, and `summary(document)`, lines of
    text. relations: a function of an index and a relation (subject, label, object, all
    normalised) that returns the rows of the passages that state it; None if the method has no such relation.
    forget: a function (folder of manual changes, hashes of normalised names) that drops the changes which name these.
    commands: {name: a module as in `cli`}. tune: {method that learns: a function (engine, questions with gold,
    methods to choose among or None) -> `Tuned`}.
    profiles: {name: TOML file in the folder of the package}.

    inexact: families of graph ops that it runs and whose implementations may differ within a tolerance. ranks_as: the
    method with the same ranking, for runs without a language model. standins: if there are no passages, it ranks nodes
    by the texts that stand in for them. made_for: the kind of knowledge base it is made for, kg or skb. default:
    `index` builds it if no method is named; compared: help shows it in a comparison; shown: `demo` runs it; auto:
    priority for `auto`, higher first, 0: never. order: its place in lists; methods of equal order are sorted by package
    name.
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
    forget: Hook = None
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
