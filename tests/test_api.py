"""The Python API: retrieve, ask and answer, models that stay open, results in notebooks and as tables."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

import gpu_rag
from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.models import set as models_set
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Answer, Question

FAST = {"models": {"embedder": "hash", "llm": "none"}}
TEXTS = [
    ("Halden Bridge", "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling."),
    ("Marta Orlo", "Marta Orlo was an engineer born in Tamsin. She studied under Piet Ruyven."),
    ("Kerling", "Kerling is a town on the river Ves. Its mayor was Anna Stroud."),
    ("University of Loss", "The University of Loss was founded in 1640 by Hugo Brandt."),
]
QUESTION = "Who was mayor where the Halden Bridge stands?"


class Closing(ScriptedLLM):
    """It says one thing, and whether it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def says(text: str) -> Closing:
    return Closing(lambda request: text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("api")
    (tmp / "c.jsonl").write_text("".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in TEXTS))
    gpu_rag.build(tmp / "c.jsonl", tmp / "ix", settings=FAST)
    return tmp / "ix"


def test_one_question_retrieves_its_best_passages_without_a_language_model(folder: Path) -> None:
    found = gpu_rag.Index.open(folder).retrieve(QUESTION, method="ppr", k=3, settings=FAST)
    assert (
        isinstance(found, Answer) and found.status == "retrieved" and found.text is None and found.usage.llm_calls == 0
    )
    assert {"Halden Bridge", "Kerling"} <= {item.title for item in found.evidence} and len(found.evidence) == 3
    scores = [item.score for item in found.evidence]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[-1]
    assert found.paths and found.support, "the facts and sentences that bear on it"
    for sentence in found.support:
        (item,) = [item for item in found.evidence if item.passage_id == sentence.passage_id]
        assert item.text[sentence.start : sentence.end] == sentence.text


def test_the_best_sentences_are_not_repeated_and_a_question_brings_its_answer(tmp_path: Path) -> None:
    faq = "Old pages.\n\nWhere does the name of the club come from?\n\nFrom a hill. It was dug away.\n"
    notes = "The key hangs in the shed. A dog sleeps there."
    index = gpu_rag.build([faq, faq + "\nA copy.", notes, notes + "\n"], tmp_path / "i", settings=FAST)
    for question, best in {
        "Where does the name of the club come from?": "From a hill.",
        "the key": "in the shed.",
    }.items():
        said = [sentence.text for sentence in index.retrieve(question, method="dense", settings=FAST).support]
        assert len(said) == len(set(said)) == 3 and said[0].endswith(best)


def test_models_stay_open_until_other_settings_are_named_or_the_block_ends(folder: Path, monkeypatch: Any) -> None:
    loaded: list[str] = []
    plain = models_set.load_embedder
    monkeypatch.setattr(models_set, "load_embedder", lambda *a, **named: loaded.append(a) or plain(*a, **named))
    first, second = says("Anna Stroud"), says("Piet")
    with gpu_rag.Index.open(folder) as index:
        for _ in range(3):
            index.ask(QUESTION, settings=FAST, llm=first)
            index.answer([QUESTION], settings=FAST, llm=first)
        assert len(loaded) == 1 and not first.closed
        assert index.answer(QUESTION, settings=FAST, llm=second)[0].text == "Piet"
        assert first.closed and not second.closed
        index.retrieve([QUESTION], settings={"models": {**FAST["models"], "max_batch": 3}})
        assert second.closed and len(loaded) == 3
    index.close()
    assert index.ask(QUESTION, settings=FAST, llm=second).text == "Piet", "it opens them again"


def test_an_unknown_keyword_is_named_with_the_nearest_one(folder: Path) -> None:
    with pytest.raises(UsageError, match="unknown keyword; given methd; .*did you mean method"):
        gpu_rag.Index.open(folder).retrieve(QUESTION, methd="bm25")  # type: ignore[call-overload]


def test_models_end_with_the_index_that_opened_them(folder: Path) -> None:
    llm = says("Anna Stroud")
    gpu_rag.Index.open(folder).ask(QUESTION, settings=FAST, llm=llm)
    assert llm.closed == 1, "at once, not when the garbage collector comes by"


