"""Indexes that were built apart and merged: equal to one build, and no model is asked again."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.cli.main import main
from gpu_rag.errors import BadInput, IndexCorrupt, IndexMismatch, UsageError
from gpu_rag.index.work import Silent
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.types import Request

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}
BY_MODEL: dict[str, Any] = {**FAST, "index": {"extractor": "llm"}}


pytestmark = pytest.mark.usefixtures("own_cache")


def row(number: int, **more: Any) -> dict[str, Any]:
    text = f"Marta Orlo{number} designed the bridge of Kerling{number % 3}. It crosses the Ves{number}."
    return {"id": f"r{number}", "title": f"Marta Orlo{number}", "text": text, "year": 1900 + number, **more}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def names_of(request: Request) -> str:
    """Extraction of all capitalised words."""
    text = request.prompt.rpartition("Marta")[2]
    names = [word.strip(".,") for word in f"Marta{text}".split() if word[:1].isupper()]
    entities = [{"name": name, "aliases": [], "types": [], "description": ""} for name in dict.fromkeys(names)]
    return json.dumps({"entities": entities, "triples": []})


def built(out: Path, *sources: Path, methods: str = "ppr", settings: Any = FAST, **more: Any) -> gpu_rag.Index:
    return gpu_rag.build(list(sources), out, methods=methods.split(","), settings=settings, **more)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two files that share documents r5 and r6, the second with another text in one of them."""
    first = write_rows(tmp_path / "b.jsonl", [row(number) for number in range(7)])
    second = write_rows(
        tmp_path / "a.jsonl", [row(5), row(6, text="Marta Orlo6 was mayor of Tamsin."), *map(row, (8, 9))]
    )
    return [first, second]


@pytest.mark.parametrize("methods", ["dense", pytest.param("ppr,bm25,hoprag,higra-retriever", marks=pytest.mark.slow)])
def test_a_merge_is_one_build_in_any_order(pair: list[Path], tmp_path: Path, methods: str) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "n.txt").write_text("Anna Stroud was mayor of Kerling1. She met Marta Orlo2.")
    write_rows(folder / "rows.jsonl", [row(2, text="Marta Orlo2 lived in Kerling1.")])  # an id that b.jsonl uses
    sources = [*pair, folder]
    one = built(tmp_path / "one", *sources, methods=methods)
    parts = [tmp_path / f"part{number}" for number in range(3)]
    for part, source in zip(parts, sources):
        built(part, source, methods=methods)
    for order in ((0, 1, 2), (2, 0, 1)):
        merged = gpu_rag.merge([parts[n] for n in order], tmp_path / f"merged{order[0]}", settings=FAST)
        assert merged.manifest.digest() == one.manifest.digest()
    assert gpu_rag.verify(merged.path).ok and merged.manifest.stages["passages"].counts["rejects"] == 2
    questions = ["Who designed the bridge of Kerling1?", "Who was mayor of Tamsin?"]
    answers, others = (index.retrieve(questions, settings=FAST) for index in (one, merged))
    assert [a.evidence for a in answers] == [a.evidence for a in others]
    again = gpu_rag.merge(parts, merged.path, settings=FAST)
    assert again.report is not None and all(stage.skipped for stage in again.report.stages.values())


