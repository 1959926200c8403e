"""What gpu-rag eval prints beside scores, and what it refuses before any work."""

from __future__ import annotations

from gpu_rag.cli.eval_command import score_tables


def test_the_text_says_what_ran_the_ops_and_shows_pairs_that_can_be_read(run, cli, index, questions):
    given = ("eval", index, questions, "--retrieval-only", *cli.NO_LLM, "--method")
    few = run(*given, "bm25,dense").out
    assert "paired differences\n" in few and "graph ops: nearest by numba" in few


def test_of_many_methods_pairs_with_the_first_are_shown():
    cell = {"diff": 0.1, "low": 0.0, "high": 0.2}
    entry = {"recall@2": 0.5, "ci95": {}, "failed": 0, "wall_s": 0.1, "graph_ops": {"nearest": "numba"}}
    names = ["a", "b", "c", "d", "e"]
    pairs = {f"{second} - {first}": {"recall@2": cell} for i, second in enumerate(names) for first in names[:i]}

    def shown(n):
        kept = {pair: found for pair, found in pairs.items() if set(pair.split(" - ")) <= set(names[:n])}
        text = score_tables({"n": 3, "methods": dict.fromkeys(names[:n], entry), "paired": kept}, [2], True)
        return [pair for pair in pairs if f"{pair}  " in text], "pairs against a only" in text

    assert shown(4) == ([p for p in pairs if "e" not in p], False)
    assert shown(5) == (["b - a", "c - a", "d - a", "e - a"], True)


def test_methods_that_cannot_run_are_refused_before_the_first_one_runs(run, cli, questions, tmp_path):
    (tmp_path / "facts.tsv").write_text("Halden Bridge\tdesigned by\tMarta Orlo\n", encoding="utf-8")
    built = run("index", "--kg", tmp_path / "facts.tsv", "--out", tmp_path / "ix", "--for", "hydrarag", *cli.NO_LLM)
    assert built.status == 0, built.err
    result = run("eval", tmp_path / "ix", questions, "--method", "hydrarag,dense", "--retrieval-only", *cli.NO_LLM)
    assert result.status == 2 and "no passages, which dense ranks" in result.error
    assert "hydrarag:" not in result.err  # its bar would stand there
