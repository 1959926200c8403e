"""gpu-rag eval: its numbers against a computation of its own, from the rankings of `ask` and the texts of answers."""

import numpy as np
import pytest

import gpu_rag

HOMES = ["Kerling", "Tamsin", "Loss", "Ves", "Brandt"]


def teacher(person):
    return (person * 7 + 3) % 40


@pytest.fixture
def corpus(tmp_path, cli):
    """Forty short articles and one long one that becomes several passages of one document."""
    rows = [
        {
            "id": f"a{i:02d}",
            "title": f"Person {i}",
            "text": f"Person {i} was born in {HOMES[i % 5]} in {1800 + i}. Person {teacher(i)} taught Person {i}.",
        }
        for i in range(40)
    ]
    long = " ".join(f"In {1700 + i} the town of Kerling paid {i} crowns for its harbour." for i in range(60))
    return cli.write_rows(tmp_path / "corpus.jsonl", [*rows, {"id": "long", "title": "Kerling", "text": long}])


@pytest.fixture
def asked(tmp_path, cli):
    """Questions with one to three gold documents; one has none, one has no answers."""
    rows = []
    for i in range(0, 40, 4):
        gold = [f"a{i:02d}", f"a{teacher(i):02d}", "long"][: 1 + i // 4 % 3]
        text = f"Who taught Person {i}, and what did Kerling pay in {1700 + i}?"
        rows.append({"id": f"q{i}", "question": text, "gold_ids": gold, "answers": [f"Person {teacher(i)}"]})
    del rows[3]["gold_ids"], rows[5]["answers"]
    return cli.write_rows(tmp_path / "asked.jsonl", rows)


@pytest.fixture
def people(corpus, made_once, cli):
    """The index of the corpus."""
    return made_once("people", corpus, "--for", ",".join(cli.METHODS), "--set", "index.chunk_words=60")


def rankings(folder, rows, method, depth):
    """The documents of each question's ranking by brute force: every passage scored here, not by the index's code."""
    from gpu_rag import Index

    index = Index.open(folder)
    documents, n = index.passage_doc_ids, len(index.passage_ids)
    found = []
    for row in rows:
        if method == "dense":
            from gpu_rag.models.embed import load_embedder

            embedder = load_embedder("hash")
            (vector,) = embedder.embed([row["question"]])
            scores = index.vectors("passage_vectors").numpy() @ vector
        else:
            scores = index.bm25.scores(row["question"])
        order = [i for i in sorted(range(n), key=lambda i: (-scores[i], i)) if method == "dense" or scores[i] > 0]
        kept = []
        for i in order[:depth]:
            if documents[i] not in kept:
                kept.append(documents[i])
        found.append(kept)
    return found


def expected_scores(folder, rows, method, at):
    """{measure: mean} over the questions that have gold ids."""
    ranked, depth = [], max(max(at), 5)
    for row, ranking in zip(rows, rankings(folder, rows, method, depth), strict=True):
        if row.get("gold_ids"):
            ranked.append((ranking, set(row["gold_ids"])))
    means = {}
    for k in at:
        hits = [len(gold & set(ranking[:k])) for ranking, gold in ranked]
        means[f"recall@{k}"] = np.mean([h / len(gold) for h, (_, gold) in zip(hits, ranked, strict=True)])
        f1 = []
        for h, (ranking, gold) in zip(hits, ranked, strict=True):
            precision, recall = h / len(ranking[:k]), h / len(gold)
            f1.append(2 * precision * recall / (precision + recall) if h else 0.0)
        means[f"retrieval_f1@{k}"] = np.mean(f1)
        means[f"whole@{k}"] = np.mean([gold <= set(ranking[:k]) for ranking, gold in ranked])
    return means


@pytest.mark.parametrize("method", ["dense", "bm25"])
def test_recall_equals_brute_force(method, run, cli, people, asked):
    rows, at = cli.read_rows(asked), (2, 5, 10, 15)
    given = ("eval", people, asked, "--method", method, "--retrieval-only", "--at", ",".join(map(str, at)))
    result = run(*given, *cli.NO_LLM, "--json").ok
    entry = result.document["methods"][method]
    expected = expected_scores(people, rows, method, at)
    assert {name for name in entry if "@" in name} == set(expected)
    for name, value in expected.items():
        assert entry[name] == pytest.approx(value, abs=1e-12), name
        low, high = entry["ci95"][name]
        assert low <= value <= high
    assert len({round(v, 6) for v in expected.values()}) > 3  # numbers that can tell right from wrong


def test_all_is_each_method_that_the_index_serves(run, cli, corpus, asked, tmp_path):
    assert run("index", corpus, "--out", tmp_path / "ix", "--for", "bm25", *cli.NO_LLM).ok
    made = run("eval", tmp_path / "ix", asked, "--method", "all", "--retrieval-only", *cli.NO_LLM, "--json").document
    served = gpu_rag.Index.open(tmp_path / "ix")
    assert "bm25" in made["methods"] and not {"dense", "auto", "hybgrag"} & {*made["methods"]}
    assert [*gpu_rag.evaluate(served, asked, methods="all").document["methods"]] == [*made["methods"]]


def test_cut_offs_of_ones_own(run, cli, index, questions):
    given = ("eval", index, questions, "--method", "bm25", "--retrieval-only", "--at", "3,1,3", *cli.NO_LLM, "--json")
    entry = run(*given).document["methods"]["bm25"]
    named = [f"{m}@{k}" for m in ("recall", "retrieval_f1", "whole") for k in (1, 3)]
    assert [name for name in entry if "@" in name] == named


def test_without_a_dialogue_the_agents_rank_as_their_retrievers_and_eval_says_so(run, cli, corpus, asked, tmp_path):
    methods = "hybrid,dual-agent,higra-retriever,higra-agent"
    folder = tmp_path / "agents"
    assert run("index", corpus, "--out", folder, "--for", methods, *cli.NO_LLM).status == 0
    given = ("eval", folder, asked, "--retrieval-only", *cli.NO_LLM, "--json", "--method")
    result = run(*given, methods)
    scores = {
        method: {name: value for name, value in entry.items() if "@" in name}
        for method, entry in result.document["methods"].items()
    }
    assert scores["dual-agent"] == scores["hybrid"] != scores["higra-retriever"] == scores["higra-agent"]
    line = "gpu-rag: --retrieval-only leaves out the dialogue: {}"
    both = "dual-agent ranks as hybrid, higra-agent ranks as higra-retriever"
    assert [said for said in result.err.splitlines() if "dialogue" in said] == [line.format(both)]
    assert line.format("dual-agent ranks as hybrid\n") in run(*given, "dual-agent").err
    assert "dialogue" not in run(*given, "hybrid,higra-retriever").err


def test_em_and_f1_of_recorded_answers(run, cli, index, questions, replay):
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}")
    result = run("eval", index, questions, "--method", "ppr", *llm, "--json").ok
    entry = result.document["methods"]["ppr"]
    assert entry["em"] == 2 / 5  # q1 and q3
    assert entry["f1"] == pytest.approx((1 + 1 / 2 + 1) / 5)  # and of q2 one of three words, which is all of the gold
    assert entry["llm_calls"] == 1 and entry["prompt_tokens"] > 50 and entry["generated_tokens"] > 0
    assert entry["unsupported"] == 1


