"""Documents that are added to an index, updated and removed: equal to a build from nothing, and forgotten."""

import hashlib
import io
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpu_rag
from gpu_rag.api import parts, removal
from gpu_rag.cli.main import main
from gpu_rag.errors import BadInput, GpuRagError, IndexCorrupt, IndexLocked, UsageError
from gpu_rag.graph.nearest import pairs as close
from gpu_rag.index import build as stages
from gpu_rag.index.folder import CARRIED, sealed
from gpu_rag.index.stages import search, synonyms
from gpu_rag.models import packaged
from gpu_rag.models.embed.cache import VectorFile, cache_file, keep_vectors, keys_of
from gpu_rag.models.llm.scripted import ScriptedLLM

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


pytestmark = pytest.mark.usefixtures("own_cache")


def write_document(path: Path, number: int, words: str = "bridge") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"Marta Orlo{number} designed the {words} of Kerling{number % 3}. It crosses the Ves{number}.")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for number in range(4):
        write_document(tmp_path / "corpus" / f"d{number}.txt", number)
    return tmp_path / "corpus"


def from_nothing(tmp_path: Path, *sources: Path, methods: str = "dense") -> str:
    out = tmp_path / f"again{len(list(tmp_path.glob('again*')))}"
    return gpu_rag.build(list(sources), out, methods=[methods], settings=FAST).manifest.digest()


def digest(out: Path) -> str:
    return str(gpu_rag.verify(out).digest)


def test_a_relative_path_has_the_place_of_its_absolute_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = write_document(tmp_path / "d" / "b.txt", 7), write_document(tmp_path / "e" / "c.txt", 8)
    monkeypatch.chdir(tmp_path)
    assert from_nothing(tmp_path, Path("d/b.txt"), last) == from_nothing(tmp_path, first, last)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "method"), [(1, "bm25"), (2, "ppr"), (3, "higra-retriever")])
def test_a_sequence_of_changes_gives_the_digest_of_a_build_from_nothing(tmp_path: Path, seed: int, method: str) -> None:
    draw, folder, out = random.Random(seed), tmp_path / "corpus", tmp_path / "ix"
    files = {write_document(folder / f"d{n}.txt", n) for n in range(4)}
    rows = {f"r{n}": f"Anna Stroud{n} was mayor of Tamsin{n}." for n in range(4)}
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in rows.items()))
    extra: list[Path] = []
    gpu_rag.build([folder, table], out, methods=[method], settings=FAST)
    hidden: set[str] = set()
    for step in range(30):
        kind = draw.choice(["add", "write", "edit", "delete", "remove", "row", "back"])
        if kind == "add":
            extra.append(write_document(tmp_path / f"extra{step}.txt", 100 + step))
            assert gpu_rag.add(out, extra[-1], settings=FAST).added == 1
        elif kind == "write":
            files.add(write_document(folder / f"d{step + 10}.txt", step + 10))
            assert gpu_rag.update(out, settings=FAST).added == 1
        elif kind == "edit" and files:
            write_document(draw.choice(sorted(files)), step + 200, "ferry")
            assert gpu_rag.update(out, settings=FAST).changed == 1
        elif kind == "delete" and len(files) > 1:  # a folder without documents is refused
            files.discard(file := draw.choice(sorted(files)))
            file.unlink()
            assert gpu_rag.update(out, settings=FAST).removed == 1
        elif kind == "remove" and (extra or len(files) > 1):
            file = draw.choice(extra + sorted(files)[1:])
            assert gpu_rag.remove(out, documents=file.name, settings=FAST).removed == 1
            file.unlink()
            files.discard(file)
            extra = [path for path in extra if path != file]
        elif kind == "row" and rows.keys() - hidden:
            hidden.add(id := draw.choice(sorted(rows.keys() - hidden)))
            assert gpu_rag.remove(out, documents=[id], settings=FAST).removed == 1
        elif kind == "back" and hidden:
            assert gpu_rag.add(out, table, settings=FAST).added == len(hidden)
            hidden.clear()
        if step % 6 == 5:
            index = gpu_rag.Index.open(out)
            assert set(index.documents["id"].to_pylist()) == {
                *(file.name for file in files), *(file.name for file in extra), *(rows.keys() - hidden)
            }  # fmt: skip
            if not hidden:
                assert index.manifest.digest() == from_nothing(tmp_path, folder, table, *extra, methods=method)
            changed = index.manifest.digest()
            del index
            anew = gpu_rag.build([folder, table, *extra], out, methods=[method], settings=FAST, fresh=True)
            assert anew.manifest.digest() == changed, step
            del anew
    assert gpu_rag.verify(out).ok