def test_a_build_keeps_what_the_index_was_built_for_and_refuses_an_index_as_corpus(tmp_path: Path) -> None:
    texts = ["Marta Orlo was born in Tamsin.", "Piet Ammer founded Ves."]
    first = gpu_rag.build(texts, tmp_path / "i", methods="hoprag", settings=FAST)
    built = set(first.stages)
    again = gpu_rag.build([*texts, "Ves lies on the Ouda."], tmp_path / "i", methods="bm25", settings=FAST)
    assert built <= set(again.stages) and again.n_passages == 3
    assert again.report is not None and {"hop_edges", "bm25"} <= set(again.report.stages)
    with pytest.raises(UsageError, match="an index is not a corpus"):
        gpu_rag.build(tmp_path / "i", tmp_path / "j", settings=FAST)


def test_a_notebook_shows_evidence_then_the_answer_and_its_grounding(folder: Path) -> None:
    index = gpu_rag.Index.open(folder)
    stated = index.ask(QUESTION, method="ppr", settings=FAST, llm=says("Anna Stroud"))
    page = stated._repr_html_()
    best = stated.support[0].text
    assert f"<mark>{best}</mark>" in page and stated.paths[0].text in page
    assert (
        page.index(stated.paths[0].text) < page.index(f"<mark>{best}</mark>") < page.index("answer: <b>Anna Stroud</b>")
    )
    assert "its words stand in the evidence" in page
    assert (
        "unsupported: the evidence does not state it"
        in index.ask(QUESTION, settings=FAST, llm=says("Zog"))._repr_html_()
    )
    failed = gpu_rag.Result("q", "Why?", "ppr", "failed", None, error={"type": "ModelError", "message": "<gone>"})
    assert "failed, ModelError: &lt;gone&gt;" in failed._repr_html_()
    many = index.retrieve([Question(str(i), QUESTION) for i in range(12)], settings=FAST)
    assert many._repr_html_().count("<hr>") == 9 and "and 2 more" in many._repr_html_()


def test_what_documents_and_models_say_is_text_in_a_notebook(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    row = {"id": f"d{evil}", "title": f"Halden {evil}", "text": f"Marta Orlo {evil} designed the Halden Bridge. " * 20}
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    gpu_rag.build(tmp_path / "c.jsonl", tmp_path / "ix", settings=FAST)
    answer = gpu_rag.Index.open(tmp_path / "ix").ask(f"Who is Orlo {evil}?", settings=FAST, llm=says(evil))
    page = answer._repr_html_()
    assert evil not in page and "<script" not in page and "&lt;script&gt;" in page
    assert len(page) < 6_000, "long passages are cut"


def test_tables_have_a_row_a_question_or_a_row_a_passage(folder: Path) -> None:
    index = gpu_rag.Index.open(folder)
    answers = index.answer([QUESTION, "Who founded it?"], method="ppr", settings=FAST, llm=says("Anna Stroud"))
    table = answers.to_pandas()
    assert isinstance(table, pandas.DataFrame) and table["id"].tolist() == ["q1", "q2"]
    assert table["answer"].tolist() == ["Anna Stroud"] * 2 and table["llm_calls"].tolist() == [1, 1]
    assert table["passages"][0] == [item.passage_id for item in answers[0].evidence]
    passages = answers.to_pandas(passages=True)
    assert len(passages) == sum(len(answer.evidence) for answer in answers)
    one = answers[1].to_pandas()
    assert one["rank"].tolist() == list(range(1, len(one) + 1)) and one["question_id"].unique().tolist() == ["q2"]
    assert one["text"].tolist() == [item.text for item in answers[1].evidence]
    assert index.retrieve([], settings=FAST).to_pandas().shape == (0, table.shape[1])


def test_a_table_without_pandas_says_what_installs_it(folder: Path, monkeypatch: Any) -> None:
    found = gpu_rag.Index.open(folder).retrieve(QUESTION, settings=FAST)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingBackend, match=r"pip install 'gpu-rag\[pandas\]'"):
        found.to_pandas()
