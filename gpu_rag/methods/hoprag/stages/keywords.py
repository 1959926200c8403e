"""Keywords of the vertices and of their questions, as numbers of one vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_rag.index import tables
from gpu_rag.index.build import Sources, Work
from gpu_rag.methods.hoprag.stages.vertices import read_vertices, vertex_texts
from gpu_rag.methods.hoprag.tables import KEYWORDS, read_questions, write_lists
from gpu_rag.settings import Settings
from gpu_rag.text.keywords import keywords


class HopKeywords:
    """Table `keywords`, sorted, and for in-questions, out-questions and vertices lists of its rows, ascending."""

    name = "hop_keywords"
    version = 2
    needs: tuple[str, ...] = ("passages", "hop_vertices", "hop_questions")
    retry: tuple[str, ...] = ()

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """No setting."""
        return {}

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """No model."""
        return ()

    def run(self, work: Work) -> dict[str, int]:
        """Finds the keywords of every text."""
        folders = work.stage_folders
        texts: dict[str, Sequence[str]] = {
            side: read_questions(folders["hop_questions"], side)["text"].to_pylist() for side in ("in", "out")
        }
        texts["vertex"] = vertex_texts(folders["passages"], read_vertices(work))
        work.progress.start(self.name, sum(map(len, texts.values())), "texts")
        found = {side: [self._keywords(work, text) for text in of_side] for side, of_side in texts.items()}
        vocabulary = sorted(frozenset().union(*(words for lists in found.values() for words in lists)))
        number = {word: row for row, word in enumerate(vocabulary)}
        tables.write_table(work.out / "keywords.parquet", KEYWORDS, {"keyword": vocabulary})
        for side, lists in found.items():
            write_lists(work.out / f"{side}.safetensors", [sorted(number[word] for word in words) for words in lists])
        return {"hop_keywords": len(vocabulary)}

    @staticmethod
    def _keywords(work: Work, text: str) -> frozenset[str]:
        work.progress.advance(1)
        return keywords(text)