def test_composed_vectors_after_changes_are_those_of_a_build_from_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the fifth relation all vectors change from embedded to composed ones, and back."""
    monkeypatch.setattr(search, "N_FITTED", 4)
    out, chosen = tmp_path / "ix", FAST | {"index": {"relation_vectors": "composed"}}
    gpu_rag.build(corpus, out, methods=["ppr"], settings=chosen)
    digests = [digest(out)]
    for change in (lambda: write_document(corpus / "new.txt", 9), lambda: (corpus / "new.txt").unlink()):
        change()
        gpu_rag.update(out, settings=chosen)
        digests.append(digest(out))
        made = gpu_rag.build(corpus, tmp_path / f"again{len(digests)}", methods=["ppr"], settings=chosen)
        exact = gpu_rag.build(corpus, tmp_path / f"exact{len(digests)}", methods=["ppr"], settings=FAST)
        assert made.manifest.digest() == digests[-1] and gpu_rag.verify(out).ok
        assert (exact.manifest.digest() == digests[-1]) == (made.counts()["relations"] <= 4)
        plain = FAST | {"index": {"relation_vectors": "exact"}}
        again = gpu_rag.build(corpus, tmp_path / f"again{len(digests)}", methods=["ppr"], settings=plain)
        assert again.manifest.digest() == exact.manifest.digest()  # no composed vector is carried over
    assert digests[0] == digests[2] != digests[1]


def test_files_that_are_added_changed_and_gone_are_counted(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "ix"
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    write_document(corpus / "new.txt", 9)
    write_document(corpus / "d0.txt", 0, "ferry")
    (corpus / "d1.txt").unlink()
    made = gpu_rag.update(out, settings=FAST)
    assert (made.added, made.changed, made.removed) == (1, 1, 1)
    assert made.index.manifest.digest() == from_nothing(tmp_path, corpus, methods="bm25")
    assert all(stage.skipped for stage in gpu_rag.update(out, settings=FAST).index.report.stages.values())
    corpus.rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="bring it back; or name its new place"):
        gpu_rag.update(out, settings=FAST)


def test_a_removed_file_stays_out_until_it_is_added(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "ix"
    before = gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST).manifest.digest()
    with pytest.raises(BadInput, match=f"such as {corpus.name}/d1.txt"):
        gpu_rag.remove(out, files="d1.txt", settings=FAST)
    gpu_rag.remove(out, files=corpus / "d1.txt", settings=FAST)
    without = digest(out)
    for again in (
        lambda: gpu_rag.update(out, settings=FAST),
        lambda: gpu_rag.update(out, corpus, settings=FAST),
        lambda: gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST),
        lambda: gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST, fresh=True),
    ):
        again()
        assert digest(out) == without != before
    assert gpu_rag.add(out, corpus / "d1.txt", settings=FAST).added == 1
    assert digest(out) == before


def test_a_removed_copy_gives_its_id_to_the_other_file(tmp_path: Path) -> None:
    """A wrong version that filters the finished documents loses the copy too."""
    folder, row = tmp_path / "corpus", json.dumps({"id": "x", "text": "Anna Stroud was mayor of Kerling."}) + "\n"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(row)
    (folder / "c.txt").write_text("Piet Haan lived in Tamsin.")
    index = gpu_rag.build(folder, tmp_path / "ix", methods=["bm25"], settings=FAST)
    assert index.documents["file"].to_pylist() == ["corpus/c.txt", "corpus/a.jsonl"]
    del index
    made = gpu_rag.remove(tmp_path / "ix", files="corpus/a.jsonl", settings=FAST)
    assert made.index.documents["file"].to_pylist() == ["corpus/c.txt", "corpus/b.jsonl"] and made.copies == 1
    (folder / "a.jsonl").unlink()
    assert made.index.manifest.digest() == from_nothing(tmp_path, folder, methods="bm25")


def test_documents_with_the_text_of_a_removed_one_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text was said to be removed, and was found as another file still."""
    folder, long = tmp_path / "dd", " ".join(f"Marta Orlo{n} designed the bridge of Kerling." for n in range(400))
    folder.mkdir()
    for name, text in (("a.txt", long), ("b.txt", long), ("c.txt", f"{long} Ada Blom left."), ("d.txt", "Jan Vos.")):
        (folder / name).write_text(text)
    gpu_rag.build(folder, tmp_path / "ix", methods=["bm25"], settings=FAST)
    command = ["remove", str(tmp_path / "ix"), "--set", "models.llm=none"]
    assert main([*command, "--file", str(folder / "a.txt"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["removed"], document["copies"]) == (1, 1)
    assert json.loads(Path(document["receipt"]).read_bytes())["copies"] == 1
    (folder / "a2.txt").write_text(long)
    gpu_rag.update(tmp_path / "ix", settings=FAST)
    assert main([*command, "--doc", "b.txt"]) == 0
    assert "with the same text: 1 (a2.txt)" in capsys.readouterr().out
    made = gpu_rag.remove(tmp_path / "ix", documents=["a2.txt", "d.txt"], settings=FAST)
    assert (made.removed, made.copies, made.copy_ids) == (2, 0, ())


def test_each_removal_keeps_its_receipt(corpus: Path, tmp_path: Path) -> None:
    """The index is in one state after each, and the name of a receipt came from that state alone."""
    gpu_rag.build(corpus, tmp_path / "ix", methods=["bm25"], settings=FAST)
    receipts = []
    for id in ("s1", "s2", "s2"):
        gpu_rag.add(tmp_path / "ix", [{"id": id, "text": "Piet Haan lived in Tamsin."}], settings=FAST)
        made = gpu_rag.remove(tmp_path / "ix", documents=id, settings=FAST)
        receipts.append((made.receipt, hashlib.sha256(id.encode()).hexdigest()))
        del made
    assert len({path for path, _ in receipts}) == 3
    for path, hashed in receipts:
        assert json.loads(path.read_bytes())["documents"] == [hashed]


def test_a_new_index_does_not_get_the_texts_of_an_earlier_one(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They lie beside the folder of the index, which was deleted, and came back with the first document."""
    out, left = tmp_path / "ix", tmp_path / "ix.texts.jsonl"
    for id in ("old", "new", "newer"):
        if id != "newer":
            shutil.rmtree(out, ignore_errors=True)
            gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
        made = gpu_rag.add(out, [{"id": id, "text": f"Piet Haan lived in Tamsin{id}."}], settings=FAST)
        assert made.added == 1
        if id == "new":
            assert made.index.documents["id"].to_pylist() == [*(f"d{n}.txt" for n in range(4)), "new"]
        del made
    assert [str(left) in record.message for record in caplog.records] == [True] and b"old" in left.read_bytes()
    made = gpu_rag.add(out, left, settings=FAST)
    assert made.added == 1 and made.index.documents["id"].to_pylist()[-3:] == ["new", "newer", "old"]
    del made
    made = gpu_rag.remove(out, documents=["new", "old"], settings=FAST)
    assert b"newer" in (rest := b"".join(path.read_bytes() for path in tmp_path.glob("ix.texts-2.jsonl")))
    assert made.removed == 2 and b'"new"' not in rest


def test_texts_of_an_index_stay_its_own_when_those_of_an_earlier_one_go(corpus: Path, tmp_path: Path) -> None:
    """Their ids counted as those of a file, and further texts got a second file."""
    out, left, own = tmp_path / "ix", tmp_path / "ix.texts.jsonl", tmp_path / "ix.texts-2.jsonl"
    left.write_text('{"id": "old", "text": "Piet Haan lived in Tamsin."}\n')
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    gpu_rag.add(out, [{"id": "m1", "text": "Ada Blom lived in Loss."}], settings=FAST)
    left.unlink()
    made = gpu_rag.add(out, [{"id": "m1", "text": "Ada Blom lived in Vell."}], settings=FAST)
    assert (made.added, made.changed) == (0, 1)
    del made
    made = gpu_rag.add(out, [{"id": "m2", "text": "Jan Vos lived in Kerling."}], settings=FAST)
    assert made.added == 1 and len(own.read_bytes().splitlines()) == 2 and not left.exists()
    del made
    gpu_rag.remove(out, documents="m1", settings=FAST)
    assert b"Ada Blom" not in own.read_bytes() and b"Jan Vos" in own.read_bytes()


def test_index_of_a_corpus_that_the_index_has_keeps_what_was_added(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They left without a word."""
    extern, out = write_document(tmp_path / "extern.txt", 30), tmp_path / "ix"
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    gpu_rag.add(out, extern, settings=FAST)
    gpu_rag.add(out, [{"id": "s1", "text": "Piet Haan lived in Tamsin."}], settings=FAST)
    before = digest(out)
    (facts := tmp_path / "facts.tsv").write_text("Ida Stroud\tmayor of\tTamsin\n")
    command = ["index", str(corpus), "--out", str(out), "--for", "bm25", "--set", "models.embedder=hash"]
    for more in ([], ["--fresh"]):
        assert main([*command, *more]) == 0
        said = capsys.readouterr().err
        assert "extern.txt, ix.texts.jsonl; gpu-rag remove" in said and "left the index" not in said
        assert digest(out) == before
    again = gpu_rag.build(corpus, out, kg=facts, methods=["bm25"], settings=FAST)
    assert {"extern.txt", "s1"} <= {*again.documents["id"].to_pylist()} and again.manifest.sources["named"]
    again = gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    assert again.manifest.sources["named"] and "facts" in "".join(again.report.notes)
    del again
    extern.unlink()
    with pytest.raises(BadInput, match="extern.txt"):
        gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)


def test_a_source_of_documents_keeps_its_name_beside_a_new_source(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its documents stayed, and its name was lost without a word."""
    news, out = write_document(tmp_path / "papers" / "n.txt", 30).parent, tmp_path / "ix"
    for name in ("facts", "more"):
        (tmp_path / f"{name}.tsv").write_text(f"Ida Stroud\tmayor of\t{name}\n")
    facts, more = (f"{name}=kg:{tmp_path / name}.tsv" for name in ("facts", "more"))
    fast: dict[str, Any] = {"methods": ["bm25"], "settings": FAST}
    gpu_rag.build(corpus, out, sources=[f"news=documents:{news}"], **fast)
    kept = gpu_rag.build(corpus, out, sources=[facts], **fast)
    new = gpu_rag.build(corpus, tmp_path / "b", sources=[f"news=documents:{news}", facts], **fast)
    assert kept.manifest.digest() == new.manifest.digest()
    assert kept.report and "stay in it: news; " in "".join(kept.report.notes) and not caplog.records
    del kept
    kept = gpu_rag.build(corpus, out, sources=[more], **fast)
    assert kept.report and "stay in it: news; " in "".join(kept.report.notes)
    assert "were not named: facts; " in caplog.text  # a graph gives way, as before
    del kept
    kept = gpu_rag.build(corpus, out, **fast)
    assert kept.report and "stay in it: more, news; " in "".join(kept.report.notes)
    before = kept.manifest.digest()
    del kept
    with pytest.raises(BadInput, match="the name of a source is taken; given news"):
        gpu_rag.build(corpus, out, sources=[facts.replace("facts=", "news=")], **fast)
    assert digest(out) == before
    press = gpu_rag.build(corpus, out, sources=[f"press=documents:{news}"], **fast)
    assert press.manifest.sources["named"] == [["press", "documents", "papers"]]
    del press
    caplog.clear()
    gpu_rag.build([corpus, news, write_document(tmp_path / "e.txt", 40)], out, **fast)
    assert "0 documents left the index: these sources were not named: press; " in caplog.text


def test_documents_that_leave_by_an_index_of_other_sources_are_counted(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extern, out = write_document(tmp_path / "extern.txt", 30), tmp_path / "ix"
    gpu_rag.build([corpus, extern], out, methods=["bm25"], settings=FAST)
    index = gpu_rag.build(corpus / "d1.txt", out, methods=["bm25"], settings=FAST)
    assert index.documents["id"].to_pylist() == ["d1.txt"]
    del index
    (told,) = (record.getMessage() for record in caplog.records)
    assert (
        "4 documents left the index" in told and f"{corpus}, {extern}; name them too" in told and "gpu-rag add" in told
    )
    caplog.clear()
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)  # the file lies in this folder
    assert not caplog.records
    (corpus / "d3.txt").unlink()
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    assert [record.getMessage().split(":")[1] for record in caplog.records] == [" 1 documents left the index"]


def test_documents_in_memory_are_added_replaced_and_removed(tmp_path: Path) -> None:
    out = tmp_path / "ix"
    rows = [{"id": f"m{n}", "text": f"Piet Haan{n} lived in Tamsin{n}.", "year": 1900 + n} for n in range(3)]
    gpu_rag.build(rows, out, methods=["bm25"], settings=FAST)
    rows[1] = {"id": "m1", "text": "Jan Vos lived in Kerling.", "year": 1950}
    rows.append({"id": "m9", "text": "Ada Blom lived in Loss.", "year": 2000})
    made = gpu_rag.add(out, [rows[1], rows[3]], settings=FAST)
    assert (made.added, made.changed, made.removed) == (1, 1, 0)
    del made
    made = gpu_rag.remove(out, where="year >= 1950", settings=FAST)
    assert made.removed == 2 and made.index.documents["id"].to_pylist() == ["m0", "m2"]
    assert b"Jan Vos" not in (tmp_path / "ix.texts.jsonl").read_bytes()
    with pytest.raises(UsageError):
        gpu_rag.add(out, [{"text": "Without an id."}], settings=FAST)


@pytest.mark.parametrize("out", ["a-index", "z-index"])  # its file of texts is read before the corpus, or after it
def test_a_document_in_memory_takes_no_id_of_a_file(corpus: Path, tmp_path: Path, out: str) -> None:
    """It was added with success, and lost, or it took the place of the file, as the names of the files were."""
    index = gpu_rag.build(corpus, tmp_path / out, methods=["bm25"], settings=FAST)
    before, rows = index.manifest.digest(), [{"id": "d1.txt", "text": "Piet Haan lived in Tamsin."}]
    del index
    with pytest.raises(BadInput, match=r"given d1\.txt of corpus/d1\.txt; change that file and run"):
        gpu_rag.add(tmp_path / out, rows, settings=FAST)
    assert not (tmp_path / f"{out}.texts.jsonl").exists() and digest(tmp_path / out) == before
    for text in ("Ada Blom lived in Loss.", "Ada Blom lived in Vell."):
        made = gpu_rag.add(tmp_path / out, [{"id": "m1", "text": text}], settings=FAST)
    kept = (tmp_path / f"{out}.texts.jsonl").read_bytes()
    del made
    with pytest.raises(BadInput):
        gpu_rag.add(tmp_path / out, [{"id": "m1", "text": "Ada Blom left."}, *rows], settings=FAST)
    assert (tmp_path / f"{out}.texts.jsonl").read_bytes() == kept and b"Vell" in kept


def test_a_named_source_leaves(corpus: Path, tmp_path: Path) -> None:
    """Also one whose file is gone."""
    facts, more = tmp_path / "facts.tsv", tmp_path / "more"
    facts.write_text("Ida Stroud\tmayor of\tTamsin\n")
    write_document(more / "m.txt", 70)
    out = tmp_path / "ix"
    gpu_rag.build(corpus, out, methods=["bm25"], sources=[f"facts=kg:{facts}", f"more=documents:{more}"], settings=FAST)
    with pytest.raises(BadInput, match="facts, more"):
        gpu_rag.remove(out, named="nothing", settings=FAST)
    made = gpu_rag.remove(out, named="more", settings=FAST)
    assert made.removed == 1 and "m.txt" not in made.index.documents["file"].to_pylist()
    again = gpu_rag.build(corpus, tmp_path / "b", methods=["bm25"], sources=[f"facts=kg:{facts}"], settings=FAST)
    assert made.index.manifest.digest() == again.manifest.digest()
    facts.unlink()
    del made, again
    with pytest.raises(BadInput):
        gpu_rag.update(out, settings=FAST)
    alone = gpu_rag.remove(out, named="facts", settings=FAST).index
    assert not alone.counts().get("kb_triples") and alone.documents.num_rows == 4
    assert not any(b"Ida Stroud" in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_what_cannot_be_changed_is_refused_and_nothing_changes(corpus: Path, tmp_path: Path) -> None:
    out, apart = tmp_path / "ix", write_document(tmp_path / "apart.txt", 50)
    before = gpu_rag.build([corpus, apart], out, methods=["bm25"], settings=FAST).manifest.digest()
    for kind, arguments in (
        (BadInput, {"documents": "nobody"}),
        (BadInput, {"files": "nothing.txt"}),
        (UsageError, {}),
        (UsageError, {"where": "year > 1900"}),
        (UsageError, {"documents": ["apart.txt", *(f"d{n}.txt" for n in range(4))]}),
    ):
        with pytest.raises(kind):
            gpu_rag.remove(out, settings=FAST, **arguments)
    with pytest.raises(BadInput):
        gpu_rag.add(out, tmp_path / "missing.txt", settings=FAST)
    (tmp_path / "odd.exe").write_bytes(b"MZ")
    with pytest.raises(BadInput):
        gpu_rag.add(out, tmp_path / "odd.exe", settings=FAST)
    assert digest(out) == before
    apart.unlink()
    with pytest.raises(BadInput, match="apart.txt"):
        gpu_rag.update(out, settings=FAST)
    assert gpu_rag.remove(out, files="apart.txt", settings=FAST).removed == 1


def test_a_removal_waits_for_readers_and_is_completed_later(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "ix"
    reader = gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    monkeypatch.setattr(removal, "READERS_S", 0.3)
    with pytest.raises(IndexLocked):
        gpu_rag.remove(out, documents="d1.txt", settings=FAST)
    assert "d1.txt" in reader.documents["id"].to_pylist()
    assert "d1.txt" not in gpu_rag.Index.open(out).documents["id"].to_pylist()
    of_new = gpu_rag.Index.open(out)  # does not read what was removed
    del reader
    made = gpu_rag.remove(out, documents="d1.txt", settings=FAST)
    assert gpu_rag.verify(out, receipt=made.receipt).ok and of_new.documents.num_rows == 3
    assert not list(Path(out, "stages").glob("passages-*"))[1:]


@pytest.mark.parametrize(("documents", "cleared"), [("d1.txt", True), ("d2.txt", False)])
def test_vectors_erased_by_an_interrupted_removal_are_its_own(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: str, cleared: bool
) -> None:
    """The same removal again is complete; the vectors of a further document stay in the cache, and the receipt says
    so."""
    out = tmp_path / "ix"
    reader = gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    monkeypatch.setattr(removal, "READERS_S", 0.0)
    with pytest.raises(IndexLocked):
        gpu_rag.remove(out, documents="d1.txt", settings=FAST, forget=True)
    del reader
    receipt = gpu_rag.remove(out, documents=documents, settings=FAST).receipt
    assert json.loads(receipt.read_bytes())["caches_cleared"] == cleared


@pytest.mark.parametrize("has_facts", [True, False])
def test_vectors_of_texts_that_are_not_known_are_erased_too(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_facts: bool
) -> None:
    """With facts, answers embedded sentences; without, the stages of vectors are of another version."""
    (facts := tmp_path / "facts.tsv").write_text("Ves2\tcrosses\tKerling2\n")
    named = [f"facts=kg:{facts}"] if has_facts else []
    gpu_rag.build(corpus, tmp_path / "ix", methods=["dense"], sources=named, settings=FAST)
    if not has_facts:
        newer = {name: replace(stage, version=stage.version + 1) for name, stage in parts.all_stages().items()}
        monkeypatch.setattr(parts, "all_stages", lambda: newer)
    sentence, cached = ["It crosses the Ves2."], cache_file(packaged.cache_dir(), "0")  # no whole passage
    keep_vectors(cached, sentence, np.ones((1, 3)))
    gpu_rag.remove(tmp_path / "ix", documents="d2.txt", settings=FAST, forget=True)
    with closing(VectorFile(cached, 3)) as file:
        assert not file.read(keys_of(sentence))[1].any()


def test_an_index_from_somebody_else_names_no_file_to_read(corpus: Path, tmp_path: Path) -> None:
    out, secret = tmp_path / "ix", tmp_path / "secret.txt"
    secret.write_text("The word is Xyzzyglorp.")
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    document = json.loads((out / "sources.json").read_bytes())
    document.pop("sha256")
    for name in ("sources.json", "sources.copy.json"):
        (out / name).write_bytes(sealed({**document, "corpus": [str(secret)]}))
    with pytest.raises(BadInput):
        gpu_rag.update(out, settings=FAST)
    with pytest.raises(BadInput, match="corpus"):  # not all that it was made of
        gpu_rag.update(out, secret, settings=FAST)
    assert gpu_rag.update(out, corpus, settings=FAST).index.n_passages == 4
    write_document(corpus / "new.txt", 7)
    assert gpu_rag.update(out, settings=FAST).added == 1


def test_damaged_sources_are_mended_from_their_copy(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "ix"
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    gpu_rag.remove(out, documents="d1.txt", settings=FAST)
    for name in ("sources.json", "sources.copy.json"):
        data = (out / name).read_bytes()
        (out / name).write_bytes(data.replace(b'"corpus"', b'"corpvs"'))
        assert [line.partition(":")[0] for line in gpu_rag.verify(out).broken] == [name]
        assert gpu_rag.update(out, settings=FAST).index.n_passages == 3 and (out / name).read_bytes() == data
        assert gpu_rag.verify(out).ok
    for name in ("sources.json", "sources.copy.json"):
        (out / name).write_bytes(b"[]")
    with pytest.raises(IndexCorrupt):
        gpu_rag.update(out, settings=FAST)


def test_a_source_that_moved_is_named_once(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "ix"
    before = gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST).manifest.digest()
    (tmp_path / "elsewhere").mkdir()
    corpus.rename(tmp_path / "elsewhere" / "corpus")
    with pytest.raises(BadInput):
        gpu_rag.update(out, settings=FAST)
    made = gpu_rag.update(out, tmp_path / "elsewhere" / "corpus", settings=FAST)
    assert (made.added, made.changed, made.removed) == (0, 0, 0) and made.index.manifest.digest() == before


CANARY = re.compile(rb"(?i)zyx[a-z]{5}\d\d")
METHODS = ["ppr", "hoprag", "higra-retriever", "bubblerag"]
LLM_SETTINGS: dict[str, Any] = {
    "models": {"embedder": "hash", "capable": True},
    "index": {"extractor": "llm", "coref": "llm"},
    "hops": {"simulate": "llm"},
}


def canary(number: int) -> str:
    return f"Zyx{''.join(random.Random(number).choices('abcdefghijklm', k=5))}{number:02}"


def reads_names(request: Any) -> str:
    """A model that repeats what it is shown: each reply names the capital words of the last passage."""
    shown = str(request.prompt).rpartition("Passage:")[2] if hasattr(request, "prompt") else str(request)
    names = list(dict.fromkeys(re.findall(r"[A-Z]\w+", shown)))[:6]
    entity = [{"name": name, "aliases": [], "types": ["thing"], "description": f"as {name}"} for name in names]
    triples = [[one, "knows", other] for one, other in zip(names, names[1:])]
    return json.dumps({"entities": entity, "triples": triples, "questions": [f"Who is {name}?" for name in names]})


def every_byte(folder: Path) -> dict[str, bytes]:
    """{file: its bytes, and all that its columns, rows and arrays decode to}."""
    contents: dict[str, bytes] = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            stream = io.BytesIO()
            with pa.ipc.new_stream(stream, table.schema) as writer:  # without compression
                writer.write_table(table)
            data += stream.getvalue() + repr(table.to_pylist()).encode()
        elif path.name.startswith("replies.sqlite"):
            with sqlite3.connect(path) as db:
                data += repr(db.execute("SELECT * FROM replies").fetchall()).encode()
        elif path.name == CARRIED:
            data += zlib.decompress(data[16:])
        contents[path.relative_to(folder).as_posix()] = data
    return contents


def files_with(folder: Path, pattern: re.Pattern[bytes]) -> list[str]:
    contents = every_byte(folder)
    return sorted(name for name, data in contents.items() if pattern.search(data + name.encode()))


def test_what_the_next_build_takes_over_does_not_name_a_file_without_documents(corpus: Path, tmp_path: Path) -> None:
    """A row is removed by its id, and its file, which stays in the corpus, has no other row."""
    out = tmp_path / "ix"
    (corpus / f"{canary(1)}.jsonl").write_text(json.dumps({"id": canary(1), "text": f"{canary(1)} sat in Loss."}))
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    gpu_rag.remove(out, documents=canary(1), settings=FAST)
    assert not files_with(out, CANARY)
    write_document(corpus / "d9.txt", 9)
    made = gpu_rag.update(out, settings=FAST)
    assert made.index.n_passages == 5 and any(name.endswith(CARRIED) for name in every_byte(out))
    assert not files_with(out, CANARY)


@pytest.mark.slow
def test_no_byte_of_the_folder_holds_what_was_removed(tmp_path: Path) -> None:
    folder, out = tmp_path / "corpus", tmp_path / "ix"
    for number in range(4):
        write_document(folder / f"d{number}.txt", number)
    for number in range(25):
        text = f"{canary(number)} taught Marta Orlo{number % 4} in Kerling. {canary(number)} wrote about ferries."
        (folder / f"{canary(number)}.txt").write_text(text)
    rows = [
        {"id": canary(n), "title": canary(n), "text": f"Anna Stroud met {canary(n)} in Loss.", "by": canary(n)}
        for n in range(25, 50)
    ]
    rows += [rows[0], {"id": "kept", "text": "Anna Stroud lived in Loss.", "by": "nobody"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{canary(3)}.bin").write_bytes(b"\0")
    model = ScriptedLLM(reads_names)
    index = gpu_rag.build([folder, tmp_path / "rows.jsonl"], out, methods=METHODS, settings=LLM_SETTINGS, llm=model)
    index.retrieve(f"Who is {canary(1)}?", method="ppr", settings=LLM_SETTINGS)
    index.close()
    del index
    before = files_with(out, CANARY)
    assert {"replies.sqlite", "rejects.jsonl"} <= set(before) and len(before) > 10, before
    vectors = removed_vectors(out)
    n_calls = len(model.calls)
    made = gpu_rag.remove(
        out,
        documents=[canary(n) for n in range(25, 50)] + [f"{canary(n)}.txt" for n in range(25)],
        files=f"corpus/{canary(3)}.bin",
        settings=LLM_SETTINGS,
        llm=model,
    )
    assert made.removed == 50 and set(made.index.stages) and made.receipt is not None
    assert not files_with(out, CANARY)
    assert not any(vector in data for vector in vectors for data in every_byte(out).values())
    asked = [str(request) for request in model.calls[n_calls:]]
    assert not any(CANARY.search(prompt.encode()) for prompt in asked)
    with sqlite3.connect(out / "replies.sqlite") as db:
        assert db.execute("SELECT count(*) FROM replies").fetchone()[0] > 0
    n_calls, now = len(model.calls), made.index.manifest.digest()
    receipt = made.receipt
    del made
    checked = gpu_rag.verify(out, receipt=receipt)
    assert checked.ok and checked.digest == now == json.loads(receipt.read_bytes())["after"], checked.broken
    sources = [folder, tmp_path / "rows.jsonl"]
    again = gpu_rag.build(sources, out, methods=METHODS, settings=LLM_SETTINGS, llm=model, fresh=True)
    assert again.manifest.digest() == now and len(model.calls) == n_calls  # from the replies that stayed


def removed_vectors(out: Path) -> list[bytes]:
    """The vectors of the passages with canaries."""
    index = gpu_rag.Index.open(out)
    texts = index.passages["text"].to_pylist()
    vectors = np.asarray(index.arrays("passage_vectors")["vectors"])
    return [vectors[row].tobytes() for row, text in enumerate(texts) if CANARY.search(text.encode())]


def test_a_receipt_finds_what_came_back_and_an_altered_one_is_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, receipt = tmp_path / "ix", tmp_path / "receipt.json"
    gpu_rag.build(corpus, out, methods=["ppr"], settings=FAST)
    index, cached = gpu_rag.Index.open(out), cache_file(packaged.cache_dir(), "0")
    passages = zip(*(index.passages[name].to_pylist() for name in ("doc_id", "title", "text")))
    texts = {f"{title}\n{text}" if title else text: name == "d2.txt" for name, title, text in passages}
    texts |= {"Kerling2": True, "Kerling1": False, "of another index": False}
    keep_vectors(cached, list(texts), np.ones((len(texts), 3)))
    del index
    gpu_rag.remove(out, documents="d2.txt", settings=FAST, receipt=receipt, forget=True)
    with closing(VectorFile(cached, 3)) as file:
        assert file.read(keys_of(texts))[1].tolist() == [not is_gone for is_gone in texts.values()]
    document = json.loads(receipt.read_bytes())
    assert document["documents"] == [hashlib.sha256(b"d2.txt").hexdigest()]
    assert hashlib.sha256(b"ves2").hexdigest() in document["names"]
    assert hashlib.sha256(b"kerling2").hexdigest() in document["names"]
    assert gpu_rag.verify(out, receipt=receipt).ok
    assert main(["verify", str(out), "--receipt", str(receipt)]) == 0
    assert "sound; nothing that" in capsys.readouterr().out
    gpu_rag.add(out, corpus / "d2.txt", settings=FAST)
    assert not gpu_rag.verify(out, receipt=receipt).ok
    receipt.write_bytes(receipt.read_bytes().replace(b'"after"', b'"after" '))
    with pytest.raises(BadInput):
        gpu_rag.verify(out, receipt=receipt)


def test_a_removal_that_stopped_after_the_build_is_finished(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_rag.api import removal

    out = tmp_path / "ix"
    gpu_rag.build(corpus, out, methods=["bm25"], settings=FAST)
    (out / "replies.sqlite.damaged").write_bytes(b"Orlo2")

    def stopped(path: Path, keys: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(removal, "keep_replies", stopped)
        gpu_rag.remove(out, documents="d2.txt", settings=FAST)
    made = gpu_rag.remove(out, documents="d2.txt", settings=FAST)
    assert not files_with(out, re.compile(rb"(?i)orlo2|ves2|d2\.txt")) and made.receipt is not None
    assert len(json.loads(made.receipt.read_bytes())["documents"]) == 1
    del made
    with pytest.raises(BadInput):
        gpu_rag.remove(out, documents="d2.txt", settings=FAST)


def test_ready_triples_that_name_a_removed_document_are_found(tmp_path: Path) -> None:
    out, triples, corpus = tmp_path / "ix", tmp_path / "triples.jsonl", tmp_path / "rows.jsonl"
    rows = [{"id": f"r{n}", "text": f"Anna Stroud{n} was mayor of Tamsin{n}."} for n in range(3)]
    ready = [{"id": f"r{n}", "entities": [f"Anna Stroud{n}"], "triples": []} for n in range(3)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    triples.write_text("".join(json.dumps(row) + "\n" for row in ready))
    gpu_rag.build(corpus, out, methods=["ppr"], openie=triples, settings=FAST)
    with pytest.raises(GpuRagError, match="openie"):
        gpu_rag.remove(out, documents="r1", settings=FAST)
    triples.write_text("".join(json.dumps(row) + "\n" for row in ready if row["id"] != "r1"))
    gpu_rag.remove(out, documents="r1", settings=FAST)
    assert not files_with(out, re.compile(rb"(?i)stroud1|tamsin1|\br1\b"))


def test_a_reader_ends_with_the_interpreter_in_silence(tmp_path: Path) -> None:
    """The interpreter may clear a module before an object that outlives it."""
    code = f"from gpu_rag.index import folder; kept = folder.Reading({str(tmp_path)!r}); folder.os = None"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


def test_readers_see_the_old_index_or_the_new_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index opened between any two stages answers in full, and one opened before goes on."""
    out, seen, made = tmp_path / "ix", [], stages._bring_up_to_date
    gpu_rag.build(corpus, out, methods=["ppr"], settings=FAST)
    write_document(corpus / "new.txt", 77)
    early = gpu_rag.Index.open(out)

    def watched(*arguments: Any) -> Any:
        done = made(*arguments)
        index = gpu_rag.Index.open(out)
        found = index.retrieve("Who designed the bridge of Kerling1?", method="ppr", k=9, settings=FAST)
        seen.append((index.manifest.digest(), len(found.evidence), len(index.stages)))
        return done

    monkeypatch.setattr(stages, "_bring_up_to_date", watched)
    before = early.manifest.digest()
    after = gpu_rag.update(out, settings=FAST).index
    assert len(seen) > 5 and set(seen) == {(before, 4, len(after.stages))} and after.manifest.digest() != before
    assert len(early.retrieve("Who designed the bridge?", method="ppr", k=9, settings=FAST).evidence) == 4
    assert len(after.retrieve("Who designed the bridge?", method="ppr", k=9, settings=FAST).evidence) == 5


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["add", "remove"])
def test_a_kill_leaves_the_old_index_or_the_new_one(corpus: Path, tmp_path: Path, verb: str) -> None:
    out, new = tmp_path / "ix", write_document(tmp_path / "new.txt", 88)
    old = gpu_rag.build(corpus, out, methods=["ppr"], settings=FAST).manifest.digest()
    arguments = {"add": ["add", out, new], "remove": ["remove", out, "--doc", "d2.txt"]}[verb]
    command = [sys.executable, "-m", "gpu_rag", *map(str, arguments), "--set", "models.llm=none"]
    environment = {**os.environ, "GPU_RAG_CACHE": str(packaged.cache_dir())}
    draw, n_killed = random.Random(verb), 0
    for _ in range(3):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while not (out / "work").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.3))
        process.kill()
        n_killed += process.wait() < 0
        index = gpu_rag.Index.open(out)
        assert len(index.retrieve("Who designed the bridge?", method="ppr", settings=FAST).evidence) >= 3
        assert gpu_rag.verify(out).ok
        if is_done := index.manifest.digest() != old:  # it may have been killed at its very end
            break
    assert n_killed
    del index
    if verb == "add":
        assert gpu_rag.add(out, new, settings=FAST).index.manifest.digest() == from_nothing(
            tmp_path, corpus, new, methods="ppr"
        )
    else:
        try:
            gpu_rag.remove(out, documents="d2.txt", settings=FAST)
        except BadInput:  # the last of these commands had done it
            assert is_done
        (corpus / "d2.txt").unlink()
        assert digest(out) == from_nothing(tmp_path, corpus, methods="ppr")
        assert not files_with(out, re.compile(rb"(?i)orlo2|ves2|d2\.txt"))