def test_recall_does_not_depend_on_the_language_model(run, cli, index, questions, replay):
    llm = (*cli.HASH, "--set", f"models.llm=replay:{replay}")
    full = run("eval", index, questions, "--method", "ppr", *llm, "--json").document["methods"]["ppr"]
    given = ("eval", index, questions, "--method", "ppr", "--retrieval-only", *cli.NO_LLM, "--json")
    alone = run(*given).document["methods"]["ppr"]
    assert {n: v for n, v in full.items() if "@" in n} == {n: v for n, v in alone.items() if "@" in n}


def test_failed_questions_score_zero_are_counted_and_give_status_3(run, cli, index, questions, tmp_path):
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text("")
    llm = (*cli.HASH, "--set", f"models.llm=replay:{nothing}")
    result = run("eval", index, questions, "--method", "dense", *llm, "--json")
    entry = result.document["methods"]["dense"]
    assert (result.status, entry["failed"], entry["em"], entry["recall@2"]) == (3, 5, 0.0, 0.0)
    assert "5 failures, above --max-failures 5%" in result.err
    assert run("eval", index, questions, "--method", "dense", *llm, "--max-failures", "5").status == 0


def test_gold_ids_that_are_not_in_the_index_are_an_error(run, cli, index, questions, tmp_path):
    rows = [*cli.QUESTIONS, {"id": "q9", "question": "Who?", "gold_ids": ["d1", "d77"]}]
    cli.write_rows(questions, rows)
    result = run("eval", index, questions, "--retrieval-only", *cli.NO_LLM, "--json")
    assert result.status == 2 and result.out == ""
    assert "1 gold ids are not documents of the index; given question q9 with d77" in result.error


