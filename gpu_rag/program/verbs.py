"""Everything that a program may say, for one question: model verbs, search verbs, and look-ups in the index."""

from __future__ import annotations

from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.batched import BubbleVerbs
from gpu_rag.methods.higra.batched import HigraVerbs
from gpu_rag.methods.hoprag.batched import HopVerbs
from gpu_rag.methods.hydrarag.batched import PathVerbs
from gpu_rag.methods.hydrarag.web import WebVerbs
from gpu_rag.program.knowledge_base import KbVerbs
from gpu_rag.program.model import ModelSettings, ModelVerbs
from gpu_rag.program.search import Ranking, RetrieveVerbs
from gpu_rag.runtime.trace import Context
from gpu_rag.settings import ReaderSettings
from gpu_rag.types import Evidence


class Verbs(ModelVerbs, RetrieveVerbs, HopVerbs, BubbleVerbs, HigraVerbs, KbVerbs, PathVerbs, WebVerbs):
    """The verbs of one question over one index. limit: how many passages `retrieve` is to return."""

    def __init__(self, ctx: Context, index: Index, models: ModelSettings, reader: ReaderSettings, limit: int):
        super().__init__(ctx, models)
        self.index, self.reader, self.limit = index, reader, limit

    def evidence(self, ranking: Ranking, why: str, name: str = "search") -> tuple[Evidence, ...]:
        """The passages of a ranking as evidence, noted in the trace."""
        found = self.index.evidence(ranking.rows, ranking.scores, why)
        self.ctx.note(name, self.index.n_passages, tuple(f"{e.passage_id} {e.title}" for e in found))
        return found

    def fact(self, row: int) -> tuple[str, str, str, tuple[str, ...]]:
        """(subject, label, object, ids of the passages that state it) of a relation row."""
        passages = self.index.relations["passages"][row].as_py()
        return (*self.index.relation_text(row), tuple(self.index.passage_ids[p] for p in passages))
