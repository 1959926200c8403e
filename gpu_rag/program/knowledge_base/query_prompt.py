"""The prompt that asks a model for the query of a question: examples, types, relations, and earlier tries.

For a knowledge base with many types and relations, the model sees those that the question most likely needs, and always
those of the rules' proposal. Prompt and trace say where a list is incomplete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from gpu_rag.models.budget import reply_tokens
from gpu_rag.models.llm.interface import fits
from gpu_rag.program.knowledge_base.query import DIRECTIONS, STATED_BY, STATED_ON, Query, has_dates, type_rows
from gpu_rag.program.knowledge_base.relations import relations_of
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.structs import schema_with

MAX_TOPICS, MAX_RELATIONS, MAX_NAME_CHARS = 4, 4, 200  # limits of a query, and per topic
MAX_SHOWN = 100  # types, and relations, shown to the model
NOTHING = Query((), False)
Lists = tuple[list[int], list[int]]  # rows of types and of relations


@dataclass
class QueryPrompt:
    """The prompt of one query. vector: vector of the question; proposal: proposal of the rules; examples, history:
    texts of slots; note: name in the trace; n_types, n_shown: types and relations shown at most."""

    run: Run
    prompt: Prompt
    question: str
    vector: np.ndarray
    proposal: Query
    examples: str = ""
    history: str = ""
    note: str = "query_shown"
    n_types: int = MAX_SHOWN
    n_shown: int = MAX_SHOWN

    @cached_property
    def slots(self) -> dict[str, str]:
        """The slots of the prompt."""
        return self._slots(self._lists)

    @cached_property
    def schema(self) -> str:
        """The JSON Schema of the reply, wide enough for the proposal."""
        return self._schema(self._lists)

    @cached_property
    def _likely(self) -> Lists:
        """The types and relations that may be shown, the likeliest first."""
        known, topics = relations_of(self.run.index), self.proposal.entities
        own_types = [*type_rows(known.kb, (*self.proposal.types, *(topic.type for topic in topics)))]
        own = [known.kb.relation_names.index(relation) for topic in topics for relation in topic.relations]
        types, relations = known.likely(self.question, self.vector)
        lists = (own_types, types, self.n_types), (own, relations, self.n_shown)
        first, second = (list(dict.fromkeys((*mine, *more)))[: max(room, len(set(mine)))] for mine, more, room in lists)
        return first, second

    @cached_property
    def _lists(self) -> Lists:
        """Equal shares of both lists, as much as the context can hold. Rows are ascending, so small changes keep the
        prompt. The trace notes any cut."""
        kb, longest = relations_of(self.run.index).kb, max(map(len, self._likely))
        llm = self.run.models.language_model
        room = reply_tokens(llm, self._schema(self._likely))

        def share_of(share: int) -> Lists:
            types, relations = (sorted(rows[: ceil(len(rows) * share / longest)]) for rows in self._likely)
            return types, relations

        def overflows(share: int) -> bool:
            return not fits(llm, self.prompt.system, self.prompt.render(**self._slots(share_of(share))), room)

        fitting = max(1, bisect_left(range(1, longest), True, key=overflows)) if overflows(longest) else longest
        lists = share_of(fitting)
        counts = ("types", len(lists[0]), kb.n_types), ("relations", len(lists[1]), kb.n_relations)
        if any(n < whole for _, n, whole in counts):
            lines = tuple(f"{what}: {n} of {whole}" for what, n, whole in counts)
            self.run.note(self.note, kb.n_types + kb.n_relations, lines)
        return lists

    def _slots(self, lists: Lists) -> dict[str, str]:
        """The slots for these types and relations. An incomplete list says so."""
        known, (types, relations) = relations_of(self.run.index), lists
        kb = known.kb
        lines = [f"- {known.text(row)}" for row in relations]
        if len(relations) < kb.n_relations:
            lines.append(f"(of {kb.n_relations} relations those that the question most likely needs)")
        lines += [f"- {name}: {meaning}" for name, meaning in self._statements.items()]
        partly = f" (of {kb.n_types} types those that the question most likely needs)"
        slots = {
            "examples": self.examples,
            "types": ", ".join(kb.type_names[row] for row in types) + partly * (len(types) < kb.n_types),
            "relations": "\n".join(lines),
            "history": self.history,
            "question": self.question,
        }
        return {name: text for name, text in slots.items() if name in self.prompt.fields}

    def _schema(self, lists: Lists) -> str:
        kb = relations_of(self.run.index).kb
        types, relations = (
            [names[row] for row in rows] for names, rows in zip((kb.type_names, kb.relation_names), lists)
        )
        return query_schema(types, relations, self.proposal, tuple(self._statements))

    @cached_property
    def _statements(self) -> dict[str, str]:
        """{what may be compared as if it were a relation: its meaning}, where facts have several sources or dates."""
        kb = relations_of(self.run.index).kb
        sources = ", ".join(source.name for source in kb.sources)
        by = {STATED_BY: f"the source of the answer, equal to one of {sources}"} if len(kb.sources) > 1 else {}
        dated = self.run.index.loaded("dated notes", has_dates)
        return by | ({STATED_ON: "last by this: the newest statement"} if dated else {})


def query_schema(
    types: Sequence[str], relations: Sequence[str], proposal: Query = NOTHING, statements: Sequence[str] = ()
) -> str:
    """The JSON Schema of a query, wide enough for the proposal. statements: what is compared as if it were a
    relation."""
    topics = proposal.entities
    options = {
        "type": [*types, ""], "types": types, "relations": relations, "ways": list(DIRECTIONS),
        "relation": [*relations, *statements], "by": ["", *relations, *statements],
    }  # fmt: skip
    steps = max((MAX_RELATIONS, *(len(topic.relations) for topic in topics)))
    chars = max((MAX_NAME_CHARS, *(len(topic.entity) for topic in topics)))
    sizes = {"entities": max(MAX_TOPICS, len(topics)), "relations": steps, "ways": steps, "name": chars}
    return schema_with(Query, options, {**sizes, "types": max(MAX_TOPICS, len(proposal.types))})
