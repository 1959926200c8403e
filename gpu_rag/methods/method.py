"""The entry of a method in the registry. A folder's `__init__` holds `METHODS = (Method(...), ...)` and no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """One method. name: for users. needs: the stages that it reads. program: the module of its folder that defines
    `Params` (a dataclass), `retrieve(question, run, params)` and `program(question, run, params)`; it may define
    `check(index, params)`, called before a run, which raises for parameters that the index cannot serve, and
    `config(index, params)`, what answers depend on beside them.
    sections: those of the settings that the file `settings` of the folder declares. standins: whether, without any
    passage, it ranks nodes by the texts that stand in for them."""

    name: str
    needs: tuple[str, ...]
    program: str = "program"
    sections: tuple[str, ...] = ()
    standins: bool = False