def test_limit_and_rejects(run, cli, index, questions):
    with questions.open("a") as file:
        file.write("not json\n")
    given = ("eval", index, questions, "--method", "bm25", "--retrieval-only", *cli.NO_LLM, "--json")
    limited = run(*given, "--limit", 2).document
    assert (limited["n"], limited["rejects"]) == (2, 0)
    whole = run(*given)
    assert (whole.status, whole.document["rejects"]) == (3, 1)  # 1 of 6 is above 5%
    assert run(*given, "--max-failures", "20%").status == 0


def test_a_report_is_a_file(run, index, questions, tmp_path):
    for folder in (".", tmp_path):
        result = run("eval", index, questions, "--report", folder)
        assert result.status == 2 and "--report is a folder" in result.error


def test_questions_without_gold_have_no_recall(run, cli, index, questions):
    cli.write_rows(questions, [{"id": "q", "question": "Who?", "answers": ["Anna"]}])
    given = ("eval", index, questions, "--method", "bm25", "--retrieval-only", *cli.NO_LLM)
    entry = run(*given, "--json").document["methods"]["bm25"]
    assert entry["recall@2"] is None and entry["ci95"] == {}
    assert " - " in run(*given).out.replace("\n", " ")  # the table shows a dash
    assert "nothing is scored: recall needs gold_ids" in run(*given).out
    assert "answers are not scored" in run(*(word for word in given if word != "--retrieval-only")).err


def test_progress_of_a_method_begins_before_its_first_answer(index, questions):
    from gpu_rag import evaluate
    from gpu_rag.index.work import Silent

    seen = []

    class Seen(Silent):
        def start(self, stage, total, unit):
            seen.append((stage, total))

        def advance(self, n, tokens=0):
            seen.extend(["answer"] * n)

    evaluate(index, questions, methods="bm25,dense", retrieval_only=True, progress=Seen())
    n = seen[0][1]
    assert seen == [("bm25", n), *["answer"] * n, ("dense", n), *["answer"] * n]


def test_the_table_shows_what_the_document_says(run, cli, index, questions):
    given = ("eval", index, questions, "--method", "bm25,dense", "--retrieval-only", *cli.NO_LLM)
    entry = run(*given, "--json").document["methods"]["bm25"]
    (line,) = [line for line in run(*given).out.splitlines() if line.startswith("bm25 ")]
    low, high = entry["ci95"]["recall@2"]
    assert f"{entry['recall@2']:.3f} [{low:.3f}, {high:.3f}]" in line
    assert str(entry["failed"]) in line.split()
