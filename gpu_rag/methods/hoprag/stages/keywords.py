"""Keywords of the vertices and of their questions, as numbers of one vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.methods.hoprag.stages.vertices import read_vertices, vertex_texts
from gpu_rag.methods.hoprag.tables import KEYWORDS, read_questions, write_lists
from gpu_rag.text.keywords import keywords


@stage("hop_keywords", needs=("passages", "hop_vertices", "hop_questions"), version=2)
def keywords_stage(work: Work) -> dict[str, int]:
    """Table `keywords`, sorted, and for in-questions, out-questions and vertices lists of its rows, ascending."""
    folders = work.stage_folders
    texts: dict[str, Sequence[str]] = {
        side: read_questions(folders["hop_questions"], side)["text"].to_pylist() for side in ("in", "out")
    }
    texts["vertex"] = vertex_texts(folders["passages"], read_vertices(work))
    work.progress.start("hop_keywords", sum(map(len, texts.values())), "texts")
    found = {side: [_keywords(work, text) for text in of_side] for side, of_side in texts.items()}
    vocabulary = sorted(frozenset().union(*(words for lists in found.values() for words in lists)))
    number = {word: row for row, word in enumerate(vocabulary)}
    tables.write_table(work.out / "keywords.parquet", KEYWORDS, {"keyword": vocabulary})
    for side, lists in found.items():
        write_lists(work.out / f"{side}.safetensors", [sorted(number[word] for word in words) for words in lists])
    return {"hop_keywords": len(vocabulary)}


def _keywords(work: Work, text: str) -> frozenset[str]:
    work.progress.advance(1)
    return keywords(text)
