"""HydraRAG over the six invented articles: the index, and a capable model that says what it is given to say."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from answer_notes import role

import gpu_rag
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings import merge
from gpu_rag.types import Answer, Choice, Request

FIRST = re.compile(r"^([A-Z]|\d+)\. ", re.MULTILINE)
MADE: dict[str, Path] = {}  # the index of each content, which later tests copy


def build(
    corpus: Path,
    folder: Path,
    facts: Mapping[str, Any],
    graph: list[tuple[str, str, str]],
    pages: dict[str, str],
    settings: Any,
) -> gpu_rag.Index:
    """An index of the articles with their facts, a graph beside, and web pages: title -> text."""
    content = json.dumps([corpus.read_text(), facts, graph, pages, settings])
    if content not in MADE:
        openie, lines, web = folder / "openie.jsonl", folder / "facts.tsv", folder / "pages"
        rows = [{"id": name, "entities": [], "triples": triples} for name, triples in facts.items()]
        openie.write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines.write_text("".join("\t".join(triple) + "\n" for triple in graph))
        web.mkdir()
        for title, text in pages.items():
            (web / f"{title}.html").write_text(f"<html><title>{title}</title><body><p>{text}</p></body></html>")
        gpu_rag.build(
            corpus, folder / "made", methods=["hydrarag"], openie=openie, kg=[lines], sources=[f"pages=web:{web}"],
            settings=settings,
        )  # fmt: skip
        MADE[content] = folder / "made"
    return gpu_rag.Index.open(shutil.copytree(MADE[content], folder / "ix"))


def scripted(replies: Mapping[str, Any]) -> tuple[ScriptedLLM, list[str]]:
    """A capable model, and the prompts it was given, by name. replies: to each prompt a text, an object, a list of
    them in turn, or a function of the request; a choice without one takes the first option, or the first two."""
    names: list[str] = []

    def answer(request: Request) -> str:
        name = role(request, "hydrarag")
        names.append(name)
        said = replies.get(name)
        if callable(said):
            said = said(request)
        elif isinstance(request.constraint, Choice):
            return request.constraint.options[0]
        if isinstance(said, list):
            said = said[min(names.count(name), len(said)) - 1]
        if said is None:
            said = {"chosen": FIRST.findall(request.prompt)[:2]}
        return said if isinstance(said, str) else json.dumps(said)

    return ScriptedLLM(answer, context_tokens=100_000), names


def ask(
    index: gpu_rag.Index, settings: Any, text: str, llm: Any = None, method: str = "hydrarag", **params: Any
) -> Answer:
    """One answer; without a model by retrieval alone."""
    settings = merge(settings, {"method": {method: params}})
    if llm is None:
        (answer,) = index.retrieve([text], method=method, settings=settings)
    else:
        (answer,) = index.answer(text, method=method, settings=settings, llm=llm)
    assert answer.error is None, answer.error
    return answer
