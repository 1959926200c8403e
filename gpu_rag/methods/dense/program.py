"""Dense retrieval: the passages of highest cosine to the question, then the shared reader. A baseline.

Of a knowledge base with nodes that have no passage it ranks nodes too, each by its document or the text that stands in
for it; where there is no passage at all, these texts are what the reader reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.scores import node_text
from gpu_rag.program.ask import embed
from gpu_rag.program.knowledge_base.documents import search_documents
from gpu_rag.program.knowledge_base.views import kb_of, ranked_nodes
from gpu_rag.program.reader import Support, read, read_blocks
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking, search_dense
from gpu_rag.types import Draft, Path, Question


@dataclass(frozen=True)
class Params:
    """No parameter."""


async def retrieve(question: Question, run: Run, params: Params) -> Support | Draft:
    """The run.limit nearest passages, and nodes where texts stand in for some."""
    (vector,) = await embed([question.text])
    found = await search_dense(vector, run.limit) if run.index.n_passages else Ranking((), ())
    evidence = run.evidence(found, "nearest by vector", "search_dense")
    if not has_standins(run.index):
        return Support(evidence)
    kb, near = kb_of(run.index), await search_documents(vector, run.limit)
    run.note("search_nodes", kb.n, tuple(kb.node_names[row] for row in near.rows))
    shown = () if evidence else near.rows[: run.reader.passages]
    paths = tuple(Path(node_text(kb, run.index, row), (), "standin") for row in shown)
    return Draft(None, evidence, paths, "unsupported", ranked_nodes(kb, near))


def has_standins(index: Index) -> bool:
    """Whether texts stand in for nodes of an index (stage `kb_text_vectors`)."""
    return "kb_text_vectors" in index.stages and bool(kb_of(index).texts)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Retrieve, then read."""
    found = await retrieve(question, run, params)
    if isinstance(found, Support):
        return await read(run, question.text, found)
    if found.evidence:
        return replace(await read(run, question.text, Support(found.evidence)), nodes=found.nodes)
    blocks = [f"[{i}] {path.text}" for i, path in enumerate(found.paths, 1)]
    text = await read_blocks(run, question.text, blocks) if blocks else None
    return found if text is None else replace(found, text=text, status="answered")
