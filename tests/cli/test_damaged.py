"""Damaged indexes: whatever file is missing, cut, empty, swapped or altered, one error says so, with exit status 1."""

import copy
import json
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from damage import manifest_of

import gpu_rag
from gpu_rag.errors import GpuRagError, IndexCorrupt, IndexMismatch
from gpu_rag.index.folder import BLOCK, block_sums, checksums
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.manifest import Manifest, damage, mend_manifest
from gpu_rag.index.saved_settings import saved_settings
from gpu_rag.index.verify import verify
from gpu_rag.methods.registry import stage_checks
from gpu_rag.models.llm.cache import ReplyFile
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings import make_settings

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}
METHODS = ("ppr", "hybgrag")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a graph and a base with texts, indexed for two methods."""
    folder = tmp_path_factory.mktemp("damaged")
    texts = ["Marta Orlo designed the Halden Bridge.", "Tamsin is a port. Anna Stroud was mayor of Tamsin."]
    rows = [{"id": f"d{k}", "title": "", "text": text} for k, text in enumerate(texts)]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "kg.tsv").write_text("Marta Orlo\tborn in\tTamsin\nAda\tknows\tBo\n")
    (folder / "med").mkdir()
    nodes = [{"id": "x", "type": "drug", "name": "Veluxin", "text": "Made in Tamsin."}, {"id": "g", "name": "Wex"}]
    (folder / "med/nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nodes))
    (folder / "med/edges.tsv").write_text("x\tlike\tg\n")
    given = {"kg": folder / "kg.tsv", "skb": folder / "med", "settings": FAST}
    gpu_rag.build(folder / "c.jsonl", folder / "ix", methods=METHODS, **given)
    assert verify(folder / "ix", stage_checks()) == []
    return folder / "ix"


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "ix"))


def is_refused(folder: Path, method: str) -> bool:
    """Whether a method finds the index broken, before it asks or for each question; what it does not read may be."""
    try:
        index = gpu_rag.Index.open(folder)
        (answer,) = index.retrieve(["Who was mayor of Tamsin?"], method=method, settings=FAST)
    except IndexCorrupt:
        return True
    assert answer.error is None or answer.error["type"] == "IndexCorrupt"
    return answer.error is not None


def commands(cli: Any, folder: Path, questions: Path, corpus: Path, out: Path) -> list[tuple[Any, ...]]:
    return [
        ("eval", folder, questions, "--method", "ppr", "--retrieval-only", *cli.NO_LLM),
        ("answer", folder, questions, "--method", "ppr", "--out", out, *cli.NO_LLM),
        ("export", folder, "--format", "graphml", "--out", out),
        ("index", corpus, "--out", folder, *cli.NO_LLM),
        ("index", corpus, "--out", folder, "--plan", *cli.NO_LLM),
        ("verify", folder),
    ]


def check_statuses(run: Any, given: list[tuple[Any, ...]], status: int, said: str) -> None:
    for command in given:
        result = run(*command)
        assert result.status == status, (command, result.err)
        assert said in result.err and "internal error" not in result.err and result.err.count("\n") == 1


DAMAGES: dict[str, Any] = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no JSON": lambda text: "gpu-rag",
    "no text": lambda text: "\udcff" + text,
    "nested": lambda text: "[" * 100_000,
    "a list": lambda text: f"[{text}]",
    "no stages": lambda text: text.replace('"stages":', '"stags":'),
    "no format": lambda text: text.replace('"format":1', '"format":"1"'),
    "half a stage": lambda text: text.replace('"fingerprint"', '"thumbprint"', 1),
    "a stage elsewhere": lambda text: text.replace('"folder":"stages/', '"folder":"../stages/', 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_a_broken_index(run, broken, damage):
    text = (broken / "manifest.json").read_text()
    (broken / "manifest.json").write_bytes(DAMAGES[damage](text).encode("utf-8", "surrogateescape"))
    (broken / "manifest.copy.json").unlink()
    with pytest.raises(IndexCorrupt, match="manifest"):
        Manifest.read(broken)
    check_statuses(run, [("verify", broken)], 1, "manifest")


def test_every_command_finds_the_manifest_damaged_and_fresh_goes_on(run, cli, broken, questions, tiny_corpus, tmp_path):
    (broken / "manifest.json").write_text(DAMAGES["cut"]((broken / "manifest.json").read_text()))
    (broken / "manifest.copy.json").unlink()
    check_statuses(run, commands(cli, broken, questions, tiny_corpus, tmp_path / "out"), 1, "manifest")
    assert run("index", tiny_corpus, "--out", broken, "--fresh", "--for", "bm25", *cli.NO_LLM).status == 0


def test_another_format_version_and_no_index_are_bad_input(run, cli, broken, questions, tiny_corpus, tmp_path):
    text = (broken / "manifest.json").read_text()
    (broken / "manifest.json").write_text(text.replace('"format":1', '"format":99'))
    given = commands(cli, broken, questions, tiny_corpus, tmp_path / "out")
    check_statuses(run, given, 2, "99")
    with pytest.raises(IndexMismatch):
        Manifest.read(broken)
    (broken / "manifest.json").unlink()
    reading = [command for command in given if command[0] != "index"]
    check_statuses(run, reading, 2, str(broken))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    found = copy.deepcopy(document)
    at = found
    for key in path[:-1]:
        at = at[key]
    if value is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return found


def test_no_change_of_a_manifest_escapes(broken: Path) -> None:
    """Whatever stands in place of a part of it: it is refused, or what reads it gets on."""
    document = manifest_of(broken)
    refused = 0
    for number, path in enumerate(places(document)):
        value = (KeyError, None, 7, "x", [], {})[number % 6]
        (broken / "manifest.json").write_text(json.dumps(changed(document, path, value)))
        try:
            manifest = Manifest.read(broken)
            manifest.model("embedder"), manifest.digest()
            make_settings(saved_settings(broken))
        except GpuRagError as error:
            refused += isinstance(error, IndexCorrupt)
    assert refused > 150


def test_a_check_that_finds_what_no_build_writes_names_it(broken):
    """A file of the right types that lacks what the check of vectors reads gives a line, and the other checks go on."""
    document = manifest_of(broken)
    del document["stages"]["passage_vectors"]["models"]["embedder"]["dim"]
    (broken / "manifest.json").write_text(json.dumps(document))
    assert verify(broken, stage_checks()) == ["vectors: the check stopped at what no build writes: KeyError 'dim'"]


def files_of(folder: Path) -> list[Path]:
    """The files of the stages but for those that are no part of an index, since they only spare its next build work."""
    files = (path for path in (folder / "stages").rglob("*") if path.is_file() and path.stem != "carried")
    return sorted(path for path in files if path.stat().st_size)


def test_a_file_that_is_missing_cut_altered_or_another_is_named(broken):
    """Each file in each way: all files of the index at once, each in another way than the one before it."""
    chance, files, refused = random.Random(0), files_of(broken), 0
    held = {file: file.read_bytes() for file in files}

    def damaged(number: int, way: int) -> bytes | None:
        file, data = files[number], bytearray(held[files[number]])
        if way == 0:
            return None
        if way == 1:
            return bytes(data[: len(data) // 2])
        if way == 2:  # another file of its kind
            alike = [other for other in files[number + 1 :] + files[:number] if other.suffix == file.suffix]
            return next((held[other] for other in alike if held[other] != bytes(data)), b"")
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        return bytes(data)

    for shift in range(4):
        for number, file in enumerate(files):
            bad = damaged(number, (number + shift) % 4)
            file.unlink() if bad is None else file.write_bytes(bad)
        lines = verify(broken, stage_checks())
        for number, file in enumerate(files):
            name = f"{file.parent.name}/{file.name}"
            assert any(name in line for line in lines), name
            if (number + shift) % 4 < 2:
                with pytest.raises(IndexCorrupt):
                    gpu_rag.Index.open(broken).folder(file.parent.name.rpartition("-")[0])
        for file in files:
            file.write_bytes(held[file])
    for file in files:
        file.unlink()
        refused += any(is_refused(broken, method) for method in METHODS)
        file.write_bytes(held[file])
    assert verify(broken, stage_checks()) == [] and refused > 8


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [("edges", "head", 99), ("edges", "tail", -1), ("edges", "relation", 7), ("records", "node", 99),
     ("nodes", "type", 9), ("nodes", "passages", [99]), ("edges", "source", 5), ("passages", "source", 8)],
)  # fmt: skip
def test_row_numbers_that_no_table_has_are_refused_before_they_are_used(broken, table, column, value):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = gpu_rag.Index.open(broken).folder("kb") / f"kb_{table}.parquet"
    held = pq.read_table(path)
    values = held[column].to_pylist()
    values[-1] = value
    at = held.schema.get_field_index(column)
    pq.write_table(
        held.set_column(at, held.schema.field(column), pa.array(values, held.schema.field(column).type)), path
    )
    document = manifest_of(broken)
    document["stages"]["kb"]["files"] = checksums(path.parent)
    (broken / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(IndexCorrupt, match=f"names rows that do not exist; given kb_{table}.parquet: {column}"):
        gpu_rag.Index.open(broken).loaded("kb", load_kb)


def flip(path: Path, chance: random.Random) -> None:
    """One bit of a file is another."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def is_noticed(folder: Path, file: Path) -> bool:
    """Whether what reads the stage of a file refuses it, by name."""
    try:
        gpu_rag.Index.open(folder).folder(file.parent.name.rpartition("-")[0])
    except IndexCorrupt as error:
        assert f"{file.parent}/" in str(error) and "run gpu-rag index again" in str(error)
        return True
    return False