def write_triples(folder: Path, rows: dict[str, list[list[str]]]) -> dict[str, Any]:
    """Write a document for each row, and its ready triples. Returns arguments of `build`."""
    folder.mkdir(exist_ok=True)
    texts = {name: ". ".join(" ".join(triple) for triple in triples) + "." for name, triples in rows.items()}
    for path in folder.iterdir():
        path.unlink()
    for name, text in texts.items():
        (folder / f"{name}.jsonl").write_text(json.dumps({"id": name, "title": name, "text": text}))
    given = [
        {"id": name, "entities": sorted({end for s, _, o in triples for end in (s, o)}), "triples": triples}
        for name, triples in rows.items()
    ]
    openie = folder.with_suffix(".openie.jsonl")
    openie.write_text("".join(json.dumps(row) + "\n" for row in given))
    return {"corpus": folder, "openie": openie, "settings": FAST}


def test_a_name_that_leaves_takes_back_what_it_forbade(tmp_path: Path) -> None:
    """Two longer names make "Kingston upon the Old Hill" ambiguous; the one that stays is its long form again."""
    hill = "Kingston upon the Old Hill"
    rows = {"devon": [[hill, "hosts", "fair"], [f"{hill}, Devon", "has", "market"]], "plain": [["Orlo", "met", "Ude"]]}
    methods = ["higra-retriever"]
    given = write_triples(tmp_path / "corpus", {**rows, "kent": [[f"{hill}, Kent", "has", "ford"]]})
    gpu_rag.build(**given, out=tmp_path / "index", methods=methods).close()
    given = write_triples(tmp_path / "corpus", rows)
    gpu_rag.update(tmp_path / "index", settings=FAST).index.close()
    again = gpu_rag.build(**given, out=tmp_path / "again", methods=methods)
    assert digest(tmp_path / "index") == again.manifest.digest()
    report = again.report
    assert report is not None and report.count("higra_entities") == report.count("entities") - 1


def test_pairs_of_candidates_are_not_taken_for_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = "Kerling Old Stone Foot and Railway Bridge"
    rows = {"a": [[bridge, "crosses", "Ves"]], "b": [[f"{bridge}s", "of", "Orlo"]], "c": [["X", "is", "Z"]]}
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    with monkeypatch.context() as patched:
        for module in (synonyms, close):
            patched.setattr(module, "EXACT_ROWS", 1)
        patched.setattr(close, "close_pairs", lambda *_: nothing)
        gpu_rag.build(**write_triples(tmp_path / "corpus", rows), out=tmp_path / "index", methods=["ppr"]).close()
    given = write_triples(tmp_path / "corpus", {name: rows[name] for name in "ab"})
    gpu_rag.update(tmp_path / "index", settings=FAST).index.close()
    again = gpu_rag.build(**given, out=tmp_path / "again", methods=["ppr"])
    assert digest(tmp_path / "index") == again.manifest.digest()
    assert again.report is not None and again.report.count("synonyms") == 1
