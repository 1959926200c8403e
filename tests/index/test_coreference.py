"""Coreference before extraction: replaced pronouns, rejected rewrites, what a scripted model is asked, fastcoref."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from gpu_rag.errors import MissingBackend, RequestFailed, UsageError
from gpu_rag.index import tables
from gpu_rag.index.stages.coreference import keeps_text, replace_pronouns
from gpu_rag.index.stages.extraction import extraction_stage
from gpu_rag.index.work import Sources
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings import make_settings
from gpu_rag.types import Request

ANN = "Ann Orlo was born in Tamsin. She studied there, and her teacher praised her."
ANN_SPANS = [(0, 8), (29, 32), (52, 55), (72, 75)]
RESOLVED = "Ann Orlo was born in Tamsin. Ann Orlo studied there, and Ann Orlo's teacher praised Ann Orlo."


def test_pronouns_become_the_first_name() -> None:
    assert [ANN[s:e] for s, e in ANN_SPANS] == ["Ann Orlo", "She", "her", "her"]
    assert replace_pronouns(ANN, [ANN_SPANS]) == RESOLVED
    assert replace_pronouns(ANN, [ANN_SPANS[1:]]) == ANN  # pronouns alone name nothing
    assert replace_pronouns("It rose. Its banks", [[(0, 2), (9, 12)], [(13, 18), (9, 12)]]) == "It rose. banks's banks"
    assert (
        replace_pronouns("James's boat sank. It was his.", [[(0, 7), (26, 29)]]) == "James's boat sank. It was James's."
    )


def test_a_rewrite_must_keep_the_text() -> None:
    assert keeps_text(ANN, RESOLVED) and keeps_text(ANN, ANN) and keeps_text("", "")
    assert not keeps_text(ANN, "Ann Orlo was born in Tamsin.")
    assert not keeps_text(ANN, "")
    assert not keeps_text(ANN, RESOLVED * 3)
    assert not keeps_text("born 1902 died 1950 in Orle", "born 1902 died 1902 in Orle 1902")


TEXTS = {
    "changed": "Ann Orlo met Piet Ruyven. He taught her in Tamsin.",
    "same": "Bo sang.",
    "rejected": "Cy built a bridge at Kerling in 1902. It stands.",
    "unread": "Di wrote a book on rivers. She died.",
    "failed": "Ed sailed to Orle. He stayed.",
}
SAID = {
    "changed": json.dumps({"text": "Ann Orlo met Piet Ruyven. Piet Ruyven taught Ann Orlo in Tamsin."}),
    "same": json.dumps({"text": "Bo sang."}),
    "rejected": json.dumps({"text": "Cy."}),
    "unread": "Di wrote a book.",
    "failed": RequestFailed("refused"),
}


def answer(request: Request) -> Any:
    return SAID[request.prompt.split("Title: ")[1].split("\n")[0]]


def extract(bench: Any, llm: Any) -> list[dict[str, Any]]:
    bench.put_passages(list(TEXTS.values()), list(TEXTS))
    bench.run(extraction_stage, {"index": {"coref": "llm"}}, llm=llm)
    return bench.rows("extraction")


def test_every_kind_of_rewrite_is_counted_and_only_good_ones_are_read(bench: Any) -> None:
    llm = ScriptedLLM(answer)
    found = extract(bench, llm)
    counts = {f"coref_{name}": 1 for name in TEXTS}
    assert {name: n for name, n in bench.counts.items() if name.startswith("coref")} == counts
    assert len(llm.calls) == 6 and len({request.system for request in llm.calls}) == 1  # one repair try
    assert ["Piet Ruyven", "taught", "Ann Orlo"] in found[0]["triples"]  # only the rewrite says who taught whom
    assert bench.report.failures == 2 and "coref_failed" in extraction_stage.retry


def test_without_coreference_nothing_is_asked_and_nothing_depends_on_it(bench: Any) -> None:
    llm = ScriptedLLM(answer)
    bench.put_passages([ANN])
    bench.run(extraction_stage, llm=llm)
    assert llm.calls == [] and not any(name.startswith("coref") for name in bench.counts)
    layer = extraction_stage
    plain = layer.params(make_settings({}), Sources())
    assert plain == {"extractor": "patterns"} and layer.roles(make_settings({})) == ()
    other = make_settings({"index": {"coref": "llm"}})
    assert layer.params(other, Sources()) != plain and layer.roles(other) == ("llm",)


def test_imported_results_take_no_coreference() -> None:
    settings = make_settings({"index": {"extractor": "import", "coref": "llm"}})
    with pytest.raises(UsageError, match="leave out index.coref"):
        extraction_stage.params(settings, Sources())


def test_fastcoref_is_imported_when_asked_for(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Prediction:
        def get_clusters(self, as_strings: bool) -> list[list[tuple[int, int]]]:
            assert not as_strings
            return [ANN_SPANS]

    class FCoref:
        def __init__(self, device: str):
            assert device == "cpu"

        def predict(self, texts: list[str]) -> list[Prediction]:
            return [Prediction() for _ in texts]

    module = ModuleType("fastcoref")
    module.FCoref = FCoref  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastcoref", module)
    bench.put_passages([ANN])
    settings = {"index": {"coref": "fastcoref"}, "models": {"device": "cpu"}}
    bench.run(extraction_stage, settings)
    assert bench.counts["coref_changed"] == 1

    def absent(device: str) -> None:
        raise OSError("no such model")

    module.FCoref = absent  # type: ignore[attr-defined]
    with pytest.raises(MissingBackend, match="biu-nlp/f-coref"):
        bench.run(extraction_stage, settings)
    monkeypatch.setitem(sys.modules, "fastcoref", None)
    with pytest.raises(MissingBackend, match="pip install fastcoref"):
        bench.run(extraction_stage, settings)


def test_profiles_of_an_extraction_are_kept(bench: Any) -> None:
    """Patterns know that a title is also called something else, and nothing more."""
    bench.put_passages(["Ada Maria Holm was born in Oslo."], ["Ada Holm"])
    bench.run(extraction_stage)
    rows = tables.read_table(bench.folder("extraction") / "profiles.parquet", tables.PROFILES).to_pylist()
    assert rows == [{"passage": 0, "name": "Ada Holm", "aliases": ["Ada Maria Holm"], "types": [], "description": ""}]