def test_a_flipped_bit_is_noticed_where_it_is_read_and_mended_by_index(broken, sound, tmp_path, caplog):
    chance, before = random.Random(7), Manifest.read(broken)
    source, kept = sound.parent, {file: file.read_bytes() for file in files_of(broken)}
    for file in kept:
        flip(file, chance)
        assert is_noticed(broken, file)
    given = {"kg": source / "kg.tsv", "skb": source / "med", "settings": FAST}
    report = gpu_rag.build(source / "c.jsonl", broken, methods=METHODS, **given).report
    assert not any(stage.skipped for stage in report.stages.values()) and "damaged, and made again" in caplog.text
    assert Manifest.read(broken) == before and all(file.read_bytes() == data for file, data in kept.items())
    assert verify(broken, stage_checks()) == []


def test_a_damaged_stage_of_an_earlier_build_is_made_anew(broken, sound):
    flip(next(file for file in files_of(broken) if file.parent.name.startswith("graph-")), random.Random(1))
    given = {"kg": sound.parent / "kg.tsv", "skb": sound.parent / "med", "settings": FAST}
    report = gpu_rag.build(sound.parent / "c.jsonl", broken, methods=("bm25",), **given).report
    assert report.manifest.stages.keys() >= {"bm25", "synonyms"} and not report.stages["graph"].skipped
    assert verify(broken, stage_checks()) == []


