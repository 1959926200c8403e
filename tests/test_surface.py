"""The public surface: what builds are made of, arguments that are wrong, and calls from coroutines and threads."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.models.llm.scripted import ScriptedLLM

FAST = {"models": {"embedder": "hash", "llm": "none"}}
TEXTS = [
    {"id": "bridge", "title": "Halden Bridge", "text": "The Halden Bridge was designed by Marta Orlo in Kerling."},
    {"id": "orlo", "title": "Marta Orlo", "text": "Marta Orlo was an engineer born in Tamsin.", "year": 1901},
    {"id": "town", "title": "Kerling", "text": "Kerling is a town on the river Ves. Its mayor was Anna Stroud."},
]
QUESTION = "Who was mayor of Kerling?"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> gpu_rag.Index:
    return gpu_rag.build(TEXTS, tmp_path_factory.mktemp("surface") / "ix", settings=FAST)


def says(text: str) -> ScriptedLLM:
    return ScriptedLLM(lambda request: text)


def test_the_public_names_are_listed_and_there() -> None:
    assert dir(gpu_rag) == sorted(gpu_rag.__all__) and {"Index", "Question", "UsageError", "build"} <= set(dir(gpu_rag))
    for name in dir(gpu_rag):
        assert getattr(gpu_rag, name) is not None
    errors = [value for name in dir(gpu_rag) if isinstance(value := getattr(gpu_rag, name), type)]
    assert sum(issubclass(kind, gpu_rag.GpuRagError) for kind in errors) == 14
    with pytest.raises(AttributeError, match="nothing_of_it"):
        gpu_rag.nothing_of_it  # noqa: B018


def test_representations_are_one_short_line(index: gpu_rag.Index) -> None:
    results = index.retrieve([QUESTION] * 2, settings=FAST)[:1] + index.retrieve(["Who?"], settings=FAST)
    shown = [
        repr(index),
        repr(index.retrieve(QUESTION, settings=FAST)),
        repr(index.retrieve([QUESTION], settings=FAST)),
    ]
    assert "3 passages" in shown[0] and "retrieved" in shown[1] and "1 retrieved" in shown[2], results
    assert all(len(line) < 250 and "\n" not in line for line in shown)


def test_texts_and_tables_are_a_corpus(index: gpu_rag.Index, tmp_path: Path) -> None:
    assert index.report is not None and index.report.count("passages") == 3
    assert index.passage_doc_ids == ["bridge", "orlo", "town"]
    assert index.retrieve(QUESTION, where="year > 1900", settings=FAST).evidence[0].title == "Marta Orlo"
    frame = pandas.DataFrame([*TEXTS, {"id": "none", "title": "no text"}])
    by_table = gpu_rag.build(frame, tmp_path / "frame", settings=FAST)
    assert by_table.passages.equals(index.passages) and by_table.manifest.stages["passages"].counts["rejects"] == 1
    plain = gpu_rag.build([item["text"] for item in TEXTS], tmp_path / "plain", methods="bm25", settings=FAST)
    assert plain.passages["text"].to_pylist() == [item["text"] for item in TEXTS]
    again = gpu_rag.build([item["text"] for item in TEXTS], tmp_path / "plain", methods="bm25", settings=FAST)
    assert again.report is not None and all(stage.skipped for stage in again.report.stages.values())


@pytest.mark.parametrize(
    "corpus",
    ["", None, 3, b"text", {"text": "one"}, [3], [Path("a"), "b"], [{"title": "no text"}], [{"text": 3}], set()],
)
def test_what_is_no_corpus_is_refused_before_anything_is_written(corpus: Any, tmp_path: Path) -> None:
    with pytest.raises(gpu_rag.UsageError):
        gpu_rag.build(corpus, tmp_path / "ix", settings=FAST)
    assert not list(tmp_path.iterdir())


def test_names_of_files_are_not_taken_for_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Kerling is a town.")
    with pytest.raises(gpu_rag.UsageError, match=r"pathlib\.Path"):
        gpu_rag.build([str(tmp_path / "a.txt")], tmp_path / "ix", settings=FAST)
    gpu_rag.build([tmp_path / "a.txt"], tmp_path / "ix", methods=["bm25"], settings=FAST)
    with pytest.raises(TypeError, match="corpora"):
        gpu_rag.build(tmp_path / "a.txt", tmp_path / "iy", corpora=1)  # type: ignore[call-arg]


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=8), st.text(max_size=3), max_size=2),
    st.builds(object),
)  # fmt: skip
NAMES = ("question", "method", "k", "where", "settings", "llm", "embedder", "api_key")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), value=ODD)
def test_a_wrong_argument_is_named_and_the_index_stays_usable(index: gpu_rag.Index, name: str, value: Any) -> None:
    given_ = {"question": QUESTION, "method": "bm25", "settings": FAST, "llm": "none", name: value}
    try:
        result = index.ask(**given_)
        assert result.status in ("retrieved", "unsupported")
    except gpu_rag.UsageError as error:
        assert len(str(error)) < 1000
    assert index.retrieve(QUESTION, method="bm25", settings=FAST).evidence[0].title == "Kerling"


@pytest.mark.parametrize("k", [-1, 0, "3", True, 2.5, [3], 2**40])
def test_k_is_a_count(index: gpu_rag.Index, k: Any) -> None:
    with pytest.raises(gpu_rag.UsageError, match="k is not a count"):
        index.retrieve(QUESTION, k=k, settings=FAST)
    assert len(index.retrieve(QUESTION, k=1000, settings=FAST).evidence) == 3
    assert len(index.retrieve(QUESTION, k=np.int64(2), settings=FAST).evidence) == 2  # type: ignore[arg-type]


def test_none_is_the_default_of_every_keyword(index: gpu_rag.Index) -> None:
    none: Any = dict.fromkeys(name for name in NAMES if name not in ("question", "settings"))
    result = index.ask(QUESTION, **none, settings=FAST)
    assert result == replace(index.ask(QUESTION, settings=FAST), usage=result.usage, trace=result.trace)
    assert not result.where and result.evidence
    for wrong in ([], 0, False):
        with pytest.raises(gpu_rag.UsageError, match="where is not a text"):
            index.retrieve(QUESTION, where=wrong, settings=FAST)
    with pytest.raises(gpu_rag.UsageError, match="nothing is named"):
        gpu_rag.remove(index.path, documents=None, named=None, where=None)
    assert index.neighbours("Kerling", k=None) == index.neighbours("Kerling") != []


def test_questions_come_as_rows_or_as_a_table(index: gpu_rag.Index) -> None:
    rows = [
        {"question": QUESTION, "gold_ids": ["town"], "note": 1},
        {"question": "Who was Orlo?", "gold_ids": ["orlo"]},
    ]
    found = [
        gpu_rag.evaluate(index, given, methods="bm25", at=5, settings=FAST) for given in (rows, pandas.DataFrame(rows))
    ]
    assert [one.document["methods"]["bm25"]["recall@5"] for one in found] == [1.0, 1.0]
    answers = index.answer(pandas.DataFrame(rows), method="bm25", settings=FAST)
    assert [answer.question for answer in answers] == [row["question"] for row in rows], "not the names of its columns"
    wrong: Any
    for wrong in (["Who?"], rows[0], [{"query": "Who?"}], 3, pandas.DataFrame({"a": [1]})):
        with pytest.raises(gpu_rag.UsageError, match="cannot be asked"):
            gpu_rag.evaluate(index, wrong, methods="bm25", settings=FAST)
    with pytest.raises(gpu_rag.UsageError, match="cannot be asked"):
        index.answer(pandas.DataFrame({"a": [1]}), settings=FAST)


def test_an_open_index_stands_for_its_path_but_not_to_remove_from(index: gpu_rag.Index) -> None:
    assert gpu_rag.verify(index).ok
    with pytest.raises(gpu_rag.UsageError, match="an open index reads its texts"):
        gpu_rag.remove(index, documents="town")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 3, b"an-index", ["an-index"]])
def test_an_index_is_opened_by_a_path(path: Any) -> None:
    with pytest.raises(gpu_rag.UsageError, match="path is not a path"):
        gpu_rag.Index.open(path)


@pytest.mark.parametrize(("method", "given"), [("BM25", "BM25"), ("bm25 ", "'bm25 '")])
def test_a_method_spelled_almost_right_is_offered(index: gpu_rag.Index, method: str, given: str) -> None:
    with pytest.raises(gpu_rag.UsageError, match=f"given {given}; expected .*; did you mean bm25"):
        index.retrieve(QUESTION, method=method)


@pytest.mark.parametrize(
    "questions", [None, "", " \n", 3, b"Who?", {"query": "Who?"}, {"question": 3}, [None], ["Who?", ""], [["Who?"]]]
)
def test_what_is_no_question_is_refused(index: gpu_rag.Index, questions: Any) -> None:
    with pytest.raises(gpu_rag.UsageError, match="question"):
        index.answer(questions, settings=FAST)


def test_questions_are_texts_objects_and_rows(index: gpu_rag.Index) -> None:
    asked = [QUESTION, gpu_rag.Question("mine", QUESTION), {"id": 7, "question": QUESTION}, {"question": QUESTION}]
    results = index.retrieve(asked, settings=FAST)
    assert [result.question_id for result in results] == ["q1", "mine", "7", "q4"]
    assert len({result.evidence for result in results}) == 1
    assert index.retrieve({"question": QUESTION}, settings=FAST).question == QUESTION, "one row is one question"


def test_a_model_is_a_name_or_an_object(index: gpu_rag.Index) -> None:
    gone = "http://127.0.0.1:9/v1#gone"
    for _ in range(2):
        with pytest.raises(gpu_rag.ModelError):
            index.ask(QUESTION, settings={"models": {"embedder": "hash"}}, llm=gone)
        assert index.ask(QUESTION, method="bm25", settings=FAST, llm=says("Anna Stroud")).text == "Anna Stroud"
    quiet = {"models": {"embedder": "hash", "llm": gone}}
    assert index.retrieve(QUESTION, settings=quiet).status == "retrieved", "a retrieval asks no model"
    with pytest.raises(gpu_rag.UsageError, match="none, smollm2"):
        index.ask(QUESTION, settings=FAST, llm="no-such-model")


def test_auto_is_the_best_method_that_the_index_has(index: gpu_rag.Index, tmp_path: Path) -> None:
    assert index.retrieve(QUESTION, settings=FAST).method == "fused"
    words = gpu_rag.build(TEXTS, tmp_path / "words", methods="bm25", settings=FAST)
    assert words.retrieve(QUESTION, settings=FAST).method == "bm25"
    german = [f"Der Brunnen von Altmark wurde {year} von dem Steinmetz gebaut und ist tief." for year in (1736, 1737)]
    mixed = gpu_rag.build([*TEXTS[:2], *german], tmp_path / "mixed", settings=FAST)
    assert mixed.retrieve(QUESTION, settings=FAST).method == "hybrid", "patterns extract from half of the documents"
    english = {"models": {"embedder": "minilm", "llm": "none"}}
    by_minilm = gpu_rag.build(german, tmp_path / "german", methods=("hybrid", "ppr"), settings=english)
    assert by_minilm.retrieve("Wer baute den Brunnen?").method == "bm25", "an English model cannot read it"
    (tmp_path / "kg.tsv").write_text("Kerling\tmayor\tAnna Stroud\n")
    bare = gpu_rag.build(out=tmp_path / "bare", kg=tmp_path / "kg.tsv", settings=FAST)
    with pytest.raises(gpu_rag.MissingLayer, match="--for hybgrag"):
        bare.retrieve(QUESTION, settings=FAST)
    base = gpu_rag.build(out=tmp_path / "bare", kg=tmp_path / "kg.tsv", methods="hydrarag", settings=FAST)
    assert base.retrieve(QUESTION, settings=FAST).method == "hydrarag"


def test_awaited_calls_give_what_the_others_give(index: gpu_rag.Index) -> None:
    asked = [QUESTION, "Who designed the Halden Bridge?", "Where was Marta Orlo born?"]
    llm = says("Anna Stroud")
    plain = [index.ask(question, method="ppr", settings=FAST, llm=llm) for question in asked]

    async def all_at_once() -> list[Any]:
        calls = (index.aask(question, method="ppr", settings=FAST, llm=llm) for question in asked)
        return await asyncio.gather(*calls, index.aretrieve(asked, settings=FAST), index.aanswer([], settings=FAST))

    *answers, rows, nothing = asyncio.run(all_at_once())
    same = ("text", "status", "method", "evidence", "paths", "support", "config_hash")
    assert [[getattr(a, name) for name in same] for a in answers] == [
        [getattr(a, name) for name in same] for a in plain
    ]
    assert [row.evidence for row in rows] == [row.evidence for row in index.retrieve(asked, settings=FAST)]
    assert nothing == []
    with pytest.raises(gpu_rag.UsageError):
        asyncio.run(index.aask("", settings=FAST))
    with pytest.raises(gpu_rag.UsageError, match="hopfrog"):
        asyncio.run(index.aask(QUESTION, method="hopfrog", settings=FAST))
    index.close()


def test_questions_of_coroutines_share_batches(index: gpu_rag.Index) -> None:
    sizes: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    class Counting(ScriptedLLM):
        def complete(self, requests: Any, on_reply: Any = None) -> Any:
            sizes.append(len(requests))
            entered.set()
            assert go_on.wait(60)
            return super().complete(requests, on_reply)

    llm = Counting(lambda request: "Anna Stroud")

    async def many() -> None:
        first = asyncio.create_task(index.aask(QUESTION, method="bm25", settings=FAST, llm=llm))
        await asyncio.to_thread(entered.wait, 60)
        others = [
            asyncio.create_task(index.aask(f"{QUESTION} {i}", method="bm25", settings=FAST, llm=llm)) for i in range(8)
        ]
        await asyncio.sleep(1.0)
        go_on.set()
        results = await asyncio.gather(first, *others)
        assert {result.text for result in results} == {"Anna Stroud"}

    asyncio.run(many())
    assert sum(sizes) == 9 and len(sizes) < 9, sizes
    index.close()


def test_a_cancelled_call_ends_and_the_next_one_is_answered(index: gpu_rag.Index) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(ScriptedLLM):
        def complete(self, requests: Any, on_reply: Any = None) -> Any:
            entered.set()
            assert go_on.wait(60)
            return super().complete(requests, on_reply)

    llm = Slow(lambda request: "Anna Stroud")

    async def cancel() -> str | None:
        task = asyncio.create_task(index.aask(QUESTION, method="bm25", settings=FAST, llm=llm))
        await asyncio.to_thread(entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not go_on.is_set(), "it did not wait for the model"
        go_on.set()
        return (await index.aask(QUESTION, method="bm25", settings=FAST, llm=llm)).text

    assert asyncio.run(cancel()) == "Anna Stroud"
    index.close()


def test_a_model_that_dies_ends_all_that_wait_and_the_index_goes_on(index: gpu_rag.Index) -> None:
    class Dying(ScriptedLLM):
        def complete(self, requests: Any, on_reply: Any = None) -> Any:
            raise gpu_rag.ModelError("the server is gone")

    llm = Dying(lambda request: "")

    async def both() -> list[Any]:
        calls = [index.aask(f"{QUESTION} {i}", method="bm25", settings=FAST, llm=llm) for i in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert {type(error) for error in asyncio.run(both())} == {gpu_rag.ModelError}
    assert index.ask(QUESTION, method="bm25", settings=FAST, llm=says("Anna Stroud")).text == "Anna Stroud"


def test_threads_and_coroutines_with_different_models_take_turns(index: gpu_rag.Index) -> None:
    models = [says(name) for name in ("Anna Stroud", "Marta Orlo")]

    def work(n: int) -> str | None:
        call = {"method": "bm25", "settings": FAST, "llm": models[n % 2]}
        if n % 3:
            return index.ask(f"{QUESTION} {n}", **call).text
        return asyncio.run(index.aask(f"{QUESTION} {n}", **call)).text

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(work, range(24)))
    assert texts == ["Anna Stroud", "Marta Orlo"] * 12
    index.close()
    assert not index._models_lock.locked()