class CountingEmbedder(HashEmbedder):
    """Notes the texts that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed(self, texts: Any, on_batch: Any = None) -> Any:
        self.texts += texts
        return super().embed(texts, on_batch)


def test_no_model_is_asked_for_what_an_index_holds(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, embedder = ScriptedLLM(names_of), CountingEmbedder()
    monkeypatch.setattr("gpu_rag.models.set.load_embedder", lambda *_, **__: embedder)
    settings = {**BY_MODEL, "models": {"embedder": "minilm", "vector_cache_gib": 0.0}}
    one = built(tmp_path / "one", *pair, settings=settings, llm=model).manifest.digest()
    n_requests, n_texts = len(model.calls), len(set(embedder.texts))
    assert n_requests == 7 + 2 and n_texts > 20
    for name, source in zip("AB", pair):
        built(tmp_path / name, source, settings=settings, llm=model)
    model.calls.clear()
    embedder.texts.clear()
    merged = gpu_rag.merge([tmp_path / "A", tmp_path / "B"], tmp_path / "C", settings=settings, llm=model)
    assert merged.manifest.digest() == one
    assert not model.calls and not embedder.texts
    assert merged.report is not None and merged.report.stages["extraction"].replies_read == n_requests
    assert not (tmp_path / "C" / "work").exists()


def test_of_two_replies_to_one_request_the_order_of_the_indexes_decides_nothing(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [row(1), row(2)])
    for name in "AB":
        model = ScriptedLLM(lambda request, name=name: names_of(request).replace("Kerling", f"Kerling{name}"))
        built(tmp_path / name, source, settings=BY_MODEL, llm=model)
    digests = {
        gpu_rag.merge(
            [tmp_path / name for name in order], tmp_path / order, settings=BY_MODEL, llm=ScriptedLLM(names_of)
        ).manifest.digest()
        for order in ("AB", "BA")
    }
    assert len(digests) == 1


def test_what_was_removed_from_one_index_stays_out(pair: list[Path], tmp_path: Path) -> None:
    for name, source in zip("AB", pair):
        built(tmp_path / name, source, methods="bm25")
    gpu_rag.remove(tmp_path / "A", documents="r3", settings=FAST)
    merged = gpu_rag.merge([tmp_path / "A", tmp_path / "B"], tmp_path / "C", settings=FAST)
    assert sorted(merged.documents["id"].to_pylist()) == [f"r{n}" for n in (0, 1, 2, 4, 5, 6, 8, 9)]
    gpu_rag.update(tmp_path / "C", settings=FAST)
    assert gpu_rag.Index.open(tmp_path / "C").manifest.digest() == merged.manifest.digest()


def test_a_file_that_was_removed_from_one_index_stays_out(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for n in range(3):
        write_rows(folder / f"f{n}.jsonl", [row(n)])
    for name in "AB":
        built(tmp_path / name, folder, methods="bm25")
    gpu_rag.remove(tmp_path / "A", files=folder / "f1.jsonl", settings=FAST)
    for out, order in (("C", "AB"), ("D", "BA")):
        merged = gpu_rag.merge([tmp_path / name for name in order], tmp_path / out, settings=FAST)
        assert merged.manifest.digest() == gpu_rag.Index.open(tmp_path / "A").manifest.digest()


def test_any_two_of_several_indexes_are_compared(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for n in range(3):
        write_rows(folder / f"f{n}.jsonl", [row(n)])
    for name in "ABC":
        if name == "C":
            write_rows(folder / "f0.jsonl", [row(9)])
        built(tmp_path / name, folder, methods="bm25")
        if name == "A":  # its hash lacks a file, so that it differs from both
            gpu_rag.remove(tmp_path / name, files=folder / "f1.jsonl", settings=FAST)
    for order in ("ABC", "CAB"):
        with pytest.raises(UsageError, match=str(folder)):
            gpu_rag.merge([tmp_path / name for name in order], tmp_path / "D", settings=FAST)


def test_settings_that_differ_are_named(pair: list[Path], tmp_path: Path) -> None:
    built(tmp_path / "A", pair[0], methods="bm25")
    built(tmp_path / "B", pair[1], methods="bm25", settings={**FAST, "index": {"chunk_words": 57}})
    with pytest.raises(UsageError) as error:
        gpu_rag.merge([tmp_path / "A", tmp_path / "B"], tmp_path / "C", settings=FAST)
    assert all(fact in str(error.value) for fact in ("index.chunk_words", "57", "default", str(tmp_path / "A")))
    assert not (tmp_path / "C").exists()


def test_models_that_differ_are_named(pair: list[Path], tmp_path: Path) -> None:
    built(tmp_path / "A", pair[0], settings=BY_MODEL, llm=ScriptedLLM(names_of, name="first-model"))
    built(tmp_path / "B", pair[1], settings=BY_MODEL, llm=ScriptedLLM(names_of, name="other-model"))
    both = [tmp_path / "A", tmp_path / "B"]
    with pytest.raises(IndexMismatch) as error:
        gpu_rag.merge(both, tmp_path / "C", settings=BY_MODEL, llm=ScriptedLLM(names_of))
    assert "first-model" in str(error.value) and "other-model" in str(error.value)
    with pytest.raises(IndexMismatch, match="first-model"):  # before anything is asked anew
        gpu_rag.merge(both[:1], tmp_path / "C", settings=BY_MODEL, llm=ScriptedLLM(names_of, name="third"))


class Interrupted(Silent):
    """Progress that Ctrl-C stops at the beginning of a stage."""

    def start(self, stage: str, total: int | None, unit: str) -> None:
        if stage == "passage_vectors":
            raise KeyboardInterrupt


def test_a_merge_that_was_interrupted_goes_on(pair: list[Path], tmp_path: Path) -> None:
    one = built(tmp_path / "one", *pair, methods="dense").manifest.digest()
    for name, source in zip("AB", pair):
        built(tmp_path / name, source, methods="dense")
    both = [tmp_path / "A", tmp_path / "B"]
    with pytest.raises(KeyboardInterrupt):
        gpu_rag.merge(both, tmp_path / "C", settings=FAST, progress=Interrupted())
    merged = gpu_rag.merge(both, tmp_path / "C", settings=FAST)
    assert merged.manifest.digest() == one
    assert merged.report is not None and merged.report.stages["passages"].skipped


def test_a_merge_overwrites_no_index(pair: list[Path], tmp_path: Path) -> None:
    for name, source in zip("AB", pair):
        built(tmp_path / name, source, methods="bm25")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("Dear Anna")
    for out in ("A", "B", "letters"):
        with pytest.raises(UsageError):
            gpu_rag.merge([tmp_path / "A", tmp_path / "A"], tmp_path / out, settings=FAST)
    assert gpu_rag.verify(tmp_path / "B").ok and len([*(tmp_path / "letters").iterdir()]) == 1


def on_another_machine(monkeypatch: pytest.MonkeyPatch, *sources: Path) -> None:
    """Forget the key that signed paths, and move the sources away."""
    monkeypatch.setattr("gpu_rag.index.recorded._key", lambda: b"the key of another machine")
    for source in sources:
        source.rename(source.with_name(f"{source.name}.away"))


def back(*sources: Path) -> None:
    for source in sources:
        source.with_name(f"{source.name}.away").rename(source)


LONG = " ".join(f"Marta Orlo{n} met Anna Stroud{n} in Kerling{n % 4}.\n\n" for n in range(40))


@pytest.fixture
def mixed(pair: list[Path], tmp_path: Path) -> list[Path]:
    """`pair`, with rows that are no rows, and a folder of texts, among them long, German and repeated ones."""
    pair[0].write_text(pair[0].read_text() + "no JSON\n" + json.dumps(row(2)) + "\n")
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "long.txt").write_text(f"\n {LONG}")
    (folder / "picture.png").write_bytes(b"PNG")
    (folder / "sub" / "de.txt").write_text(
        "Die alte Brücke wurde von Marta Orlo gebaut, und sie steht noch heute in der Stadt."
    )
    rows = [
        row(2, text="Marta Orlo2 lived in Kerling1."),
        row(9),
        row(40, year="unknown"),
        row(41, year=2.5, kept=True),
    ]
    write_rows(folder / "sub" / "rows.jsonl", rows)
    return [*pair, folder]


@pytest.mark.parametrize("away", [(0,), (1, 2), (0, 1, 2)])
def test_tables_stand_for_files_that_are_not_here(
    mixed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: tuple[int, ...]
) -> None:
    settings = {**FAST, "index": {"chunk_words": 40, "overlap_words": 8}}
    one = built(tmp_path / "one", *mixed, methods="bm25", settings=settings)
    counts = one.manifest.stages["passages"].counts
    assert counts["rejects"] > 3 and counts["language_de"] and counts["passages"] > counts["documents"]
    parts = [tmp_path / f"part{n}" for n in range(3)]
    for n in away:
        built(parts[n], mixed[n], methods="bm25", settings=settings)
    on_another_machine(monkeypatch, *(mixed[n] for n in away))
    for n in {0, 1, 2} - {*away}:
        built(parts[n], mixed[n], methods="bm25", settings=settings)
    merged = gpu_rag.merge(parts, tmp_path / "merged", settings=FAST)
    rejects = [(index.path / "rejects.jsonl").read_text().splitlines() for index in (one, merged)]
    assert rejects[0] == rejects[1]
    assert merged.manifest.digest() == one.manifest.digest()
    with pytest.raises(BadInput, match="where its sources lie"):  # paths of another machine are never opened
        gpu_rag.update(merged.path, settings=FAST)
    back(*(mixed[n] for n in away))
    updated = gpu_rag.update(merged.path, mixed, settings=FAST).index
    assert updated.report is not None and all(stage.skipped for stage in updated.report.stages.values())


def test_a_merge_of_merges_from_elsewhere_is_one_build(
    mixed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = built(tmp_path / "one", *mixed, methods="bm25").manifest.digest()
    for n, source in enumerate(mixed):
        built(tmp_path / f"part{n}", source, methods="bm25")
    on_another_machine(monkeypatch, *mixed)
    gpu_rag.merge([tmp_path / "part1", tmp_path / "part2"], tmp_path / "some", settings=FAST)
    merged = gpu_rag.merge([tmp_path / "some", tmp_path / "part0"], tmp_path / "all", settings=FAST)
    assert merged.manifest.digest() == one


def conflicting_rows(draw: random.Random, n: int) -> list[dict[str, Any]]:
    """Rows that share few ids and texts, with metadata of several types, some without an id."""
    rows: list[dict[str, Any]] = []
    for _ in range(n):
        k = draw.randrange(12)
        sentences = " ".join(f"Word{k} stands here, number{i}." for i in range(1 + k % 7))
        some: dict[str, Any] = {"text": sentences + draw.choice(["", "\n", "  "]), "title": draw.choice(["T", "U"])}
        some |= {"id": f"r{draw.randrange(14)}"} if draw.random() < 0.8 else {}
        some |= {"year": draw.choice([1900 + k, 2.5, "x", True])} if draw.random() < 0.4 else {}
        rows.append(some)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_tables_stand_for_sources_that_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw, settings = random.Random(seed), {**FAST, "index": {"chunk_words": 12, "overlap_words": 3}}
    sources = []
    for name in draw.sample(["a.jsonl", "b.jsonl", "c.jsonl", "d", "e"], 3):
        sources.append(tmp_path / name)
        if "." in name:
            write_rows(tmp_path / name, conflicting_rows(draw, 8))
        else:
            (tmp_path / name / "sub").mkdir(parents=True)
            write_rows(tmp_path / name / "sub" / "r.jsonl", conflicting_rows(draw, 5))
            write_rows(tmp_path / name / "q.jsonl", conflicting_rows(draw, 4))
    one = built(tmp_path / "one", *sources, methods="bm25", settings=settings).manifest.digest()
    parts = [tmp_path / "part0", tmp_path / "part1"]
    n = draw.choice([1, 2])
    built(parts[0], *sources[:n], methods="bm25", settings=settings)
    built(parts[1], *sources[n:], methods="bm25", settings=settings)
    on_another_machine(monkeypatch, *sources)
    assert gpu_rag.merge(parts, tmp_path / "merged", settings=FAST).manifest.digest() == one


def test_two_files_of_one_path_are_refused(pair: list[Path], tmp_path: Path) -> None:
    built(tmp_path / "A", pair[0], methods="bm25")
    write_rows(pair[0], [row(30)])
    built(tmp_path / "B", pair[0], methods="bm25")
    with pytest.raises(UsageError, match=str(pair[0])):
        gpu_rag.merge([tmp_path / "A", tmp_path / "B"], tmp_path / "C", settings=FAST)


def test_a_damaged_index_from_elsewhere_is_refused(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = built(tmp_path / "A", pair[0], methods="bm25")
    path = index.folder("passages") / "documents.parquet"
    del index
    on_another_machine(monkeypatch)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(IndexCorrupt):
        gpu_rag.merge([tmp_path / "A"], tmp_path / "C", settings=FAST)


def test_a_foreign_index_names_no_file_to_write(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong version writes the vectors to the file that the manifest names as the hash of its embedder."""
    manifest = built(tmp_path / "A", pair[0], methods="dense").manifest
    record = manifest.stages["passage_vectors"]
    names_a_file = {"embedder": {**record.models["embedder"], "content_hash": "../../../../planted"}}
    manifest.with_stage(replace(record, models=names_a_file)).write(tmp_path / "A")
    with pytest.raises(IndexMismatch):
        gpu_rag.merge([tmp_path / "A"], tmp_path / "C", settings=FAST)
    assert not [*tmp_path.rglob("*.vectors")]


def test_the_command_merges(pair: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, source in zip("AB", pair):
        built(tmp_path / name, source, methods="bm25", settings={**FAST, "index": {"chunk_words": 57}})
    given = [str(tmp_path / "A"), str(tmp_path / "B"), "--out", str(tmp_path / "C")]
    assert main(["merge", *given, "--json", "--json-progress"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 9
    settings = {**FAST, "index": {"chunk_words": 57}}
    one = built(tmp_path / "one", *pair, methods="bm25", settings=settings).manifest.digest()
    assert gpu_rag.Index.open(tmp_path / "C").manifest.digest() == one
