"""The retrievers for LangChain and LlamaIndex over the sample, run by a chain and a query engine of the libraries."""

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

if None in map(importlib.util.find_spec, ("langchain_core", "llama_index")) and not os.environ.get("CI"):
    pytest.skip("they are in the extra `dev`", allow_module_level=True)

from langchain_core.language_models.fake_chat_models import ParrotFakeChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode
from pydantic import ValidationError

import gpu_rag
from gpu_rag.errors import GpuRagError
from gpu_rag.integrations import langchain, llama_index
from gpu_rag.integrations.passages import passages
from gpu_rag.report.answers import Result
from gpu_rag.sample import corpus_path

QUESTION = "Which two elements did Marie Curie announce in 1898?"
OWN = {"passage_id", "doc_id", "title", "score", "file", "start", "end"}
FAST = {"models": {"embedder": "hash", "llm": "none"}}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    """The sample by the hash embedder. Each document has a number, and a score that is not the retrieval's."""
    rows = [json.loads(line) for line in corpus_path().read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "number": number, "score": -1} for number, row in enumerate(rows)]
    return gpu_rag.build(rows, tmp_path_factory.mktemp("sample") / "ix", methods="bm25,dense", settings=FAST)


def found(documents: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(document.id, document.page_content, document.metadata) for document in documents]


def nodes_of(nodes: Any) -> list[tuple[str, str, dict[str, Any]]]:
    assert all(node.score == node.node.metadata["score"] for node in nodes)
    return [(node.node.node_id, node.node.text, node.node.metadata) for node in nodes]


@pytest.mark.parametrize("method", ["bm25", "dense", "auto"])
def test_both_give_the_passages_of_retrieve(index: gpu_rag.Index, method: str) -> None:
    evidence = index.retrieve(QUESTION, method=method, k=4).evidence
    assert len(evidence) == 4 and len({item.score for item in evidence}) > 1
    chain = langchain.GpuRagRetriever(index=index, method=method, k=4)
    engine = llama_index.GpuRagRetriever(index, method=method, k=4)

    async def awaited() -> list[Any]:
        return await asyncio.gather(chain.ainvoke(QUESTION), engine.aretrieve(QUESTION))

    documents, nodes = asyncio.run(awaited())
    for rows in (found(chain.invoke(QUESTION)), found(documents), nodes_of(engine.retrieve(QUESTION)), nodes_of(nodes)):
        assert [row[:2] for row in rows] == [(item.passage_id, item.text) for item in evidence]
        for (*_, metadata), item in zip(rows, evidence, strict=True):
            assert set(metadata) == OWN | {"number"}
            assert {name: metadata[name] for name in OWN - {"doc_id"}} == {
                name: getattr(item, name) for name in OWN - {"doc_id"}
            }
            assert metadata["doc_id"] == index.passage_doc_ids[index.rows_of_passages[item.passage_id]]
            assert metadata["score"] >= 0 and metadata["number"] == item.metadata["number"]
    json.dumps([row[2] for row in nodes_of(nodes)])


def test_a_folder_a_filter_and_a_length(index: gpu_rag.Index) -> None:
    for path in (index.path, str(index.path)):
        documents = langchain.GpuRagRetriever(index=path, k=3, where="number >= 40").invoke(QUESTION)
        nodes = llama_index.GpuRagRetriever(path, k=3, where="number >= 40").retrieve(QUESTION)
        for rows in (found(documents), nodes_of(nodes)):
            assert len(rows) == 3 and all(metadata["number"] >= 40 for *_, metadata in rows)


def test_errors_are_ours(index: gpu_rag.Index, tmp_path: Path) -> None:
    with pytest.raises(gpu_rag.BadInput):
        llama_index.GpuRagRetriever(tmp_path)
    with pytest.raises(gpu_rag.BadInput):
        langchain.GpuRagRetriever(index=tmp_path)
    with pytest.raises(ValidationError):
        langchain.GpuRagRetriever(index=index, k="many")
    for retriever in (langchain.GpuRagRetriever(index=index, k=0), langchain.GpuRagRetriever(index=index, where="<")):
        with pytest.raises(gpu_rag.UsageError):
            retriever.invoke(QUESTION)
    with pytest.raises(gpu_rag.UsageError):
        llama_index.GpuRagRetriever(index, method="hopfrog").retrieve(QUESTION)
    failed = Result("q", QUESTION, "bm25", "failed", None, error={"type": "ModelError", "message": "it is gone"})
    with pytest.raises(GpuRagError, match="it is gone"):
        list(passages(index, failed))


@pytest.mark.parametrize("name, package", [("langchain", "langchain_core"), ("llama_index", "llama_index")])
def test_without_the_package_the_extra_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"gpu_rag.integrations.{name}")
    with pytest.raises(gpu_rag.MissingBackend, match=rf"gpu-rag\[{name.replace('_', '-')}\]"):
        importlib.import_module(f"gpu_rag.integrations.{name}")


def test_a_chain_reads_the_passages(index: gpu_rag.Index) -> None:
    retriever = langchain.GpuRagRetriever(index=index, k=2)

    def joined(documents: Any) -> str:
        return "\n".join(f"[{document.metadata['title']}] {document.page_content}" for document in documents)

    prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
    asked = {"context": retriever | joined, "question": RunnablePassthrough()}
    chain = asked | prompt | ParrotFakeChatModel() | StrOutputParser()
    said = chain.invoke(QUESTION)
    assert "[Marie Curie] Marie Curie was a physicist" in said and said.endswith(f"Question: {QUESTION}")
    assert asyncio.run(chain.ainvoke(QUESTION)) == said
    assert [len(documents) for documents in retriever.batch([QUESTION, "Who wrote Faust?"])] == [2, 2]


def test_a_query_engine_reads_the_passages_and_names_its_sources(index: gpu_rag.Index) -> None:
    engine = RetrieverQueryEngine.from_args(llama_index.GpuRagRetriever(index, k=2), llm=MockLLM())
    response = engine.query(QUESTION)
    assert "polonium and radium" in str(response) and QUESTION in str(response)
    assert "title: Marie Curie" in str(response) and "passage_id" not in str(response), "a prompt shows titles alone"
    assert response.source_nodes[0].node.metadata["title"] == "Marie Curie"
    first = response.source_nodes[0].node
    assert first.get_content(MetadataMode.EMBED) == f"title: Marie Curie\n\n{first.text}"
    assert str(asyncio.run(engine.aquery(QUESTION))) == str(response)