def test_the_place_of_damage_in_a_large_file_is_said(broken):
    before = Manifest.read(broken)
    file = files_of(broken)[0]
    file.write_bytes(file.read_bytes() + bytes(3 * BLOCK))
    record = before.stages[file.parent.name.rpartition("-")[0]]
    record = replace(record, files=checksums(file.parent))
    manifest = before.with_stage(record, block_sums(file.parent, record.files))
    assert damage(broken, manifest, record.name) is None
    data = bytearray(file.read_bytes())
    data[-BLOCK - BLOCK // 2] ^= 1
    file.write_bytes(data)
    place = (len(data) - BLOCK - BLOCK // 2) // BLOCK * BLOCK
    assert f"between bytes {place:,} and {place + BLOCK:,}" in str(damage(broken, manifest, record.name))


def test_an_index_that_was_built_without_checksums_of_blocks_is_checked_and_gets_them(broken, sound):
    (broken / "manifest.json").write_text(json.dumps(manifest_of(broken)))
    file = files_of(broken)[0]
    assert not is_noticed(broken, file)
    flip(file, random.Random(2))
    assert is_noticed(broken, file)
    given = {"kg": sound.parent / "kg.tsv", "skb": sound.parent / "med", "settings": FAST}
    gpu_rag.build(sound.parent / "c.jsonl", broken, methods=METHODS, **given)
    assert (broken / "manifest.json").read_bytes() == (sound / "manifest.json").read_bytes()


def test_every_flipped_bit_of_a_manifest_is_noticed_and_its_copy_goes_on(run, cli, broken, sound, caplog):
    chance, path = random.Random(4), broken / "manifest.json"
    data = path.read_bytes()
    for _ in range(100):
        flip(path, chance)
        whole = b'"format":1' in path.read_bytes()  # else another format, or no JSON
        with pytest.raises(IndexCorrupt if whole else (IndexCorrupt, IndexMismatch), match="manifest"):
            Manifest.read(broken)
        path.write_bytes(data)
    path.write_bytes(data[:-40])
    assert "run gpu-rag index again" in run("verify", broken).err
    mend_manifest(broken)
    assert path.read_bytes() == data and "its copy is in its place" in caplog.text


def test_index_mends_its_replies_before_a_model_opens_them(tiny_corpus, tmp_path, caplog):
    """A model that had opened the damaged file would write to what is no file of the index any more."""
    names = [{"name": name, "aliases": [], "types": [], "description": ""} for name in ("Kerling", "Ves")]
    found = {"entities": names, "triples": [["Kerling", "lies on", "Ves"]]}
    llm, settings = ScriptedLLM(lambda request: json.dumps(found)), {**FAST, "index": {"extractor": "llm"}}
    first = gpu_rag.build(tiny_corpus, tmp_path / "ix", llm=llm, settings=settings).report
    path, n = tmp_path / "ix/replies.sqlite", len(llm.calls)
    with closing(sqlite3.connect(path)) as db, db:
        (key,) = db.execute("SELECT min(key) FROM replies").fetchone()
        db.execute("UPDATE replies SET reply = replace(reply, 'Ves', 'Vez') WHERE key = ?", (key,))
    assert any(key in line for line in verify(tmp_path / "ix"))
    (tmp_path / "ix" / first.manifest.stages["extraction"].folder / "extractions.parquet").unlink()
    again = gpu_rag.build(tiny_corpus, tmp_path / "ix", llm=llm, settings=settings).report
    assert key in caplog.text and len(llm.calls) == n + 1 and again.manifest == first.manifest
    assert verify(tmp_path / "ix") == [] and len(ReplyFile(path)) == n


@pytest.mark.parametrize("name", ["manifest.copy.json", "run.json", "rejects.jsonl"])
def test_what_no_command_reads_is_noticed_by_verify(broken, sound, name):
    (broken / name).write_bytes((broken / name).read_bytes()[:-2] + b" \n")
    assert any(line.startswith(name) for line in verify(broken, stage_checks()))
    given = {"kg": sound.parent / "kg.tsv", "skb": sound.parent / "med", "settings": FAST}
    gpu_rag.build(sound.parent / "c.jsonl", broken, methods=METHODS, **given)
    assert verify(broken, stage_checks()) == []


def test_the_line_to_run_names_what_the_index_was_built_from(run, cli, questions, tmp_path):
    (tmp_path / "kg.tsv").write_text("a\tr\tb\n")
    ix = tmp_path / "ix"
    assert run("index", "--kg", tmp_path / "kg.tsv", "--out", ix, *cli.NO_LLM).status == 0
    result = run("eval", ix, questions, "--method", "hybgrag", "--retrieval-only", *cli.NO_LLM)
    assert result.status == 2 and f"run: gpu-rag index --kg FILE --out {ix} --for hybgrag (" in result.error
    assert "CORPUS" not in result.error


def test_the_same_command_goes_on_from_the_copy_of_a_damaged_manifest(run, cli, index, tiny_corpus):
    """Its settings are read from the copy too."""
    (index / "manifest.json").write_bytes(b"\xff" + (index / "manifest.json").read_bytes()[1:])
    assert run("ask", index, "Who?", "--method", "bm25", *cli.NO_LLM).status == 1
    again = run("index", tiny_corpus, "--out", index, "--for", ",".join(cli.METHODS), *cli.NO_LLM, "--json")
    assert again.status == 0 and all(stage["skipped"] for stage in again.document["stages"].values())
    assert run("verify", index).status == 0
