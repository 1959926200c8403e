"""Dense retrieval: the passages of highest cosine to the question, then the shared reader. A baseline.

For a knowledge base without passages it ranks nodes by the texts that stand in for them, and the reader reads these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_rag.index.knowledge_base.scores import node_text
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.documents import search_documents
from gpu_rag.program.knowledge_base.views import kb_of, ranked_nodes
from gpu_rag.program.reader import Support, read, read_blocks
from gpu_rag.program.run import Run
from gpu_rag.program.search import search_dense
from gpu_rag.types import Draft, Path, Question


@dataclass(frozen=True)
class Params:
    """No parameters."""


async def retrieve(question: Question, run: Run, params: Params) -> Support | Draft:
    """The run.limit nearest passages, or nodes if there are no passages."""
    (vector,) = await embed([question.text])
    if run.index.n_passages:
        evidence, _ = await run.searched(lambda k: search_dense(vector, k), "nearest by vector", "search_dense")
        return Support(evidence)
    kb, near = kb_of(run.index), await search_documents(vector, run.limit)
    run.note("search_nodes", kb.n, tuple(kb.node_names[row] for row in near.rows))
    shown = (node_text(kb, run.index, row) for row in near.rows[: run.reader.passages])
    paths = tuple(Path(text, (), "standin") for text in shown)
    return Draft(None, (), paths, "unsupported", ranked_nodes(kb, near))


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Retrieve, then read."""
    retrieved = await retrieve(question, run, params)
    if isinstance(retrieved, Support):
        return await read(run, question.text, retrieved)
    blocks = [f"[{i}] {path.text}" for i, path in enumerate(retrieved.paths, 1)]
    text = await read_blocks(run, question.text, blocks) if blocks else None
    return retrieved if text is None else replace(retrieved, text=text, status="answered")
